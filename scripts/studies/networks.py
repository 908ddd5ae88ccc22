"""Whole blocks of networks with mistakes planted in their backward.

In a deep graph signs cancel, so that a bound says nothing of most gradients; there the
spread has to judge. A transformer's block (layer norm, attention, GELU) and one as in
Llama (RMS norm, rotary positions, causal attention, SwiGLU) show whether it does: what
is right has to pass, and 18 mistakes in each have to be caught. Prints the table of
docs/selftest.md:

    python scripts/studies/networks.py

A mistake changes the gradient and not the value: `swapped` gives the value of the right
expression and the gradient of a wrong one. It stands in the first layer, where the
gradient has come through all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.harness.project.markdown import table
from gradwatch.impls import catalogue
from gradwatch.impls.contract import Op, Problem

Array = NDArray[Any]
Parameters = Mapping[str, Any]

EPS = 1e-5
#: Relative errors of the scale of the scores, in the backward.
SCALES = {f"the scores' scale is off by {e:g}": 1 + e for e in (1e-2, 1e-3, 1e-4, 1e-5)}
ATTENTION = (
    *("the scores' scale is missing", *SCALES),
    *("softmax without the sum of its row", "the last row's scores get nothing"),
    "the saved weights are off by one in 512",
)
#: Those that lose or double a path, a row or a factor. Beside what one rounding at
#: each step does to 16 bits, all others are less than three standard deviations.
STRUCTURAL = frozenset(
    (
        *("the mean is a constant", "the variance is a constant"),
        *("the root mean square is a constant", "the keys are not turned back"),
        *("the queries are turned the other way", "the positions are off by one"),
        *("SiLU's slope is the sigmoid", "the gate's slope is forgotten"),
        *("the mask is forgotten", "the scores' scale is missing"),
        *("softmax without the sum of its row", "the last row's scores get nothing"),
        "one token's residual counts twice",
    )
)
EVERYWHERE = ("one token's residual counts twice", "a row of dw2 is 1 % too large")
TRANSFORMER = (
    *("the mean is a constant", "the variance is a constant"),
    *("the variance is unbiased", "eps is 1e-3", "eps is 1e-6"),
    *ATTENTION,
    *("GELU's slope is the exact one's", "0.044 for 0.044715", "GELU is z beyond 2"),
    *EVERYWHERE,
)
LLAMA = (
    *("the root mean square is a constant", "eps is 1e-3"),
    *("the keys are not turned back", "the queries are turned the other way"),
    *("the positions are off by one", "SiLU's slope is the sigmoid"),
    *("the gate's slope is forgotten", "the mask is forgotten"),
    *ATTENTION,
    *EVERYWHERE,
)


@dataclass(frozen=True)
class Network:
    """A network of some layers with its numbers, exact in float32.

    `mistakes` are what `problem` can plant.
    """

    op: Op
    arrays: Mapping[str, Array]
    cotangent: Array
    mistakes: tuple[str, ...]

    def problem(self, dtype: str, mistake: str = "") -> Problem:
        """The problem in a precision, its backward right or with a mistake."""
        held = {n: _held(a, dtype) for n, a in self.arrays.items()}
        dy = _held(self.cotangent, dtype)
        return Problem(self.op, held, [dy], {"mistake": mistake}, dtype=dtype)


@dataclass(frozen=True)
class Outcome:
    """What the judge says of a network's gradients, in one precision.

    `accused` are right gradients that do not agree, without the `silent` ones, which
    are vacuous. `ratio` is the largest of a right gradient, as a share of what is
    allowed; `vacuous` the share of the elements of which nothing can be said.
    """

    tensors: int
    accused: tuple[str, ...]
    silent: tuple[str, ...]
    ratio: float
    vacuous: float
    missed: tuple[str, ...]

    @property
    def agreeing(self) -> int:
        """The number of right gradients that agree."""
        return self.tensors - len(self.accused) - len(self.silent)


def tried(network: Network, dtype: str, backend: str = "torch_formula") -> Outcome:
    """Judge the right gradients of a framework, and each planted mistake."""
    right = reference(network.problem(dtype))

    def judged(mistake: str) -> tuple[Judgement, ...]:
        problem = network.problem(dtype, mistake)
        step = catalogue.load_backend(backend).prepare(problem)
        step.forward()
        step.backward()
        result = step.read()
        return judge_tensors(right, result.gradients, result.dtypes, dtype=dtype)

    honest = judged("")
    sizes = [network.arrays[j.tensor.removeprefix("d")].size for j in honest]
    return Outcome(
        len(honest),
        tuple(j.tensor for j in honest if j.verdict not in ("agree", "vacuous")),
        tuple(j.tensor for j in honest if j.verdict == "vacuous"),
        max(j.ratio / j.limit for j in honest),
        float(np.average([j.vacuous for j in honest], weights=sizes)),
        tuple(m for m in network.mistakes if all(j.passes for j in judged(m))),
    )


def transformer(layers: int, tokens: int = 16, width: int = 32) -> Network:
    """A transformer's blocks, with four heads."""
    shapes = {
        "g1": (width,),
        "b1": (width,),
        "g2": (width,),
        "b2": (width,),
        **dict.fromkeys(("wq", "wk", "wv", "wo"), (width, width)),
        "w1": (width, 4 * width),
        "c1": (4 * width,),
        "w2": (4 * width, width),
        "c2": (width,),
    }
    return _network("transformer", _transformer_block, shapes, layers, tokens, width)


