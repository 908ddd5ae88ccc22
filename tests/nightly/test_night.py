"""A nightly run goes on after a failed part, and reports new problems first."""

import errno
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from asv.machine import Machine
from lxml import etree

from gradwatch.harness.nightly import night as parts
from gradwatch.harness.nightly.night import (
    Ended,
    Night,
    Report,
    Result,
    junit,
    markdown,
    problems_of,
    run,
    write,
)
from gradwatch.harness.project import documents, git
from gradwatch.harness.project.records import (
    AGREE,
    AgreeRecord,
    AgreeSummary,
    FindingRecord,
    FuzzSummary,
    PartState,
    Problem,
)
from gradwatch.harness.watch.search import survey
from tests import command_line, damage
from tests.copies import copy_code
from tests.histories import (
    ENVIRONMENT,
    MACHINE,
    SERIES,
    noisy,
    record,
    repository,
    stepped,
)
from tests.pages import plant
from tests.watch.test_alerts import gradwatch

WRONG = Problem("agree", "softmax", "numpy_manual", "dx disagree", "3.1 radii")
SLOW = Problem("watch", "dot", "torch_custom", "time_backward step at abc", "+20 %")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def night(tmp_path):
    """A night in a scratch repository with two runs in its history."""
    root = tmp_path / "repository"
    commits = repository(root, ["square", "square"])
    record(root, commits, {SERIES: [1.0, 1.0]})
    (root / ".gitignore").write_text("__pycache__\n")
    folder = tmp_path / "night"
    where = {"results": root / "results", "root": root}
    return Night(folder, 60.0, ["square"], ["numpy_manual"], **where)


def told(*problems, **more):
    return lambda night: Result("looked", problems, **more)


def broken(error):
    def part(night):
        raise error

    return part


def report_of(*problems, previous=(), **more):
    done = [
        Result("looked", problems, name="agree", state="failed", seconds=1.0, **more)
    ]
    return Report(done, previous)


# Going on -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "state", "code"),
    [
        (told(), "passed", 0),
        (told(skipped=True), "skipped", 0),
        (told(WRONG), "failed", 1),
        (told(required=True), "failed", 3),
        (broken(ValueError("no such thing")), "broken", 1),
        (broken(OSError(errno.ENOSPC, "No space left on device")), "broken", 1),
    ],
)
def test_after_any_end_of_a_part_the_next_one_runs(night, first, state, code):
    done = run(night, {"first": first, "second": told()})
    assert [(d.name, d.state) for d in done] == [("first", state), ("second", "passed")]
    assert Report(done, []).exit_code == code


def test_the_message_of_a_broken_part_is_reported(night):
    (done,) = run(night, {"first": broken(ValueError("no such thing"))})
    (problem,) = done.problems
    assert done.line == problem.told == "ValueError: no such thing"


# Telling ------------------------------------------------------------------------


def test_the_first_line_names_op_backend_and_tensor():
    first = markdown(report_of(WRONG, SLOW)).splitlines()[0]
    assert first == "**New: softmax on numpy_manual: dx disagree** and 1 more"


def test_the_first_line_has_the_commit_of_a_wrong_gradient():
    since = Problem("watch", "softmax", "numpy_manual", "wrong since 1234567890", "")
    first = markdown(report_of(WRONG, SLOW, since)).splitlines()[0]
    told = "**New: softmax on numpy_manual: wrong since 1234567890** and 2 more"
    assert first == told


def test_new_problems_come_before_known_and_gone_ones():
    gone = Problem("fuzz", "sum", "torch_custom", "da crash", "")
    text = markdown(report_of(WRONG, SLOW, previous=[WRONG, gone]))
    assert text.startswith("**New: dot on torch_custom")
    assert text.index("**New: 1**") < text.index("**Known since") < text.index("**Gone")
    assert "da crash" in text[text.index("**Gone") :]


def test_a_known_problem_with_other_figures_is_not_new():
    again = Problem(*WRONG.key, "3.2 radii")
    report = report_of(again, previous=[WRONG])
    assert (report.new, report.problems, report.exit_code) == ([], [again], 1)
    assert markdown(report).startswith("**Still: softmax")


def test_a_run_without_problems_says_how_much_it_examined():
    report = Report([Result("48,456 tensors judged", name="agree", seconds=1.0)], [])
    assert markdown(report).startswith("**All as expected**: 48,456 tensors judged")


