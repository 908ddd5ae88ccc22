"""The diagnosis names planted mistakes, says nothing of right ones, and claims no more.

Each mistake is planted in a backward that is written out here by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import itemgetter
from typing import Any
from unittest import mock

import numpy as np
import pytest

from gradwatch.harness.diagnosis.entry import assert_agrees, judge
from gradwatch.harness.diagnosis.search import EACH, explanations
from gradwatch.harness.judging import question
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.judging.reference import reference
from gradwatch.impls import catalogue
from gradwatch.impls.contract import Case, Op, Problem
from gradwatch.impls.graph.forms import forms

RNG = np.random.default_rng(7)
X = RNG.standard_normal((5, 12)).astype(np.float32)
W = RNG.standard_normal(12).astype(np.float32)
B = RNG.standard_normal(12).astype(np.float32)
DY = RNG.standard_normal((5, 12)).astype(np.float32)
N = X.shape[-1]


@pytest.fixture(autouse=True)
def _same_draws(monkeypatch: Any) -> None:
    """The numbers of a test do not depend on the tests before it."""
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(11))


def mean(a: Any) -> Any:
    return a.mean(-1, keepdims=True)


def layer_norm(
    eps: float = 1e-5,
    weight: Any = W,
    shift: float = 1.0,
    scale: float = 1.0,
    saved: Callable[[Any], Any] = lambda h: h,
    dy: Any = DY,
    rows: Callable[[Any], Any] = lambda a: a.sum(0),
    last: float = 1.0,
    count: int = N,
) -> list[Any]:
    """The gradients of a layer norm in float64, each part with a factor."""
    x, dy = X.astype(np.float64), np.asarray(dy, np.float64)
    centred = x - mean(x)
    rstd = 1 / np.sqrt(mean(centred**2) * N / count + eps)
    h = saved(centred * rstd)
    g = dy * weight
    dx = last * rstd * (g - shift * mean(g) - scale * h * mean(g * h))
    return [dx, rows(dy * h), rows(dy)]


def said(gradients: list[Any], dtype: str = "float32") -> list[str]:
    """The sentences on dx, dweight and dbias."""
    wide = [np.asarray(a, dtype) for a in (X, W, B)]
    narrow = [np.asarray(g).astype(dtype) for g in gradients]
    found = judge(
        "layer_norm", wide, DY.astype(dtype), narrow, attributes={"eps": 1e-5}
    )
    return [j.diagnosis for j in found]


def test_a_right_gradient_has_no_diagnosis() -> None:
    assert said(layer_norm()) == ["", "", ""]


def test_nothing_is_searched_where_everything_passes(monkeypatch: Any) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr("gradwatch.harness.diagnosis.search.Sweep", refuse)
    assert said(layer_norm()) == ["", "", ""]


MISTAKES = {
    "the mean's term is left out": (layer_norm(shift=0), 0, "`sum(x", "is left out"),
    "the mean's term counts twice": (layer_norm(shift=2), 0, "`sum(x", "counted twice"),
    "a sum for a mean": (layer_norm(shift=N), 0, "`sum(x", f"multiplied by {N}"),
    "the variance's sign": (layer_norm(scale=-1), 0, "through `sqrt(", "wrong sign"),
    "eps is large": (layer_norm(eps=0.1), 0, "0.1 stands for 1e-05", "agree"),
    "eps is another": (layer_norm(eps=1e-3), 0, "0.001 stands for 1e-05", "agree"),
    "an eps that nobody writes": (layer_norm(eps=0.0437), 0, "0.0437 stands", "agree"),
    "the weight is forgotten": (layer_norm(weight=1), 0, "weight", "1 stands for"),
    "a factor of its own": (
        layer_norm(last=1.2345),
        0,
        "multiplied by 1.2345",
        "agree",
    ),
    "an unbiased variance": (layer_norm(count=11), 0, "11 stands for 12 in", "agree"),
    "one too many": (layer_norm(count=13), 0, "13 stands for 12 in", "agree"),
    "the wrong sign": (layer_norm(last=-1), 0, "dx is given the wrong sign", "agree"),
    "zero": (layer_norm(last=0), 0, "dx is zero everywhere", "60 elements"),
    "the mean of rows": (
        layer_norm(rows=lambda a: a.mean(0)),
        *(2, "dbias is divided by 5", "a mean for a sum"),
    ),
    "the last row overwrites": (
        layer_norm(rows=lambda a: a[-1]),
        *(2, "the last copy overwrites", "dy"),
    ),
    "the last row is missing": (
        layer_norm(rows=lambda a: a[:-1].sum(0)),
        *(2, "the last", "dy"),
    ),
    "the cotangent is ones": (
        layer_norm(dy=np.ones_like(DY)),
        0,
        "1 stands for dy",
        "",
    ),
    "the cotangent is reversed": (
        layer_norm(dy=DY[::-1, ::-1]),
        0,
        "dy is reversed",
        "",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_planted_mistake_is_named(name: str, dtype: str) -> None:
    gradients, at, *words = MISTAKES[name]
    sentence = said(gradients, dtype)[at]
    assert all(word in sentence for word in words), sentence


TENSORS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "transposed": (lambda g: g.T.copy(), "is transposed"),
    "shifted": (lambda g: np.roll(g, 1), "is shifted by one"),
    "reversed": (lambda g: np.flip(g, 0), "is reversed along axis 0"),
    "clipped": (lambda g: np.clip(g, -1, 1), "is clipped to [-1, 1]"),
    "an eps added": (lambda g: g + 1e-4, "0.0001 is added to"),
    "a number added": (lambda g: g - 0.25, "-0.25 is added to"),
    "rounded": (lambda g: g.astype(np.float16), "rounded to float16"),
    "one row": (
        lambda g: g * (np.arange(9) != 4)[:, None],
        "slice 4 of 9 along axis 0",
    ),
    "a tail": (lambda g: g * (np.arange(9) < 8), "tail after blocks of 8"),
    "a part": (lambda g: g * (np.arange(9) % 3 != 2), "the last of every block of 3"),
    "noise": (lambda g: g + RNG.standard_normal(g.shape), "81 of 81 elements"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_what_happened_to_a_whole_tensor_is_named(name: str) -> None:
    change, words = TENSORS[name]
    a, b, dy = (RNG.standard_normal((9, 9)) for _ in range(3))
    right = dy @ b.T
    wrong = np.asarray(change(right), np.float64)
    first, second = judge("matmul", [a, b], dy, [wrong, a.T @ dy])
    assert words in first.diagnosis
    assert second.diagnosis == ""


def test_what_nothing_explains_claims_no_agreement() -> None:
    noise = [g + RNG.standard_normal(g.shape) for g in layer_norm()]
    assert all(s and "agree" not in s for s in said(noise))


def test_values_of_an_input_tell_wrong_elements_apart() -> None:
    x, dy = RNG.standard_normal((2, 8, 9))
    wrong = np.where(x < 0, dy + RNG.standard_normal(x.shape), dy)
    op = Op("identity", inputs="x", cases=[Case("3", x=(3,))])
    op.implement("formula")(lambda xp, x: x * 1.0)
    (judged,) = judge(op, [x], dy, [wrong])
    assert re.search(r"those where x is -[\d.]+ to -[\d.]+$", judged.diagnosis)


def test_a_right_zero_is_not_counted_among_the_wrong() -> None:
    x, dy = RNG.permutation(np.linspace(-1, 1, 200)).reshape(10, 20), np.ones((10, 20))
    (judged,) = judge("relu", [x], dy, [dy * (x > 0.1)])
    assert judged.diagnosis.startswith("10 of 200 elements of dx are wrong: those")
    assert re.search(r"x is 0\.00\d+ to 0\.09\d+$", judged.diagnosis)


def test_an_explanation_predicts_other_numbers() -> None:
    """What was found at some numbers holds at those near by, computed by hand."""
    inputs = {"x": X, "weight": W, "bias": B}
    op = catalogue.load_op("layer_norm")
    problem = Problem(op, inputs, [DY], {"eps": 1e-5}, dtype="float32")
    right = reference(problem)
    wrong = layer_norm(shift=0)
    got = {f"d{n}": g.astype(np.float32) for n, g in zip(inputs, wrong, strict=True)}
    from gradwatch.harness.judging.verdict import judge_tensors

    judged = judge_tensors(right, got, dict.fromkeys(got, "float32"))
    sweep, found = explanations(right, got, judged)
    assert sweep is not None
    (first, *_) = found["dx"]
    (dy,) = sweep.cotangents
    other = RNG.standard_normal(DY.shape)
    there = sweep.run(sweep.values, {dy: lambda at: other})
    assert first.predict is not None
    expected = layer_norm(shift=0, dy=other)[0]
    np.testing.assert_allclose(
        first.predict(there)["dx"], expected, rtol=1e-6, atol=1e-6
    )


def test_assert_agrees_says_it() -> None:
    wrong = [g.astype(np.float32) for g in layer_norm(shift=0)]
    with pytest.raises(AssertionError, match=r"`sum\(x.* is left out"):
        assert_agrees("layer_norm", [X, W, B], DY, wrong, attributes={"eps": 1e-5})


def test_what_is_found_does_not_depend_on_the_time_that_it_takes() -> None:
    """A slow machine takes longer for the same steps, of which there is a number."""
    x, dy = RNG.standard_normal((2, 64, 256)).astype(np.float32)
    w = np.ones(256, np.float32)
    noise = [RNG.standard_normal(a.shape).astype(np.float32) for a in (x, w, w)]
    inputs = {"x": x, "weight": w, "bias": w}
    problem = Problem(catalogue.load_op("layer_norm"), inputs, [dy], {"eps": 1e-5})
    judged = [Judgement(f"d{name}", "disagree") for name in inputs]
    got = {row.tensor: noise[i] for i, row in enumerate(judged)}
    for steps in (1_000, EACH):
        sweep, _ = explanations(reference(problem), got, judged, steps)
        assert sweep
        assert steps / 2 < sweep.spent < 2 * steps


def test_an_explanation_of_infinities_explains_no_finite_numbers() -> None:
    """1 / (x > 0) is infinite, and so is the room of one rounding of it."""
    x, dy = RNG.standard_normal((2, 5, 8))
    (judged,) = judge("relu", [x], dy, [dy * np.where(x > 0, 1, -np.cos(x))])
    assert judged.diagnosis
    assert "agree" not in judged.diagnosis


def test_a_factor_is_seen_where_only_the_last_rounding_may_be_off() -> None:
    """The gradient of a sum is its cotangent, exactly: its own radius is zero."""
    a, b, dy = RNG.standard_normal((3, 6, 7)).astype(np.float32)
    wrong = (dy * np.float64(1 + 5e-4)).astype(np.float32)
    first, second = judge("add", [a, b], dy, [wrong, dy])
    assert "multiplied by 1 + 0.0005: with this, all 42" in first.diagnosis
    assert not second.diagnosis


def attention(mask: Any, q: Any, k: Any, v: Any, dy: Any) -> list[Any]:
    """The gradients of masked attention."""
    scores = np.where(mask, q @ k.T, -1e9)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    ds = p * (dy @ v.T - ((dy @ v.T) * p).sum(-1, keepdims=True))
    return [ds @ k, ds.T @ q, p.T @ dy]


CAUSAL = np.tril(np.ones((6, 6), bool))
ATTENTION = Op(
    "masked", inputs="q k v", cases=[Case("6", q=(6, 8), k=(6, 8), v=(6, 8))]
)


@ATTENTION.implement("formula")
def masked(xp: Any, q: Any, k: Any, v: Any) -> Any:
    scores = xp.where(CAUSAL, q @ k.mT, -1e9)
    p = xp.exp(scores - xp.logsumexp(scores, axis=-1, keepdims=True))
    return p @ v


WINDOW = CAUSAL | True


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (WINDOW, "a mask of shape (6, 6) is not applied"),
        (np.tril(WINDOW, 1), "ends one later along axis 1"),
        (np.tril(WINDOW, 2), " elements of d"),  # two further have no name
    ],
)
def test_a_mask_that_the_backward_computes_otherwise_is_named(
    mask: Any, words: str
) -> None:
    q, k, v, dy = RNG.standard_normal((4, 6, 8)).astype(np.float32)
    wrong = [g.astype(np.float32) for g in attention(mask, q, k, v, dy)]
    found = judge(ATTENTION, [q, k, v], dy, wrong)
    assert all(words in j.diagnosis for j in found)
    again = "all that the backward uses"
    assert all((again in j.diagnosis) == ("of d" not in words) for j in found)


@pytest.mark.parametrize("least", [-np.inf, -1e9, -65504.0])
def test_a_mask_that_is_added_is_left_out_by_zeros(least: float) -> None:
    """Ones, which a softmax cannot tell from zeros, come after it."""
    cost, words, left_out = min(forms(np.where(CAUSAL, 0.0, least)), key=itemgetter(0))
    assert (cost, words) == (3.9, "{} is not applied")
    assert not left_out(np.where(CAUSAL, 0.0, least)).any()
    scores = np.where(CAUSAL, 0.0, -1e5 * RNG.random((6, 6)))
    scores[0, 0] = -1.0
    assert all(words != "{} is not applied" for _, words, _ in forms(scores))


def test_a_factor_of_all_is_not_that_of_all_but_zeros() -> None:
    """The first query of causal attention has one key, and so no gradient."""
    q, k, v, dy = RNG.standard_normal((4, 6, 8)).astype(np.float32)
    dq, *others = (g.astype(np.float32) for g in attention(CAUSAL, q, k, v, dy))
    assert not dq[0].any()
    found = judge(ATTENTION, [q, k, v], dy, [2 * dq, *others])
    assert found[0].diagnosis.startswith("dq is counted twice")
    dq[1:4] *= 2
    found = judge(ATTENTION, [q, k, v], dy, [dq, *others])
    assert "of dq are counted twice" in found[0].diagnosis


def rooted(eps: float, inside: bool) -> list[Any]:
    """The gradient of x / sqrt(mean(x^2) + eps), or with eps added to the root."""
    x, dy = X.astype(np.float64), DY.astype(np.float64)
    square = mean(x * x)
    r = 1 / (np.sqrt(square + eps) if inside else np.sqrt(square) + eps)
    return [(r * (dy - x * r * mean(dy * x * r))).astype(np.float32)]


def root(eps: float) -> Op:
    op = Op("rooted", inputs="x", cases=[Case("5x12", x=(5, 12))])

    @op.implement("formula")
    def formula(xp: Any, x: Any) -> Any:
        return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + eps)

    return op


def test_an_eps_outside_the_root_is_named() -> None:
    (right,) = judge(root(0.01), [X], DY, rooted(0.01, inside=True))
    assert right.passes
    (wrong,) = judge(root(0.01), [X], DY, rooted(0.01, inside=False))
    assert "computes it again, sqrt comes before add in `sqrt(" in wrong.diagnosis
    assert "all 60 elements agree" in wrong.diagnosis


def test_in_16_bits_a_number_is_not_certain_where_others_near_by_would_do() -> None:
    """An eps outside the root leaves what rounding does, another eps leaves more."""
    narrow = PRECISIONS["bfloat16"].round
    x, dy = map(narrow, np.random.default_rng(2).standard_normal((2, 5, 12)))

    def said(eps: float, inside: bool) -> str:
        square = mean(x * x)
        r = 1 / (np.sqrt(square + eps) if inside else np.sqrt(square) + eps)
        wrong = narrow(r * (dy - x * r * mean(dy * x * r)))
        return judge(root(0.1), [x], dy, [wrong], dtype="bfloat16")[0].diagnosis

    assert "sqrt comes before add" in said(0.1, inside=False)
    assert said(0.16, inside=True).startswith("perhaps 0.")
    assert said(0.6, inside=True).startswith("0.6 stands for 0.1 in")


def test_where_windows_overlap_the_last_gradient_stands() -> None:
    op = Op("pooled", inputs="x", cases=[Case("4x9", x=(4, 9))])
    windows = np.arange(3) + 2 * np.arange(4)[:, None]

    @op.implement("formula")
    def formula(xp: Any, x: Any) -> Any:
        return xp.max(xp.take(x, windows, axis=1), axis=2)

    x, dx = RNG.standard_normal((4, 9)).astype(np.float32), np.zeros((4, 9), np.float32)
    x[:, 4] += 9  # the highest of two windows
    dy = RNG.standard_normal((4, 4)).astype(np.float32)
    places = windows[range(4), x[:, windows].argmax(2)]
    rows = np.arange(4)[:, None]
    np.add.at(dx, (rows, places), dy)
    assert judge(op, [x], dy, [dx])[0].passes
    dx[rows, places] = dy
    said = judge(op, [x], dy, [dx])[0].diagnosis
    assert "equal indices overwrite the term through `max(" in said


def test_axes_of_one_length_that_are_swapped_are_named() -> None:
    shuffle = Op("shuffled", inputs="x", cases=[Case("3", x=(3, 2, 4, 2, 5))])

    @shuffle.implement("formula")
    def moved(xp: Any, x: Any) -> Any:
        return xp.permute_dims(x, (0, 2, 1, 4, 3))

    dy = RNG.standard_normal((3, 4, 2, 5, 2)).astype(np.float32)
    right = dy.transpose(0, 2, 1, 4, 3)
    swapped = right.swapaxes(1, 3)
    assert judge(shuffle, [right], dy, [right])[0].passes
    said = judge(shuffle, [right], dy, [swapped])[0].diagnosis
    assert "axes 1 and 3 of dx are swapped: with this, all 240" in said


def test_a_running_sum_without_its_own_element_is_named() -> None:
    op = Op("summed", inputs="x", cases=[Case("4x6", x=(4, 6))])

    @op.implement("formula")
    def formula(xp: Any, x: Any) -> Any:
        return xp.exp(xp.cumulative_sum(x, axis=-1))

    x, dy = RNG.standard_normal((2, 4, 6)).astype(np.float32)
    terms = dy * np.exp(x.astype(np.float64).cumsum(-1))
    whole = np.flip(np.flip(terms, -1).cumsum(-1), -1)
    assert judge(op, [x], dy, [whole.astype(np.float32)])[0].passes
    said = judge(op, [x], dy, [(whole - terms).astype(np.float32)])[0].diagnosis
    assert "left out of the running sum at its place" in said


@pytest.mark.parametrize(
    ("rows", "where", "how"),
    [
        (lambda a: a[3:].sum(0), "the first 3 of 5", "left out"),
        (lambda a: a[[0, 3, 4]].sum(0), "slices 1 to 2 of 5", "left out"),
        (lambda a: a.sum(0) + a[2:4].sum(0), "slices 2 to 3 of 5", "counted twice"),
    ],
)
def test_a_block_of_rows_that_a_sum_lacks_or_has_twice_is_named(
    rows: Callable[[Any], Any], where: str, how: str
) -> None:
    _, dweight, dbias = said(layer_norm(rows=rows))
    assert f"* weight` are {how}: with this, all 12 elements agree" in dweight
    assert dweight.startswith(f"{where} along axis 0 of the term through `")
    assert dbias.startswith(f"{where} along axis 0 of dy are {how}: with this, all")


def test_two_mistakes_at_once_are_both_named() -> None:
    """Mean and variance are constants, as in a backward for evaluation."""
    (sentence, *_) = said(layer_norm(shift=0, scale=0))
    one, two = sentence.split(", and ")
    assert "/ sqrt(" in one
    assert "sum(" in two
    assert all("left out" in part for part in (one, two))
    assert "all 60 elements agree" in two


def test_no_two_edits_explain_noise_on_a_few_elements() -> None:
    right = layer_norm()[0]
    noise = [right + 1e-3 * RNG.standard_normal(right.shape) for _ in range(2)]
    assert not any("agree" in said([g, *layer_norm()[1:]])[0] for g in noise)


def test_where_nothing_is_right_no_place_is_said() -> None:
    wrong = [g + 1e-3 * RNG.standard_normal(g.shape) for g in layer_norm()]
    assert not any("right ones" in sentence for sentence in said(wrong))


def test_an_output_has_a_diagnosis_too() -> None:
    x = X.astype(np.float64)
    centred = x - mean(x)
    y = centred / np.sqrt(mean(centred**2) + 0.1) * W + B
    right = [g.astype(np.float32) for g in layer_norm()]
    *_, judged = judge(
        *("layer_norm", [X, W, B], DY, right),
        outputs=[y.astype(np.float32)],
        attributes={"eps": 1e-5},
    )
    assert "0.1 stands for 1e-05" in judged.diagnosis


def test_second_derivatives_have_a_diagnosis() -> None:
    x, dy, v = RNG.standard_normal((3, 5, 8)).astype(np.float32)
    s = 1 / (1 + np.exp(-x.astype(np.float64)))
    wrong = [-dy * v * s * (1 - s) * (1 - s), dy * s * (1 - s)]
    narrow = [g.astype(np.float32) for g in wrong]
    one, two = judge("sigmoid", [x], dy, narrow, order="hvp", tangents=[v])
    assert "elements agree" in one.diagnosis
    assert two.diagnosis.startswith("dy stands for v:")


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_the_other_branch_at_a_kink_is_named(seed: int) -> None:
    """And no -4e-16 in place of 0: what changes with it is the rounding of a sum."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, (6, 8)).astype(np.float32)
    dy = rng.standard_normal(x.shape).astype(np.float32)
    op = Op("gate", inputs="x", cases=[Case("3", x=(3,))])
    op.implement("formula")(lambda xp, x: xp.where(x > 0, x * x, 0.5 * x))
    (judged,) = judge(op, [x], dy, [np.where(x >= 0, 2 * x * dy, 0.5 * dy)])
    assert "greater_equal stands for greater in `greater(x, 0)`" in judged.diagnosis


