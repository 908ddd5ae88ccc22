"""Careless but honest algorithms are imprecise; a lost term is wrong."""

import functools
import itertools

import numpy as np
import pytest

from gradwatch.harness import assert_agrees, judge
from gradwatch.harness.check import check
from gradwatch.harness.judging.excuses.imprecision import LONG, _losses
from gradwatch.harness.judging.precisions import PRECISIONS, arithmetics
from gradwatch.harness.judging.radii import Radii
from gradwatch.harness.judging.rounding.analysis import limit_for
from gradwatch.harness.judging.verdict import _Tensor
from gradwatch.impls import graph
from gradwatch.impls.contract import Op

pytestmark = pytest.mark.usefixtures("undiagnosed")

BIAS = Op("bias", inputs="a b", formula=lambda xp, a, b: a + b)
PRODUCT = Op("product", inputs="a b", formula=lambda xp, a, b: xp.matmul(a, b))
RNG = np.random.default_rng(8)


def one_by_one(terms):
    return np.add.accumulate(terms)[-1]


def backwards(terms):
    return np.add.accumulate(terms[::-1])[-1]


def numpys(terms):
    return terms.sum(0)


def in_blocks(terms):
    return one_by_one(terms.reshape(16, -1, *terms.shape[1:]).sum(0))


def judged(dy, db, dtype="float32", **more):
    """The judgement on the gradient of a bias."""
    inputs = [np.zeros_like(dy), np.zeros_like(dy[0])]
    return judge(BIAS, inputs, dy, [dy, db], dtype=dtype, **more)[1]


@pytest.mark.parametrize(
    ("dtype", "length"),
    [
        *((d, n) for d in ("float32", "float64") for n in (256, 4096, 65536)),
        pytest.param("float32", 262_144, marks=pytest.mark.slow),
    ],
)
def test_honest_sums_of_equal_terms_pass(length, dtype):
    """Each column is added up in a way of its own; one judgement is of all four."""
    ways = (one_by_one, backwards, numpys, in_blocks)
    dy = np.full((length, len(ways)), 0.1, dtype)
    db = np.concatenate([add(dy[:, [i]]) for i, add in enumerate(ways)])
    assert judged(dy, db, dtype).verdict in ("agree", "imprecise")


def test_a_sum_of_4096_tenths_one_by_one_is_imprecise_and_not_strictly_right():
    dy = np.full((4096, 2), 0.1, "float32")
    db = one_by_one(dy)
    j = judged(dy, db)
    assert j.verdict == "imprecise"
    assert j.passes
    assert "one by one" in j.message
    inputs = [np.zeros_like(dy), np.zeros_like(dy[0])]
    assert_agrees(BIAS, inputs, dy, [dy, db])
    with pytest.raises(AssertionError, match="one by one"):
        assert_agrees(BIAS, inputs, dy, [dy, db], strict=True)


@pytest.mark.parametrize(
    ("wrong", "verdict"),
    [(1.04, "imprecise"), (1.06, "disagree"), (0.0, "disagree"), (-1.0, "disagree")],
)
def test_an_excuse_reaches_no_further_than_what_it_has_lost(
    wrong, verdict, monkeypatch
):
    assert lost_of_a_sum(0.05, wrong, monkeypatch).verdict == verdict


@pytest.mark.parametrize("wrong", [0.0, -1.0, 0.5])
def test_where_more_than_a_tenth_is_excused_only_the_whole_tells(wrong, monkeypatch):
    assert lost_of_a_sum(3.0, wrong, monkeypatch).verdict == "disagree"
    monkeypatch.setattr(Radii, "wholes", lambda *_, **__: {})
    j = lost_of_a_sum(3.0, wrong, monkeypatch)
    assert j.verdict == "vacuous"
    assert "nothing is told" in j.message


def lost_of_a_sum(share, wrong, monkeypatch):
    """The judgement on a sum of 409.6 of which an algorithm may lose so much."""
    room = share * 409.6 / (16 + 4096**0.5 / 2)
    monkeypatch.setattr(_Tensor, "_lost", lambda *_: np.full(2, room))
    dy = np.full((4096, 2), 0.1, "float32")
    return judged(dy, dy[0] * np.float32(4096 * wrong))


