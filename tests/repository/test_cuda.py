"""`make cuda`: with no GPU, and with one whose programs are played."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradwatch.harness.commands.agree import command as agree
from gradwatch.harness.commands.doctor import command as doctor
from gradwatch.harness.commands.time import command as timing
from gradwatch.harness.project.machines import has_cuda
from scripts import cuda

SCRIPT = Path(__file__).parents[2] / "scripts" / "cuda.py"
NAMES = [
    *("device", "doctor", "tests", "agree", "agree-tf32"),
    *("attacks", "time", "history"),
]

#: Notes how it was called, writes what it is asked for, and does what was planned.
PLAYED = """#!{python}
import json, os, pathlib, sys, time
name = pathlib.Path(sys.argv[0]).name
words = sys.argv[1:]
with open("calls", "a") as calls:
    known = [os.environ.get(n, "") for n in ("GRADWATCH_TF32", "GRADWATCH_MACHINE")]
    calls.write(json.dumps([name, words, *known]) + "\\n")
for option in ("--json", "--junitxml"):
    files = [w.partition("=")[2] for w in words if w.startswith(option + "=")]
    files += [words[n + 1] for n, w in enumerate(words) if w == option]
    for file in files:
        if file.endswith(".xml"):
            pathlib.Path(file).write_text(TESTS)
        elif file.endswith(".json"):
            pathlib.Path(file).write_text(json.dumps(DOCUMENT))
        else:
            import gzip
            pathlib.Path(file).write_bytes(gzip.compress(json.dumps(DOCUMENT).encode()))
print("played", name, *words[:1], flush=True)
if name == "asv":
    folder = pathlib.Path("results/asv", os.environ["GRADWATCH_MACHINE"])
    folder.mkdir(parents=True)
    (folder / "recorded.json").write_text("{{}}")
planned = {planned!r}
for word, deed in planned.items():
    if word in [name, *words]:
        exec(deed)
"""
TESTS = """<testsuites><testsuite>
<testcase name="test_right"/><testcase name="test_wrong"><failure message="0 != 1"/>
</testcase></testsuite></testsuites>"""
DOCUMENT = {"summary": {"judged": 2}, "records": []}


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of played programs; call it with what they are to do."""
    monkeypatch.setenv("GRADWATCH_MACHINE", "h100-16core")

    def make(**planned):
        given = f"\nTESTS, DOCUMENT = {TESTS!r}, {DOCUMENT!r}\n"
        text = PLAYED.format(python=sys.executable, planned=planned)
        text = text.replace("\n", given, 1)
        programs = [
            tmp_path / ".venv" / "bin" / name for name in ("python", "gradwatch", "asv")
        ]
        for program in programs:
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)
        return tmp_path

    return make


def folder_of(root):
    (folder,) = (root / "results" / "cuda").iterdir()
    return folder


def results_of(root):
    """The result of each step, by its name, as the summary has them."""
    text = (folder_of(root) / "summary.md").read_text()
    return dict(re.findall(r"^\| ([a-z0-9-]+) \| (.*?) \| [\d.]+ \|$", text, re.M))