def test_a_factor_within_one_rounding_of_1_is_not_said() -> None:
    """Roundings of bfloat16 may well be biased by a thousandth."""
    a, b, dy = map(PRECISIONS["bfloat16"].round, RNG.standard_normal((3, 40, 50)))
    problem = Problem(
        catalogue.load_op("mul"), {"a": a, "b": b}, [dy], dtype="bfloat16"
    )
    right = reference(problem)
    got = {"da": PRECISIONS["bfloat16"].round(dy * b * 1541 / 1542), "db": dy * a}
    _, found = explanations(right, got, [Judgement("da", "disagree")])
    assert found["da"][0].sentence.startswith("no element of da is off by more")


def test_a_scalar_that_is_off_only_as_a_whole_has_a_sentence() -> None:
    """It has no axis along which a part of it could be wrong."""
    b, dy = map(PRECISIONS["bfloat16"].round, RNG.standard_normal((2, 4, 6)))
    problem = Problem(
        catalogue.load_op("mul"), {"a": np.array(3.0), "b": b}, [dy], dtype="bfloat16"
    )
    got = {"da": np.sum(dy * b), "db": dy * 3}
    _, found = explanations(reference(problem), got, [Judgement("da", "disagree")])
    assert found["da"][0].sentence


def test_what_a_few_digits_show_is_not_certain() -> None:
    """Eight elements of eight digits agree by chance, those of 24 do not."""
    a, b, dy = RNG.integers(1, 5, (3, 8)).astype(np.float32)
    for dtype, certain in (("bfloat16", False), ("float32", True)):
        first, _ = judge("mul", [a, b], dy, [2 * dy * b, dy * a], dtype=dtype)
        assert "da is counted twice" in first.diagnosis
        assert first.diagnosis.startswith("perhaps") != certain