def test_a_long_list_of_problems_is_shortened():
    problems = [
        Problem("agree", f"op{i}", "numpy_manual", "dx disagree", "long " * 1000)
        for i in range(500)
    ]
    text = markdown(report_of(*problems))
    assert len(text.splitlines()) < 40
    assert len(text) < 8000
    assert "and 490 more" in text


def test_a_message_cannot_break_the_page():
    problem = Problem("agree", "dot", "numpy_manual", "dx", "a|b\n# c <b> `d` [e](f)")
    line = next(
        row for row in markdown(report_of(problem)).splitlines() if "a\\|b" in row
    )
    assert line.startswith("- **dot on numpy_manual**")
    assert "\\<b\\>" in line


# JUnit --------------------------------------------------------------------------


SCHEMA = etree.XMLSchema(etree.parse(str(Path(__file__).with_name("junit.xsd"))))


def agreement(verdict="agree"):
    rows = [
        agree_record(op, backend)
        for op in ("square", "dot")
        for backend in ("numpy_manual", "numpy_graph")
    ]
    rows[0].verdict = verdict
    missing = {"oneflow_custom": "no such Python"}
    return documents.document(rows, AgreeSummary(missing=missing))


def agree_record(op, backend, **fields):
    about = {"case": f"{op}[normal-3-float32]", "regime": "normal", "dtype": "float32"}
    about |= {"framework": "numpy", "framework_version": "2.4.6", "device": "cpu"}
    about |= {"tensor": "dx", "verdict": "agree", "ratio": 1.0, "message": "it is off"}
    return AgreeRecord(op=op, backend=backend, **{**about, **fields})


def cases(report, document):
    tree = etree.fromstring(junit(report, document).encode())
    SCHEMA.assertValid(tree)
    return {(c.get("classname"), c.get("name")): c for c in tree.iter("testcase")}


def test_a_commit_that_slows_an_op_in_several_series_is_one_problem(tmp_path):
    root = tmp_path / "repository"
    values = stepped(noisy(40), 20, 0.2)
    commits = repository(root, ["square"] * len(values))
    forward = SERIES.replace("backward", "forward")
    record(root, commits, {SERIES: values, forward: values})
    failing = survey(root / "results", root=root).failing
    assert len(failing) == 2
    assert len(parts._by_place(failing)) == 2  # of two metrics
    ((place, alerts),) = parts._by_place(failing[:1] * 3).items()
    assert place[:2] == ("square", "numpy_manual")
    assert place[2].endswith(f" step at {commits[20][:10]}")
    assert parts._detail(alerts, root).endswith("; commit 20 (and 2 more series)")


def test_a_gradient_that_became_wrong_is_a_problem_with_its_first_commit(tmp_path):
    root = tmp_path / "repository"
    commits = repository(root, ["square"] * 4)
    ratio = "bench_accuracy.square.track_gradient_ratio"
    record(root, commits, {ratio: [0.4, 0.4, 1e11, 1e11]})
    (place,) = parts._by_place(survey(root / "results", root=root).failing)
    assert place[2] == f"wrong since {commits[2][:10]}"


def test_the_backends_of_the_night_that_are_missing_are_noted(night, monkeypatch):
    missing = {"oneflow_custom": "no Python", "torch_custom": "no torch"}
    missing |= {"oneflow_formula": "no Python"}
    night = replace(night, backends=[*missing])
    summary = AgreeSummary(missing={**missing, "mlx_formula": "only on request"})
    answered(monkeypatch, documents.document([], summary))
    assert parts.agreement(night).notes == [
        "oneflow_custom: no Python",
        "oneflow_formula: no Python",
        "torch_custom: no torch",
    ]


def answered(monkeypatch, document):
    """Let each command end well, with this document."""
    monkeypatch.setattr(
        Night, "document", lambda night, part, *_: (document, Ended(part, 0, ""))
    )


def test_each_op_and_backend_is_a_case_and_each_part_one_of_another_suite():
    report = Report([Result("", name="agree")], [])
    found = cases(report, agreement())
    assert set(found) == {
        *(
            (f"gradwatch.{op}", f"{op}[{backend}]")
            for op in ("square", "dot")
            for backend in ("numpy_manual", "numpy_graph")
        ),
        ("gradwatch.backend", "all[oneflow_custom]"),
        ("gradwatch.nightly", "agree"),
    }
    assert not [c for c in found.values() if c.find("failure") is not None]


