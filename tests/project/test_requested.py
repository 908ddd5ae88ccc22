"""What runs only where it is named, and what is said of it."""

import json

from gradwatch.harness.console import options
from gradwatch.harness.project.requested import by_default, dialect_of, left_out
from gradwatch.impls.catalogue import backend_names
from tests.command_line import gradwatch


def test_each_backend_runs_by_default_or_says_what_it_costs_and_how_to_ask():
    assert sorted([*by_default(), *left_out()]) == sorted(backend_names())
    assert "a C++ compiler" in left_out()["torch_compile"]
    assert "--backend torch_compile" in left_out()["torch_compile"]


def test_a_backend_runs_the_dialect_that_its_name_says_or_what_it_compiles():
    named = {"torch_custom": "custom", "numpy_graph": "formula", "jax_jit": "formula"}
    named |= {"torch_compile": "autograd", "numpy_manual": "manual"}
    assert {name: dialect_of(name) for name in named} == named


def test_a_run_says_what_it_left_out_unless_backends_are_named(monkeypatch):
    monkeypatch.setattr(options, "by_default", lambda: ("numpy_manual",))
    asked = ("agree", "--op", "square", "--regime", "normal", "--json", "-")
    missing = [
        json.loads(gradwatch(*asked, *named).stdout)["summary"]["missing"]
        for named in ((), ("--backend", "numpy_manual"))
    ]
    assert missing == [left_out(), {}]