@pytest.mark.parametrize(
    ("dy", "b", "factor", "words"),
    [
        (1.0, B, 42.17, "multiplied by 42.17"),
        (0.7, B, 0.7 * 60, "multiplied by 42"),
        (np.sign(DY), B, 1.7, "multiplied by 1.7"),
        (DY, 2.0, 2.0, "counted twice"),
        (0.5, 1.0, 0.5, "halved"),
        (-1.0, B, -1.0, "given the wrong sign"),
    ],
)
def test_of_what_is_the_same_at_these_numbers_the_simplest_is_said(
    dy: Any, b: Any, factor: float, words: str
) -> None:
    """Where |dy| is the same everywhere, its square, too, is but a factor."""
    dy, b = (np.broadcast_to(v, X.shape).astype(np.float32) for v in (dy, b))
    wrong = (factor * dy.astype(np.float64) * b).astype(np.float32)
    first, second = judge("mul", [X, b], dy, [wrong, dy * X])
    assert first.diagnosis.removeprefix("perhaps ").startswith(f"da is {words}:")
    assert not second.diagnosis


RECURRENT = Op(
    "recurrent", inputs="x w u", cases=[Case("3", x=(4, 3, 5), w=(5, 6), u=(6, 6))]
)


@RECURRENT.implement("formula")
def recurrent(xp: Any, x: Any, w: Any, u: Any) -> Any:
    h = xp.tanh(x[0] @ w)
    for i in range(1, 4):
        h = xp.tanh(x[i] @ w + h @ u)
    return h