def test_disagreements_fail_their_case_and_problems_that_of_their_part():
    slow = Problem("watch", "dot", "numpy_graph", "time_backward step", "+20 %")
    found = cases(report_of(slow), agreement("disagree"))
    failed = {name: c.find("failure") for (_, name), c in found.items()}
    failed = {name: one.text for name, one in failed.items() if one is not None}
    assert {*failed} == {"square[numpy_manual]", "agree"}
    assert "+20 %" in failed["agree"]


@pytest.mark.parametrize("state", get_args(PartState))
def test_a_part_that_could_not_run_is_not_a_passed_case(state):
    report = Report(
        [Result("why\x00\x1b[0m", name="fuzz", state=state, seconds=0.00001)], []
    )
    case = cases(report, None)["gradwatch.nightly", "fuzz"]
    outcomes = {"passed": None, "failed": "failure", "broken": "error"}
    expected = outcomes.get(state, "skipped")
    assert [child.tag for child in case] == ([expected] if expected else [])


@pytest.mark.parametrize(
    "text",
    [
        "<testsuites><testsuite name='a' tests='1' failures='0'/></testsuites>",
        "<testsuites><testsuite name='a' tests='x' failures='0' errors='0'/>"
        "</testsuites>",
        "<testsuites><testcase name='a' classname='b'/></testsuites>",
    ],
)
def test_the_schema_rejects_what_is_no_junit(text):
    assert not SCHEMA.validate(etree.fromstring(text))


# The output folder ----------------------------------------------------------------


def test_the_document_of_a_night_is_the_next_nights_previous(night):
    write(report_of(WRONG), night)
    file = night.folder / "nightly.json"
    assert problems_of(file) == (
        [Problem(*WRONG.key, WRONG.told, new=True)],
        [],
    )
    assert {f.name for f in night.folder.iterdir()} == {
        *("nightly.json", "summary.md", "junit.xml")
    }


def test_nothing_of_an_earlier_night_is_taken_for_this_one_s(night):
    """A part that raises early would show the verdicts of yesterday."""
    night.piece("agree").parent.mkdir(parents=True)
    night.piece("agree").write_text("yesterday")
    run(night, {"first": told()})
    assert not night.piece("agree").exists()


def test_no_night_before_is_no_problem(tmp_path):
    assert problems_of(tmp_path / "nightly.json") == ([], [])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"schema": 1, "rec', "not readable as JSON"),
        ('{"schema": 1, "records": ' + "[" * 100_000, "nested too deeply"),
        (
            '{"schema": 1, "environment": {}, "summary": {}, "records": [{"op": 1}]}',
            "op",
        ),
    ],
    ids=["cut short", "deep", "not of a night"],
)
def test_a_damaged_night_before_costs_its_comparison_alone(tmp_path, content, told):
    file = tmp_path / "nightly.json"
    file.write_text(content)
    before, (note,) = problems_of(file)
    assert before == []
    assert told in note
    assert str(file) in note
    report = Report([Result("", name="agree")], before, [note])
    assert report.exit_code == 0
    assert "nightly.json" in markdown(report)


def test_on_a_full_disk_the_former_report_stands(night, monkeypatch):
    write(report_of(WRONG), night)
    before = {f: f.read_bytes() for f in night.folder.glob("*.*")}

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(report_of(SLOW), night)
    monkeypatch.undo()
    assert {f: f.read_bytes() for f in night.folder.glob("*.*")} == before


# The parts ------------------------------------------------------------------------


def test_with_changed_files_nothing_goes_into_the_history(night):
    (night.root / "impls" / "ops" / "square.py").write_text("changed")
    result = parts.times(night)
    assert "1 files differ from the commit (impls/ops/square.py)" in result.line


