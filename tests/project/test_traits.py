"""Backends say what is peculiar about them; the harness asks that, and no name."""

import ast
from pathlib import Path

import pytest

from gradwatch.harness.project import traits
from gradwatch.harness.project.traits import Traits, traits_of
from gradwatch.impls.catalogue import backend_names, framework_of

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {*map(framework_of, backend_names())}
#: Files and folders of harness/ that may name a framework, and why.
NAMING = {
    "tracing": "it reads PyTorch's programs",
    "check": "it checks functions of PyTorch",
    "agreement/store.py": "a script calls each framework in its own idiom",
    "commands/init.py": "a first page is written from a function of PyTorch",
    "commands/list.py": "the operators of PyTorch and JAX that are followed",
    "dashboard/pages.py": "the framework whose series a chart shows first",
    "project/requested.py": "a dialect has the name of a framework",
    "endpoint.py": "only PyTorch's GPU is awaited after each request",
    "history/measure.py": "the frameworks whose figures a history has by default",
    "selftest/examine.py": "the judges of PyTorch are rivals, tried in its worker",
    "commands/selftest.py": "likewise",
}


def test_every_framework_has_a_title():
    assert {name for name in FRAMEWORKS if not traits_of(name).title} == set()


def test_a_backend_overrides_its_framework():
    assert traits_of("jax_custom").sampled == traits_of("jax").sampled == ("float32",)
    assert traits_of("jax_jit").sampled == ("float32", "float64")
    assert traits_of("jax_jit").compiles
    assert traits_of("torch_compile").compiles
    assert not traits_of("torch").compiles


def test_what_declares_nothing_is_ordinary():
    assert traits_of("none_such") == Traits()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import none_such\nTRAITS = {'polls': True}", {"polls": True}),
        ("OTHER = {}", {}),
    ],
)
def test_traits_are_read_without_an_import(tmp_path, monkeypatch, text, found):
    (tmp_path / "_none.py").write_text(text)
    monkeypatch.setattr(traits, "_BACKENDS", tmp_path)
    assert traits.traits_of.__wrapped__("none") == Traits(**found)


def test_the_harness_names_no_framework_but_where_it_has_a_reason():
    named = {}
    for file in sorted((ROOT / "harness").rglob("*.py")):
        place = file.relative_to(ROOT / "harness").as_posix()
        if {place, place.partition("/")[0]} & NAMING.keys():
            continue
        words = {*_words(ast.parse(file.read_text(encoding="utf-8")))}
        if found := words & (FRAMEWORKS - {"numpy"}):
            named[place] = found
    assert named == {}


def _words(tree):
    """Identifiers, and texts that are one name, such as "jax" or "jax_jit"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            yield framework_of(text) if text.isidentifier() else text
