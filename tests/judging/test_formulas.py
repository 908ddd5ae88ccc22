"""What people write in formulas, judged right and wrong.

Right gradients are PyTorch's autograd; wrong ones are its, with a mistake that people
make: a sum that overwrites, a mask that leaks, a border that is off.
"""

import numpy as np
import pytest

from gradwatch.harness import judge
from gradwatch.harness.judging.acceptance.large import LARGE
from gradwatch.impls.backends._torchlike_names import ArrayNames
from gradwatch.impls.catalogue import load_backend
from gradwatch.impls.contract import Op, Problem
from tests.primitives import COMPOSED, DRAWN, UNARY, any_sign, named

pytestmark = pytest.mark.usefixtures("undiagnosed")

torch = pytest.importorskip("torch")
F = torch.nn.functional
VOCABULARY = COMPOSED | {name: (named(name), [(5,)]) for name in UNARY}
INDEX = np.array([2, 0, 2, 2, 1])
TARGET = np.array([1, 3, 3, 0])
FUTURE = np.triu(np.ones((5, 5), bool), 1)


def cross_entropy(xp, x, target):
    log_p = x - xp.logsumexp(x, axis=1, keepdims=True)
    return -xp.mean(xp.take_along_axis(log_p, target[:, None], axis=1))


def softmax(xp, x):
    e = xp.exp(x - xp.stop_gradient(xp.max(x, axis=-1, keepdims=True)))
    return e / xp.sum(e, axis=-1, keepdims=True)


def causal(xp, q, k, v, future):
    """Attention that sees no future; it is masked by leaving it out of the sums."""
    scores = xp.where(future, 0.0, q @ k.mT / q.shape[-1] ** 0.5)
    top = xp.stop_gradient(xp.max(xp.where(future, -1e3, scores), -1, keepdims=True))
    weight = xp.where(future, 0.0, xp.exp(scores - top))
    return (weight / weight.sum(-1, keepdims=True)) @ v


def torch_causal(q, k, v, future):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=~future)


def conv2d(xp, x, w, b):
    windows = xp.sliding_windows(x, (3, 3), padding=1)
    return xp.einsum("bchwij,ocij->bohw", windows, w) + b[:, None, None]


def last_wins(dw):
    """Of several cotangents for one row only the last."""
    wrong = np.zeros_like(dw)
    rows = np.random.default_rng(0).standard_normal((len(INDEX), dw.shape[1]))
    wrong[INDEX] = rows
    return wrong.astype(dw.dtype)


def leaked(d):
    """The border or corner that should have been left out got a share."""
    d = d.copy()
    d[..., -1, -1] += d.dtype.type(1e-3)
    return d


def scaled(d):
    return d * d.dtype.type(1.001)


def shifted(d):
    return np.roll(d, 1, axis=-1)


def reversed_sum(d):
    """The cumulative sum's cotangent summed from the wrong end."""
    return np.flip(d, -1).copy()


# op, PyTorch's function, shapes of the inputs, and what is planted into which gradient
FORMULAS = {
    "embedding": (
        Op("e", inputs="w index", constants="index", formula=lambda xp, w, i: w[i]),
        lambda w, index: F.embedding(index, w),
        [(3, 4), INDEX],
        (0, last_wins),
    ),
    "where": (
        Op("e", inputs="x", formula=lambda xp, x: xp.where(x > 0.1, x * x, -x)),
        lambda x: torch.where(x > 0.1, x * x, -x),
        [(40,)],
        (0, np.abs),
    ),
    "cumulative sum": (
        Op("e", inputs="x", formula=lambda xp, x: xp.cumulative_sum(x * x, axis=1)),
        lambda x: torch.cumsum(x * x, 1),
        [(3, 30)],
        (0, reversed_sum),
    ),
    "convolution with padding": (
        Op("e", inputs="x w b", formula=conv2d),
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        [(2, 3, 5, 4), (4, 3, 3, 3), (4,)],
        (0, leaked),
    ),
    "weight of a convolution": (
        Op("e", inputs="x w b", formula=conv2d),
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        [(2, 3, 5, 4), (4, 3, 3, 3), (4,)],
        (1, shifted),
    ),
    "maximum pooling": (
        Op(
            "e",
            inputs="x",
            formula=lambda xp, x: xp.max(
                xp.sliding_windows(x, (2, 2), stride=2), axis=(-2, -1)
            ),
        ),
        lambda x: F.max_pool2d(x, 2),
        [(2, 4, 6)],
        (0, shifted),
    ),
    "average pooling": (
        Op(
            "e",
            inputs="x",
            formula=lambda xp, x: xp.sliding_windows(x, 3, padding=1).mean(-1),
        ),
        lambda x: F.avg_pool1d(x, 3, 1, 1),
        [(2, 3, 8)],
        (0, leaked),
    ),
    "cross entropy": (
        Op("e", inputs="x target", constants="target", formula=cross_entropy),
        F.cross_entropy,
        [(4, 5), TARGET],
        (0, scaled),
    ),
    "causal attention": (
        Op("e", inputs="q k v future", constants="future", formula=causal),
        torch_causal,
        [(2, 5, 3), (2, 5, 3), (2, 5, 3), FUTURE],
        (1, leaked),
    ),
    "gelu": (
        Op(
            "e",
            inputs="x",
            formula=lambda xp, x: 0.5 * x * (1.0 + xp.erf(x / 2.0**0.5)),
        ),
        F.gelu,
        [(50,)],
        (0, scaled),
    ),
    "product with a zero": (
        Op("e", inputs="x", formula=lambda xp, x: xp.prod(x * (xp.abs(x) > 0.3), 1)),
        lambda x: torch.prod(x * (x.abs() > 0.3), 1),
        [(6, 5)],
        (0, leaked),
    ),
    "variance": (
        Op("e", inputs="x", formula=lambda xp, x: xp.var(x, 1, correction=1)),
        lambda x: torch.var(x, 1),
        [(4, 9)],
        (0, scaled),
    ),
    "clip and power": (
        Op("e", inputs="x", formula=lambda xp, x: xp.clip(x, -1.0, 1.0) ** 3),
        lambda x: torch.clamp(x, -1.0, 1.0) ** 3,
        [(40,)],
        (0, scaled),
    ),
}