@pytest.mark.parametrize(
    ("slope", "carry", "words"),
    [
        (lambda h: 1 + 0 * h, 1, "1 stands for `1 - (tanh(...) * tanh(...))`, in each"),
        (lambda h: 1 - h * h, 2, "is counted twice, in each of 3 copies"),
        (lambda h: 1 - h * h, 1, ""),
    ],
)
def test_a_step_that_is_wrong_in_each_pass_of_a_loop_is_one_mistake(
    slope: Callable[[Any], Any], carry: float, words: str
) -> None:
    x, w, u, dh = (RNG.standard_normal(n) for n in ((4, 3, 5), (5, 6), (6, 6), (3, 6)))
    w, u, dy = w / 3, u / 3, dh
    hs = [np.tanh(x[0] @ w)]
    for i in range(1, 4):
        hs.append(np.tanh(x[i] @ w + hs[-1] @ u))
    dx, dw, du = np.zeros_like(x), np.zeros_like(w), np.zeros_like(u)
    for i in reversed(range(4)):
        p = dh * slope(hs[i])
        dx[i], dw, du = p @ w.T, dw + x[i].T @ p, du + (hs[i - 1].T @ p if i else 0)
        dh = carry * (p @ u.T)
    found = judge(RECURRENT, [x, w, u], dy, [dx, dw, du])
    assert all(words in j.diagnosis and j.passes == (not words) for j in found)


