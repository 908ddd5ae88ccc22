"""`agree --first-case`: a first look at every op, which never passes for the whole."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gradwatch.harness.agreement.remote import vanished
from gradwatch.harness.agreement.suite import Agreement, Asked
from gradwatch.harness.console import options
from gradwatch.harness.judging.cases import trials
from gradwatch.harness.judging.defects.known import Known
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.impls.catalogue import load_op
from tests.command_line import Done, gradwatch
from tests.dashboard.browser.invented import agree_record
from tests.frameworks import usable

BACKEND = "numpy_manual"
REGIMES = ["normal", "permuted", "tails"]  # the last two have cases of their own


def look(file: Path, *extra: str) -> tuple[Done, dict[str, Any]]:
    """A run of one op in three regimes, and its document."""
    call = ["agree", "--op", "softmax", "--backend", BACKEND, "--json", str(file)]
    done = gradwatch(*call, "--regime", ",".join(REGIMES), *extra)
    return done, json.loads(file.read_text())


def cases(document: dict[str, Any]) -> list[str]:
    return sorted({record["case"] for record in document["records"]})


def test_it_judges_the_first_case_of_each_regime_and_precision(tmp_path: Path) -> None:
    done, document = look(tmp_path / "look.json", "--first-case")
    first: dict[tuple[str, str], str] = {}
    for trial in trials(load_op("softmax"), regimes=REGIMES):
        first.setdefault((trial.regime, trial.problem.dtype), trial.name)
    assert cases(document) == sorted(first.values())
    assert done.returncode == 0
    assert document["summary"]["first_case"] is True
    assert "all but the first cases: gradwatch agree" in done.stdout


def test_a_backend_that_compiles_is_left_out_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usable("jax")
    few = ("numpy_manual", "jax_jit", "jax_autograd")
    monkeypatch.setattr(options, "by_default", lambda: few)
    file = tmp_path / "look.json"
    call = ["agree", "--op", "relu", "--regime", "normal", "--first-case", "--json"]
    done = gradwatch(*call, file)
    document = json.loads(file.read_text())
    assert {r["backend"] for r in document["records"]} == {"numpy_manual"}
    why = "left out of a first look, because it compiles every shape"
    for backend in few[1:]:
        assert document["summary"]["missing"][backend].startswith(why)
    assert "backends (jax" in " ".join(done.stdout.split())
    named = gradwatch(*call, file, "--backend", "jax_autograd")
    assert named.returncode == 0, "unless it is named"
    records = json.loads(file.read_text())["records"]
    assert {r["backend"] for r in records} == {"jax_autograd"}


def test_a_whole_run_judges_the_rest_too_and_the_same_of_the_first(
    tmp_path: Path,
) -> None:
    _, some = look(tmp_path / "look.json", "--first-case")
    done, whole = look(tmp_path / "whole.json")
    assert "all but the first cases" not in done.stdout
    assert whole["summary"]["first_case"] is False
    assert tensors(some) < tensors(whole)


def tensors(document: dict[str, Any]) -> Counter[str]:
    return Counter(json.dumps(record) for record in document["records"])


def test_a_defect_that_needs_another_case_is_not_gone() -> None:
    """A whole run whose cases lack a listed defect says that it is gone."""
    place = {"ops": ("add",), "backends": ("torch_custom",), "versions": ("1",)}
    entry = Known(reason="why", verdicts=("disagree",), **place)
    reached = {"framework_version": "1", "expected_verdict": "disagree"}
    right = AgreeRecord(**agree_record("add", "torch_custom", **reached))
    agreement = Agreement(records=[right])
    asked = Asked(ops=["add"], backends=["torch_custom"])
    assert vanished(asked, agreement, [entry]) == (entry,)
    asked.first_case = True
    assert vanished(asked, agreement, [entry]) == ()