@pytest.mark.skipif(has_cuda(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_in_a_line_and_exits_with_3(tmp_path):
    done = subprocess.run(
        [sys.executable, SCRIPT], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 3
    assert done.stdout == (
        "make cuda: no GPU on this machine (no /dev/nvidia*): nothing was run\n"
    )
    assert done.stderr == ""


def test_every_step_runs_in_order_and_leaves_one_folder(checkout):
    root = checkout()
    assert cuda.main(root, present=True) == 0
    assert results_of(root) == dict.fromkeys(NAMES, "passed")
    calls = [json.loads(line) for line in (root / "calls").read_text().splitlines()]
    commands = [(name, *words[:2]) for name, words, *_ in calls]
    assert [name for name, *_ in commands] == [
        *("python", "gradwatch", "python", "gradwatch"),
        *("gradwatch", "python", "gradwatch", "asv"),
    ]
    assert [words[0] for name, *words in commands if name == "gradwatch"] == [
        *("doctor", "agree", "agree", "time"),
    ]
    tf32 = [tf32 for name, words, tf32, _ in calls if words[:1] == ["agree"]]
    assert tf32 == ["0", "1"]
    assert {name for *_, name in calls} == {"h100-16core"}
    found = {str(p.relative_to(folder_of(root))) for p in folder_of(root).rglob("*.*")}
    logs = {f"{name}.log" for name in NAMES}
    recorded = "asv/h100-16core/recorded.json"
    assert found == {*cuda.FILES, *logs, "summary.md", recorded}


def test_a_step_that_fails_keeps_no_other_from_running(checkout):
    root = checkout(agree="sys.exit(1)", asv="os.kill(os.getpid(), 11)")
    assert cuda.main(root, present=True) == 1
    wrong = {name: why for name, why in results_of(root).items() if why != "passed"}
    assert wrong == {
        "agree": "failed: exit code 1",
        "agree-tf32": "failed: exit code 1",
        "history": "failed: exit code -11",
    }


def test_the_summary_has_the_end_of_the_log_of_what_failed(checkout):
    root = checkout(agree="sys.exit(1)")
    cuda.main(root, present=True)
    text = (folder_of(root) / "summary.md").read_text()
    assert "Steps: 6 passed, 2 failed." in text
    assert "## agree: failed: exit code 1\n\n```\nplayed gradwatch agree\n" in text
    assert "machine h100-16core" in text


def test_without_a_device_that_pytorch_can_use_nothing_else_runs(checkout):
    root = checkout(**{"-c": "sys.exit('PyTorch sees no CUDA device')"})
    assert cuda.main(root, present=True) == 3
    results = results_of(root)
    assert results.pop("device") == "failed: exit code 1"
    assert set(results.values()) == {"not run"}
    assert "PyTorch sees no CUDA device" in (folder_of(root) / "summary.md").read_text()


def test_a_step_in_which_no_test_ran_has_not_passed(checkout):
    skipped = '<testsuites><testcase name="a"><skipped/></testcase></testsuites>'
    deed = f"pathlib.Path(files[0]).write_text({skipped!r}) if files else 0"
    root = checkout(pytest=deed)
    assert cuda.main(root, present=True) == 1
    assert results_of(root)["tests"] == "failed: no test ran"


def test_a_step_that_takes_too_long_is_ended_and_the_others_run(checkout, monkeypatch):
    given = cuda.steps

    def short(root, folder):
        every = given(root, folder)
        every[1].minutes = 1e-3
        return every

    monkeypatch.setattr(cuda, "steps", short)
    root = checkout(doctor="time.sleep(1000)")
    assert cuda.main(root, present=True) == 1
    results = results_of(root)
    assert results.pop("doctor") == "failed: ended after 0.001 minutes"
    assert set(results.values()) == {"passed"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_it_keeps_what_there_is(checkout, number):
    root = checkout(time="pathlib.Path('begun').touch(); time.sleep(1000)")
    code = (
        f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import cuda, signal"
    )
    code += "; signal.signal(signal.SIGTERM, signal.default_int_handler)"
    code += f"; sys.exit(cuda.main(cuda.Path({str(root)!r}), present=True))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while not (root / "begun").exists() and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60) == 130
    results = results_of(root)
    assert results["time"] == "interrupted"
    assert results["history"] == "not run"
    assert {results[name] for name in NAMES[:6]} == {"passed"}
    assert (folder_of(root) / "agree.json.gz").exists()


@pytest.mark.parametrize(
    ("name", "command"), [("agree", agree), ("doctor", doctor), ("time", timing)]
)
def test_gradwatch_understands_how_it_is_called(tmp_path, name, command):
    """Its own parser takes the options; nothing is run."""
    steps = cuda.steps(tmp_path, tmp_path)
    calls = [s.command[1:] for s in steps if s.command[0].endswith("/gradwatch")]
    mine = [words[1:] for words in calls if words[0] == name]
    assert mine
    for words in mine:
        command.make_context(name, list(words))


def test_the_table_of_docs_is_that_of_the_steps(tmp_path):
    text = (SCRIPT.parents[1] / "docs" / "cuda.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| ([a-z0-9-]+) \| .+? \| (\d+) \|$", text, re.M)
    assert table == [
        (step.name, f"{step.minutes:g}") for step in cuda.steps(tmp_path, tmp_path)
    ]


def test_the_tests_of_a_gpu_are_where_the_steps_look_for_them():
    assert (SCRIPT.parents[1] / cuda.STREAMS).exists()


@pytest.mark.parametrize(
    ("devices", "name"),
    [
        ("NVIDIA H100 80GB HBM3, 550.54.15, 81559 MiB", "h100-80gb-hbm3"),
        ("NVIDIA GeForce RTX 4090, 560.1, 24564 MiB\nsecond", "geforce-rtx-4090"),
        ("", "gpu"),
    ],
)
def test_a_machine_has_the_plain_name_of_its_gpu(devices, name):
    assert cuda.machine(devices) == f"{name}-{os.cpu_count()}core"