def test_a_momentum_that_stands_in_two_constants_is_one_mistake() -> None:
    old = RNG.standard_normal(5)
    op = Op("running", inputs="m old", cases=[Case("5", m=(5,), old=(5,))])
    op.implement("formula")(lambda xp, m, old: 0.1 * m + 0.9 * old)
    m, dy, right = RNG.standard_normal((3, 5))
    right = 0.1 * dy, 0.9 * dy
    *_, y = judge(op, [m, old], dy, right, outputs=[0.3 * m + 0.7 * old])
    assert "0.7 stands for 0.9 and 0.3 for 1 - 0.9 in `" in y.diagnosis


def large(wrong: Callable[[Any, Any], Any]) -> str:
    """What is said of a softmax that is judged by some of its elements."""
    x, dy = RNG.standard_normal((2, 512, 512)).astype(np.float32)
    p = np.exp(x)
    p /= p.sum(-1, keepdims=True)
    with mock.patch.object(question, "MOST", 0):  # as of what is still larger
        (judged,) = judge("softmax", [x], dy, [wrong(p, dy)], attributes={"axis": -1})
    assert "were judged in full" in judged.message
    return judged.diagnosis


def test_a_tensor_that_is_judged_in_part_has_a_diagnosis() -> None:
    sentence = large(lambda p, dy: p * dy)
    assert "sum(" in sentence
    assert "left out: with this, all 512 elements looked at agree" in sentence