def llama(layers: int, tokens: int = 16, width: int = 32) -> Network:
    """Blocks as in Llama, with four heads; the mask is of -inf."""
    shapes = {
        "g1": (width,),
        "g2": (width,),
        **dict.fromkeys(("wq", "wk", "wv", "wo"), (width, width)),
        **dict.fromkeys(("w1", "w3"), (width, 3 * width)),
        "w2": (3 * width, width),
    }
    angles = np.outer(np.arange(tokens), 100.0 ** -np.linspace(0, 1, width // 8))
    constants = {
        "cos": np.cos(angles),
        "sin": np.sin(angles),
        "future": np.triu(np.ones((tokens, tokens), bool), 1),
    }
    return _network("llama", _llama_block, shapes, layers, tokens, width, constants)


def _network(
    name: str,
    block: Callable[..., Any],
    shapes: Mapping[str, tuple[int, ...]],
    layers: int,
    tokens: int,
    width: int,
    constants: Mapping[str, Array] | None = None,
) -> Network:
    rng = np.random.default_rng(layers)
    constants = constants or {}
    arrays = {"x": rng.standard_normal((tokens, width)), **constants}
    for layer in range(layers):
        for parameter, shape in shapes.items():
            drawn = rng.standard_normal(shape) / math.sqrt(shape[0])
            arrays[f"{parameter}_{layer}"] = _initial(parameter) + drawn
    mistakes = {"transformer": TRANSFORMER, "llama": LLAMA}[name]
    op = Op(
        name,
        inputs=" ".join(arrays),
        constants=" ".join(constants),
        formula=partial(_formula, block, tuple(shapes), tuple(constants)),
    )
    single = {
        n: a.astype(np.float32) if a.dtype.kind == "f" else a for n, a in arrays.items()
    }
    dy = rng.standard_normal((tokens, width)).astype(np.float32)
    return Network(op, single, dy, mistakes)


def _initial(parameter: str) -> float:
    """A norm's weights are near 1, all others near 0."""
    return 1.0 if parameter.startswith("g") else 0.0


def _held(array: Array, dtype: str) -> Array:
    if array.dtype.kind != "f":
        return array
    if dtype == "bfloat16":  # which NumPy lacks: float32 holds its numbers
        return PRECISIONS[dtype].round(array)
    return array.astype(dtype)


def _formula(
    block: Callable[..., Any],
    parameters: tuple[str, ...],
    constants: tuple[str, ...],
    xp: Any,
    x: Any,
    *tensors: Any,
    mistake: str,
) -> Any:
    fixed = dict(zip(constants, tensors, strict=False))
    learned = tensors[len(constants) :]
    for first in range(0, len(learned), len(parameters)):
        layer = learned[first : first + len(parameters)]
        given = {**fixed, **dict(zip(parameters, layer, strict=True))}
        x = block(xp, x, given, "" if first else mistake)
    return x


def swapped(xp: Any, right: Any, wrong: Any) -> Any:
    """The value of one expression, with the gradient of another."""
    return wrong + xp.stop_gradient(right - wrong)


def main() -> None:
    """Print the right gradients that agree and the mistakes that are caught."""
    rows = []
    for make, layers in ((transformer, 2), (transformer, 6), (llama, 2), (llama, 6)):
        network = make(layers)
        for dtype in ("float32", "float64"):
            outcome = tried(network, dtype)
            planted = len(network.mistakes)
            rows.append(
                [
                    *(f"{network.op.name}, {layers} layers", dtype),
                    f"{outcome.agreeing} of {outcome.tensors}",
                    *(f"{outcome.ratio:.2f}", f"{outcome.vacuous:.2%}"),
                    f"{planted - len(outcome.missed)} of {planted}",
                    "; ".join(outcome.missed),
                ]
            )
    head = ["network", "precision", "right tensors that agree"]
    head += ["largest ratio / limit", "elements that say nothing", "caught", "missed"]
    print(table(head, rows))


# Blocks -------------------------------------------------------------------------------


def _transformer_block(xp: Any, x: Any, p: Parameters, mistake: str) -> Any:
    h = _layer_norm(xp, x, p["g1"], p["b1"], mistake)
    q, k, v = (_heads(xp, xp.matmul(h, p[n])) for n in ("wq", "wk", "wv"))
    x = x + xp.matmul(_joined(xp, _attention(xp, q, k, v, mistake)), p["wo"])
    h = _layer_norm(xp, x, p["g2"], p["b2"], "")
    z = _gelu(xp, xp.matmul(h, p["w1"]) + p["c1"], mistake)
    return _residual(xp, x, mistake) + xp.matmul(z, _w2(xp, p, mistake)) + p["c2"]


def _llama_block(xp: Any, x: Any, p: Parameters, mistake: str) -> Any:
    h = _rms_norm(xp, x, p["g1"], mistake)
    q, k, v = (_heads(xp, xp.matmul(h, p[n])) for n in ("wq", "wk", "wv"))
    q, k = _turned_queries(xp, q, p, mistake), _turned_keys(xp, k, p, mistake)
    mixed = _attention(xp, q, k, v, mistake, p["future"])
    x = x + xp.matmul(_joined(xp, mixed), p["wo"])
    h = _rms_norm(xp, x, p["g2"], "")
    z = _swiglu(xp, xp.matmul(h, p["w1"]), xp.matmul(h, p["w3"]), mistake)
    return _residual(xp, x, mistake) + xp.matmul(z, _w2(xp, p, mistake))


def _heads(xp: Any, x: Any, count: int = 4) -> Any:
    tokens, width = x.shape
    return xp.permute_dims(xp.reshape(x, (tokens, count, width // count)), (1, 0, 2))


def _joined(xp: Any, x: Any) -> Any:
    heads, tokens, width = x.shape
    return xp.reshape(xp.permute_dims(x, (1, 0, 2)), (tokens, heads * width))


def _residual(xp: Any, x: Any, mistake: str) -> Any:
    if mistake == "one token's residual counts twice":
        return swapped(xp, x, xp.concat([2 * x[:1], x[1:]], axis=0))
    return x


def _w2(xp: Any, p: Parameters, mistake: str) -> Any:
    w = p["w2"]
    if mistake == "a row of dw2 is 1 % too large":
        return swapped(xp, w, xp.concat([1.01 * w[:1], w[1:]], axis=0))
    return w


def _mean(xp: Any, x: Any) -> Any:
    return xp.mean(x, axis=-1, keepdims=True)


def _layer_norm(xp: Any, x: Any, weight: Any, bias: Any, mistake: str) -> Any:
    mean, n = _mean(xp, x), x.shape[-1]
    centred = x - (
        xp.stop_gradient(mean) if mistake == "the mean is a constant" else mean
    )
    variance = _mean(xp, centred * centred)
    if mistake == "the variance is a constant":
        variance = xp.stop_gradient(variance)
    elif mistake == "the variance is unbiased":
        variance = swapped(xp, variance, variance * (n / (n - 1)))
    return centred * _inverse_root(xp, variance, mistake) * weight + bias


def _inverse_root(xp: Any, square: Any, mistake: str) -> Any:
    right = 1 / xp.sqrt(square + EPS)
    for eps in (1e-3, 1e-6):
        if mistake == f"eps is {eps:.0e}".replace("e-0", "e-"):
            return swapped(xp, right, 1 / xp.sqrt(square + eps))
    return right


def _rms_norm(xp: Any, x: Any, weight: Any, mistake: str) -> Any:
    square = _mean(xp, x * x)
    if mistake == "the root mean square is a constant":
        square = xp.stop_gradient(square)
    return x * _inverse_root(xp, square, mistake) * weight


def _attention(
    xp: Any, q: Any, k: Any, v: Any, mistake: str, future: Any = None
) -> Any:
    products = xp.matmul(q, xp.permute_dims(k, (0, 2, 1)))
    scale = 1 / math.sqrt(q.shape[-1])
    scores = products * scale
    if mistake == "the scores' scale is missing":
        scores = swapped(xp, scores, products)
    elif mistake in SCALES:
        scores = swapped(xp, scores, scores * SCALES[mistake])
    open_scores = scores
    if future is not None:
        scores = xp.where(future, -math.inf, scores)
    weights = _softmax(xp, scores)
    if mistake == "the mask is forgotten":
        weights = swapped(xp, weights, _softmax(xp, open_scores))
    elif mistake == "softmax without the sum of its row":
        weights = swapped(xp, weights, xp.stop_gradient(weights) * open_scores)
    elif mistake == "the last row's scores get nothing":
        last = xp.stop_gradient(weights[:, -1:, :])
        weights = xp.concat([weights[:, :-1, :], last], axis=1)
    elif mistake == "the saved weights are off by one in 512":
        saved = xp.stop_gradient(weights) * (1 + 1 / 512)
        along = xp.sum(saved * open_scores, axis=-1, keepdims=True)
        weights = swapped(xp, weights, saved * (open_scores - along))
    return xp.matmul(weights, v)


def _softmax(xp: Any, scores: Any) -> Any:
    highest = xp.stop_gradient(xp.max(scores, axis=-1, keepdims=True))
    e = xp.exp(scores - highest)
    return e / xp.sum(e, axis=-1, keepdims=True)


def _gelu(xp: Any, z: Any, mistake: str) -> Any:
    right = _gelu_by_tanh(xp, z, 0.044715)
    if mistake == "GELU's slope is the exact one's":
        return swapped(xp, right, 0.5 * z * (1 + xp.erf(z * math.sqrt(0.5))))
    if mistake == "0.044 for 0.044715":
        return swapped(xp, right, _gelu_by_tanh(xp, z, 0.044))
    if mistake == "GELU is z beyond 2":
        return xp.where(z > 2, swapped(xp, right, z), right)
    return right


def _gelu_by_tanh(xp: Any, z: Any, cubic: float) -> Any:
    inner = math.sqrt(2 / math.pi) * (z + cubic * (z * z * z))
    return 0.5 * z * (1 + xp.tanh(inner))


def _swiglu(xp: Any, gate: Any, up: Any, mistake: str) -> Any:
    s = xp.sigmoid(gate)
    silu = gate * s
    if mistake == "SiLU's slope is the sigmoid":
        silu = gate * xp.stop_gradient(s)
    elif mistake == "the gate's slope is forgotten":
        silu = swapped(xp, silu, gate)
    return silu * up


def _turned(xp: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Rotary positions: pairs of elements turned by an angle of their token's."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return xp.concat([a * cos - b * sin, a * sin + b * cos], axis=-1)


def _turned_queries(xp: Any, q: Any, p: Parameters, mistake: str) -> Any:
    right = _turned(xp, q, p["cos"], p["sin"])
    if mistake == "the queries are turned the other way":
        return swapped(xp, right, _turned(xp, q, p["cos"], -p["sin"]))
    if mistake == "the positions are off by one":
        later = [xp.concat([p[n][1:], p[n][:1]], axis=0) for n in ("cos", "sin")]
        return swapped(xp, right, _turned(xp, q, *later))
    return right


def _turned_keys(xp: Any, k: Any, p: Parameters, mistake: str) -> Any:
    right = _turned(xp, k, p["cos"], p["sin"])
    return swapped(xp, right, k) if mistake == "the keys are not turned back" else right


if __name__ == "__main__":
    main()