def test_a_results_folder_that_cannot_be_written_is_reported(night, monkeypatch):
    """Not by permissions: root may write anywhere."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    (done,) = run(night, {"time": parts.times})
    assert done.state == "broken"
    assert "results folder cannot be written" in done.line


@pytest.mark.parametrize("is_repository", [True, False])
def test_without_a_commit_there_is_a_line_for_the_history_and_the_night_goes_on(
    tmp_path, is_repository
):
    root = tmp_path / "project"
    root.mkdir()
    if is_repository:
        subprocess.run(["git", "-C", root, "init", "-q"], check=True)
    where = {"results": root / "results", "root": root}
    night = Night(tmp_path / "night", 60.0, ["square"], ["numpy_manual"], **where)
    measured, after = run(night, {"time": parts.times, "next": told()})
    why = "'HEAD' is not a commit" if is_repository else "not a git repository"
    assert why in measured.line
    assert measured.line.count("\n") == 0
    assert (measured.state, after.state) == ("broken", "passed")


def test_a_result_that_is_cut_short_is_noted_and_left_alone(night):
    commit = git.commit_of("HEAD", night.root)
    name = f"{commit[:8]}-{ENVIRONMENT}.json"
    file = night.results / "asv" / MACHINE / name
    file.write_text(file.read_text()[:100])
    before = file.read_bytes()
    done = run(night, {"watch": parts.watch, "next": told()})
    assert [d.state for d in done] == ["passed", "passed"]
    assert name in done[0].notes[0]
    assert file.read_bytes() == before


DAMAGES = ("cut short", "deep", "a pipe", "700 MB")


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize(
    "name",
    [
        "asv.conf.json",
        "results/asv/benchmarks.json",
        f"results/asv/{MACHINE}/machine.json",
        "results/confirmations/here.json",
    ],
)
def test_a_damaged_document_is_named_and_costs_the_watch_alone(
    night, monkeypatch, name, how
):
    monkeypatch.setattr(
        "gradwatch.harness.watch.search.machine_name", lambda folder: "here"
    )
    file = _damaged(night.root / name, how)
    watch, after = run(night, {"watch": parts.watch, "next": told()})
    assert file.name in " ".join([watch.line, *watch.notes])
    assert len(watch.line.splitlines()) == 1
    assert watch.state == "broken" or watch.line.startswith("1 series")
    assert after.state == "passed"


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_index_of_findings_is_named_and_costs_itself(night, monkeypatch, how):
    file = _damaged(night.results / "findings" / "index.json", how)
    drawn = documents.document([], FuzzSummary(tried=9))
    answered(monkeypatch, drawn)
    (fuzz,) = run(night, {"fuzz": parts.fuzz})
    assert (fuzz.state, fuzz.line) == ("passed", "9 trials, 0 of 0 findings are new")
    (note,) = fuzz.notes
    assert str(file) in note


def _damaged(file, how):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    damage.FILES[how][0](file)
    return file


def test_a_shallow_clone_breaks_the_watch_with_the_command_that_fixes_it(
    night, monkeypatch
):
    monkeypatch.setattr(git, "is_shallow", lambda root: True)
    record(night.root, ["f" * 40], {SERIES: [1.0]})
    (done,) = run(night, {"watch": parts.watch})
    assert done.state == "broken"
    assert "git fetch --unshallow" in done.line


def test_a_command_without_a_document_is_reported_with_its_last_line(night):
    night = replace(night, root=ROOT, ops=["no_such_op"])
    (done,) = run(night, {"agree": parts.agreement})
    assert done.state == "broken"
    assert "exit code 2" in done.line
    assert "no_such_op" in done.line
    assert night.piece("agree").with_suffix(".log").read_text()


def test_a_child_dies_with_the_night(tmp_path):
    """Or else a killed night would measure beside the one that takes it up."""
    script = (
        "import sys; from pathlib import Path; from types import SimpleNamespace as N;"
        "from gradwatch.harness.nightly.night import Night;"
        "at = lambda name: Path(sys.argv[1], name).with_suffix('.json');"
        "Night.run(N(piece=at, root='.'), 'nap',"
        " '-c', 'import os, time; print(os.getpid(), flush=True); time.sleep(60)')"
    )
    running = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT)
    log = tmp_path / "nap.log"
    while not (log.exists() and log.read_text().endswith("\n")):
        assert running.poll() is None
        time.sleep(0.02)
    child = int(log.read_text())
    running.kill()
    running.wait()
    for _ in range(200):
        try:
            state = (
                Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
            )
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.02)
    pytest.fail(f"process {child} goes on")


# The command ----------------------------------------------------------------------


@pytest.fixture
def project(tmp_path):
    """A repository with this project's code and a history of forty runs."""

    def made(values):
        root = tmp_path / "project"
        commits = repository(root, ["square"] * len(values))
        record(root, commits, {SERIES: values})
        copy_code(root)
        return root

    return made


NIGHT = ("nightly", "--op", "square", "--backend", "numpy_manual", "--budget", "10m")


