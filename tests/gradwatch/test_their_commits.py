"""gradwatch in somebody else's repository: their commits, kernels and backends.

Their folders `harness/` and `impls/` disturb nothing, what made the kernel slower or
less accurate is named, and nothing is written beside their files.

Fixtures are a session's: a process that comes back to this module has them still.
"""

import json

import pytest

from tests.gradwatch.installed import run
from tests.histories import git

pytestmark = pytest.mark.slow

RIGHT = """
import numpy as np

def silu(x):
    s = 1 / (1 + np.exp(-x))
    eps = 0 * np.finfo(x.dtype).eps
    return x * s, lambda dy: (dy * s * (1 + x * (1 - s * (1 + eps))),)
"""
SLOWER = RIGHT.replace("(dy * s", "(0 * sum(np.exp(s) for _ in [0] * 30) + dy * s")
#: Several roundoffs off, in either precision; the tolerance still accepts it.
INACCURATE = SLOWER.replace("0 * np", "4 * np")
WRONG = RIGHT.replace("1 - s *", "1 - s.round(3) *")
COMMITS = {
    "right": RIGHT,
    "commented": f"{RIGHT}# a comment",
    "slower": SLOWER,
    "commented again": f"{SLOWER}# a comment",
    "less accurate": INACCURATE,
}
#: Seconds of a quiet machine, in the order of the commits.
QUIET = (6.0e-5, 6.1e-5, 1.3e-3, 1.31e-3, 1.29e-3)
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
GRADWATCH = ("-m", "gradwatch")
ONLY = ("--op", "silu", "--backend", "numpy_manual")


def commit(root, kernel, subject):
    (root / "theirs" / "__init__.py").write_text(kernel)
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", subject)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture(scope="session")
def listing(python):
    """What lies in site-packages, before anything has run."""
    site = python.parents[1] / "lib"

    def listed():
        return sorted(f for f in site.rglob("*") if f.suffix != ".pyc" and f.is_file())

    before = listed()
    return lambda: (before, listed())


@pytest.fixture(scope="session")
def theirs(python, listing, tmp_path_factory):
    """Their repository: folders of our names, and what `gradwatch init` wrote."""
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
    (root / "theirs" / "__init__.py").write_text(RIGHT)
    assert run(python, *GRADWATCH, "list", "ops", cwd=root).split() == ["silu"]
    run(python, *GRADWATCH, "init", cwd=root)
    return root


@pytest.fixture(scope="session")
def history(python, theirs):
    """Five commits by their subject, recorded in the history.

    The recorded times are replaced: whether five are enough depends on how busy the
    machine was. Commits that are compared are timed as they are.
    """
    config = json.loads((theirs / "asv.conf.json").read_text())
    config["matrix"]["req"].pop("torch")  # no backend of it runs this kernel
    (theirs / "asv.conf.json").write_text(json.dumps(config))
    with (theirs / ".gitignore").open("a") as ignored:
        ignored.write("/results/\n")
    hashes = {subject: commit(theirs, k, subject) for subject, k in COMMITS.items()}
    (theirs / "hashes").write_text("\n".join(hashes.values()))
    bench = "bench_(speed|accuracy)[.]silu[.](time_backward|track_gradient)"
    call = ("-m", "asv", "run", "--bench", bench, "HASHFILE:hashes")
    run(python, *call, cwd=theirs)
    (theirs / "hashes").unlink()
    for commit_hash, seconds in zip(hashes.values(), QUIET, strict=True):
        (file,) = (theirs / "results" / "asv").glob(f"*/{commit_hash[:8]}-*.json")
        recorded = json.loads(file.read_text())
        times = recorded["results"]["bench_speed.silu.time_backward"][0]
        times[:] = [QUIET[0], seconds]  # of the formula and of the kernel
        file.write_text(json.dumps(recorded))
    return hashes


def changes(document):
    """The commits of what got worse, by figure."""
    records = [r for r in document["records"] if r["worse"]]
    return {(one["metric"], one["commit"], one["state"]) for one in records}


@pytest.mark.timeout(900)  # these start some hundred processes
def test_watch_names_the_slower_and_the_less_accurate_of_five_commits(
    python, theirs, history, tmp_path
):
    expected = {
        "time_backward": history["slower"],
        "track_gradient_ratio": history["less accurate"],
    }
    file = tmp_path / "watch.json"
    call = (*GRADWATCH, "watch", "--budget", "1", "--json", file)
    run(python, *call, cwd=theirs)
    suspected = changes(json.loads(file.read_text()))
    assert suspected >= {(k, v, "suspected") for k, v in expected.items()}
    run(python, *call, "--confirm", cwd=theirs, code=1)
    confirmed = changes(json.loads(file.read_text()))
    slower = ("time_backward", expected["time_backward"], "confirmed")
    assert slower in confirmed


@pytest.mark.timeout(900)
def test_the_night_names_both(python, theirs, history):
    """Its budget is ample: a quarter of it is for comparing commits.

    Five runs suspect a loss of accuracy, which no comparison confirms: it is in the
    document of the part.
    """
    parts = ("--part", "agree", "--part", "selftest", "--part", "watch")
    call = (*GRADWATCH, "nightly", *ONLY, *parts, "--budget", "10m")
    run(python, *call, cwd=theirs, code=1)
    summary = (theirs / "nightly" / "summary.md").read_text()
    assert f"at {history['slower'][:10]}" in summary
    assert "; slower" in summary
    document = json.loads((theirs / "nightly" / "parts" / "watch.json").read_text())
    less = ("track_gradient_ratio", history["less accurate"], "suspected")
    assert less in changes(document)
    assert "selftest | – skipped" in summary


@pytest.mark.timeout(900)
def test_two_of_their_commits_are_compared(python, theirs, history):
    pair = (history["commented"], history["slower"])
    call = (*ONLY, "--phase", "backward", "--pairs", "4", "--budget", "2")
    told = run(python, *GRADWATCH, "compare", *pair, *call, "--json", "-", cwd=theirs)
    (row,) = json.loads(told[told.index("{\n") : told.rindex("}") + 1])["records"]
    assert row["low"] > 1


def test_a_wrong_kernel_is_rejected(python, theirs, history):
    kernel = theirs / "theirs" / "__init__.py"
    kernel.write_text(WRONG)
    told = run(python, *GRADWATCH, "agree", *ONLY, cwd=theirs, code=1)
    kernel.write_text(INACCURATE)
    assert "disagree" in told


def test_report_and_all_else_write_into_their_repository_alone(
    python, theirs, history, listing
):
    run(python, *GRADWATCH, "report", cwd=theirs)
    assert "silu" in (theirs / "html" / "index.html").read_text()
    assert git(theirs, "status", "--porcelain") == ""
    before, after = listing()
    assert after == before