def test_a_column_of_which_one_row_is_looked_at_is_no_single_element() -> None:
    def wrong(p: Any, dy: Any) -> Any:
        dx = p * (dy - (p * dy).sum(-1, keepdims=True))
        dx[:, 511] = 0
        return dx

    assert large(wrong).startswith("the last of 512 along axis 1 of dx is zero: ")


@pytest.mark.parametrize("shape", [(1, 4), (4, 1), (2, 4), (2, 2, 4)])
def test_what_stands_for_a_value_has_its_shape(shape: tuple[int, ...]) -> None:
    """A row turned about, times a row, is a matrix: of 32,000 elements a billion."""
    x = RNG.standard_normal(shape)
    made = [form(x) for _, _, form in forms(x)]
    assert {np.shape(new) for new in made} == {shape}


def test_a_tail_of_a_large_tensor_is_seen() -> None:
    def wrong(p: Any, dy: Any) -> Any:
        dx = p * (dy - (p * dy).sum(-1, keepdims=True))
        dx[:, 504:] = 0
        return dx

    sentence = large(wrong)
    assert "the last 8 of 512 along axis 1 of dx are zero" in sentence


def test_large_tensors_that_are_right_in_part_keep_their_names() -> None:
    """Of layer_norm dweight alone is wrong: x is the input whose name is x."""
    x, dy = RNG.standard_normal((2, 512, 256)).astype(np.float32)
    w = RNG.standard_normal(256).astype(np.float32)
    c = x - x.mean(-1, keepdims=True)
    r = 1 / np.sqrt((c * c).mean(-1, keepdims=True) + 1e-5)
    g = dy * w
    dx = r * (g - mean(g) - c * r * mean(g * c * r))
    dw = (dy.astype(np.float64) * x).sum(0).astype(np.float32)
    found = judge(
        "layer_norm", [x, w, w], dy, [dx, dw, dy.sum(0)], attributes={"eps": 1e-5}
    )
    assert [j.tensor for j in found if not j.passes] == ["dweight"]
    assert "x stands for" in found[1].diagnosis


@pytest.mark.parametrize(
    ("eps", "factor", "words"),
    [
        (1e-4, 1, "0.0001 stands for 1e-05"),
        (1e-5, 1 + 5e-5, "dx is multiplied by 1 + 5"),
    ],
)
@pytest.mark.parametrize("most", [question.MOST, 0])  # 0: as of what is still larger
def test_of_what_is_within_the_tolerance_the_simple_and_close_is_said(
    monkeypatch: Any, most: int, eps: float, factor: float, words: str
) -> None:
    """By the tolerance alone 16384/16383 is the factor, too, or 4095.6 the length."""
    monkeypatch.setattr(question, "MOST", most)
    x, dy = RNG.standard_normal((2, 4, 4096)).astype(np.float32)
    w, wide = RNG.standard_normal(4096).astype(np.float32), x.astype(np.float64)
    c, g = wide - mean(wide), dy * w.astype(np.float64)
    r = 1 / np.sqrt(mean(c * c) + eps)
    dx = factor * r * (g - mean(g) - c * r * mean(g * c * r))
    made = [dx, (dy * c * r).sum(0), dy.sum(0), c * r * w + w]
    *gradients, y = (a.astype(np.float32) for a in made)
    given = {"outputs": [y], "attributes": {"eps": 1e-5}}
    found = judge("layer_norm", [x, w, w], dy, gradients, **given)
    said = [j.diagnosis for j in found if not j.passes]
    assert said
    assert all(one.startswith(words) for one in said), said  # without a "perhaps"


