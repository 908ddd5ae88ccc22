"""Capturing: torch.export finds the same operators by another way."""

import operator

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402  # after importorskip
from torch._higher_order_ops.scan import scan  # noqa: E402  # likewise
from torch.nn import functional as F  # noqa: E402, N812  # after importorskip; as in its docs

from gradwatch.harness.tracing.capture import capture  # noqa: E402  # after importorskip
from gradwatch.harness.tracing.tape import decompositions, name_of  # noqa: E402  # likewise
from gradwatch.harness.tracing.traced import trace  # noqa: E402  # likewise
from tests.tracing.slopes import gradients  # noqa: E402  # likewise

X = torch.linspace(-2, 2, 24, dtype=torch.float64).reshape(4, 6)


def attention(x):
    return torch.softmax(x @ x.t() / 2.0, -1) @ x


def in_place(x):
    y = x.clone()
    y[0] = 1.0
    y.mul_(2.0).relu_()
    return y


FUNCTIONS = {
    "silu": lambda x: F.silu(x),
    "attention": attention,
    "norm": lambda x: F.layer_norm(x, (6,)),
    "in place": in_place,
    "gather": lambda x: x[:, [0, 0, 2]].sum(1),
    "convolution": lambda x: F.conv1d(x[None], x[:2, None, :3].expand(2, 4, 3)),
}


class AsModule(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def operators(program):
    """Names in the program, without what only copies or asks for a layout."""
    calls = [n.target for n in program.graph.nodes if n.op == "call_function"]
    names = {name_of(t) for t in calls if t is not operator.getitem}
    copies = {"clone", "alias", "detach", "copy", "lift_fresh_copy"}
    return names - copies - {"_assert_tensor_metadata"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch.export warns of its own internals
@pytest.mark.parametrize("name", sorted({*FUNCTIONS} - {"in place"}))
def test_the_operators_are_those_of_export(name):
    function = FUNCTIONS[name]
    exported = torch.export.export(AsModule(function), (X,), strict=False)
    exported = exported.run_decompositions(decompositions())
    assert operators(capture(function, [X])) == operators(exported.module())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_program_computes_what_the_function_does(name):
    function = FUNCTIONS[name]
    program = capture(lambda x: (function(x),), [X])
    (found,) = torch.fx.Interpreter(program).run(X)
    torch.testing.assert_close(found, function(X), rtol=1e-12, atol=1e-12)


def test_nothing_is_in_place_any_more():
    calls = capture(in_place, [X.clone()]).graph.nodes
    names = [n.target._schema.name for n in calls if n.op == "call_function"]
    assert not [name for name in names if name.endswith("_")]


def test_a_scan_is_followed_step_by_step():
    def step(c, row):
        return c + row.sin(), c * row

    def steps(x):
        return scan(step, x[0] * 0, x)

    def written_out(x):
        c, rows = x[0] * 0, []
        for row in x:
            c, out = step(c, row)
            rows.append(out)
        return c, torch.stack(rows)

    x = torch.randn(3, 2, dtype=torch.float64)
    dys = {"y0": np.ones(2), "y1": np.ones((3, 2))}
    found, expected = (
        gradients(trace(f, [x]).graph(), dys) for f in (steps, written_out)
    )
    np.testing.assert_allclose(found["dx"].value, expected["dx"].value, rtol=1e-14)
