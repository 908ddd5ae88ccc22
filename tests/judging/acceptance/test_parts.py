"""The part of a graph behind some elements; tensors too large to be judged in full."""

import itertools

import numpy as np
import pytest

from gradwatch.harness.judging import question
from gradwatch.harness.judging.acceptance import large
from gradwatch.harness.judging.acceptance.large import Least, Look, Sample
from gradwatch.harness.judging.precisions import arithmetics
from gradwatch.harness.judging.question import Question
from gradwatch.harness.judging.rounding.analysis import running_errors
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.impls import graph
from gradwatch.impls.graph.moves import gather, scatter_add
from gradwatch.impls.graph.parts import Parts
from gradwatch.impls.graph.products import convolved
from tests.judging.acceptance.test_large import problem

pytestmark = pytest.mark.usefixtures("undiagnosed")

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
    "multiplied up": lambda x: graph.cumulative_prod(x, axis=1),
    "convolution": lambda x: convolved(
        graph.reshape(x, (2, 4, 3, 4)),
        graph.variable(RNG.standard_normal((6, 2, 2, 3))),
        *([1, 1], [(1, 0), (1, 1)], [1, 1], None, 2),
    ),
    "padded windows": lambda x: graph.sliding_windows(x, 3, padding=1, value=2.0),
    "reshaped": lambda x: graph.sum(graph.reshape(x, (-1, 4)), 1),
}


