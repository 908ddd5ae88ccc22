"""The command line as a stranger meets it: exit codes, messages, files."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from gradwatch.harness import __main__ as command_line
from gradwatch.harness.__main__ import Commands
from gradwatch.harness.commands import fuzz
from gradwatch.harness.commands import time as time_command
from gradwatch.harness.project.machines import has_cuda
from gradwatch.harness.project.paths import SOURCE
from gradwatch.harness.workers import process
from gradwatch.harness.workers.process import Child
from gradwatch.impls.catalogue import backend_names
from tests.command_line import gradwatch
from tests.pages import plant

NUMPY = ("--backend", "numpy_manual", "--backend", "numpy_graph")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("agree", "--op", "layernorm"), "did you mean 'layer_norm'"),
        (("agree", "--backend", "torch_autogard"), "did you mean 'torch_autograd'"),
        (("agree", "--dtype", "float23"), "did you mean 'float32'"),
        (("agree", "--device", "cudo"), "did you mean 'cuda'"),
        (("agree", "--regime", "shfited"), "did you mean 'shifted'"),
        (("agree", "--require", "numpy_manul"), "did you mean 'numpy_manual'"),
        (("agre",), "did you mean 'agree'"),
        (("agree", "--op", "dot", "--case", "none"), "gradwatch list cases"),
        (("agree", "--jobs", "0"), "--jobs"),
        (("agree", "--timeout", "-1"), "--timeout"),
        (("list", "opps"), "ops"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_call_is_answered_with_the_nearest_right_one(arguments, hint):
    done = gradwatch(*arguments)
    assert done.returncode == 2
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["", "agree", "doctor", "list"])
def test_help_teaches(command):
    done = gradwatch(*command.split(), "--help")
    assert done.returncode == 0
    assert "gradwatch" in done.stdout
    assert len(done.stdout) > 200
    first_steps, _, commands = done.stdout.partition("Commands:")
    if commands:  # what most people want comes first
        assert re.search(r"First steps:\n +gradwatch check ", first_steps)
        assert commands.split()[0] == "check"


@pytest.mark.parametrize("command", ["", *Commands().list_commands(None)])
def test_help_fits_eighty_columns(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = gradwatch(*command.split(), "--help").stdout
    assert max(map(len, said.splitlines())) <= 80


def test_a_right_page_outside_the_project_agrees(tmp_path):
    done = gradwatch("agree", "--ops", plant(tmp_path), *NUMPY, "--json", "-")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    assert {r["op"] for r in document["records"]} == {"cube"}
    assert {r["backend"] for r in document["records"]} == {
        "numpy_manual",
        "numpy_graph",
    }
    assert document["summary"]["unexpected"] == 0


WRONG = ("lambda dy: (3 * x**2 * dy,)", "lambda dy: (3 * x * dy,)")


def test_the_signs_of_what_is_not_right_are_explained(tmp_path):
    """Of a known defect no line is printed: its sign alone is in the table."""
    page = plant(tmp_path, WRONG[0], "lambda dy: 1 / 0")
    done = gradwatch("agree", "--ops", page, "--regime", "normal", *NUMPY[:2])
    assert "E error: it raised an exception" in done.stdout


def test_a_wrong_backward_disagrees_and_is_named(tmp_path):
    done = gradwatch(
        *("agree", "--ops", plant(tmp_path, *WRONG), "--regime", "normal"),
        *(*NUMPY, "--backend", "torch_autograd"),
        fresh=True,  # a process explains a tensor of an op and a backend once
    )
    told = " ".join(done.stdout.split())
    assert done.returncode == 1
    assert re.search(r"cube\[normal-4-float(32|64)\] numpy_manual disagree", told)
    assert "diagnosis: dy is divided by x" in told, told
    assert "outlier: numpy_manual against 2 others" in told
    for part in ("dx[", "got", "expected", "rounding radius"):
        assert part in told


def test_a_known_defect_that_is_wrong_all_the_same_fails_the_run(tmp_path):
    """What is not announced is unexpected, whatever the other backends say."""
    done = gradwatch("agree", "--ops", plant(tmp_path, *WRONG), *NUMPY, "--json", "-")
    document = json.loads(done.stdout)
    wrong = [r for r in document["records"] if r["verdict"] == "disagree"]
    assert done.returncode == 1
    assert wrong
    assert {r["backend"] for r in wrong} == {"numpy_manual"}
    assert all(r["expected_verdict"] == "agree" for r in wrong)


STRUCTURE = [
    ("lambda dy: (3 * x**2 * dy,)", "lambda dy: (None,)", "malformed"),
    ("lambda dy: (3 * x**2 * dy,)", "lambda dy: (np.stack([dy]),)", "malformed"),
    (
        "lambda dy: (3 * x**2 * dy,)",
        'lambda dy: ((3 * x**2 * dy).astype("float16"),)',
        "malformed",
    ),
    (
        "lambda dy: (3 * x**2 * dy,)",
        "lambda dy: (np.multiply(dy, 3 * x**2, out=dy),)",
        "malformed",
    ),
    ("lambda dy: (3 * x**2 * dy,)", "lambda dy: (dy / 0,)", "nonfinite"),
    ("lambda dy: (3 * x**2 * dy,)", "lambda dy: 1 / 0", "error"),
    (
        "return x**3, ",
        "import os, signal; os.kill(os.getpid(), 11)\n    return 0, ",
        "crash",
    ),
]


@pytest.mark.parametrize(("old", "new", "verdict"), STRUCTURE)
def test_each_way_to_fail_has_its_verdict_and_costs_only_itself(
    tmp_path, old, new, verdict
):
    done = gradwatch(
        *("agree", "--ops", plant(tmp_path, old, new), *NUMPY),
        *("--regime", "normal", "--dtype", "float64", "--json", "-"),
    )
    records = json.loads(done.stdout)["records"]
    verdicts = {
        backend: {r["verdict"] for r in records if r["backend"] == backend}
        for backend in ("numpy_manual", "numpy_graph")
    }
    assert done.returncode == 1
    assert verdict in verdicts["numpy_manual"]
    assert verdicts["numpy_graph"] == {"agree"}


def test_a_hang_costs_its_time_and_nothing_else(tmp_path):
    page = plant(tmp_path, "return x**3, ", "while True: pass\n    return 0, ")
    done = gradwatch(
        *("agree", "--ops", page, *NUMPY, "--regime", "normal", "--timeout", "2"),
        *("--dtype", "float64", "--json", "-"),
    )
    records = json.loads(done.stdout)["records"]
    assert done.returncode == 1
    assert [r["verdict"] for r in records if r["backend"] == "numpy_manual"] == [
        "timeout"
    ]
    assert {r["verdict"] for r in records if r["backend"] == "numpy_graph"} == {"agree"}


def test_a_missing_backend_is_told_and_where_required_it_is_exit_3(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("GRADWATCH_PYTHON_ONEFLOW", str(tmp_path / "python"))
    call = ("agree", "--op", "exp2", "--regime", "normal", *NUMPY)
    call += ("--backend", "oneflow_autograd")
    done = gradwatch(*call, fresh=True)
    assert done.returncode == 0
    assert "not run: oneflow_autograd" in done.stdout
    done = gradwatch(*call, "--require", "oneflow_autograd", fresh=True)
    assert done.returncode == 3
    assert "oneflow_autograd is required" in done.stderr


def test_junit_and_markdown_begin_with_what_is_wrong(tmp_path):
    xml, text = tmp_path / "run.xml", tmp_path / "run.md"
    done = gradwatch(
        *("agree", "--ops", plant(tmp_path, *WRONG), *NUMPY),
        *("--junit", xml, "--markdown", text),
    )
    assert done.returncode == 1
    first = text.read_text().splitlines()[0]
    for part in ("cube", "numpy_manual", "dx", "disagree"):
        assert part in first
    cases = list(ElementTree.parse(xml).iter("testcase"))
    failed = [c.get("name") for c in cases if c.find("failure") is not None]
    assert failed == ["cube[numpy_manual]"]
    assert len(cases) == 2


def test_a_file_that_cannot_be_written_is_one_line_and_exit_1(tmp_path):
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "run.json"
    done = gradwatch(
        "agree", "--op", "square", *NUMPY, "--regime", "normal", "--json", target
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "run.json" in done.stderr or "file" in done.stderr


@pytest.mark.parametrize(
    "shell",
    [
        "{} >&-",
        "{} | true",
        "LC_ALL=C PYTHONUTF8=0 PYTHONIOENCODING=ascii {}",
        "{} >&- 2>&-",
    ],
    ids=["no stdout", "nobody reads", "ASCII", "neither stream"],
)
def test_what_cannot_be_printed_costs_no_document(tmp_path, shell):
    json_file, xml, text = (tmp_path / name for name in ("a.json", "a.xml", "a.md"))
    call = [
        sys.executable,
        "-m",
        "gradwatch",
        "agree",
        "--ops",
        plant(tmp_path, *WRONG),
    ]
    call += [*NUMPY, "--regime", "normal", "--json", str(json_file)]
    call += ["--junit", str(xml), "--markdown", str(text)]
    command = "set -o pipefail; " + shell.format(shlex.join(call))
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    assert json.loads(json_file.read_text())["summary"]["unexpected"]
    assert ElementTree.parse(xml).getroot() is not None
    assert text.read_text().startswith("**cube")


def test_a_list_of_which_only_the_first_line_is_read_says_no_more():
    call = shlex.join([sys.executable, "-m", "gradwatch", "list", "cases"])
    read = ["bash", "-c", f"{call} | head -1"]
    done = subprocess.run(read, capture_output=True, text=True)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


ODD = [
    ('Op("cube"', 'Op("[/red]"'),
    (
        "return x**3, ",
        "from gradwatch.impls.contract import Unsupported\n"
        "    raise Unsupported('\\x00 ![](http://a.example/) | <b>')\n    return 0, ",
    ),
]


@pytest.mark.parametrize(("old", "new"), ODD, ids=["markup in a name", "control"])
def test_odd_names_and_messages_are_escaped_in_each_document(tmp_path, old, new):
    xml, text = tmp_path / "a.xml", tmp_path / "a.md"
    done = gradwatch(
        *("agree", "--ops", plant(tmp_path, old, new), *NUMPY, "--regime", "normal"),
        *("--junit", xml, "--markdown", text),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert ElementTree.parse(xml).getroot() is not None
    assert "![](" not in text.read_text()


def test_markup_in_a_message_is_text_in_the_summary(tmp_path):
    text = tmp_path / "a.md"
    page = plant(
        tmp_path, WRONG[0], "lambda dy: exec('raise ValueError(\"![](x) <b>\")')"
    )
    done = gradwatch(
        *("agree", "--ops", page, *NUMPY, "--regime", "normal", "--markdown", text)
    )
    assert done.returncode == 1
    assert "![](" not in text.read_text()
    assert "\\<b\\>" in text.read_text()


def test_a_second_seed_gives_other_numbers_and_the_same_names(tmp_path):
    def records(seed):
        done = gradwatch(
            "agree", "--op", "square", *NUMPY, "--seed", seed, "--json", "-"
        )
        return json.loads(done.stdout)["records"]

    one, other = records(1), records(2)
    assert sorted({r["case"] for r in one}) == sorted({r["case"] for r in other})
    assert [r["expected"] for r in one] != [r["expected"] for r in other]


def test_the_operators_that_can_be_traced_are_listed():
    pytest.importorskip("torch")
    done = gradwatch("list", "covered")
    names = done.stdout.split()
    assert {"aten.add", "aten._softmax", "aten.cat", "aten.polar"} <= set(names)
    assert not any("bernoulli" in name for name in names)


def test_every_backend_is_listed():
    done = gradwatch("list", "backends")
    assert done.stdout.split() == list(backend_names())


def test_an_extra_that_is_missing_is_one_line_and_exit_3():
    call = ["agree", "--on", "dask://head:8786", "--op", "square"]
    code = f"import sys; sys.modules['dask'] = None; sys.argv[1:] = {call}"
    code += "; from gradwatch.harness.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=SOURCE, capture_output=True, text=True
    )
    told = "gradwatch: agree needs dask: pip install 'gradwatch[cluster]'\n"
    assert (done.returncode, done.stderr) == (3, told)


# Pages that end, hang or crash the process that loads them or runs their formula

_FORMULA = "def formula(xp, x):\n    "
BAD = {
    "exits at import": ("import numpy as np", "import sys\nsys.exit(0)", "error"),
    "ends at import": ("import numpy as np", "import os\nos._exit(0)", "crash"),
    "raises at import": ("import numpy as np", "1 / 0", "error"),
    "is no Python": ("import numpy as np", "import numpy as", "error"),
    "exits": (_FORMULA, f"{_FORMULA}raise SystemExit(0)\n    ", "error"),
    "ends": (_FORMULA, f"{_FORMULA}import os; os._exit(0)\n    ", "crash"),
    "is killed": (
        _FORMULA,
        f"{_FORMULA}import os; os.kill(os.getpid(), 9)\n    ",
        "crash",
    ),
    "hangs": (_FORMULA, f"{_FORMULA}while True: pass\n    ", "timeout"),
    "asks for what is not there": (
        _FORMULA,
        f"{_FORMULA}xp.none_such(x)\n    ",
        "error",
    ),
    "is interrupted": (_FORMULA, f"{_FORMULA}raise KeyboardInterrupt\n    ", "error"),
    "spoils the process": (
        _FORMULA,
        f"{_FORMULA}import sys; sys.modules.clear(); raise ImportError\n    ",
        "error",
    ),
}


#: What one of them does to its process, the next ones must not feel; but the last of
#: them is run alone, since what it does to others of them is not foreseen.
TOGETHER = [[*BAD][:-1], [*BAD][-1:]]


def _planted(folder, bad):
    """A page of an op that is called as what is bad about it."""
    name = bad.replace(" ", "_")
    cube = Path(plant(folder, *BAD[bad][:2]))
    page = folder / f"{name}.py"
    page.write_text(cube.read_text().replace('"cube"', f'"{name}"'))
    cube.unlink()
    return str(page)


@pytest.fixture(scope="module", params=TOGETHER, ids=["many", "one"])
def judged(request, tmp_path_factory):
    """The bad pages, and a run of them together with two good ones."""
    folder = tmp_path_factory.mktemp("bad")
    pages = [_planted(folder, bad) for bad in request.param]
    done = gradwatch(
        *("agree", "--op", "exp2", *(x for p in pages for x in ("--ops", p)), *NUMPY),
        *("--op", "square", "--regime", "normal", "--timeout", "5", "--json", "-"),
        fresh=True,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return request.param, json.loads(done.stdout)["records"]


def test_each_bad_page_is_one_record(judged):
    pages, records = judged
    verdicts = {
        (r["op"].replace("_", " "), r["backend"], r["verdict"])
        for r in records
        if r["op"] not in ("exp2", "square")
    }
    assert verdicts == {(bad, "reference", BAD[bad][2]) for bad in pages}
    assert len(records) == len(
        {(r["case"], r["backend"], r["tensor"]) for r in records}
    )


def test_bad_pages_cost_the_others_nothing(judged):
    _, records = judged
    others = [r for r in records if r["op"] in ("exp2", "square")]
    assert {(r["op"], r["backend"], r["verdict"]) for r in others} == {
        (op, b, "agree") for op in ("exp2", "square") for b in NUMPY[1::2]
    }


def test_what_was_judged_before_the_formula_ended_the_process_is_kept(tmp_path):
    """It counts its calls in a file: numpy_manual makes none."""
    count = tmp_path / "count"
    body = f"open({str(count)!r}, 'a').write('.')\n    "
    body += f"import os; os.path.getsize({str(count)!r}) == 12 and os._exit(0)\n    "
    done = gradwatch(
        *("agree", "--ops", plant(tmp_path, _FORMULA, _FORMULA + body), *NUMPY[:2]),
        *("--dtype", "float64", "--json", "-"),
    )
    records = json.loads(done.stdout)["records"]
    assert done.returncode == 1
    (ended,) = [r for r in records if r["verdict"] == "crash"]
    assert [r["verdict"] for r in records].count("agree") > 4
    assert ended["backend"] == "reference"
    assert "exited with status 0" in ended["message"]


@pytest.mark.parametrize("command", ["time", "fuzz"])
def test_bad_pages_do_not_end_a_run_of(tmp_path, command):
    bad = ("ends at import", "exits", "ends")
    pages = [_planted(tmp_path, one) for one in bad]
    folder = ("--folder", tmp_path / "findings") if command == "fuzz" else ()
    done = gradwatch(
        *(command, *(x for page in pages for x in ("--ops", page)), *NUMPY),
        *("--budget", "1", "--json", tmp_path / "a.json", *folder),
        *(("--op", "square", "--size", "small") if command == "time" else ()),
        fresh=True,
    )
    document = json.loads((tmp_path / "a.json").read_text())
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    told = " ".join(done.stderr.split())
    for page, one in zip(pages, bad, strict=True):
        assert f"{Path(page).name}: {BAD[one][2]}:" in told
    if command == "time":
        assert {r["op"] for r in document["records"]} == {"square"}
    else:
        assert len(document["summary"]["failed"]) == len(bad)


@pytest.mark.parametrize("command", ["agree", "time", "fuzz"])
def test_a_run_that_can_judge_nothing_is_exit_3(tmp_path, monkeypatch, command):
    monkeypatch.setenv("GRADWATCH_PYTHON_ONEFLOW", str(tmp_path / "python"))
    folder = ("--folder", tmp_path / "findings") if command == "fuzz" else ()
    done = gradwatch(
        *(command, "--op", "square", "--backend", "oneflow_custom", *folder),
        *(("--budget", "1") if command == "fuzz" else ()),
        fresh=True,
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "nothing" in done.stderr


@pytest.mark.parametrize("command", ["agree", "time"])
def test_without_a_gpu_a_run_on_one_is_exit_3(command):
    if has_cuda():
        pytest.skip("there is a GPU here")
    backend = ("--backend", "torch_custom")
    done = gradwatch(command, "--op", "square", "--device", "cuda", *backend)
    assert done.returncode == 3, done.stdout + done.stderr


def test_a_run_of_what_a_page_declares_unsupported_is_no_success(tmp_path):
    new = (
        "from gradwatch.impls.contract import Unsupported\n    raise Unsupported('')\n"
    )
    page = plant(tmp_path, "return x**3, ", f"{new}    return 0, ")
    done = gradwatch("agree", "--ops", page, *NUMPY[:2], "--regime", "normal")
    assert done.returncode == 1
    assert "nothing was judged" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="others end when they are idle")
def test_no_process_outlives_a_command_that_is_killed(tmp_path):
    page = plant(tmp_path, "return x**3, ", "while True: pass\n    return 0, ")
    call = [sys.executable, "-m", "gradwatch", "agree", "--ops", page, *NUMPY]
    with subprocess.Popen(call, stderr=subprocess.DEVNULL) as running:
        children = []
        deadline = time.monotonic() + 60
        while len(children) < 2 and time.monotonic() < deadline:
            children = psutil.Process(running.pid).children(recursive=True)
            time.sleep(0.1)
        running.kill()
    assert len(children) >= 2
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive


# Commands whose own process loads pages

_LOADING = {
    "compare": (*NUMPY[1::2], "--size", "small", "--budget", "0.1"),
    "list": ("cases",),
    "selftest": ("--quick",),
}


_ENDS = ("import os\nos._exit(0)", "exited with status 0")


def _project_of_one_page(folder, statement, old="import numpy as np"):
    """A project whose only page has a statement planted, by default at its start."""
    (folder / "pages").mkdir()
    plant(folder / "pages", old, statement)
    (folder / "pyproject.toml").write_text('[tool.gradwatch]\nops = ["pages"]\n')
    (folder / "results" / "latest").mkdir(parents=True)


@pytest.mark.parametrize(
    ("command", "new", "said"),
    [
        *((command, *_ENDS) for command in _LOADING),
        ("list", "raise SystemExit(0)", "SystemExit"),
        ("list", "1 / 0", "cube.py cannot be run: ZeroDivisionError"),
        ("list", "import numpy as", "cube.py cannot be run: SyntaxError"),
    ],
)
def test_a_page_that_ends_the_process_is_no_success_of(tmp_path, command, new, said):
    _project_of_one_page(tmp_path, new)
    done = subprocess.run(
        [sys.executable, "-m", "gradwatch", command, *_LOADING[command]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


_HANGS = "import time; time.sleep(1e6)\n    "


@pytest.mark.parametrize(
    ("command", "old", "new"),
    [
        *((command, "import numpy as np", _HANGS.strip()) for command in _LOADING),
        ("compare", _FORMULA, f"{_FORMULA}{_HANGS}"),
    ],
)
def test_a_page_that_hangs_is_ended_in(tmp_path, monkeypatch, capfd, command, old, new):
    _project_of_one_page(tmp_path, new, old)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    monkeypatch.setattr(process, "PATIENCE", 1.0)
    assert command_line.apart(["gradwatch", command, *_LOADING[command]]) == 1
    said = "gradwatch: cube.py: no answer in 1 s from the page or its formula\n"
    assert capfd.readouterr().err == said


# A formula that hangs ends after a minute; here after a second


def test_a_formula_that_hangs_is_ended_by_fuzz(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "PATIENCE", 1.0)
    page = plant(tmp_path, _FORMULA, f"{_FORMULA}while True: pass\n    ")
    asked = fuzz.SearchRequest([page], NUMPY[1:2], 60.0, 0)
    run = fuzz.SearchState()
    with Child(fuzz.hunt) as child:
        fuzz._hunt(asked, child, run, tmp_path / "findings", lambda *_: None)
    assert run.failed[page].startswith("timeout: no answer in 1 s")


@pytest.mark.parametrize("when", ["while it is judged", "after it was timed"])
def test_a_formula_that_hangs_is_ended_by_time(tmp_path, monkeypatch, when):
    """After it was timed: as soon as the backward has been called a hundred times."""
    monkeypatch.setattr(process, "PATIENCE", 2.0)
    mark = tmp_path / "timed"
    body = f"import os\n    while os.path.exists({str(mark)!r}): pass\n    "
    page = Path(plant(tmp_path, _FORMULA, _FORMULA + body))
    if when == "while it is judged":
        mark.touch()
    text = page.read_text().replace(
        "return x**3, lambda dy: (3 * x**2 * dy,)",
        f"return x**3, lambda dy: (_COUNT.append(len(_COUNT) == 100 and\n"
        f"        os.mkdir({str(mark)!r})) or 3 * x**2 * dy,)",
    )
    page.write_text(
        text.replace("import numpy as np", "import os\nimport numpy as np\n_COUNT = []")
    )
    asked = time_command.TimeRequest(
        ops=[str(page)],
        backends=NUMPY[1:2],
        devices=["cpu"],
        dtypes=["float32"],
        sizes=["small"],
        budget=0.2,
        threads=1,
        seed=0,
    )
    measured = time_command._timed(asked, lambda *_: None)
    assert measured.rows == []
    assert measured.failed[str(page)].startswith("timeout: no answer in 2 s")


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (("time", "--op", "square", "--size", "medium"), "did you mean 'middle'?"),
        (("agree", "--device", "gpu"), "did you mean 'cuda'?"),
        (("compare", "HEAD~1", "HEAD", "--device", "gpu"), "did you mean 'cuda'?"),
        (("list", "op"), "did you mean 'ops'?"),
        (("compare", "HEAD", "nosuchcommit"), "neither a commit (git rev-parse"),
    ],
)
def test_a_wrong_name_gets_the_right_guess_in_one_style(call, hint):
    done = gradwatch(*call)
    assert done.returncode == 2
    assert done.stderr.startswith("gradwatch: ")
    assert hint in done.stderr
