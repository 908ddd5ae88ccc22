"""Second orders on the backends: what agrees, what is declared, what is caught."""

import pytest
from msgspec.structs import replace

from gradwatch.harness.judging.cases import REGIMES, of_order, trial
from gradwatch.harness.judging.defects.known import load
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.impls import catalogue
from gradwatch.impls.backends._torchlike import ONCE
from gradwatch.impls.contract import Unsupported
from tests.agreed import agree

OPS = [catalogue.load_op(name) for name in catalogue.op_names()]
DECLARED = [op for op in OPS if getattr(op.said("custom"), ONCE, False)]
BACKENDS = ("torch_formula", "torch_autograd", "torch_custom")


def trial_of(op, order, dtype="float64", case=None):
    case = op.cases[case] if case else next(iter(op.cases.values()))
    return of_order(trial(op, case, REGIMES["normal"], dtype), order)


def judged(backend, problem):
    step = catalogue.load_backend(backend).prepare(problem)
    result = getattr(step, problem.order)()
    right = reference(problem)
    return judge_tensors(right, result.gradients, result.dtypes)


@pytest.mark.parametrize("order", ["jvp", "hvp"])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_pytorch_agrees_or_says_that_it_cannot(op, order):
    problem = trial_of(op, order).problem
    for backend in BACKENDS:
        try:
            judgements = judged(backend, problem)
        except Unsupported:
            continue  # in the framework's words, or the page's
        assert len(judgements) == len(problem.derivatives)
        assert all(j.passes for j in judgements), (backend, judgements)


@pytest.mark.parametrize("order", ["jvp", "hvp"])
@pytest.mark.parametrize("name", ["matmul", "layer_norm", "double_output", "tanh"])
def test_hips_autograd_agrees(name, order):
    pytest.importorskip("autograd")
    judgements = judged(
        "autograd_formula", trial_of(catalogue.load_op(name), order).problem
    )
    assert judgements
    assert all(j.passes for j in judgements)


@pytest.mark.parametrize("op", DECLARED, ids=lambda op: op.name)
def test_a_page_that_is_declared_once_differentiable_is_wrong_in_the_second(
    op, monkeypatch
):
    """Its backward keeps values of the forward: autograd takes them for constants."""
    monkeypatch.setattr(op.said("custom"), ONCE, False)
    judgements = judged("torch_custom", trial_of(op, "hvp").problem)
    assert not all(j.passes for j in judgements)


def test_records_say_the_order_and_what_is_declared(fleet):
    op = catalogue.load_op("layer_norm")
    backends = ("numpy_graph", "numpy_manual", "torch_autograd", "torch_custom")
    trials = [trial_of(op, "hvp", "float32")]
    agreed = agree(trials, backends, entries=(), fleet=fleet)
    assert agreed.exit_code == 0
    tensors = {}
    for record in agreed.records:
        assert record.order == "hvp"
        assert record.case.endswith("-float32-hvp]")
        tensors.setdefault(record.backend, []).append(record.tensor)
    second = ["hvp.dx", "hvp.dweight", "hvp.dbias", "hvp.ddy"]
    assert tensors["numpy_graph"] == tensors["torch_autograd"] == second
    assert tensors["numpy_manual"] == tensors["torch_custom"] == ["all"]


def test_a_known_defect_of_one_order_announces_none_of_another(fleet):
    """softplus: s (1 - s) is 0 where the sigmoid rounds to 1; the slope s is right."""
    op = catalogue.load_op("softplus")
    large = trial(op, op.cases["2x3x4"], REGIMES["large"], "float64")
    agreed = agree([of_order(large, "hvp")], ["torch_autograd"], fleet=fleet)
    wrong = [r for r in agreed.records if r.verdict == "disagree"]
    assert wrong
    assert agreed.exit_code == 0  # it is listed, and it has not gone
    named = [k for k in load() if (*k.ops, *k.orders) == ("softplus", "hvp")]
    assert any(entry.covers(wrong[0]) for entry in named)
    first = replace(wrong[0], order="vjp")
    assert not any(entry.covers(first) for entry in named)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_a_saved_logsumexp_loses_is_imprecise_and_excuses_nothing_else(
    dtype,
):
    """At 1e4 exp(x - y) has lost four digits; no zero and no other sign passes so."""
    op = catalogue.load_op("logsumexp")
    for case in op.cases.values():
        problem = of_order(trial(op, case, REGIMES["shifted"], dtype), "hvp").problem
        result = catalogue.load_backend("torch_autograd").prepare(problem).hvp()
        right = reference(problem)
        verdicts = {
            factor: [
                j.verdict
                for j in judge_tensors(
                    right,
                    {n: g * factor for n, g in result.gradients.items()},
                    result.dtypes,
                )
            ]
            for factor in (1, 0, -1, 1.5)
        }
        assert {*verdicts[1]} <= {"imprecise", "agree"}
        assert "imprecise" in verdicts[1]
        for factor in (0, -1, 1.5):
            assert "disagree" in verdicts[factor]
            assert not {*verdicts[factor]} & {"imprecise", "convention"}
