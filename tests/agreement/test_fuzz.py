"""The fuzzer finds what is planted, shrinks it, and writes scripts that really run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from gradwatch.harness.agreement import store
from gradwatch.harness.commands.fuzz import Hunt, draw
from gradwatch.impls.catalogue import load_op
from scripts.findings import page as page_of
from tests.command_line import gradwatch
from tests.pages import CUBE

ROOT = Path(__file__).parents[2]
MORE = pytest.mark.slow  # other numbers for the same claim
BACKWARD = "lambda dy: (3 * x**2 * dy,)"
MAXIMUM = (ROOT / "impls" / "ops" / "maximum.py").read_text()

# Wrong gradients that ordinary numbers never show: (page, what is replaced, by what).
PLANTED = {
    "a length of 1": (CUBE, BACKWARD, "lambda dy: ((3 + (1 in x.shape)) * x**2 * dy,)"),
    "a negative stride": (
        CUBE,
        BACKWARD,
        "lambda dy: ((3 + any(s < 0 for s in x.strides)) * x**2 * dy,)",
    ),
    "above 1e3": (
        CUBE,
        BACKWARD,
        "lambda dy: (np.where(abs(x) > 1e3, 4, 3).astype(x.dtype) * x**2 * dy,)",
    ),
    "an exact tie": (
        MAXIMUM,
        "sum_to((1 - share) * dy, b.shape)",
        "sum_to(dy * (b >= a), b.shape)",
    ),
}
DEADLY = (
    CUBE,
    f"return x**3, {BACKWARD}",
    f"""import os
    return x**3 if x.size else os.abort(), {BACKWARD}""",
)


def plant(folder, page, old, new):
    assert old in page
    file = folder / "scratch.py"
    file.write_text(page.replace(old, new))
    return str(file)


def shrunk(fleet, page, *, seed=0, backends=("numpy_manual",), budget=60):
    """The first finding that comes for the second time: shrunk, with its script."""
    seen = set()
    run = Hunt(backends, fleet, seed).run({page: load_op(page)}, budget)
    for finding, text in filter(None, run):
        if finding.id in seen:
            return finding, text
        seen.add(finding.id)
    raise AssertionError(f"nothing is shrunk in {budget} s; met: {seen}")


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp"])
def test_no_row_without_elements_is_drawn_where_its_maximum_is_asked_for(op):
    drawn = [t.problem for n in range(40) for t in draw(load_op(op), op, n)]
    empty = [problem for problem in drawn if problem.empty]
    rows = [one.inputs["x"].shape[one.attributes["axis"]] for one in empty]
    assert rows
    assert 0 not in rows


@pytest.fixture(scope="module")
def tie(fleet, tmp_path_factory):
    """A shrunk finding, its script, and the folder that it was saved to."""
    folder = tmp_path_factory.mktemp("findings")
    page = plant(folder, *PLANTED["an exact tie"])
    finding, text = shrunk(fleet, page)
    store.save(finding, text, folder)
    return finding, text, folder


@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=MORE) for s in (1, 2))])
@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_error_is_found_and_shrunk(fleet, tmp_path, kind, seed):
    finding, _ = shrunk(fleet, plant(tmp_path, *PLANTED[kind]), seed=seed)
    assert finding.record.verdict == "disagree"
    assert finding.part == "backward"
    assert finding.elements <= 4  # what issue 10 asks for


def test_a_right_page_gives_no_finding(fleet, tmp_path):
    page = plant(tmp_path, CUBE, BACKWARD, BACKWARD)
    hunt = Hunt(["numpy_manual", "numpy_graph"], fleet)
    assert not any(hunt.run({page: load_op(page)}, 2))
    assert hunt.tried > 20


def test_a_worker_that_dies_is_a_finding_and_is_shrunk(fleet, tmp_path):
    page = plant(tmp_path, *DEADLY)
    finding, _ = shrunk(fleet, page)
    assert finding.record.verdict == "crash"
    assert list(finding.shapes.values()) == [[0]]
    assert "SIGABRT" in finding.record.message


def test_the_same_seed_finds_the_same(fleet, tmp_path):
    page = plant(tmp_path, *PLANTED["above 1e3"])
    hunts = (Hunt(["numpy_manual"], fleet, 5) for _ in range(2))
    runs = (hunt.run({page: load_op(page)}, 60) for hunt in hunts)
    one, other = (next(filter(None, run)) for run in runs)
    assert one == other


# --- the script ------------------------------------------------------------------


def run_script(text, folder):
    file = folder / "repro.py"
    file.write_text(text)
    return subprocess.run(
        [sys.executable, "-W", "error", str(file)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


def test_the_script_exits_1_while_the_defect_is_there(tie, tmp_path):
    _, text, _ = tie
    done = run_script(text, tmp_path)
    assert (done.returncode, done.stderr) == (1, "")
    assert "exact" in done.stdout


def mended(text, folder, place):
    """The script on a page without the defect."""
    page, broken = place / "mended.py", str(folder / "scratch.py")
    page.write_text(PLANTED["an exact tie"][0])
    assert broken in text
    return text.replace(broken, str(page))


def test_the_script_exits_0_when_the_defect_has_gone(tie, tmp_path):
    done = run_script(mended(*tie[1:], tmp_path), tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


# --- on disk ---------------------------------------------------------------------


def test_a_finding_is_read_as_it_was_written(tie):
    finding, text, folder = tie
    ((read,), _) = store.load(folder)
    assert read == replace(finding, script=read.script)
    assert (folder / read.script).read_text() == text


def test_the_index_is_strict_json_with_a_line_for_each_finding(tie):
    *_, folder = tie
    text = (folder / store.INDEX).read_text()

    def refuse(constant):
        raise AssertionError(constant)

    assert (
        json.loads(text, parse_constant=refuse)["records"][0]["record"]["op"]
        == "maximum"
    )
    assert sum("numpy_manual" in line for line in text.splitlines()) == 1


def test_a_finding_that_cannot_be_written_leaves_the_old_one(tie, monkeypatch):
    finding, text, folder = tie
    monkeypatch.setattr(store.documents, "document", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.save(finding, text, folder)
    monkeypatch.undo()
    assert len(store.load(folder)[0]) == 1
    assert not list(folder.glob(".*"))


def test_a_finding_of_the_same_site_replaces_the_old_one(tie, tmp_path):
    finding, text, _ = tie
    store.save(finding, text, tmp_path)
    store.save(replace(finding, seed=7), text, tmp_path)
    ((read,), _) = store.load(tmp_path)
    assert read.seed == 7
    assert len(list(tmp_path.glob("*.py"))) == 1


def test_a_smaller_finding_of_the_same_site_stays(tie, tmp_path):
    finding, text, _ = tie
    store.save(finding, text, tmp_path)
    store.save(replace(finding, shapes={"a": [9]}), text, tmp_path)
    ((read,), _) = store.load(tmp_path)
    assert read.elements == finding.elements < 9


def test_two_sites_of_one_op_have_a_script_each(tie, tmp_path):
    finding, text, _ = tie
    other = replace(finding, part="state")
    scripts = {store.save(one, text, tmp_path).name for one in (finding, other)}
    assert len(scripts) == len(store.load(tmp_path)[0]) == 2


def test_an_index_that_cannot_be_read_is_named(tie, tmp_path):
    finding, text, _ = tie
    store.save(finding, text, tmp_path)
    index = tmp_path / store.INDEX
    index.write_text(index.read_text()[:-9])
    found, (trouble,) = store.load(tmp_path)
    assert found == []
    assert str(index) in trouble


def test_the_page_has_a_line_for_each_script(tie):
    finding, *_ = tie
    other = replace(finding, part="state")
    both = [replace(one, script="one.py") for one in (finding, other)]
    assert page_of(both).count("one.py") == 1


# --- the command -----------------------------------------------------------------


def test_an_unknown_op_is_a_wrong_call():
    done = gradwatch("fuzz", "--op", "sofmax")
    assert done.returncode == 2
    assert "did you mean 'softmax'" in done.stderr


def test_replay_says_what_holds(tie):
    *_, folder = tie
    done = gradwatch("fuzz", "--replay", "--folder", folder)
    assert done.returncode == 0
    assert done.stdout.startswith("holds")


def test_replay_of_no_findings_says_where_they_would_be(tmp_path):
    done = gradwatch("fuzz", "--replay", "--folder", tmp_path)
    assert done.returncode == 0
    assert f"no findings in {tmp_path}" in done.stdout


def test_replay_fails_where_something_has_gone(tie, tmp_path):
    finding, *script = tie
    store.save(finding, mended(*script, tmp_path), tmp_path)
    done = gradwatch("fuzz", "--replay", "--folder", tmp_path)
    assert done.returncode == 1
    assert done.stdout.startswith("gone")


def test_replay_does_not_take_a_script_that_fails_for_the_defect(tie, tmp_path):
    finding, *_ = tie
    store.save(finding, "import no_such_module\n", tmp_path)
    done = gradwatch("fuzz", "--replay", "--folder", tmp_path)
    assert done.stdout.startswith("not run")


def test_ctrl_c_before_any_trial_is_no_success(monkeypatch, tmp_path):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("gradwatch.harness.commands.fuzz._hunt", interrupted)
    done = gradwatch("fuzz", "--backend", "numpy_manual", "--folder", tmp_path)
    assert "0 findings in 0 trials" in done.stdout
    assert done.returncode == 1


def test_ctrl_c_keeps_what_was_found(tmp_path):
    page = plant(tmp_path, *PLANTED["above 1e3"])
    folder = tmp_path / "findings"
    options = ["--ops", page, "--backend", "numpy_manual", "--folder", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-m", "gradwatch", "fuzz", *options, "--budget", "60"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not store.load(folder)[0] and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert "kept" in told
    assert store.load(folder)[0]
