"""What runs elsewhere: the workflows' own commands, and the branch they keep."""

import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from gradwatch.harness.project.git import changed_files, implementing
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.requested import affected, by_default
from gradwatch.impls.catalogue import op_names
from tests.histories import SERIES, git, record, repository

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTION = ROOT / "action.yml"
COMMENT = ROOT / ".github" / "actions" / "comment" / "action.yml"
STARTED = ROOT / "harness" / "commands" / "_templates" / "workflow.txt"


def steps(file):
    jobs = yaml.safe_load(file.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_workflow_may_only_read_unless_a_job_says_so(file):
    content = yaml.safe_load(file.read_text())
    assert content["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in content["jobs"].values())


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_nothing_that_a_stranger_can_write_is_put_into_a_shell(file):
    """An expression within a script is pasted; in `env` it is a value."""
    assert not [step for step in steps(file) if "${{" in step.get("run", "")]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_every_action_is_pinned_by_its_commit(file):
    used = [step["uses"] for step in steps(file) if "uses" in step]
    assert used
    used = [one for one in used if not one.startswith("./")]  # of the same commit
    assert [one for one in used if not re.search(r"@[0-9a-f]{40}$", one)] == []


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_a_checkout_leaves_no_token_where_packages_are_installed(file):
    kept = [
        step.get("with", {}).get("persist-credentials", True)
        for step in steps(file)
        if "checkout@" in step.get("uses", "")
    ]
    assert not any(kept)


@pytest.mark.parametrize("name", ["nightly", "pull-request"])
def test_what_needs_the_history_fetches_all_of_it(name):
    (file,) = [file for file in WORKFLOWS if file.stem == name]
    (checkout,) = [s for s in steps(file) if "checkout@" in s.get("uses", "")]
    assert checkout["with"]["fetch-depth"] == 0


def actionlint(*files):
    """What it says of some files, or of all workflows."""
    beside = os.fspath(Path(sys.executable).parent)
    lint = shutil.which("actionlint", path=beside) or shutil.which("actionlint")
    if lint is None:
        pytest.skip("actionlint is not installed")
    done = subprocess.run([lint, *files], cwd=ROOT, capture_output=True, text=True)
    return done.stdout


def test_actionlint_has_nothing_to_say():
    assert actionlint() == ""


@pytest.mark.parametrize(("change", "code"), [("", 0), (".1", 1), ("rc1", 1)])
def test_a_release_is_refused_whose_tag_names_another_version(change, code):
    (release,) = [file for file in WORKFLOWS if file.stem == "release"]
    (step,) = [s for s in steps(release) if "TAG" in s.get("env", {})]
    pyproject = (ROOT / "pyproject.toml").read_text()
    (version,) = re.findall(r'^version = "(.*)"$', pyproject, re.M)
    tag = {**os.environ, "TAG": f"v{version}{change}"}
    done = subprocess.run(["bash", "-c", step["run"]], cwd=ROOT, env=tag)
    assert done.returncode == code


# For others -----------------------------------------------------------------------


@pytest.mark.parametrize("file", [ACTION, COMMENT], ids=["gradwatch", "comment"])
def test_an_action_pastes_nothing_into_a_shell_and_pins_what_it_uses(file):
    steps = yaml.safe_load(file.read_text())["runs"]["steps"]
    scripts = [step for step in steps if "run" in step]
    assert not [step for step in scripts if "${{" in step["run"]]
    assert {step["shell"] for step in scripts} == {"bash"}
    used = [step["uses"] for step in steps if "uses" in step]
    assert [one for one in used if not re.search(r"@[0-9a-f]{40}$", one)] == []


@pytest.mark.parametrize("file", [ACTION, COMMENT], ids=["gradwatch", "comment"])
def test_its_inputs_are_those_that_it_uses(file):
    content = yaml.safe_load(file.read_text())
    used = set(re.findall(r"inputs[.](\w+)", file.read_text()))
    assert used == set(content["inputs"])


@pytest.mark.parametrize(
    "name", ["Compare base and head, in turn", "Judge, time and watch"]
)
def test_it_calls_commands_as_they_are(name):
    steps = yaml.safe_load(ACTION.read_text())["runs"]["steps"]
    (run,) = [step["run"] for step in steps if step["name"] == name]
    call = shlex.split(run.partition("gradwatch ")[2].partition("\ncat")[0])
    module = importlib.import_module(f"gradwatch.harness.commands.{call[0]}")
    options = {option for p in module.command.params for option in p.opts}
    assert {word for word in call if word.startswith("--")} <= options


USER = """
on: push
jobs:
  gradients:
    runs-on: ubuntu-latest
    steps:
      - uses: ./
        with: {{{given}}}
"""


@pytest.mark.parametrize(
    ("given", "fine"), [("budget: 5m", True), ("bugdet: 5m", False)]
)
def test_actionlint_reads_the_action_where_a_workflow_uses_it(tmp_path, given, fine):
    """It reads no action by itself; of one that is used it knows the inputs."""
    git(tmp_path, "init", "-q")
    shutil.copy(ACTION, tmp_path)
    target = tmp_path / ".github" / "workflows" / "gradients.yml"
    target.parent.mkdir(parents=True)
    target.write_text(USER.format(given=given))
    assert (actionlint(target) == "") is fine


def test_the_workflow_that_init_writes_is_pinned_and_keeps_no_credentials(tmp_path):
    (checkout,) = [s for s in steps(STARTED) if "checkout@" in s.get("uses", "")]
    assert re.search(r"@[0-9a-f]{40}$", checkout["uses"])
    assert checkout["with"] == {"fetch-depth": 0, "persist-credentials": False}
    target = tmp_path / "gradients.yml"
    target.write_text(STARTED.read_text())
    assert actionlint(target) == ""


def shown():
    """The workflow that docs/your-own.md shows."""
    page = (ROOT / "docs" / "your-own.md").read_text()
    (workflow,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)
    return workflow


def test_no_job_of_the_workflow_to_copy_has_both_code_and_a_token_that_writes():
    content = yaml.safe_load(shown())
    assert content["permissions"] == {"contents": "read"}
    for name, job in content["jobs"].items():
        writes = "write" in job.get("permissions", {}).values()
        runs = {step.get("uses", "a script").split("@")[0] for step in job["steps"]}
        if name == "night":
            assert job["if"] == "github.event_name != 'pull_request'"
        elif writes:
            assert runs == {"OWNER/gradwatch/.github/actions/comment"}
        else:
            assert "token" not in str(job)


def test_actionlint_has_nothing_to_say_of_the_workflow_to_copy(tmp_path):
    (tmp_path / "gradients.yml").write_text(shown())
    assert actionlint(tmp_path / "gradients.yml") == ""


def test_no_step_of_the_action_has_a_token_where_a_pull_requests_code_runs():
    """A step's PATH and files are those that the steps before it have left."""
    steps = yaml.safe_load(ACTION.read_text())["runs"]["steps"]
    having = [step for step in steps if "token" in str(step.get("env"))]
    refused = "!startsWith(github.event_name, 'pull_request')"
    assert [step["name"] for step in having] == ["Store what was recorded"]
    assert all(refused in step["if"] for step in having)


# The branch -----------------------------------------------------------------------


@pytest.fixture
def origin(tmp_path):
    """A bare repository, and two clones with a run each in their history."""
    root = tmp_path / "first"
    commits = repository(root, ["square", "square"])
    git(tmp_path, "clone", "-q", "--bare", str(root), "origin.git")
    git(root, "remote", "add", "origin", str(tmp_path / "origin.git"))
    git(tmp_path, "clone", "-q", str(tmp_path / "origin.git"), "second")
    for clone, commit in zip(("first", "second"), commits, strict=True):
        for key, value in (("user.name", "A"), ("user.email", "a@b.example")):
            git(tmp_path / clone, "config", key, value)
        record(tmp_path / clone, [commit], {SERIES: [1.0]})
    return tmp_path


def results_branch(what, root):
    """Run the script that the workflows call, in a checkout."""
    subprocess.run([ROOT / "scripts" / "results-branch", what], cwd=root, check=True)


def recorded(root):
    folder = root / "results"
    return {str(f.relative_to(root)): f.read_bytes() for f in folder.rglob("*.json")}


def test_what_two_runs_recorded_is_all_kept_and_comes_back(origin):
    first, second = origin / "first", origin / "second"
    (first / "nightly").mkdir()
    (first / "nightly" / "nightly.json").write_text("{}")
    results_branch("store", first)
    results_branch("store", second)
    git(origin, "clone", "-q", str(origin / "origin.git"), "third")
    results_branch("fetch", origin / "third")
    assert recorded(origin / "third") == recorded(first) | recorded(second)
    assert (origin / "third" / "nightly" / "nightly.json").exists()
    assert git(origin / "third", "worktree", "list").count("\n") == 0


def test_the_branch_has_results_alone_and_main_is_untouched(origin):
    first = origin / "first"
    before = git(origin / "origin.git", "rev-parse", "main")
    results_branch("store", first)
    names = git(origin / "origin.git", "ls-tree", "-r", "--name-only", "results")
    assert set(names.split()) == set(recorded(first))
    assert git(origin / "origin.git", "rev-parse", "main") == before
    assert changed_files(first) == []


def test_what_is_here_is_not_replaced_by_what_was_stored(origin):
    first = origin / "first"
    results_branch("store", first)
    (file,) = (first / "results" / "asv").glob("benchmarks.json")
    file.write_text("newer")
    results_branch("fetch", first)
    assert file.read_text() == "newer"


def test_an_origin_that_cannot_be_reached_is_told(origin):
    git(origin / "first", "remote", "set-url", "origin", str(origin / "nowhere"))
    with pytest.raises(subprocess.CalledProcessError):
        results_branch("store", origin / "first")
    assert git(origin / "first", "worktree", "list").count("\n") == 0


def test_a_link_is_not_stored(origin):
    first = origin / "first"
    (first / "results" / "asv" / "x.json").symlink_to("/etc/hostname")
    results_branch("store", first)
    names = git(origin / "origin.git", "ls-tree", "-r", "--name-only", "results")
    assert "results/asv/x.json" not in names.split()


def test_temporary_files_are_not_stored(origin):
    first = origin / "first"
    kept = set(recorded(first))
    (first / "results" / "asv" / ".x.json.a1b2").write_text("half")
    (first / "results" / "findings").mkdir(parents=True)
    (first / "results" / "findings" / ".add.py.a1b2").write_text("half")
    results_branch("store", first)
    names = git(origin / "origin.git", "ls-tree", "-r", "--name-only", "results")
    assert set(names.split()) == kept


# What a pull request concerns -------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "ops", "backends"),
    [
        ("ops/square.py", ["square"], by_default()),
        ("backends/torch_custom.py", op_names(), ["torch_custom"]),
        ("backends/_torchlike.py", op_names(), by_default()),
        ("graph/engine.py", op_names(), by_default()),
        ("ops/gone.py", [], []),
    ],
)
def test_a_file_concerns_what_runs_it(tmp_path, file, ops, backends):
    commits = repository(tmp_path / "r", ["softmax"])
    (tmp_path / "r" / "impls" / file).parent.mkdir(exist_ok=True)
    (tmp_path / "r" / "impls" / file).write_text("changed")
    (tmp_path / "r" / "notes.txt").write_text("changed")
    git(tmp_path / "r", "add", "-A")
    git(tmp_path / "r", "commit", "-q", "-m", "change")
    found = affected(commits[0], "HEAD", root=tmp_path / "r")
    assert found == sorted((op, backend) for op in ops for backend in backends)
    touching = implementing(commits[0], "HEAD", "square", tmp_path / "r")
    assert len(touching) == ("square" in ops)


def test_of_named_ops_and_backends_a_file_concerns_those_alone(tmp_path):
    commits = repository(tmp_path / "r", ["softmax", "square"])
    asked = {"ops": ["softmax", "square", "gone"], "backends": ["torch_compile"]}
    found = affected(*commits, **asked, root=tmp_path / "r")
    assert found == [("square", "torch_compile")]


# What a pull request's run hands over ----------------------------------------------


def test_what_runs_a_pull_requests_code_holds_no_token():
    (run,) = [file for file in WORKFLOWS if file.stem == "pull-request"]
    content = yaml.safe_load(run.read_text())
    assert content["permissions"] == {"contents": "read"}
    assert not [job for job in content["jobs"].values() if "permissions" in job]
    assert "github.token" not in run.read_text()
    assert "secrets." not in run.read_text()


def test_what_may_write_runs_nothing_of_a_pull_request():
    (comment,) = [file for file in WORKFLOWS if file.stem == "comment"]
    (checkout,) = [s for s in steps(comment) if "checkout@" in s.get("uses", "")]
    assert set(checkout["with"]) == {"persist-credentials"}  # the default branch's code
    ours = [step["uses"] for step in steps(comment) if "checkout@" not in step["uses"]]
    assert ours == ["./.github/actions/comment"]
    action = yaml.safe_load(COMMENT.read_text())["runs"]["steps"]
    runs = " ".join(step["run"] for step in action)
    assert re.findall(r"\S+[.]py", runs) == ['"$SOURCE/../../../scripts/comment.py']


RECORD = {
    "op": "softmax",
    "case": "64x1024",
    "backend": "torch_custom",
    "dtype": "float32",
    "phase": "backward",
    "verdict": "slower",
    "ratio": 1.2,
    "low": 1.1,
    "high": 1.3,
}
HOSTILE = {
    "mention": {"op": "@org/team"},
    "issue": {"case": "#12"},
    "link": {"backend": "[x](http://evil.example)"},
    "tag": {"op": "<img src=x>"},
    "another row": {"op": "a | b\n| c | d |"},
    "control": {"op": "\x1b[31m\u202e"},
}
UNFIT = {
    "verdict": [{**RECORD, "verdict": "@org"}],
    "number": [{**RECORD, "ratio": "1"}],
    "infinite": [{**RECORD, "high": float("inf")}],
    "text": [{**RECORD, "op": ["softmax"]}],
    "record": [7],
    "records": {"a": 1},
}


def comment(tmp_path, content):
    file = tmp_path / "comparison.json"
    file.write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-I", "-S", ROOT / "scripts" / "comment.py", file],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def of(records):
    return json.dumps({"schema": 1, "records": records}).encode()


def test_the_comment_has_a_line_for_each_record_the_slower_first(tmp_path):
    faster = {**RECORD, "op": "exp2", "verdict": "faster"}
    lines = comment(tmp_path, of([faster, RECORD])).splitlines()
    assert lines[0].startswith("2 comparisons")
    assert [line.split(" | ")[0] for line in lines[4:]] == ["| softmax", "| exp2"]
    assert lines[4].endswith("| 1.2 | 1.1 to 1.3 | slower |")


def test_the_comment_says_what_could_not_be_compared(tmp_path):
    failed = ["softmax[8] torch_custom: wrong", "<img> @org"]
    document = {"schema": 1, "records": [RECORD], "summary": {"failed": failed}}
    *_, wrong, hostile = comment(tmp_path, json.dumps(document).encode()).splitlines()
    assert wrong == "- not compared: softmax\\[8\\] torch_custom: wrong"
    assert not re.search(r"@org|(?<!\\)<", hostile)


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_text_is_a_text_in_the_comment(tmp_path, what):
    said = comment(tmp_path, of([{**RECORD, **HOSTILE[what]}]))
    assert len(said.splitlines()) == 5
    assert not re.search(r"@org|#12|http://|(?<!\\)<|\x1b|\u202e|\n\| c", said)


@pytest.mark.parametrize("what", UNFIT)
def test_a_document_that_is_not_compares_own_is_one_line(tmp_path, what):
    said = comment(tmp_path, of(UNFIT[what]))
    assert said.startswith("The comparison cannot be read")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 10**5, b"\xff", b" " * (5 << 20)]
)
def test_damaged_bytes_are_one_line(tmp_path, content):
    assert len(comment(tmp_path, content).splitlines()) == 1
