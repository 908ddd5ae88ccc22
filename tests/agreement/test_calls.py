"""A page's function is written as the calls that it makes, in a framework's names."""

import numpy as np
import pytest

from gradwatch.harness.agreement.store import Unwritten, calls
from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.impls.catalogue import load_op


def problem(name, case=None):
    op = load_op(name)
    chosen = op.cases[case] if case else next(iter(op.cases.values()))
    return trial(op, chosen, REGIMES["normal"], "float32").problem


@pytest.mark.parametrize(
    ("name", "framework", "dialect", "lines"),
    [
        (
            "gelu",
            "torch",
            "autograd",
            ["y = torch.nn.functional.gelu(x, approximate='none')"],
        ),
        ("silu", "autograd", "formula", ["y = x * special.expit(x)"]),
        ("l1", "jax", "formula", ["loss = jnp.mean(jnp.abs(x - target))"]),
        (
            "max_with_indices",
            "torch",
            "autograd",
            ["values, indices = torch.max(x, dim=1)"],
        ),
        ("square", "torch", "custom", ["y = x ** 2", "dx = dy * 2 * x"]),
    ],
)
def test_a_call_is_written_in_the_framework_s_names(name, framework, dialect, lines):
    assert calls(problem(name), framework, dialect) == lines


def test_what_is_used_twice_has_a_name():
    *named, last = calls(problem("softmax"), "mlx", "formula")
    assert len(named) == 1
    assert last.count(named[0].partition(" = ")[0]) == 2


def test_code_that_is_no_call_of_a_framework_is_refused():
    with pytest.raises(Unwritten):
        calls(problem("square"), "numpy", "manual")


@pytest.mark.parametrize("name", ["batch_norm", "conv2d", "cross_entropy", "attention"])
def test_a_formula_in_torch_s_names_computes_the_formula(name):
    torch = pytest.importorskip("torch")
    asked = problem(name)
    names = {n: torch.tensor(a) for n, a in asked.inputs.items()} | {"torch": torch}
    exec("from math import inf\n" + "\n".join(calls(asked, "torch", "formula")), names)
    other = problem(name)
    tensors = [torch.tensor(a) for a in other.inputs.values()]
    expected = other.op.said("autograd")(torch, *tensors, **other.attributes)
    got = names[other.op.outputs[0]]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