def run(title, dtype):
    """The op, its inputs, a cotangent, PyTorch's gradients, and its output."""
    op, function, given, planted = FORMULAS[title]
    rng = np.random.default_rng(0)
    arrays = [
        a if isinstance(a, np.ndarray) else rng.standard_normal(a).astype(dtype)
        for a in given
    ]
    tensors = [torch.from_numpy(a) for a in arrays]
    wanted = [t.requires_grad_() for t in tensors if t.is_floating_point()]
    y = function(*tensors)
    dy = rng.standard_normal(y.shape).astype(dtype)
    gradients = torch.autograd.grad(y, wanted, torch.from_numpy(dy))
    return op, arrays, dy, [g.numpy() for g in gradients], y.detach().numpy(), planted


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("title", FORMULAS)
def test_a_right_gradient_agrees(title, dtype):
    op, arrays, dy, gradients, y, _ = run(title, dtype)
    for j in judge(op, arrays, dy, gradients, outputs=[y]):
        assert j.verdict in ("agree", "convention"), j.message


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("title", FORMULAS)
def test_a_planted_error_disagrees(title, dtype):
    op, arrays, dy, gradients, _, (place, spoil) = run(title, dtype)
    gradients[place] = spoil(gradients[place])
    assert judge(op, arrays, dy, gradients)[place].verdict == "disagree"


def test_a_whole_power_of_negative_numbers_can_be_judged():
    cube = Op("cube", inputs="x", formula=lambda xp, x: x**3)
    x = np.array([-2.5, -0.3, 1.7])
    (j,) = judge(cube, [x], np.ones(3), [3 * x * x])
    assert (j.verdict, j.vacuous) == ("agree", 0.0)


@pytest.mark.parametrize("title", FORMULAS)
def test_the_same_formula_runs_on_torch_and_agrees(title):
    op, arrays, dy, *_ = run(title, "float32")
    problem = Problem(
        op, dict(zip(op.inputs, arrays, strict=True)), [dy], dtype="float32"
    )
    step = load_backend("torch_formula").prepare(problem)
    step.forward()
    step.backward()
    result = step.read()
    judged = judge(
        op, arrays, dy, list(result.gradients.values()), outputs=[result.outputs["y"]]
    )
    for j in judged:
        assert j.verdict in ("agree", "convention"), j.message


# Masks: what is masked holds -inf, or a number so low that its exponential is 0 ----


def filled(fill):
    """Causal attention as people write it: the future is overwritten by `fill`."""

    def formula(xp, q, k, v, future):
        scores = xp.where(future, fill, q @ k.mT / q.shape[-1] ** 0.5)
        return softmax(xp, scores) @ v

    return Op("e", inputs="q k v future", constants="future", formula=formula)


FILLS = {"-inf": -np.inf, "-1e30": -1e30, "finfo.min": None, "-1e4": -1e4}


def masked(fill, dtype):
    value = float(np.finfo(dtype).min) if FILLS[fill] is None else FILLS[fill]
    rng = np.random.default_rng(1)
    arrays = [rng.standard_normal((2, 5, 3)).astype(dtype) for _ in range(3)]
    q, k, v = (torch.tensor(a, requires_grad=True) for a in arrays)
    scores = (q @ k.mT / 3**0.5).masked_fill(torch.from_numpy(FUTURE), value)
    y = torch.softmax(scores, -1) @ v
    dy = rng.standard_normal(y.shape).astype(dtype)
    gradients = torch.autograd.grad(y, (q, k, v), torch.from_numpy(dy))
    return filled(value), [*arrays, FUTURE], dy, [g.numpy() for g in gradients]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fill", FILLS)