def test_a_wrong_backward_fails_the_night_and_is_its_first_line(project):
    root = project(noisy(40))
    plant(root / "impls" / "ops", "(3 * x**2 * dy,)", "(3 * x * dy,)")
    done = gradwatch(root, *NIGHT, "--op", "cube", "--part", "agree")
    assert done.returncode == 1, done.stderr
    first = (root / "nightly" / "summary.md").read_text().splitlines()[0]
    assert first.startswith("**New: cube on numpy_manual: dx disagree")
    found, following = done.stdout.replace("\n", " ").split("next: ")
    assert found.strip() == "✗ " + first.replace("*", "").replace("`", "")
    assert following.startswith("nightly/summary.md")
    tree = etree.parse(str(root / "nightly" / "junit.xml"))
    SCHEMA.assertValid(tree)
    (failed,) = [c for c in tree.iter("testcase") if c.get("name").startswith("cube")]
    assert failed.find("failure") is not None


def test_a_page_that_ends_the_process_fails_the_night_and_costs_no_other(project):
    root = project(noisy(40))
    formula = "def formula(xp, x):\n    "
    plant(root / "impls" / "ops", formula, f"{formula}import os; os._exit(0)\n    ")
    done = gradwatch(root, *NIGHT, "--op", "cube", "--part", "agree")
    assert done.returncode == 1, done.stderr
    first = (root / "nightly" / "summary.md").read_text().splitlines()[0]
    assert first.startswith("**New: cube on reference: all crash")
    judged = documents.read(root / "nightly" / "parts" / "agree.json", AGREE).records
    of_square = {r.verdict for r in judged if r.op == "square"}
    assert of_square == {"agree", "vacuous"}  # of subnormal gradients nothing is told


def test_a_page_that_ends_the_night_s_own_process_is_no_success(project, monkeypatch):
    """The night loads it where it compares commits: here a step on this machine."""
    root = project(stepped(noisy(5), 3, 0.5))
    here = {**Machine.get_defaults(), "version": 1, "machine": MACHINE}
    machine = root / "results" / "asv" / MACHINE / "machine.json"
    machine.write_text(json.dumps(here))
    monkeypatch.setenv("GRADWATCH_MACHINE", MACHINE)
    page = root / "impls" / "ops" / "square.py"
    page.write_text("import os\nos._exit(0)\n" + page.read_text())
    done = gradwatch(root, *NIGHT, "--part=watch")
    assert done.returncode == 1, done.stderr
    assert "exited with status 0" in done.stderr


def test_a_night_that_can_judge_nothing_is_exit_3(project):
    root = project(noisy(40))
    night = ("nightly", "--op", "square", "--backend", "oneflow_custom")
    done = gradwatch(root, *night, "--part", "agree")
    assert done.returncode == 3, done.stderr


def test_a_slowdown_fails_the_night_and_is_its_first_line(project):
    root = project(stepped(noisy(40), 20, 0.2))
    done = gradwatch(root, *NIGHT, "--part", "agree", "--part", "watch")
    assert done.returncode == 1, done.stderr
    first = (root / "nightly" / "summary.md").read_text().splitlines()[0]
    assert first.startswith("**New: square on numpy_manual: time_backward step at ")


@pytest.mark.parametrize(("backend", "new"), [("numpy_manual", 0), ("numpy_graph", 1)])
def test_a_finding_is_new_where_none_of_that_op_and_backend_is_recorded(
    tmp_path, monkeypatch, backend, new
):
    """Recorded is one of square on numpy_manual, in another tensor and verdict."""
    record = agree_record("square", backend, tensor="y", verdict="disagree")
    one = FindingRecord(record=record, part="state")
    answered(monkeypatch, documents.document([one], FuzzSummary(tried=9)))
    record = agree_record("square", "numpy_manual", verdict="nonfinite")
    recorded = FindingRecord(record=record, part="backward")
    monkeypatch.setattr(parts.store, "load", lambda _: ([recorded], []))
    night = Night(tmp_path, 1.0, (), ())
    result = parts.fuzz(night)
    assert [p.op for p in result.problems] == ["square"] * new
    assert result.line == f"9 trials, {new} of 1 findings are new"


def test_a_run_without_problems_is_exit_0(project):
    root = project(noisy(40))
    done = gradwatch(root, *NIGHT, "--part", "watch")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All as expected" in done.stdout


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (("--budget", "soon"), "not a time such as"),
        (("--budget", "0m"), "not a time such as"),
        (("--part", "agre"), "did you mean 'agree'"),
        (("--require", "torch_custo"), "did you mean 'torch_custom'"),
    ],
)
def test_a_wrong_call_is_exit_2(options, hint):
    done = command_line.gradwatch("nightly", *options)
    assert done.returncode == 2
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
