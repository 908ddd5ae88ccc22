"""The part of a graph behind some elements; tensors too large to be judged in full."""

import tracemalloc

import numpy as np
import pytest

from gradwatch.harness.judging import question
from gradwatch.harness.judging.parts import Parts
from gradwatch.harness.judging.question import Question
from gradwatch.impls import catalogue, graph
from gradwatch.impls.contract import Problem

RNG = np.random.default_rng(3)


def softmax(x):
    y = graph.exp(x - graph.stop_gradient(graph.max(x, -1, keepdims=True)))
    return y / graph.sum(y, -1, keepdims=True)


def norm(x):
    centred = x - graph.mean(x, -1, keepdims=True)
    return centred / graph.sqrt(graph.mean(centred * centred, -1, keepdims=True) + 1e-5)


FORMULAS = {
    "softmax": softmax,
    "norm": norm,
    "product": lambda x: x @ graph.permute_dims(x, (1, 0)),
    "attention": lambda x: softmax(x @ graph.permute_dims(x, (1, 0)) / 256.0) @ x,
    "relu": lambda x: graph.maximum(x, 0.0),
    "windows": lambda x: graph.max(graph.sliding_windows(x, (2, 2), stride=2), (2, 3)),
    "joined": lambda x: graph.concat((x, graph.exp(x)), axis=1),
    "shifted": lambda x: graph.roll(x, 1, 0) * x,
    "added up": lambda x: graph.cumulative_sum(x, axis=1),
    "product of a row": lambda x: x * graph.sum(x, axis=1, keepdims=True),
    "reshaped": lambda x: graph.sum(graph.reshape(x, (-1, 4)), 1),
}


def gradient(formula, x, dy=None):
    leaf = graph.variable(x)
    y = formula(leaf)
    dy = RNG.standard_normal(y.shape) if dy is None else dy
    return {"y": y, "dx": graph.gradient([y], [dy], [leaf])[0]}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_part_has_the_values_of_the_whole(name):
    for node in gradient(FORMULAS[name], RNG.standard_normal((8, 12))).values():
        box = tuple(np.sort(RNG.choice(n, min(n, 3), False)) for n in node.shape)
        part = Parts().part(node, box)
        expected = node.value[np.ix_(*box)]
        np.testing.assert_allclose(part.value, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", ["softmax", "norm", "relu"])
def test_of_few_rows_only_these_are_computed(name):
    node = gradient(FORMULAS[name], RNG.standard_normal((256, 16)))["dx"]
    part = Parts().part(node, (np.array([3, 200]), np.array([5])))
    sizes = [
        sum(n.size for n in graph.topological_order([one])) for one in (node, part)
    ]
    assert sizes[1] < sizes[0] / 64


def asked(name, dtype, monkeypatch):
    """A question that is too large to be judged in full, and right answers."""
    monkeypatch.setattr(question, "FULL", 0)
    monkeypatch.setattr(question, "LARGE", 0)
    x = RNG.standard_normal((128, 64)).astype(dtype)
    if name == "product of a row":
        x *= 10 ** np.linspace(-4, 4, 128, dtype=dtype)[:, None]
    made = gradient(FORMULAS[name], x.astype(np.longdouble))
    dy = RNG.standard_normal(made["y"].shape).astype(dtype)

    def build(wide):
        return gradient(FORMULAS[name], x.astype(wide), dy.astype(wide))

    right = build(np.dtype(np.longdouble))
    got = {n: node.value.astype(dtype) for n, node in right.items()}
    return Question(build, dtype), got


#: What kernels get wrong at size: a place, and what comes out there.
PLANTED = {
    "one element": lambda a: np.add.at(a, (77, 31), 0.01 * np.abs(a).max()),
    "the tail of the last block": lambda a: a.__setitem__((-1, slice(-3, None)), 0),
    "one row in bfloat16": lambda a: a.view(np.uint32).__setitem__(
        5, a.view(np.uint32)[5] & 0xFFFF0000
    ),
    "a swapped tile": lambda a: a.__setitem__(
        (slice(4), slice(8)), a[:4, :8][::-1].copy()
    ),
    "a row that is not written": lambda a: a.__setitem__(100, 0),
    "not a number": lambda a: a.__setitem__((9, 9), np.nan),
}


@pytest.mark.parametrize("name", ["softmax", "norm", "attention", "product"])
@pytest.mark.parametrize("planted", PLANTED)
def test_a_wrong_element_of_a_large_tensor_is_found_and_named(
    name, planted, monkeypatch
):
    question_, got = asked(name, "float32", monkeypatch)
    right = question_.judge(got, dict.fromkeys(got, "float32"))
    assert {j.verdict for j in right} == {"agree"}
    for tensor in got:
        wrong = {**got, tensor: got[tensor].copy()}
        PLANTED[planted](wrong[tensor])
        found = question_.judge(wrong, dict.fromkeys(got, "float32"))
        (j,) = [j for j in found if j.verdict != "agree"]
        assert j.tensor == tensor
        assert wrong[tensor][j.worst_index] != got[tensor][j.worst_index]
        assert "right" not in question_.__dict__  # nothing was judged in full


def test_what_was_looked_at_is_said(monkeypatch):
    question_, got = asked("norm", "float32", monkeypatch)
    got["dx"][3, 4] += 1
    (j,) = [j for j in question_.judge(got, dict.fromkeys(got, "float32")) if j.verdict
            != "agree"]  # fmt: skip
    assert j.worst_index == (3, 4)
    assert "of 8192 elements" in j.message
    assert "were judged in full" in j.message


def test_elements_of_a_scalar_are_a_part():
    scalar = graph.variable(np.array(3.0))
    held = Parts().at(scalar, np.array([0, -1, 0]))
    np.testing.assert_array_equal(held.value, [3, 0, 3])


def test_a_row_of_small_numbers_is_not_hidden_by_the_errors_of_large_ones(monkeypatch):
    question_, got = asked("product of a row", "float32", monkeypatch)
    row = np.abs(got["dx"]).max(axis=1).argmin()
    column = np.abs(got["dx"][row]).argmax()
    got["dx"][row, column] *= 1.001
    (j,) = [
        j for j in question_.judge(got, dict.fromkeys(got, "float32")) if not j.passes
    ]
    assert (j.tensor, j.worst_index) == ("dx", (row, column))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 0.0])
