"""What holds for the repository as a whole: its text, its settings, its commands."""

import io
import os
import re
import shutil
import subprocess
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Written so that neither pattern matches its own text.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users|work|tmp|opt|mnt)/\w")
REGISTRY = re.compile(
    r"pypi[.]org|pythonhosted[.]org|registry[.]npmjs|deb[.]debian|download[.]pytorch"
)
# A comment that switches a rule off names it, and a second one says why.
SWITCHED_OFF = re.compile(r"#\s*(?:noqa|type:\s*ignore)")
REASONED = re.compile(
    r"#\s*(?:noqa: [A-Z]+\d+(?:, ?[A-Z]+\d+)*|type:\s*ignore\[[\w, -]+\])\s+# \w"
)


def tracked(*patterns):
    """The files that git knows, or those that match."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: it cannot be told which files belong to it")
    listing = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, check=True
    )
    names = listing.stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def offences(text, pattern):
    """Numbers of the lines in which the pattern occurs."""
    return [n for n, line in enumerate(text.splitlines(), 1) if pattern.search(line)]


def readable(file):
    """The text of a file, or "" where it is none."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


@pytest.mark.parametrize("pattern", [MACHINE_PATH, REGISTRY], ids=["path", "registry"])
def test_no_file_names_a_place_of_one_machine_or_a_registry(pattern):
    found = {
        str(file.relative_to(ROOT)): lines
        for file in tracked()
        if (lines := offences(readable(file), pattern))
    }
    assert found == {}


@pytest.mark.parametrize("folder", ["home", "root", "work", "tmp"])
def test_a_planted_path_is_seen(folder):
    assert offences(f"a\nresults in /{folder}/x\n", MACHINE_PATH) == [2]


@pytest.mark.parametrize("text", ["environment.root / 'x'", "a/work/x", "/dev/null"])
def test_a_path_within_the_checkout_is_not_taken_for_one(text):
    assert offences(text, MACHINE_PATH) == []


def test_a_planted_registry_is_seen():
    assert offences("https://" + "pypi" + ".org/simple", REGISTRY) == [1]


# --- reasons ---------------------------------------------------------------------


def unreasoned_comments(source):
    """Numbers of the lines where a rule is switched off and nobody says why."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token for token in tokens if token.type == tokenize.COMMENT]
    return [
        token.start[0]
        for token in comments
        if SWITCHED_OFF.search(token.string) and not REASONED.search(token.string)
    ]


def unreasoned_settings(text):
    """Lines of pyproject.toml that switch a rule or a warning off without a reason."""
    lists = re.findall(r"^ignore = \[\n(.*?)^\]", text, re.M | re.S)
    lists += re.findall(r"^filterwarnings = \[\n(.*?)^\]", text, re.M | re.S)
    tables = re.findall(r"per-file-ignores\]\n(.*?)(?=^\[)", text, re.M | re.S)
    rule = re.compile(r'"(?:[A-Z]+\d*|ignore:.*)"')
    lines = [line for part in lists + tables for line in part.splitlines()]
    return [line for line in lines if rule.search(line) and "  # " not in line]


def test_each_rule_that_is_switched_off_in_the_code_has_a_reason_beside_it():
    found = {
        str(file.relative_to(ROOT)): lines
        for file in tracked("*.py")
        if (lines := unreasoned_comments(readable(file)))
    }
    assert found == {}


def test_each_rule_that_is_switched_off_in_the_settings_has_a_reason_beside_it():
    assert unreasoned_settings((ROOT / "pyproject.toml").read_text()) == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("import a  # noqa: F401\n", [1]),
        ("import a  # noqa\n", [1]),
        ("import a  # noqa: F401  # kept for its side effect\n", []),
        ("x = 1\ny = f()  # type: ignore[no-any-return]\n", [2]),
        ("y = f()  # type: ignore[no-any-return]  # its stub says Any\n", []),
        ("text = '# noqa'\n", []),
    ],
)
def test_a_planted_comment_without_a_reason_is_seen(source, lines):
    assert unreasoned_comments(source) == lines


@pytest.mark.parametrize(
    "text",
    [
        'ignore = [\n    "D105",\n]\n',
        '[tool.ruff.lint.per-file-ignores]\n"a/*" = ["D"]\n[next]\n',
        'filterwarnings = [\n    "error",\n    "ignore:old",\n]\n',
    ],
)
def test_a_planted_setting_without_a_reason_is_seen(text):
    assert len(unreasoned_settings(text)) == 1


# --- commands --------------------------------------------------------------------


def test_ci_runs_what_the_readme_says_that_it_runs():
    said = r"^\$ make test\b.*; CI runs make test SLOW=1"
    assert re.search(said, (ROOT / "README.md").read_text(), re.M)
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in commands if not line.startswith("#")] == [
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")/.."',
        "scripts/system-packages",
        "make test SLOW=1",
    ]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert re.findall(r"- run: (.*)", workflow) == [
        "scripts/system-packages",
        "make test SLOW=1",
    ]


def test_a_bare_make_lists_every_target_with_a_line_of_help():
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not on this machine")
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)", makefile, re.M)
    # Under `make test` this is a make within a make, which would announce itself.
    outer = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    listing = subprocess.run(
        [make], cwd=ROOT, env=outer, capture_output=True, text=True
    )
    assert listing.returncode == 0, listing.stderr
    helped = re.findall(r"^  make (\S+) +\S", listing.stdout, re.M)
    assert helped == re.findall(r"^([a-z-]+):", makefile, re.M)
    assert sorted(helped) == sorted(phony.split())


@pytest.mark.parametrize("name", ["main", "oneflow"])
def test_requirements_are_exact_and_of_no_one_machine_s_build(name):
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    exact = re.compile(r"[a-z0-9-]+==[\w.]+(\s+# .+)?")
    assert [line for line in lines if not exact.fullmatch(line)] == []
    assert len(lines) > 10


BARE = re.compile(r"^\s*(?:from|import) (?:harness|impls|benchmarks)\b", re.M)


def test_a_module_has_one_name_here_and_in_the_wheel():
    from gradwatch import harness, impls

    assert (harness.__name__, impls.__name__) == (
        "gradwatch.harness",
        "gradwatch.impls",
    )
    bare = [f for f in tracked("*.py") if BARE.search(readable(f))]
    assert bare == []
    assert BARE.search("import os\nfrom impls.contract import Op\n")