def of_rows(xp: Any, x: Any, t: Any, axis: int = -1) -> Any:
    square = xp.mean(x * x, axis=axis, keepdims=True)
    return x / xp.sqrt(square + 0.01) * xp.erf(t / 2**0.5)


FUNCTIONS: dict[str, tuple[Callable[..., Any], str]] = {
    "an eps outside the root": (
        lambda xp, x, t: (
            x
            / (xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True)) + 0.01)
            * xp.erf(t / 2**0.5)
        ),
        "sqrt comes before add in `sqrt(",
    ),
    "a norm of columns": (
        lambda xp, x, t: of_rows(xp, x, t, axis=0),
        "axis 0 stands for axis 1 from `sum(",
    ),
    "GELU's approximation": (
        lambda xp, x, t: (
            x
            / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + 0.01)
            * xp.tanh((2 / np.pi) ** 0.5 * (t + 0.044715 * t * t * t))
        ),
        "the tanh approximation of erf of t stands for `erf(",
    ),
    "arguments in another order": (
        lambda xp, x, t: of_rows(xp, t, x),
        "x and t are exchanged",
    ),
    "gates in another order": (
        lambda xp, x, t: of_rows(
            xp, xp.concat((x[:, :3], x[:, 6:9], x[:, 3:6], x[:, 9:]), axis=1), t
        ),
        "parts 1 and 2 of 4 of x are exchanged along axis 1",
    ),
    "a sum for a mean": (
        lambda xp, x, t: 12 * of_rows(xp, x, t),
        "y is multiplied by 12",
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_another_function_has_one_sentence_for_its_output_and_gradients(
    name: str,
) -> None:
    """And none that says it of the backward, which is right for its own forward."""
    made, words = FUNCTIONS[name]
    x, t, dy = RNG.standard_normal((3, 6, 12)).astype(np.float32)
    ops = [
        Op("rows", inputs="x t", cases=[Case("6", x=(6, 12), t=(6, 12))])
        for _ in range(2)
    ]
    for op, formula in zip(ops, (of_rows, made), strict=True):
        op.implement("formula")(formula)
    problem = Problem(ops[1], {"x": x, "t": t}, [dy], dtype="float32")
    graphs = reference(problem).graphs["first"]
    got = [graphs[n].value.astype(np.float32) for n in ("dx", "dt", "y")]
    for judged in judge(ops[0], [x, t], dy, got[:2], outputs=got[2:]):
        assert judged.diagnosis.startswith(words)
        assert "with this, all 216 elements agree" in judged.diagnosis


def test_the_gradient_of_another_function_is_named() -> None:
    """The output is right: what is differentiated is the approximation."""
    x, dy = RNG.standard_normal((2, 6, 12)).astype(np.float32)
    op = Op("gelu", inputs="x", cases=[Case("6", x=(6, 12))])
    op.implement("formula")(lambda xp, x: 0.5 * x * (1 + xp.erf(x / 2**0.5)))
    wide, c = x.astype(np.float64), (2 / np.pi) ** 0.5
    tanh = np.tanh(c * (wide + 0.044715 * wide**3))
    inner = c * (1 + 3 * 0.044715 * wide**2) * (1 - tanh**2)
    wrong = dy * 0.5 * (1 + tanh + wide * inner)
    (judged,) = judge(op, [x], dy, [wrong.astype(np.float32)])
    assert "the tanh approximation of erf of x" in judged.diagnosis
    assert "in the function that is differentiated" in judged.diagnosis


def test_errors_that_follow_a_value_are_no_roundings() -> None:
    x, dy = RNG.standard_normal((2, 8, 16)).astype(np.float32)
    op = Op("same", inputs="x", cases=[Case("3", x=(3,))])
    op.implement("formula")(lambda xp, x: x * 1.0)
    noise, smooth = RNG.standard_normal(x.shape), np.cos(2 * x)
    for error, said in ((noise, True), (smooth, False)):
        (judged,) = judge(op, [x], dy, [dy * (1 + 3e-4 * error).astype(np.float32)])
        assert ("as large as roundings of" in judged.diagnosis) == said


def test_equal_indices_that_are_averaged_are_named() -> None:
    rows = np.array([0, 2, 2, 1, 0, 2])
    dy, weight = np.random.default_rng(3).standard_normal((6, 5)), np.ones((3, 5))
    op = Op("rows", inputs="w", cases=[Case("3", w=(3, 5))])
    op.implement("formula")(lambda xp, w: xp.take(w, rows, axis=0))
    total = np.zeros((3, 5))
    np.add.at(total, rows, dy)
    (judged,) = judge(op, [weight], dy, [total / np.bincount(rows)[:, None]])
    assert "averaged at equal indices" in judged.diagnosis
    assert "all 15 elements agree" in judged.diagnosis


@pytest.mark.parametrize(
    ("step", "again"),
    [
        (lambda xp, a: xp.roll(a, 1, axis=0), lambda a: np.roll(a, 1, 0)),
        (lambda xp, a: xp.cumulative_sum(a, axis=0), lambda a: np.cumsum(a, 0)),
        (lambda xp, a: xp.permute_dims(a, (1, 2, 0)), lambda a: a.transpose(1, 2, 0)),
    ],
)
def test_a_step_that_is_not_transposed_is_named(
    step: Callable[[Any, Any], Any], again: Callable[[Any], Any]
) -> None:
    x, dy = np.random.default_rng(3).standard_normal((2, 4, 4, 4))
    op = Op("step", inputs="x", cases=[Case("4", x=(4, 4, 4))])
    op.implement("formula")(lambda xp, x: xp.tanh(step(xp, x * x)))
    wrong = 2 * x * again(dy * (1 - np.tanh(again(x * x)) ** 2))
    (judged,) = judge(op, [x], dy, [wrong])
    assert "applied once more, and not transposed" in judged.diagnosis
    assert "all 64 elements agree" in judged.diagnosis


@pytest.mark.parametrize(
    ("slope", "words"),
    [
        (lambda n, t: 1 - n * n, "stands for `tanh("),
        (lambda n, t: 1 - n * t, "stands for `tanh("),
        (lambda n, t: 1 + t * t, "add stands for subtract"),
    ],
)
def test_a_rule_that_reads_another_value_is_named(
    slope: Callable[[Any, Any], Any], words: str
) -> None:
    c, z, dy = np.random.default_rng(3).standard_normal((3, 4, 5))
    op = Op("gate", inputs="c z", cases=[Case("4", c=(4, 5), z=(4, 5))])
    op.implement("formula")(lambda xp, c, z: z * xp.tanh(c * c + z))
    n = c * c + z
    d = dy * z * slope(n, np.tanh(n))
    for judged in judge(op, [c, z], dy, [2 * c * d, d + dy * np.tanh(n)]):
        assert "in the backward of `tanh(" in judged.diagnosis
        assert words in judged.diagnosis


def test_a_conjugate_that_is_forgotten_is_named() -> None:
    z, dy = np.random.default_rng(3).standard_normal((2, 6, 2))
    op = Op("square", inputs="z", cases=[Case("6", z=(6, 2))])

    @op.implement("formula")
    def formula(xp: Any, z: Any) -> Any:
        a, b = z[:, 0], z[:, 1]
        return xp.stack((a * a - b * b, a * b + b * a), axis=1)

    wrong = 2 * z.view(complex) * dy.view(complex)
    (judged,) = judge(op, [z], dy, [wrong.view(float)])
    assert "the conjugate of z stands for it" in judged.diagnosis


def test_a_mask_that_is_filled_with_zero_is_named() -> None:
    rng = np.random.default_rng(3)
    q, k, v, dy = rng.standard_normal((4, 6, 8)).astype(np.float32)
    p = np.exp(np.where(CAUSAL, q @ k.T, 0.0))
    p /= p.sum(-1, keepdims=True)
    ds = p * (dy @ v.T - ((dy @ v.T) * p).sum(-1, keepdims=True)) * CAUSAL
    found = judge(ATTENTION, [q, k, v], dy, [ds @ k, ds.T @ q, p.T @ dy])
    assert all("0 stands for -1e+09" in j.diagnosis for j in found)


def test_values_between_two_bounds_tell_wrong_elements_apart() -> None:
    """Of a saved value, too: |x - t| is neither an input nor an output."""
    x, t, dy = np.random.default_rng(3).standard_normal((3, 8, 9))
    far = np.abs(x - t)
    bad = (far > 0.5) & (far < 1)
    op = Op("distance", inputs="x t", cases=[Case("3", x=(3,), t=(3,))])
    op.implement("formula")(lambda xp, x, t: xp.abs(x - t) * 1.0)
    right = dy * np.sign(x - t)
    wrong = np.where(bad, right + RNG.standard_normal(x.shape), right)
    first, _ = judge(op, [x, t], dy, [wrong, -right])
    assert re.search(r"those where .*x - t.* is 0\.5\d* to 0\.9\d*$", first.diagnosis)


def test_elements_without_a_pattern_are_a_last_resort() -> None:
    """Where x is negative |x| has the slope 1: no list of places says that better."""
    x = np.array([0.5, -1.0, 2.0, 0.3, 1.7, -0.2, -0.9, 1.1])
    dy = np.random.default_rng(3).standard_normal(8)
    op = Op("size", inputs="x", cases=[Case("3", x=(3,))])
    op.implement("formula")(lambda xp, x: xp.abs(x) * 1.0)
    (judged,) = judge(op, [x], dy, [dy])
    assert "1 stands for `sign(x)`" in judged.diagnosis


def test_an_error_far_above_a_narrow_types_roundings_is_none_of_them() -> None:
    noise = [1.1 * g for g in layer_norm()]
    noise[0] *= 1 + 0.1 * np.random.default_rng(3).standard_normal(X.shape)
    assert "roundings of" not in said(noise)[0]


def test_one_wrong_element_is_no_sum_in_a_narrow_type() -> None:
    """All of a row has such an error, but one element has another one."""
    alone, row = layer_norm(), layer_norm()
    alone[0][1, 2] *= 1 + 2**-8
    row[0][1] *= 1 + 2**-9 * np.random.default_rng(3).standard_normal(X.shape[1])
    assert "roundings of" not in said(alone)[0]
    assert "roundings of" in said(row)[0]
