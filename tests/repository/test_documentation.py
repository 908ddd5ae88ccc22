"""Every link of a page leads somewhere, the pages stay short, what is shown runs."""

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")]
COUNTED = [*sorted((ROOT / "docs").glob("*.md")), *TOP]
PAGES = [*COUNTED, ROOT / "results" / "README.md"]
#: Words of all pages together, and of three of them: what a newcomer can read. The list
#: of findings grows with them, and has 2,000 more.
MOST = 30_000
MOST_OF = {"README.md": 700, "CHANGELOG.md": 800, "CONTRIBUTING.md": 1500}


SHOWN = re.compile(
    r"^(?:\$ (?:\.venv/bin/)?|\.venv/bin/)gradwatch ([a-z]+ [^#\n]*)"  # in a block
    r"|`(?:\w+=\S+ )?gradwatch ([a-z]+ [^`]*--[^`]*)`",  # in a sentence
    re.M,
)
CALLS = sorted(
    {
        " ".join("".join(call).split())
        for page in PAGES
        for call in SHOWN.findall(page.read_text(encoding="utf-8"))
    }
)


def without_blocks(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)


def anchors(text):
    """The names that GitHub gives the headings of a page."""
    for heading in re.findall(r"^#+ (.+)$", without_blocks(text), re.M):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        yield re.sub(r"[^\w -]", "", plain).replace(" ", "-")


def dangling(page, text):
    """Links of a page that lead to no file, or to no heading."""
    prose = re.sub(r"`[^`\n]*`", "", without_blocks(text))
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        name, _, heading = target.partition("#")
        place = page.parent / name if name else page
        if "://" in name:
            continue
        if not place.exists():
            yield target
        elif heading:
            known = text if place == page else place.read_text(encoding="utf-8")
            yield from [] if heading in anchors(known) else [target]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    assert list(dangling(page, page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "link", ["[a](nowhere.md)", "[a](judging.md#nowhere)", "[a](#b)"]
)
def test_a_planted_dangling_link_is_seen(link):
    assert len(list(dangling(ROOT / "docs" / "check.md", link))) == 1


def test_the_index_names_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages <= set(re.findall(r"\]\(([^)/]+\.md)\)", index))


def test_the_pages_stay_short():
    words = {page: len(page.read_text(encoding="utf-8").split()) for page in COUNTED}
    del words[ROOT / "docs" / "findings.md"]
    assert sum(words.values()) <= MOST
    assert all(words[ROOT / name] <= most for name, most in MOST_OF.items())


def test_what_the_page_about_arrays_shows_runs():
    text = (ROOT / "docs" / "judge-arrays.md").read_text(encoding="utf-8")
    snippets = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert snippets
    for snippet in snippets:
        subprocess.run([sys.executable, "-c", snippet], cwd=ROOT, check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "said"), [("", "", "FAILS, 1 of 2"), (".mean(", ".sum(", "passes")]
)
def test_the_tutorial_goes_as_it_says(tmp_path, old, new, said):
    text = (ROOT / "docs" / "first-check.md").read_text(encoding="utf-8")
    (kernel,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    (tmp_path / "mykernels.py").write_text(kernel.replace(old, new))
    (line,) = re.findall(r"^\$ gradwatch (.*--repro .*)", text, re.M)
    done = subprocess.run(
        [sys.executable, "-m", "gradwatch", *shlex.split(line)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert f"softmax against torch.softmax: {said}" in done.stdout, done.stderr


@pytest.mark.parametrize("call", CALLS)
def test_a_command_has_the_options_that_are_shown(call):
    words = shlex.split(call)
    command = importlib.import_module(f"gradwatch.harness.commands.{words[0]}").command
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= options


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_script_that_a_page_names_exists(page):
    text = " ".join(page.read_text(encoding="utf-8").split())
    named = re.findall(r"\b((?:scripts|tests)/[\w/]+\.py)\b", text)
    named += [
        f"{module.replace('.', '/')}.py"
        for module in re.findall(r"python -m (scripts\.[\w.]*\w)", text)
    ]
    assert [name for name in named if not (ROOT / name).exists()] == []