@pytest.mark.parametrize(("off", "passes"), [(1.0, True), (1.05, False), (0.9, False)])
def test_sums_in_16_bits_are_excused_by_what_they_lose_and_no_more(off, passes):
    """Of 60 equal terms; 16 roundings of 16 bits for each term would be a half."""
    dy = np.full((60, 3), 0.1, "float16")
    db = np.add.accumulate(dy)[-1] * np.float16(off)
    j = judged(dy, db, "float16")
    assert j.passes is passes, j.message


@pytest.mark.parametrize(("off", "passes"), [(0.0, True), (30.0, False)])
def test_parts_of_a_sum_may_be_rounded_where_the_whole_may_not_be_added_up(off, passes):
    """129 images of 6 numbers, as a convolution's weight: n u is 3 in bfloat16."""
    dy = rounded(RNG.standard_normal((774, 80)), "bfloat16")
    parts = rounded(dy.reshape(129, 6, 80).sum(1), "bfloat16")
    db = rounded(parts.sum(0), "bfloat16")
    db[np.abs(db).argmin()] += off
    j = judged(dy, db, "bfloat16")
    assert j.passes is passes, j.message


def in_bfloat16(terms, blocks=1):
    """The sum, each addition rounded; the sums of blocks are added up last."""
    parts = []
    for block in np.array_split(terms, blocks):
        total = block[0]
        for row in block[1:]:
            total = rounded(total + row, "bfloat16")
        parts.append(total)
    return parts[0] if blocks == 1 else in_bfloat16(np.stack(parts))


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (in_bfloat16, "imprecise"),
        (lambda dy: in_bfloat16(dy, 16), "imprecise"),
        (lambda dy: np.zeros_like(dy[0]), "disagree"),
        (lambda dy: -in_bfloat16(dy), "disagree"),
        (lambda dy: np.roll(in_bfloat16(dy), 1), "disagree"),
        (lambda dy: in_bfloat16(dy[64:]), "disagree"),
        (lambda dy: in_bfloat16(dy[512:]), "disagree"),
        (lambda dy: rounded(1.1 * in_bfloat16(dy), "bfloat16"), "disagree"),
    ],
)
def test_terms_of_both_signs_may_be_added_up_in_16_bits(made, verdict):
    """1,024 rows: n u is 4, and the sum is 3 % off, as PyTorch's of a layer norm."""
    rng = np.random.default_rng(1)
    dy = rounded(rng.standard_normal((1024, 32)), "bfloat16")
    j = judged(dy, made(dy), "bfloat16")
    assert j.verdict == verdict, j.message


def test_terms_of_one_sign_may_not():
    """Added up in bfloat16, 1,024 of them are 19 % too small."""
    rng = np.random.default_rng(1)
    dy = rounded(1 + rng.standard_normal((1024, 32)), "bfloat16")
    assert judged(dy, in_bfloat16(dy), "bfloat16").verdict == "disagree"


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (lambda parts: rounded(parts, "bfloat16").sum(0), "imprecise"),
        (lambda parts: rounded(parts, "bfloat16")[1:].sum(0), "disagree"),
        (lambda parts: 0.9 * parts.sum(0), "disagree"),
        (lambda parts: 0 * parts.sum(0), "disagree"),
        (in_bfloat16, "disagree"),
    ],
    ids=["parts", "all but one", "a tenth too small", "zero", "all in bfloat16"],
)
def test_parts_of_a_product_may_be_added_up_in_16_bits(made, verdict):
    """The weight's gradient of 100 images of 5 numbers near 1e4: n u is 2."""
    rng = np.random.default_rng(1)
    b = rounded(1e4 + 10 * rng.standard_normal((500, 1)), "bfloat16")
    a = rounded(rng.standard_normal((64, 500)), "bfloat16")
    parts = (a.T[..., None] * b[:, None]).reshape(100, 5, 64, 1).sum(1)
    y = rounded(made(parts), "bfloat16")
    dy, nothing = np.ones((64, 1)), [np.zeros_like(a), np.zeros_like(b)]
    *_, j = judge(PRODUCT, [a, b], dy, nothing, outputs=[y], dtype="bfloat16")
    assert j.verdict == verdict, j.message