def test_a_causal_mask_is_judged_right(fill, dtype):
    for j in judge(*masked(fill, dtype)):
        assert (j.verdict, j.vacuous <= 0.2) == ("agree", True), j.message  # dq[0] is 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize(
    ("place", "spoil"),
    [(0, scaled), (1, leaked), (2, shifted), (1, lambda d: np.full_like(d, 1e9))],
)
def test_a_planted_error_behind_a_causal_mask_disagrees(place, spoil, fill, dtype):
    op, arrays, dy, gradients = masked(fill, dtype)
    gradients[place] = spoil(gradients[place])
    assert judge(op, arrays, dy, gradients)[place].verdict == "disagree"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("title", sorted({*VOCABULARY} - {"slices"}))  # steps of -1
def test_torchs_gradient_of_each_function_passes(title, dtype):
    function, shapes = VOCABULARY[title]
    op = Op("e", inputs=" ".join("abc"[: len(shapes)]), formula=function)
    rng = np.random.default_rng(3)
    draw = DRAWN.get(title, any_sign)
    arrays = [draw(rng, shape).astype(dtype) for shape in shapes]
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = function(ArrayNames(torch), *tensors)
    dy = rng.standard_normal(y.shape).astype(dtype)
    gradients = torch.autograd.grad(y, tensors, torch.tensor(dy))
    outputs = [y.detach().numpy()]
    for j in judge(op, arrays, dy, [g.numpy() for g in gradients], outputs=outputs):
        assert j.verdict in ("agree", "convention"), j.message


@pytest.mark.parametrize("shape", [(5, 0, 0), (0, 4), (2, 0)])
def test_a_softmax_of_no_elements_has_a_gradient_of_no_elements(shape):
    op = Op("e", inputs="x", formula=softmax)
    nothing = np.zeros(shape)
    (j,) = judge(op, [nothing], nothing, [nothing])
    assert (j.verdict, j.message) == (
        "agree",
        "dx: no elements; its shape and dtype are right",
    )


def test_a_constant_has_no_gradient_and_keeps_its_dtype():
    op = FORMULAS["cross entropy"][0]
    assert op.differentiable == ("x",)
    with pytest.raises(ValueError, match="has gradients dx; 2 given"):
        judge(op, [np.ones((4, 5)), TARGET], 1.0, [np.ones((4, 5)), TARGET])
    lookup, w = FORMULAS["embedding"][0], np.ones((3, 4))
    with pytest.raises(IndexError, match="holds integers, not float"):
        judge(lookup, [w, INDEX / 2], np.ones((5, 4)), [w])


SATURATED = {
    "silu": lambda xp, x: x * xp.sigmoid(x),
    "tanh silu": lambda xp, x: x * (0.5 + 0.5 * xp.tanh(x / 2)),
    "mish": lambda xp, x: x * xp.tanh(xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x)))),
}


@pytest.mark.parametrize("size", [1, LARGE])
@pytest.mark.parametrize("name", SATURATED)
def test_what_has_reached_1_is_exact(name, size):
    """If s = 1 might be off by a rounding, x (1 - s) would hide 5e-4 at x = 1e4."""
    op = Op("e", inputs="x", formula=SATURATED[name])
    x = np.full(size, 1e4, "float32")
    one = np.ones_like(x)
    assert judge(op, [x], one, [one])[0].verdict == "agree"
    for wrong in (1.0005 * one, 0 * one, -one):
        (j,) = judge(op, [x], one, [wrong.astype("float32")])
        assert j.verdict == "disagree", wrong


def test_1_is_as_exact_as_the_type_that_judges():
    """Slopes of a sigmoid, 1 - s is 0 in float64 from 37 on, in long double from 44."""
    op = Op("e", inputs="x", formula=lambda xp, x: xp.sigmoid(x))
    x = np.linspace(36.0, 46.0, 200)
    e = np.exp(-x)
    given = [x], np.ones(200), [e / (1 + e) ** 2]
    verdicts = {j.verdict for j in judge(op, *given, outputs=[1 / (1 + e)])}
    assert verdicts == {"agree", "vacuous"}  # y; dx, of which 1 - s keeps no digit


@pytest.mark.parametrize("name", ["prod", "cumulative_prod"])
def test_a_product_divided_by_each_element_rounds(name):
    """Beside a cotangent of ones the other factor alone would be exact."""
    op = Op("e", inputs="x", formula=lambda xp, x: getattr(xp, name)(x, axis=0))
    x = np.linspace(0.3, 1.7, 14, dtype="float16").reshape(2, 7)
    ones, y = np.ones((2, 7), "float16"), x[0] * x[1]
    given = ones[0] if name == "prod" else np.stack([0 * y, ones[0]])
    assert (y / x != x[::-1]).any()
    assert judge(op, [x], given, [y / x])[0].verdict == "agree"
    for wrong in (1.02 * y / x, 0 * x, y * x):
        assert judge(op, [x], given, [wrong])[0].verdict == "disagree"