def test_one_wrong_element_of_four_axes_is_found(wrong, monkeypatch):
    monkeypatch.setattr(question, "FULL", 0)
    x = RNG.standard_normal((8, 4, 32, 32)).astype("float32")
    dy = RNG.standard_normal(x.shape).astype("float32")

    def build(wide):
        return gradient(lambda x: graph.sigmoid(x) * x, x.astype(wide), dy.astype(wide))

    got = {"dx": build(np.dtype(np.float64))["dx"].value.astype("float32")}
    place = np.unravel_index(np.abs(got["dx"]).argmax(), x.shape)
    got["dx"][place] = wrong
    (j,) = Question(build, "float32").judge(got, {"dx": "float32"})
    assert not j.passes
    assert j.worst_index == place


def judged_in_part(op, inputs, dy, got, monkeypatch, **attributes):
    monkeypatch.setattr(question, "FULL", 0)
    page, dtype = catalogue.load_op(op), dy.dtype.name
    inputs = dict(zip(page.inputs, inputs, strict=True))
    asked_ = Question.of(Problem(page, inputs, [dy], attributes, dtype=dtype))
    judged = asked_.judge(got, {n: a.dtype.name for n, a in got.items()})
    return [j.verdict for j in judged]


def test_what_is_left_of_constant_rows_is_vacuous_in_part_too(monkeypatch):
    x = np.full((64, 256), 1e4, "float32")
    weight, bias, dy = np.ones(256, "float32"), np.zeros(256, "float32"), 0 * x + 1
    got = {"dx": np.full(x.shape, 3.0, "float32")}
    arrays, eps = (x, weight, bias), 1e-5
    assert judged_in_part("layer_norm", arrays, dy, got, monkeypatch, eps=eps) == [
        "vacuous"
    ]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_sum_of_equal_terms_one_by_one_is_imprecise_in_part_too(dtype, monkeypatch):
    x, one = np.ones((1 << 14, 1), dtype), np.ones((1, 1), dtype)
    dy = np.full((1 << 14, 1), 0.1, dtype)
    got = {"dx": dy.copy(), "dbias": np.cumsum(dy[:, 0], dtype=dtype)[-1:]}
    arrays = (x, one, one[0])
    assert judged_in_part("linear", arrays, dy, got, monkeypatch) == [
        "agree", "imprecise"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("at_tie", "verdict"), [(0.0, "convention"), (1.0, "agree"), (2.0, "disagree")]
)
def test_a_tie_is_broken_by_a_convention_in_part_too(at_tie, verdict, monkeypatch):
    x, dy = RNG.standard_normal((2, 1 << 14))
    x[7] = 0.0
    got = {"dx": np.where(x == 0, at_tie * dy, np.where(x > 0, dy, 0.0))}
    found = judged_in_part("relu", (x,), dy, got, monkeypatch)
    assert found == [verdict]


@pytest.mark.parametrize(
    "change", [lambda a: a.astype("float32"), lambda a: a[:-1], lambda a: a * 1.001]
)
def test_another_dtype_shape_or_number_fails_in_part_too(change, monkeypatch):
    x, dy = RNG.standard_normal((2, 1 << 14))
    got = {"dx": change(dy * np.log(2) * 2**x), "y": 2**x}
    first, second = judged_in_part("exp2", (x,), dy, got, monkeypatch)
    assert first in ("malformed", "disagree")
    assert second == "agree"


def test_a_large_judgement_holds_at_most_16_times_its_input(monkeypatch):
    """All values of softmax and its gradient are 9 times the input, in float64."""
    x, dy = RNG.standard_normal((2, 2048, 512)).astype("float32")
    y = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    got = {"dx": y * (dy - (y * dy).sum(-1, keepdims=True))}
    tracemalloc.start()
    try:
        found = judged_in_part("softmax", (x,), dy, got, monkeypatch, axis=-1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == ["agree"]
    assert peak < 16 * x.nbytes