@pytest.mark.parametrize(
    ("wrong", "verdict"),
    [(1.0, "imprecise"), (1.001, "disagree"), (0.0, "disagree"), (-1.0, "disagree")],
)
@pytest.mark.parametrize("off", [0.0, 2e-15], ids=["equal", "equal but for roundoff"])
def test_a_factor_may_be_taken_out_of_a_sum_of_equal_terms(wrong, verdict, off):
    """10 * (0.1 + ... + 0.1) loses what 1 + ... + 1 does not."""
    factor = 10 + off * (np.arange(8192).reshape(4096, 2) % 3)
    scaled = Op("scaled", inputs="a b", formula=lambda xp, a, b: factor * (a + b))
    dy = np.full((4096, 2), 0.1, "float32")
    db = np.float32(10 * wrong) * one_by_one(dy)
    inputs = [np.zeros_like(dy), np.zeros_like(dy[0])]
    _, j = judge(scaled, inputs, dy, [10 * dy, db])
    assert j.verdict == verdict, j.message


@pytest.mark.parametrize("length", [16, 257, 1025, 4096])
@pytest.mark.parametrize("value", [0.1, 1.0])
def test_a_lost_term_is_wrong(length, value):
    dy = np.full((length, 2), value, "float32")
    assert judged(dy, dy[1:].sum(0, dtype="float64").astype("float32")).verdict == (
        "disagree"
    )


def test_terms_that_do_not_round_alike_excuse_nothing():
    dy = RNG.standard_normal((4096, 2)).astype("float32")
    total = dy.sum(0, dtype="float64")
    magnitude = np.abs(dy).sum(0, dtype="float64")
    off = (total + 100 * 2.0**-24 * magnitude).astype("float32")
    assert judged(dy, off).verdict == "disagree"


def test_a_matrix_product_added_up_one_by_one_is_imprecise():
    a, b = np.full((2, 4096), 0.1, "float32"), np.full((4096, 2), 0.1, "float32")
    y = np.zeros((2, 2), "float32")
    for k in range(4096):
        y += a[:, k : k + 1] * b[k : k + 1]
    dy = np.ones((2, 2), "float32")
    *_, j = judge(PRODUCT, [a, b], dy, [dy @ b.T, a.T @ dy], outputs=[y])
    assert j.verdict == "imprecise"


ROWS = Op("rows", inputs="w", formula=lambda xp, w: xp.take(w, INDEX, axis=0))
INDEX = np.zeros(4096, int)
CUMULATED = Op("cumulated", inputs="x", formula=lambda xp, x: xp.cumulative_sum(x))


@pytest.mark.parametrize("add_up", [one_by_one, backwards])
@pytest.mark.parametrize(
    ("lost", "verdict"), [(0, "imprecise"), (1, "disagree"), (40, "disagree")]
)
def test_equal_terms_scattered_to_one_place_are_imprecise(add_up, lost, verdict):
    """All 4,096 pick row 0; row 1 gets nothing, and row 2 is not picked."""
    w, dy = np.zeros((3, 2), "float32"), np.full((4096, 2), 0.1, "float32")
    dw = np.zeros_like(w)
    dw[0] = add_up(dy[lost:])
    (j,) = judge(ROWS, [w], dy, [dw])
    assert j.verdict == verdict, j.message
    dw[1] = 1e-6
    assert judge(ROWS, [w], dy, [dw])[0].verdict == "disagree"


def test_a_table_row_accumulated_in_bfloat16_is_wrong():
    """Of 4,096 ones it is 256: n u is 16, and there is no excuse."""
    dy = np.ones((4096, 2), "float32")
    dw = np.zeros((3, 2), "float32")
    for value, verdict in ((4096, "agree"), (256, "disagree")):
        dw[0] = value
        (j,) = judge(ROWS, [np.zeros_like(dw)], dy, [dw], dtype="bfloat16")
        assert j.verdict == verdict


@pytest.mark.parametrize(("off", "verdict"), [(0, "imprecise"), (0.05, "disagree")])
def test_a_cumulative_sum_of_equal_terms_is_imprecise(off, verdict):
    x = np.full(4096, 0.1, "float32")
    y, dx = np.add.accumulate(x), np.arange(4096, 0, -1, dtype="float32")
    y[2000:] += np.float32(off)
    found = judge(CUMULATED, [x], np.ones_like(x), [dx], outputs=[y])
    assert found[1].verdict == verdict, found[1].message


