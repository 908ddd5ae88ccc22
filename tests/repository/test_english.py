"""Words that have proven to be riddles stay out of the prose and out of names.

The rule is plain English (CONTRIBUTING.md). A machine can only check for words: each of
these was replaced because a reader had to read its sentence twice.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from tests.repository.test_repository import tracked

ROOT = Path(__file__).resolve().parents[2]

# A pattern, and what to write instead.
RIDDLES = {
    r"\bmends?\b|\bmended\b": "fix",
    r"\banew\b": "again",
    r"\bdeaf to\b": "robust to",
    r"\bof late\b": "recently",
    r"errs on the safe side": "is conservative",
    r"\bbelieve no\b": "do not trust",
    r"\btaken up again\b": "continued",
    r"\bheld both ways\b": "expected; a known defect that is gone fails, too",
    r"\bput to the test\b": "tested",
    r"\bwhence\b|\bwherein\b|\bthereof\b|\bbeget\b|\bsave for\b": "a modern word",
    r"\bis no news\b|\bno news any more\b": "is known already",
}
# Names that do not say what they hold.
EMPTY_NAMES = {"told", "strangers", "hangs_on_ties", "Stand"}


def prose(source):
    """Comments and docstrings of a Python file, each with its line."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield getattr(node, "lineno", 1), text


def riddles(parts):
    """Each riddle in some prose: line, what stands there, what to write instead."""
    return [
        (line, match[0], better)
        for line, text in parts
        for pattern, better in RIDDLES.items()
        if (match := re.search(pattern, re.sub(r"`[^`]*`|\s+", " ", text)))
    ]


#: A sentence that begins so has a clause for its subject, or nobody.
RELATIVE = re.compile(r"(?:What|Those|Who|Whoever)\b")


def clauses_for_subjects(source):
    """Sentences of docstrings whose subject is 'what', 'those' or 'whoever'."""
    return [
        (line, " ".join(sentence.split()))
        for line, text in prose(source)
        if not text.startswith("#")
        for sentence in re.split(r"(?<=[.:;])\s+|\n\n", text)
        if RELATIVE.match(sentence.strip()) and not sentence.endswith("?")
    ]


def empty_names(source):
    """Lines on which a name is bound that does not say what it holds.

    An annotated field is left out: it may be the name of a key in recorded JSON.
    """
    names = {
        ast.Name: lambda node: isinstance(node.ctx, ast.Store) and node.id,
        ast.arg: lambda node: node.arg,
        ast.FunctionDef: lambda node: node.name,
        ast.ClassDef: lambda node: node.name,
    }
    tree = ast.parse(source)
    fields = {
        line.target
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for line in owner.body
        if isinstance(line, ast.AnnAssign)
    }
    return [
        node.lineno
        for node in ast.walk(tree)
        if type(node) in names
        and node not in fields
        and names[type(node)](node) in EMPTY_NAMES
    ]


@pytest.mark.parametrize("pattern", ["harness/*.py", "impls/*.py", "benchmarks/*.py"])
def test_no_comment_or_docstring_is_a_riddle(pattern):
    found = {
        str(file.relative_to(ROOT)): lines
        for file in tracked(pattern)
        if (lines := riddles(prose(file.read_text(encoding="utf-8"))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "pattern", ["harness/*.py", "impls/*.py", "benchmarks/*.py", "gradwatch/*.py"]
)
def test_docstrings_say_what_is_returned_or_done(pattern):
    found = {
        str(file.relative_to(ROOT)): lines
        for file in tracked(pattern)
        if (lines := clauses_for_subjects(file.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize("pattern", ["README.md", "CONTRIBUTING.md", "docs/*.md"])
def test_no_page_is_a_riddle(pattern):
    found = {
        str(file.relative_to(ROOT)): lines
        for file in tracked(pattern)
        if (lines := riddles(enumerate(file.read_text().splitlines(), 1)))
    }
    assert found == {}


def test_names_say_what_they_hold():
    found = {
        str(file.relative_to(ROOT)): lines
        for file in tracked("harness/*.py")
        if (lines := empty_names(file.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        '"""A page that is made anew."""\n',
        "x = 1  # believe no few per cent\n",
        'def f():\n    """Deaf\n    to two runs: deaf\n    to noise."""\n',
    ],
)
def test_a_planted_riddle_is_seen(source):
    assert len(riddles(prose(source))) == 1


@pytest.mark.parametrize(
    ("docstring", "seen"),
    [
        ("What is wrong of a tensor.", 1),
        ("The verdict. Those of second orders come last.", 1),
        ("The sums: what a careless algorithm loses.", 0),
        ("What is wrong?", 0),
    ],
)
def test_a_planted_clause_for_a_subject_is_seen(docstring, seen):
    source = f'def f():\n    """{docstring}"""\n'
    assert len(clauses_for_subjects(source)) == seen


@pytest.mark.parametrize("source", ["told = 1\n", "def f(told):\n    pass\n"])
def test_a_planted_empty_name_is_seen(source):
    assert empty_names(source)
