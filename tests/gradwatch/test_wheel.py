"""The wheel in somebody else's environment and repository: nothing is in the way.

Only what `gradwatch` is called can be imported; their own folder `harness/` disturbs
nothing; their commits are told apart; and nothing is written beside their files.
"""

import json
import os
import re
import subprocess
import zipfile

import pytest

from tests.gradwatch import installed
from tests.histories import git

pytestmark = pytest.mark.slow

RIGHT = """
import numpy as np

def silu(x):
    s = 1 / (1 + np.exp(-x))
    return x * s, lambda dy: (dy * s * (1 + x * (1 - s)),)
"""
SLOWER = RIGHT.replace("(dy * s", "(0 * np.exp(s) + dy * s")
WRONG = RIGHT.replace("1 + x * (1 - s)", "1 + x * (1 - s.round(3))")
PAGE = '''"""SiLU: y = x s(x)."""

from gradwatch import Case, Op

op = Op(
    "silu", inputs="x", cases=[Case("3x8", x=(3, 8))], sizes=[Case("64", x=(64, 1000))]
)


@op.implement("formula")
def formula(xp, x):
    return x * xp.sigmoid(x)


@op.implement("manual")
def manual(x):
    from theirs import silu

    return silu(x)
'''
TABLE = """
[tool.gradwatch]
ops = ["gradwatch_ops"]
measures = ["theirs"]
"""
ONLY = ("--op", "silu", "--backend", "numpy_manual")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return installed.wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """An interpreter with the wheel and all that it can need."""
    return installed.environment(tmp_path_factory.mktemp("all") / "venv", wheel)


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """An interpreter with the wheel and NumPy."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    return installed.environment(folder, wheel, ("numpy", "numpy.libs"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Their repository: a folder `harness` of theirs, and three commits of a kernel."""
    root = tmp_path_factory.mktemp("theirs")
    git(root, "init", "-q", "-b", "main")
    for key, value in (("user.name", "A"), ("user.email", "a@b.example")):
        git(root, "config", key, value)
    for folder in ("harness", "impls", "theirs", "gradwatch_ops"):
        (root / folder).mkdir()
    for folder in ("harness", "impls"):
        (root / folder / "__init__.py").write_text("raise RuntimeError('theirs')\n")
    (root / "gradwatch_ops" / "silu.py").write_text(PAGE)
    (root / "pyproject.toml").write_text(TABLE)
    (root / ".gitignore").write_text("/.asv/\n/html/\n/nightly/\n/results/\n")
    for subject, kernel in (("right", RIGHT), ("slower", SLOWER), ("wrong", WRONG)):
        (root / "theirs" / "__init__.py").write_text(kernel)
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", subject)
    return root


def run(python, *call, cwd, code=0):
    """What a program printed, which must end with an exit code."""
    ours = ("GRADWATCH_PROJECT", "PYTHONPATH", "COLUMNS")
    variables = {k: v for k, v in os.environ.items() if k not in ours}
    done = subprocess.run(
        [python, *call], cwd=cwd, env=variables, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_it_holds_one_name(wheel):
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"gradwatch"}


def test_no_module_in_it_imports_by_the_names_of_the_checkout(wheel):
    archive = zipfile.ZipFile(wheel)
    sources = {
        n: archive.read(n).decode() for n in archive.namelist() if n[-3:] == ".py"
    }
    ours = re.compile(r"^\s*(?:from|import) (?:harness|impls|benchmarks)\b", re.M)
    assert [name for name, source in sources.items() if ours.search(source)] == []
    assert "gradwatch/harness/judging/verdict.py" in sources


def test_templates_and_data_are_in_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.rpartition(".")[2] for name in names} >= {"j2", "css", "js", "txt"}


@pytest.mark.parametrize("name", ["harness", "impls", "benchmarks"])
def test_no_other_name_can_be_imported(bare, name, tmp_path):
    told = run(bare, "-c", f"import {name}", cwd=tmp_path, code=1)
    assert f"No module named '{name}'" in told


def test_numpy_is_enough_to_judge(bare, tmp_path):
    source = """
import gradwatch, numpy as np
x, dy = np.linspace(-1, 1, 8), np.ones(8)
op = gradwatch.Op("cube", inputs="x", formula=lambda xp, x: x * x * x)
print(*(gradwatch.judge(op, [x], dy, [k * x * x])[0].verdict for k in (3, 2)))
"""
    assert run(bare, "-c", source, cwd=tmp_path).split() == ["agree", "disagree"]


@pytest.mark.parametrize(
    ("call", "extra"),
    [
        (("-m", "gradwatch", "agree"), "cli"),
        (("-c", "import gradwatch; gradwatch.check"), "torch"),
        (("-c", "import gradwatch; gradwatch.find_changes"), "history"),
    ],
)
def test_what_is_missing_is_one_line_that_names_the_extra(bare, call, extra, tmp_path):
    told = run(bare, *call, cwd=tmp_path, code=3 if extra == "cli" else 1)
    assert f"pip install 'gradwatch[{extra}]'" in told.splitlines()[-1]


def test_without_a_project_it_says_so_in_one_line(python, tmp_path):
    told = run(python, "-m", "gradwatch", "agree", cwd=tmp_path, code=2)
    assert "`gradwatch init` writes one" in told
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(900)  # asv and the night start some twenty processes
def test_a_history_of_their_own_is_kept_compared_and_shown(python, theirs):
    site = python.parents[1] / "lib"
    before = sorted(f for f in site.rglob("*") if f.suffix != ".pyc")
    ours = (python, "-m", "gradwatch")
    # No test is timed: a page with one size and one kernel, its own words for verdicts.
    assert run(*ours, "list", "ops", cwd=theirs).split() == ["silu"]
    told = run(*ours, "agree", *ONLY, cwd=theirs, code=1)
    assert "disagree" in told
    git(theirs, "checkout", "-q", "main~1")
    run(*ours, "agree", *ONLY, cwd=theirs)
    two = ("main~2", "main~1", *ONLY, "--phase", "backward", "--json", "-")
    told = run(*ours, "compare", *two, "--pairs", "6", "--budget", "4", cwd=theirs)
    (row,) = json.loads(told[told.index("{\n") : told.rindex("}") + 1])["records"]
    assert row["ratio"] > 1
    run(*ours, "init", cwd=theirs)
    git(theirs, "add", "-A")
    git(theirs, "commit", "-q", "-m", "gradwatch")
    run(
        python,
        "-m",
        "asv",
        "run",
        "--bench",
        "bench_speed[.]silu",
        "HEAD^!",
        cwd=theirs,
    )
    recorded = [
        f.read_text() for f in (theirs / "results" / "asv").rglob("*-numpy*.json")
    ]
    assert any("bench_speed.silu.time_backward" in text for text in recorded)
    parts = [w for part in ("agree", "watch", "report") for w in ("--part", part)]
    run(*ours, "nightly", *ONLY, *parts, "--budget", "1m", cwd=theirs)
    assert (theirs / "nightly" / "dashboard" / "index.html").exists()
    run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=theirs)
    run(*ours, "report", cwd=theirs)
    assert "silu" in (theirs / "html" / "index.html").read_text()
    assert git(theirs, "status", "--porcelain") == ""
    assert sorted(f for f in site.rglob("*") if f.suffix != ".pyc") == before