@pytest.mark.parametrize(("off", "verdict"), [(0, "imprecise"), (3000, "disagree")])
def test_what_is_lost_near_the_end_of_the_range_is_excused_as_elsewhere(off, verdict):
    """Of 129 terms of -498.25 float16 makes -65056, where -64274.25 is due."""
    x = np.full(129, -498.25, "float16")
    y, dx = np.add.accumulate(x), np.arange(129, 0, -1, dtype="float16")
    y[120] += np.float16(off)
    found = judge(CUMULATED, [x], np.ones_like(x), [dx], outputs=[y])
    assert found[1].verdict == verdict, found[1].message


def test_what_a_cumulative_sum_loses_late_excuses_no_early_element():
    x = np.full(4096, 0.1, "float32")
    y, dx = np.add.accumulate(x), np.arange(4096, 0, -1, dtype="float32")
    y[10] *= 1 + np.float32(3e-5)  # of 1.1; the last sum of 409.6 is off by as much
    found = judge(CUMULATED, [x], np.ones_like(x), [dx], outputs=[y])
    assert found[1].verdict == "disagree"


@pytest.mark.parametrize(("off", "passes"), [(0.0, True), (1e-10, False)])
def test_partial_sums_lose_alike_and_so_does_their_mean(off, passes):
    """The slope of |CDF a - CDF b| is a sum of equal terms for each of 1025 classes."""
    torch = pytest.importorskip("torch")

    def distance(a, b):
        cdf = (a.softmax(-1) - b.softmax(-1)).cumsum(-1)
        return cdf.abs().sum(-1).mean()

    class Candidate(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return distance(a, b)

        @staticmethod
        def backward(ctx, dy):
            given = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            with torch.enable_grad():
                da, db = torch.autograd.grad(distance(*given), given, dy)
            return da * (1 + off), db

    shapes = [(8, 10), (8, 10)]
    report = check(
        distance, Candidate.apply, shapes=shapes, dtypes=["float64"], only=["tails"]
    )
    wrong = {row.judgement.tensor for row in report.rows if not row.judgement.passes}
    assert wrong == (set() if passes else {"da"}), str(report)


@pytest.mark.parametrize(("lost", "passes"), [(0.0, True), (0.01, False)])
@pytest.mark.parametrize(("rows", "mean"), [(256, 0.3), (128, 0.1), (32, 1.0)])
def test_a_term_that_is_zero_since_it_is_centred_may_be_left_out(
    lost, passes, rows, mean
):
    """So does PyTorch's batch norm: a bias before it has what rounds the mean.

    The reference rounds its mean, too, and its sum is no nearer to zero than that.
    """
    torch = pytest.importorskip("torch")

    class Shift(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, bias):
            return x + bias

        @staticmethod
        def backward(ctx, dy):
            return dy, dy.sum(0) + lost * dy.abs().sum(0)

    def normed(x, bias, scale):
        y = (x + bias) * scale
        return torch.nn.functional.batch_norm(y, None, None, training=True)

    def candidate(x, bias, scale):
        y = Shift.apply(x, bias) * scale
        return torch.nn.functional.batch_norm(y, None, None, training=True)

    rng = torch.Generator().manual_seed(1)
    x, scale = (torch.randn(n, 512, generator=rng) for n in (rows, 1))
    inputs = [0.001 * x, torch.linspace(-mean, mean, 512), scale[0]]
    report = check(normed, candidate, inputs=inputs, only=["given"])
    wrong = {row.judgement.tensor for row in report.rows if not row.judgement.passes}
    assert wrong == (set() if passes else {"dbias"}), str(report)


# The precision inside -------------------------------------------------------------


def rounded(array, dtype):
    return PRECISIONS[dtype].round(np.asarray(array, "float64")).astype("float32")


def softmax(x, dy, keep):
    """The gradient of softmax, with `keep` done to every intermediate result."""
    shifted = keep(np.exp(keep(x - x.max(-1, keepdims=True))))
    y = keep(shifted / keep(shifted.sum(-1, keepdims=True)))
    return keep(y * keep(dy - keep(keep(y * dy).sum(-1, keepdims=True))))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_judgement_of_16_bits_says_how_precise_the_inside_was(dtype):
    x, dy = (rounded(RNG.standard_normal((8, 32)), dtype) for _ in range(2))
    inside = rounded(softmax(x, dy, np.asarray), dtype)
    stepwise = rounded(softmax(x, dy, lambda a: rounded(a, dtype)), dtype)
    for dx, compute in ((inside, "float32"), (stepwise, "mixed")):
        (j,) = judge("softmax", [x], dy, [dx], attributes={"axis": -1}, dtype=dtype)
        assert j.passes
        assert j.compute == compute


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_an_error_of_two_per_cent_is_caught_with_float32_inside(dtype):
    x, dy = (rounded(RNG.standard_normal((8, 32)), dtype) for _ in range(2))
    off = rounded(1.02 * softmax(x, dy, np.asarray), dtype)
    (j,) = judge(
        "softmax",
        [x],
        dy,
        [off],
        attributes={"axis": -1},
        dtype=dtype,
        compute="float32",
    )
    assert j.verdict == "disagree"


def test_a_gradient_accumulated_in_bfloat16_is_not_green():
    dy = rounded(1 + 0.5 * RNG.random((16384, 2)), "bfloat16")
    narrow = dy[0]
    for row in dy[1:]:
        narrow = rounded(narrow + row, "bfloat16")
    wide = rounded(dy.sum(0, dtype="float64"), "bfloat16")
    assert judged(dy, wide, "bfloat16").verdict == "agree"
    assert judged(dy, narrow, "bfloat16").verdict == "disagree"


def test_tf32_products_are_right_only_where_they_are_declared():
    a, b, dy = (RNG.standard_normal((32, 32)).astype("float32") for _ in range(3))
    tf32 = [(np.round(m * 2.0**10 / 2 ** np.floor(np.log2(np.abs(m))))) for m in (a, b)]
    a10, b10 = (
        (r * 2.0**-10 * 2 ** np.floor(np.log2(np.abs(m)))).astype("float32")
        for r, m in zip(tf32, (a, b), strict=True)
    )
    gradients = [dy @ b.T, a.T @ dy]
    for compute, verdict in ((None, "disagree"), ("tf32", "agree")):
        *_, j = judge(
            PRODUCT, [a, b], dy, gradients, outputs=[a10 @ b10], compute=compute
        )
        assert j.verdict == verdict


def test_a_precision_that_such_tensors_are_not_computed_in_is_refused():
    with pytest.raises(ValueError, match="computed in float32, tf32"):
        judge("square", [np.ones(2, "float32")], np.ones(2), [np.ones(2)], compute="x")


def attention(xp, s, v):
    e = xp.exp(s - xp.stop_gradient(xp.max(s, axis=-1, keepdims=True)))
    return xp.matmul(e / xp.sum(e, axis=-1, keepdims=True), v)


#: Keys that are orthogonal, so that scores may be had by multiplying with them.
KEYS = np.float32([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])


def masked(xp, q, v):
    s = xp.matmul(q, KEYS)
    return attention(xp, xp.where(s > -1e9, s, -np.inf), v)


@pytest.mark.parametrize("formula", [attention, masked])
@pytest.mark.parametrize(
    ("subtracted", "verdict"),
    [
        (lambda d: d, "imprecise"),
        (lambda d: np.roll(d, 1, 0), "disagree"),
        (lambda d: d * np.float32(1.0001), "disagree"),
    ],
    ids=["FlashAttention", "of another row", "off by 1e-4"],
)
def test_a_saturated_softmax_may_subtract_the_same_sum_in_another_order(
    subtracted, verdict, formula
):
    """sum(dy y) in place of sum(p dp): where one p is 1, their difference is 0."""
    rng = np.random.default_rng(1)
    shapes = (5, 4), (4, 256), (5, 256)
    s, v, dy = (rng.standard_normal(n).astype(np.float32) for n in shapes)
    s[1:] *= 300
    e = np.exp(s - s.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    y = np.add.accumulate(p[:, :, None] * v, axis=1)[:, -1]  # as no library orders it
    d = np.add.accumulate(dy * y, axis=-1)[:, -1:]
    dp = np.add.accumulate((dy[:, None] * v)[..., ::-1], axis=-1)[..., -1]
    ds, dv = p * (dp - subtracted(d)), p.T @ dy
    if formula is masked:
        s, ds = s @ KEYS / 4, ds @ KEYS
    op = Op("attention", inputs="s v", formula=formula)
    ds, dv = judge(op, [s, v], dy, [ds, dv])
    assert (ds.verdict, dv.verdict) == (verdict, "agree"), ds.message


def test_terms_that_underflow_do_not_hide_what_a_sum_loses():
    """Of exp(-500) float32 keeps nothing: that is no loss of the sum behind it."""
    x = np.array([[-500.0, -400.0, 0.0]])
    dy = RNG.standard_normal((1, 3))
    right = np.exp(x - np.log(np.exp(x).sum()))
    dx = dy - right * dy.sum()
    for wrong, passes in ((0.0, True), (0.25, False)):
        got = np.add(dx, [[0.0, 0.0, wrong]]).astype("float32")
        (j,) = judge(
            "log_softmax", [x], dy, [got], attributes={"axis": 1}, dtype="float32"
        )
        assert j.passes is passes, j.message


def shifted(x):
    """A softmax that differentiates its shift, too: what that gets back is zero."""
    power = (x - x.amax(-1, keepdim=True)).exp()
    return power / power.sum(-1, keepdim=True)


def by_segments(x, places):
    """Likewise, of rows that lie behind each other."""
    torch = pytest.importorskip("torch")
    top = torch.full((4,), -torch.inf).scatter_reduce(0, places, x, "amax")
    power = (x - top[places]).exp()
    return power / torch.zeros(4).scatter_add(0, places, power)[places]


@pytest.mark.parametrize(("lost", "passes"), [(0.0, True), (1e-4, False)])
def test_what_a_shift_gets_back_is_zero_and_may_be_left_out(lost, passes):
    torch = pytest.importorskip("torch")

    class Softmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y, added):
            ctx.added = added
            ctx.save_for_backward(y)
            return y.clone()

        @staticmethod
        def backward(ctx, dy):
            (y,) = ctx.saved_tensors
            return y * (dy - ctx.added(dy * y) + lost), None, None

    def rows(x):
        return Softmax.apply(x, shifted(x).detach(), lambda t: t.sum(-1, keepdim=True))

    def segments(x, places):
        def added(t):
            return torch.zeros(4).scatter_add(0, places, t)[places]

        return Softmax.apply(x, by_segments(x, places).detach(), added)

    only = ["large", "mixed", "peaked"]
    for reference, candidate, shapes in (
        (shifted, rows, [(11, 8)]),
        (by_segments, segments, ["11", "11:4"]),
    ):
        report = check(reference, candidate, shapes=shapes, only=only)
        assert report.passes is passes, str(report)


@pytest.mark.parametrize(("off", "passes"), [(0.0, True), (1e-4, False)])
def test_a_gate_before_a_state_of_zero_has_no_gradient_but_what_a_block_loses(
    off, passes
):
    """A scan in one block finds the gradients of its gates as differences."""
    torch = pytest.importorskip("torch")

    def steps(q, k, gates):
        state, made = torch.zeros(2, 4, 3), []
        for t in range(q.shape[1]):
            state = state * gates[:, t].exp()[:, None, None]
            state = state + k[:, t, :, None] * q[:, t, None, :3]
            made.append((q[:, t, None] @ state)[:, 0])
        return torch.stack(made, 1)

    def block(q, k, gates):
        gates = gates + off * (gates - gates.detach())
        sums = gates.cumsum(1)
        decay = (sums[:, :, None] - sums[:, None]).tril().exp().tril()
        wrong = off * gates[:, :1].sum() - (off * gates[:, :1].sum()).detach()
        return (q @ k.mT * decay) @ q[..., :3] + wrong

    g = torch.manual_seed(0)
    q, k = torch.randn(2, 5, 4, generator=g), torch.randn(2, 5, 4, generator=g)
    gates = torch.nn.functional.logsigmoid(torch.randn(2, 5, generator=g) + 2)
    report = check(steps, block, inputs=[q, k, gates], only=["given"])
    wrong = {row.judgement.tensor for row in report.rows if not row.judgement.passes}
    assert wrong == (set() if passes else {"dgates"}), str(report)


@pytest.mark.parametrize("wrong", ["", "df", "di"])
def test_so_has_a_gate_that_a_stabiliser_of_minus_infinity_shuts(wrong):
    """An mLSTM in steps, and all at once (Beck and others, xLSTM, 2024, appendix A.3).

    Before the first step the stabiliser is -inf, so that the gate is exactly 0.
    """
    torch = pytest.importorskip("torch")

    def steps(q, k, i, f):
        state, norm, made = torch.zeros(2, 4, 3), torch.zeros(2, 4), []
        m, log_f = torch.full((2,), -torch.inf), torch.nn.functional.logsigmoid(f)
        for t in range(q.shape[1]):
            most = torch.maximum(log_f[:, t] + m, i[:, t])
            gate, enters = (log_f[:, t] + m - most).exp(), (i[:, t] - most).exp()
            key, value = enters[:, None] * k[:, t], q[:, t, None, :3]
            state = gate[:, None, None] * state + key[..., None] * value
            norm, m = gate[:, None] * norm + key, most
            size = torch.maximum((norm * q[:, t]).sum(-1).abs(), (-m).exp())
            made.append((q[:, t, None] @ state)[:, 0] / size[:, None])
        return torch.stack(made, 1)

    def at_once(q, k, i, f):
        first = {"di": i, "df": f}.get(wrong, q.new_zeros(2, 1))[:, 0].sum()
        off = 1e-3 * (first - first.detach())  # zero, and its gradient is not
        sums = torch.nn.functional.logsigmoid(f).cumsum(1)
        log_d = sums[:, :, None] - sums[:, None] + i[:, None]
        log_d = log_d.masked_fill(torch.ones(5, 5).triu(1) > 0, -torch.inf)
        most = log_d.amax(-1, keepdim=True)
        scores = (q @ k.mT) * (log_d - most).exp()
        size = torch.maximum(scores.sum(-1, keepdim=True).abs(), (-most).exp())
        return scores / size @ q[..., :3] + off

    g = torch.manual_seed(0)
    q, k = torch.randn(2, 5, 4, generator=g), torch.randn(2, 5, 4, generator=g)
    i, f = torch.randn(2, 5, generator=g), torch.randn(2, 5, generator=g) + 2
    report = check(steps, at_once, inputs=[q, k, i, f], only=["given"])
    failed = {row.judgement.tensor for row in report.rows if not row.judgement.passes}
    assert failed == ({wrong} if wrong else set()), str(report)


@pytest.mark.parametrize("x", [36.5, 40.0, 60.0])
def test_what_is_left_of_one_has_no_other_sign(x):
    """A slope of 1 - sigmoid(x) is all lost there, and then it is zero."""
    margin = Op("margin", inputs="x", formula=lambda xp, x: xp.log1p(xp.exp(-x)))
    slope = 1 / (1 + np.exp(x))
    found = [
        judge(margin, [np.full(4, x)], np.ones(4), [np.full(4, dx)])[0].passes
        for dx in (-slope, 1 / (1 + np.exp(-x)) - 1, 0.0, slope, 3 * slope)
    ]
    assert found == [True, True, True, False, False]


@pytest.mark.parametrize(("dtype", "x"), [("float64", -82.5), ("float32", -40.0)])
def test_what_is_lost_beside_one_is_lost_wholly(dtype, x):
    """As 1 - 1 / (1 + e) it is 0; a number that is not zero has its digits."""
    logistic = Op("logistic", inputs="x", formula=lambda xp, x: xp.sigmoid(x))
    given = np.full(4, x, dtype)
    slope = (1 / (1 + np.exp(-np.full(4, x)))).astype(dtype)
    found = [
        judge(logistic, [given], np.ones_like(given), [slope * factor])[0].passes
        for factor in map(given.dtype.type, (1, 0, 1.001, 2, -1))
    ]
    assert found == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (lambda dx, _: dx, "agree"),
        (lambda dx, e: 1 - 1 / (1 + e), "imprecise"),
        (lambda dx, _: dx * (np.arange(9) != 1), "vacuous"),
        (lambda dx, _: dx * (np.arange(9) > 1), "vacuous"),
        (lambda dx, _: dx * (np.arange(9) != 3), "disagree"),
        (lambda dx, _: dx * (1 - 2 * (np.arange(9) == 1)), "disagree"),
    ],
    ids=["right", "careless", "a zero", "two", "of another element", "other sign"],
)
def test_no_zero_is_imprecise_where_no_other_element_has_lost_anything(made, verdict):
    """1 - 1 / (1 + e) loses digits up to x = -36; below, it is 0, as a mistake is."""
    logistic = Op("logistic", inputs="x", formula=lambda xp, x: xp.sigmoid(x))
    x = np.array([-82.5, -60, -33, -25, -15, -3, 0.1, 1, 2])
    e, y = np.exp(x), 1 / (1 + np.exp(-x))
    dx = made(y * (1 - y), e) if verdict != "imprecise" else made(y, e) * (1 - y)
    (found,) = judge(logistic, [x], np.ones(9), [dx])
    assert found.verdict == verdict, found.message