def gradient(formula, x, dy=None):
    leaf = graph.variable(x)
    y = formula(leaf)
    dy = RNG.standard_normal(y.shape) if dy is None else dy
    return {"y": y, "dx": graph.gradient([y], [dy], [leaf])[0]}


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("name", FORMULAS)
def test_a_part_has_the_values_of_the_whole(name, order):
    x = RNG.standard_normal((8, 12)).copy(order)
    for node in gradient(FORMULAS[name], x).values():
        box = tuple(np.sort(RNG.choice(n, min(n, 3), False)) for n in node.shape)
        part = Parts().part(node, box)
        expected = node.value[np.ix_(*box)]
        np.testing.assert_allclose(part.value, expected, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", ["softmax", "norm", "relu", "added up", "windows"])
def test_of_few_rows_only_these_are_computed(name):
    node = gradient(FORMULAS[name], RNG.standard_normal((256, 16)))["dx"]
    part = Parts().part(node, (np.array([3, 200]), np.array([5])))
    sizes = [
        sum(n.size for n in graph.topological_order([one])) for one in (node, part)
    ]
    assert sizes[1] < sizes[0] / 64


def test_a_part_of_a_scan_has_no_more_nodes_for_more_steps():
    """Each step reads two boxes of the one before it: 2^7 of the first."""
    node = gradient(FORMULAS["multiplied up"], 1 + RNG.random((4, 128)))["dx"]
    part = Parts().part(node, (np.array([1]), np.array([5, 70])))
    before, after = (len(graph.topological_order([one])) for one in (node, part))
    assert after < 10 * before
    np.testing.assert_allclose(part.value, node.value[1:2, [5, 70]], rtol=1e-13)


def test_scores_of_one_head_are_no_reason_to_compute_those_of_all():
    """Each of four tensors is wrong in another head, and two need all of its scores."""
    x = graph.variable(RNG.standard_normal((8, 64, 4)))
    scores = graph.exp(x @ graph.permute_dims(x, (0, 2, 1)) / 8.0)
    y = scores / graph.sum(scores, -1, keepdims=True) @ x
    dx = graph.gradient([y], [RNG.standard_normal(y.shape)], [x])[0]
    parts, some = Parts(), np.array([3, 40])
    made = [
        parts.part(node, (np.array([head]), some + head, None))
        for head, node in enumerate((y, dx, y, dx, y, dx))
    ]
    assert max(n.size for n in graph.topological_order(made)) == 64 * 64
    whole = dx.value[5:6, some + 5]
    np.testing.assert_allclose(made[-1].value, whole, rtol=1e-12)


def asked(name, dtype, monkeypatch):
    """A question that is too large to be judged in full, and right answers."""
    monkeypatch.setattr(question, "FULL", 0)
    monkeypatch.setattr(question, "MOST", 0)
    x = RNG.standard_normal((128, 128)).astype(dtype)
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
def test_a_wrong_element_of_a_large_tensor_is_found_and_named(name, monkeypatch):
    question_, got = asked(name, "float32", monkeypatch)
    right = question_.judge(got, dict.fromkeys(got, "float32"))
    assert {j.verdict for j in right} == {"agree"}
    for tensor, planted in itertools.product(got, PLANTED):
        wrong = {**got, tensor: got[tensor].copy()}
        PLANTED[planted](wrong[tensor])
        found = question_.judge(wrong, dict.fromkeys(got, "float32"))
        (j,) = [j for j in found if j.verdict != "agree"]
        assert j.tensor == tensor, planted
        assert wrong[tensor][j.worst_index] != got[tensor][j.worst_index]
        assert "right" not in question_.__dict__  # nothing was judged in full


def both_ways(build, got, monkeypatch):
    """The verdicts of a float16 tensor by a part of it first, and in full."""
    for name in ("FULL", "OPERATION"):
        monkeypatch.setattr(question, name, 0)
    dtypes = dict.fromkeys(got, "float16")
    ways = (
        Question(build, "float16").judge(got, dtypes),
        judge_tensors(Question(build, "float16").right, got, dtypes),
    )
    return [judged.verdict for (judged,) in ways]


def test_infinities_that_are_due_hide_none_that_another_order_makes(monkeypatch):
    """Of (300 a) b, a from 300 to 900, the first are beyond float16, and others not."""
    a = (300 + 600 * RNG.random((20_000, 1))).astype("float16")
    b = np.where(np.arange(20_000) < 8_000, 3.0, 0.1).reshape(-1, 1).astype("float16")

    def build(wide):
        left, right = (graph.variable(v.astype(wide)) for v in (a, b))
        return {"y": left * 300.0 * right}

    with np.errstate(over="ignore"):
        got = {"y": a * np.float16(300) * b}
    assert np.isinf(got["y"]).all()
    part, full = both_ways(build, got, monkeypatch)
    assert part == full == "vacuous"


def test_what_was_looked_at_is_said(monkeypatch):
    question_, got = asked("norm", "float32", monkeypatch)
    got["dx"][3, 4] += 1
    (j,) = [j for j in question_.judge(got, dict.fromkeys(got, "float32")) if j.verdict
            != "agree"]  # fmt: skip
    assert j.worst_index == (3, 4)
    assert "of 16384 elements" in j.message
    assert "were judged in full" in j.message


def test_of_an_exact_tensor_of_images_with_ties_a_sample_is_judged(monkeypatch):
    monkeypatch.setattr(question, "FULL", 0)
    monkeypatch.setattr(question, "MOST", 0)
    x, dy = np.ones((4, 8, 64, 64), np.float32), np.ones((4, 8, 64, 1), np.float32)

    def build(wide):
        leaf = graph.variable(x.astype(wide))
        y = graph.max(leaf, axis=3, keepdims=True)
        return {"dx": graph.gradient([y], [dy.astype(wide)], [leaf])[0]}

    got = np.zeros_like(x)
    got[..., 0] = 1  # PyTorch's own choice; nothing is off by anything
    for share, passes in ((1.0, True), (0.5, False)):
        asked_ = Question(build, "float32")
        (j,) = asked_.judge({"dx": share * got}, {"dx": "float32"})
        assert j.passes == passes


def test_elements_of_a_scalar_are_a_part():
    scalar = graph.variable(np.array(3.0))
    held = Parts().at(scalar, np.array([0, -1, 0]))
    np.testing.assert_array_equal(held.value, [3, 0, 3])


def assert_exact_zeros(node):
    """Of a sample of the last two elements value and running error are zero."""
    sample, arithmetic = Sample(1), arithmetics("float32", None)[0]
    few = sample.part(node, (np.array([1, 2]),))
    order = graph.topological_order([few])
    errors = running_errors(order, arithmetic, 16.0, sample.rules())
    assert not few.value.any()
    assert not errors.errors[few].any()


def test_of_padding_alone_nothing_of_a_product_is_needed():
    """Nor of one whose factors have an axis of length 1, which is never empty."""
    left, right = (
        graph.variable(RNG.standard_normal(s)) for s in ((2, 1, 3, 6), (6, 4))
    )
    padded = gather(left @ right, index=np.array([0, -1, -1]))
    assert_exact_zeros(padded)


def test_where_nothing_is_scattered_nothing_of_a_product_is_needed():
    """As beside the patches of a picture that lie apart."""
    left, right = (
        graph.variable(RNG.standard_normal(s)) for s in ((1, 3, 6), (2, 1, 6, 4))
    )
    index = np.zeros((2, 1, 3, 4), np.intp)
    scattered = scatter_add(left @ right, index=index, shape=(3,))
    assert_exact_zeros(scattered)


@pytest.mark.parametrize(("ties", "verdict"), [(9, "convention"), (0, "agree")])
def test_a_tie_and_what_says_nothing_are_sought_in_all(monkeypatch, ties, verdict):
    """A few of 16,384 elements would show neither."""
    monkeypatch.setattr(question, "FULL", 0)
    x, dy = (RNG.standard_normal((128, 128)).astype(np.float16) for _ in range(2))
    x[5, :ties] = 0
    if not ties:
        monkeypatch.setattr(large, "share_of_silent", lambda *_: 0.5)

    def build(wide):
        leaf = graph.variable(x.astype(wide))
        y = graph.maximum(leaf, 0.0) if ties else leaf * leaf
        return {"dx": graph.gradient([y], [dy.astype(wide)], [leaf])[0]}

    got = {"dx": build(np.dtype(np.float64))["dx"].value.astype(np.float16)}
    asked_ = Question(build, "float16")
    (j,) = asked_.judge(got, {"dx": "float16"})
    assert j.verdict == verdict
    assert "right" in asked_.__dict__


@pytest.mark.parametrize(("silent", "in_full"), [(0, False), (1, True)])
def test_a_part_of_which_a_third_says_nothing_is_left_to_all(
    monkeypatch, silent, in_full
):
    """Of (x + b) - b a column beside 1e7 says nothing: a few elements show no share."""
    for name in ("FULL", "OPERATION"):
        monkeypatch.setattr(question, name, 0)
    monkeypatch.setattr(large, "share_of_silent", lambda *_: 0.0)
    least = Least.radii
    monkeypatch.setattr(Least, "radii", lambda *how: least(*how) / 1e3)
    x, b = 1 + RNG.random((8192, 3)).astype(np.float32), np.ones(3, np.float32)
    b[:silent] = 1e7

    def build(wide):
        moved = graph.variable(x.astype(wide)) + b.astype(wide)
        return {"y": moved - b.astype(wide)}

    asked_, got = Question(build, "float32"), x.copy()
    got[5, 1] *= 1 + 20 * np.float32(2**-24)  # less than is allowed
    (j,) = asked_.judge({"y": got}, {"y": "float32"})
    assert j.verdict == "agree"
    assert ("right" in asked_.__dict__) == in_full
    assert ("were judged in full" in j.message) != in_full


def test_elements_farthest_off_reject_nothing_that_can_be_judged_in_full(monkeypatch):
    """They are no fair sample: of 100,000 the worst are further off than roundings."""
    question_, got = asked("norm", "float32", monkeypatch)
    monkeypatch.setattr(question, "MOST", 1 << 24)
    got["dx"][3, 4] += 1
    (j,) = [j for j in question_.judge(got, dict.fromkeys(got, "float32")) if j.verdict
            != "agree"]  # fmt: skip
    assert j.worst_index == (3, 4)
    assert "right" in question_.__dict__


def test_where_all_is_that_is_off_is_said(monkeypatch):
    question_, got = asked("norm", "float32", monkeypatch)
    got["dx"][3:7, 16:32] *= 1.01
    (j,) = [j for j in question_.judge(got, dict.fromkeys(got, "float32")) if j.verdict
            != "agree"]  # fmt: skip
    assert "what is off lies in [3:7, 16:32]" in j.message


def looked_at(monkeypatch):
    """How many elements are looked at in each round, where few are too many for all."""
    counts, ratios = [], Look._ratios
    monkeypatch.setattr(large, "MANY", 0)

    def counted(self, node, places, *how):
        counts.append(places.size)
        return ratios(self, node, places, *how)

    monkeypatch.setattr(Look, "_ratios", counted)
    return counts


@pytest.mark.parametrize("rows", [slice(None), slice(3, 40)])
def test_of_a_box_that_is_wrong_a_few_elements_are_looked_at(monkeypatch, rows):
    question_, got = asked("norm", "float32", monkeypatch)
    got["dx"][rows] *= 1.01
    counts = looked_at(monkeypatch)
    found = question_.judge(got, dict.fromkeys(got, "float32"))
    (j,) = [j for j in found if not j.passes]
    first, last, _ = rows.indices(128)
    assert f"what is off lies in [{first}:{last}, 0:128]" in j.message
    assert sum(counts) < 128 * 128 / 4


def test_a_number_that_is_off_is_looked_at_like_a_tensor():
    x = RNG.standard_normal(1 << 14).astype(np.float32)

    def build(wide):
        leaf = graph.variable(x.astype(wide))
        y = graph.sum(leaf * leaf)
        return {"y": y, "dx": graph.gradient([y], [np.ones((), wide)], [leaf])[0]}

    got = {n: node.value for n, node in build(np.dtype(np.float64)).items()}
    for factor, verdict in ((1 + 5e-7, "agree"), (1.01, "disagree")):
        wrong = {"y": factor * got["y"], "dx": got["dx"]}
        wrong = {n: np.asarray(a, np.float32) for n, a in wrong.items()}
        found = Question(build, "float32").judge(wrong, dict.fromkeys(got, "float32"))
        assert [j.verdict for j in found] == [verdict, "agree"]


def test_where_a_part_passes_all_elements_are_looked_at(monkeypatch):
    """As where the sample is right, but more than its least radii off."""
    question_, got = asked("norm", "float32", monkeypatch)
    got["dx"] *= np.float32(1 + 2e-6)  # more than the last rounding, by little
    counts = looked_at(monkeypatch)
    most = Least.radii
    monkeypatch.setattr(Least, "radii", lambda *how: most(*how) / 1e3)
    found = question_.judge(got, dict.fromkeys(got, "float32"))
    assert all(j.passes for j in found)
    assert max(counts) > 128 * 128 / 2


def test_a_gradient_that_needs_all_rows_is_judged_by_itself(monkeypatch):
    """An error of dx is excused without passes over all that dweight needs."""
    made, got = problem("rms_norm", "float32")
    wrong = {n: g * np.float32(1.01) for n, g in got.items()}
    monkeypatch.setattr(question, "MOST", 30_000)
    asked, part = [], Question.part

    def noted(self, boxes):
        asked.append([*boxes])
        return part(self, boxes)

    monkeypatch.setattr(Question, "part", noted)
    judged = Question.of(made).judge(wrong, dict.fromkeys(got, "float32"))
    assert asked == [["dx", "dweight"], ["dx"], ["dweight"]]  # the sizes first
    assert [j.verdict for j in judged] == ["disagree", "disagree"]