def in_blocks_of_16(x):
    """A logsumexp as kernels for large vocabularies find it, each step rounded."""
    blocks = np.split(x, 4, axis=-1)
    tops = [block.max(-1, keepdims=True) for block in blocks]
    sums = [
        top + np.log(np.exp(block - top).sum(-1, keepdims=True))
        for top, block in zip(tops, blocks, strict=True)
    ]
    return functools.reduce(np.logaddexp, sums)


def in_base_2(x):
    """Likewise with exp2 and log2."""
    power = x * np.float32(1 / np.log(2))
    top = power.max(-1, keepdims=True)
    total = np.exp2(power - top).sum(-1, keepdims=True)
    return (top + np.log2(total)) * np.float32(np.log(2))


@pytest.mark.parametrize("logsumexp", [in_blocks_of_16, in_base_2])
@pytest.mark.parametrize("shift", [300, 1e3, 1e4])
def test_a_softmax_may_lose_what_other_honest_logarithms_of_sums_lose(logsumexp, shift):
    """They are off by more than the one rounding of the right logarithm."""
    rng = np.random.default_rng(1)
    x = (shift + rng.standard_normal((32, 64))).astype("float32")
    dy = rng.standard_normal((32, 64)).astype("float32")
    p = np.exp(x - logsumexp(x))
    for off, passes in ((1.0, True), (0.0, False), (-1.0, False)):
        dx = off * (dy - p * dy.sum(-1, keepdims=True))
        (j,) = judge("log_softmax", [x], dy, [dx], attributes={"axis": 1})
        assert j.passes is passes, j.message


def flash(q, k, v, dy):
    """The backward of FlashAttention, whose weights are of scores computed anew."""
    scale = np.float32(q.shape[-1] ** -0.5)
    s = q @ k.T * scale
    sums = s.max(-1) + np.log(np.exp(s - s.max(-1, keepdims=True)).sum(-1))
    back, turned = (np.ascontiguousarray(a[:, ::-1]) for a in (q, k))
    p = np.exp(back @ turned.T * scale - sums[:, None])
    ds = p * (dy @ v.T - (dy * (p @ v)).sum(-1, keepdims=True)) * scale
    return [ds @ k, ds.T @ q, p.T @ dy]


def test_weights_of_scores_that_are_computed_anew_are_imprecise():
    """Where a row has one weight, it is not 1 but exp(1e-5)."""
    rng = np.random.default_rng(0)
    given = [*(8 * rng.standard_normal((3, 64, 32))).astype("float32")]
    dy = rng.standard_normal((64, 32)).astype("float32")

    def found(gradients):
        return judge("attention", given, dy, gradients, attributes={"causal": False})

    right = flash(*given, dy)
    assert {j.verdict for j in found(right)} <= {"agree", "imprecise"}
    for off, i in itertools.product((0.0, -1.0, 1.01, 0.99), range(3)):
        wrong = [g * np.float32(off if i == j else 1) for j, g in enumerate(right)]
        assert not found(wrong)[i].passes


def test_exponentials_of_some_heads_lose_what_they_lose_beside_others():
    rng = np.random.default_rng(2)
    q, k = (graph.variable(4 * a) for a in rng.standard_normal((2, 3, 8, 5)))
    s = q @ graph.permute_dims(k, (0, 2, 1))
    e = graph.exp(s - graph.max(s, axis=-1, keepdims=True))
    some = graph.gather(e, index=np.arange(64, 192).reshape(2, 8, 8))
    sums = {"all": graph.sum(e, axis=-1), "some": graph.sum(some, axis=-1)}
    radii = Radii(sums, arithmetics("float32")[0], limit_for(8), 8)
    errors = radii.careless("float32", (*sums,)).errors.errors
    honest = radii.errors.errors
    np.testing.assert_allclose(errors[sums["all"]][1:], errors[sums["some"]])
    assert (errors[sums["some"]] > 1.1 * honest[sums["some"]]).all()


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_long_rows_lose_what_each_of_their_columns_loses(dtype):
    """They are added up row by row, and shorter ones column by column."""
    rows = np.random.default_rng(8).standard_normal((40, 2, LONG))
    found = _losses(rows, PRECISIONS[dtype])
    for some in np.s_[:, :, :3], np.s_[:, 1, 7]:
        np.testing.assert_array_equal(
            found[some], _losses(rows[some], PRECISIONS[dtype])
        )
