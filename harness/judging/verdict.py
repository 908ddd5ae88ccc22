"""Verdicts on gradients: `judge` and `assert_agrees`.

The tolerance of each element is derived from the arithmetic
(harness/judging/rounding.py). Structure comes before numbers: is the gradient there,
its shape, its dtype, is it finite where the truth is. Then every element's error is
divided by its rounding radius; a ratio up to the limit is rounding, a larger one is a
wrong gradient.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.judging import ties
from harness.judging.precisions import PRECISIONS, Arithmetic, plain
from harness.judging.reference import Reference, Truth, reference
from harness.project.verdicts import PASSING as PASSING
from harness.project.verdicts import VERDICTS as VERDICTS
from impls import catalogue
from impls.contract import Op, Problem

Array = NDArray[Any]

BETTER = ("agree", "convention", "vacuous")
SAYS_NOTHING = 0.1  # limit * radius above a tenth of the element: judging.md, headlines


@dataclass(frozen=True)
class Judgement:
    """The verdict on one tensor.

    Attributes:
        tensor: "dx" for the gradient of input x, or the name of an output or state.
        verdict: One of `VERDICTS`.
        ratio: Largest error over rounding radius; nan where nothing was compared.
        limit: The ratio up to which an error is rounding.
        vacuous: Share of the elements (0 to 1) of which rounding leaves too little for
            the comparison to say anything.
        worst_index: Where the ratio is largest; () for a scalar or nothing compared.
        got, expected, radius: The values there.
        radius_kind: "bound" or "spread": which of the two radii that one is.
        compute: The widest precision of intermediate values with which the tensor is
            consistent: "float32" or "mixed" (steps rounded to 16 bits, sums in float32)
            for one of 16 bits; empty where it is consistent with none.
        convention: How ties are broken ("first", "last", "even", or "mixed" where it
            is not the same in every row), where they are.
        message: One sentence that tells all of this.
    """

    tensor: str
    verdict: str
    ratio: float = float("nan")
    limit: float = float("nan")
    vacuous: float = 0.0
    worst_index: tuple[int, ...] = ()
    got: float = float("nan")
    expected: float = float("nan")
    radius: float = float("nan")
    radius_kind: str = "bound"
    compute: str = ""
    convention: str = ""
    message: str = ""

    @property
    def passes(self) -> bool:
        """Whether the verdict is none that a correct implementation could not earn."""
        return self.verdict in PASSING


def judge(
    op: str | Op,
    inputs: Sequence[Any],
    dy: Any,
    gradients: Sequence[Any],
    *,
    outputs: Sequence[Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    compute: str | None = None,
) -> tuple[Judgement, ...]:
    """Judge gradients that were computed elsewhere.

    Args:
        op: The name of an op, or an `Op` of your own with a formula.
        inputs: Arrays in the op's order.
        dy: The cotangent, of the output's shape; a sequence of them, one for each
            output, where the op has several (None for an integer output).
        gradients: One array, or None, for each input that has a gradient, in order.
        outputs: The outputs, to be judged as well.
        attributes: What the formula takes beside its inputs, such as {"axis": -1}.
        dtype: Precision in which the gradients were computed, one of float64, float32,
            float16, bfloat16; by default that of the inputs. Give it where the arrays
            are wider than the computation (NumPy has no bfloat16).
        compute: Precision of intermediate values: "float32" for a 16-bit kernel that
            keeps float32 inside and rounds once, "mixed" for one that rounds every step
            and accumulates sums in float32, the dtype itself for one that accumulates
            in 16 bits; "tf32" for float32 with TF32 products. By default what
            frameworks do: for 16 bits "float32" or "mixed", and each judgement says
            which.

    Returns:
        A Judgement for each gradient; then, if outputs are given, one for each of them.

    Raises:
        UnknownName: no op bears that name (a LookupError).
        ValueError: the call itself is wrong: number or shape of arrays, attributes.
    """
    problem = _problem(op, inputs, dy, dict(attributes or {}), dtype)
    named = _named(problem.op, gradients, outputs)
    # Of the precision under test, or of the inputs' wider type.
    holders = {problem.dtype, *_floating(problem.op, inputs)}
    return judge_tensors(
        reference(problem, compute),
        {name: None if a is None else _array(a) for name, a in named.items()},
        {n: problem.dtype for n, a in named.items() if _dtype_of(a) in holders},
        dtype=problem.dtype,
    )


def assert_agrees(
    op: str | Op,
    inputs: Sequence[Any],
    dy: Any,
    gradients: Sequence[Any],
    *,
    outputs: Sequence[Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    compute: str | None = None,
    allow_vacuous: bool = False,
    strict: bool = False,
) -> None:
    """Raise unless every gradient is as right as its precision allows.

    Takes what `judge` takes, and:

    Args:
        allow_vacuous: Accept a tensor of which nothing can be said.
        strict: Reject one that is `imprecise`.

    Raises:
        AssertionError: one gradient or more is wrong, or nothing can be said of it; the
            message says op, tensor, index, got, expected, radius and ratio of each.
    """
    judgements = judge(
        op,
        inputs,
        dy,
        gradients,
        outputs=outputs,
        attributes=attributes,
        dtype=dtype,
        compute=compute,
    )
    name = op if isinstance(op, str) else op.name
    refused = [
        *([] if allow_vacuous else ["vacuous"]),
        *(["imprecise"] if strict else []),
    ]
    wrong = [
        f"{name}: {j.message}"
        for j in judgements
        if not j.passes or j.verdict in refused
    ]
    if wrong:
        raise AssertionError("\n".join(wrong))


def judge_tensors(
    right: Reference,
    got: Mapping[str, Array | None],
    dtypes: Mapping[str, str],
    *,
    dtype: str,
) -> tuple[Judgement, ...]:
    """Judge tensors by name against a reference that is already there.

    All of them must break ties in the same way: a maximum that passes its cotangent
    on to both inputs is wrong, though each gradient is right by some convention.
    """
    trials = [
        tuple(
            _judge_tensor(right, convention, name, array, dtypes.get(name, ""), dtype)
            for name, array in got.items()
        )
        for convention in right.graphs
    ]
    best = min(range(len(trials)), key=lambda i: _badness(trials[i]))
    if not right.set_valued:
        return trials[best]
    if _badness(trials[best])[0]:
        mixed = _row_by_row(right, got, dtypes, dtype)
        if mixed and _badness(mixed) < _badness(trials[best]):
            return mixed
    return _by_convention(right, tuple(right.graphs)[best], trials[best])


def _badness(judgements: Sequence[Judgement]) -> tuple[int, float]:
    ratios = [j.ratio for j in judgements if not np.isnan(j.ratio)]
    return sum(not j.passes for j in judgements), max(ratios, default=0.0)


def _by_convention(
    right: Reference, name: str, judgements: tuple[Judgement, ...]
) -> tuple[Judgement, ...]:
    """Say `convention` of those tensors that would be others under another one."""
    settled = []
    for j in judgements:
        if j.verdict in ("agree", "vacuous") and right.depends_on_ties(j.tensor):
            message = f"{j.tensor}: right at a tie, broken by the {name} convention"
            j = replace(j, verdict="convention", convention=name, message=message)
        settled.append(j)
    return tuple(settled)


def _row_by_row(
    right: Reference,
    got: Mapping[str, Array | None],
    dtypes: Mapping[str, str],
    dtype: str,
) -> tuple[Judgement, ...]:
    """The verdicts where each row may break its tie in another way; see `ties`."""
    parts = ties.put_right(right, got, allowed)
    if parts is None:
        return ()
    trials = [
        [
            _judge_tensor(
                right, name, n, tensors.get(n, array), dtypes.get(n, ""), dtype
            )
            for n, array in got.items()
        ]
        for name, tensors in parts.items()
    ]
    worst = [max(js, key=lambda j: _badness([j])) for js in zip(*trials, strict=True)]
    return _by_convention(right, "mixed", tuple(worst))


# One tensor ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Asked:
    """One tensor that came back, and what it is held against."""

    right: Reference
    convention: str
    tensor: str
    got: Array
    dtype: str

    def judged(self, arithmetic: Arithmetic) -> Judgement:
        """The verdict, given how the tensor may have been computed."""
        truth = self.right.bounds(self.convention, arithmetic)[self.tensor]
        if truth.admissible is not None:
            return _judge_indices(truth, self.got)
        found = _judge_numbers(truth, self.got, self.right.limit, self.dtype)
        if found.verdict == "disagree":
            return found  # the spread can only accuse more
        radius, kinds = self._radius(arithmetic)
        if not (kinds == "spread").any():
            return found
        truth = replace(truth, radius=radius)
        return _judge_numbers(truth, self.got, self.right.limit, self.dtype, kinds)

    def explained(self, arithmetic: Arithmetic) -> bool:
        """Whether a careless algorithm may be off that far, wherever it is off.

        What has no finite radius explains nothing; where the careless algorithm has
        none, the careful one in that arithmetic may.
        """
        own, limit = self.right.arithmetics[-1], self.right.limit
        radius, _ = self._radius(own)
        excuse, _ = self._radius(arithmetic, careless=True)
        if not np.isfinite(excuse).all():
            careful, _ = self._radius(arithmetic)
            excuse = np.where(np.isfinite(excuse), excuse, careful)
        value = self.right.graphs[self.convention][self.tensor].value
        with np.errstate(all="ignore"):
            error = np.abs(self.got - value).astype(np.float64)
            wrong = np.isfinite(radius) & ~(error <= limit * radius)
            explained = np.isfinite(excuse) & (error <= limit * excuse)
        return not (wrong & ~explained).any()

    def overflowed(self) -> bool:
        """Whether what is wrong is infinite or nan, and large values may explain it."""
        truth = self.right.bounds(self.convention)[self.tensor]
        due = np.copysign(np.inf, truth.value)
        wrong = np.where(truth.infinite, self.got != due, ~np.isfinite(self.got))
        wrong &= np.isfinite(truth.radius) & ~np.isnan(truth.value)
        possible = self.right.may_overflow(self.convention, self.tensor)
        excused = possible & np.where(truth.infinite, np.isnan(self.got), True)
        return not (wrong & ~excused).any()

    def _radius(
        self, arithmetic: Arithmetic, *, careless: bool = False
    ) -> tuple[NDArray[np.float64], Array]:
        """Radius and kind of each element.

        The bound is the judge where it leaves at least half of the digits. Where it
        does not, nearly all is lost, as in any deep graph, to signs that it does not
        see. The spread sees them; it fails only where the first-order picture fails,
        which it notices: there it is infinite, and the bound is left.
        """
        truth = self.right.bounds(self.convention, arithmetic, careless=careless)
        bound = truth[self.tensor]
        half = arithmetic.roundoff**0.5
        sharp = _informative(bound, self.right.limit, half) | ~np.isfinite(bound.value)
        kinds = np.full(bound.radius.shape, "bound")
        if sharp.all():
            return bound.radius, kinds
        spread = self.right.spreads(self.convention, arithmetic, careless=careless)
        closer = ~sharp & (spread[self.tensor] < bound.radius)
        kinds = np.where(closer, "spread", kinds)
        return np.where(closer, spread[self.tensor], bound.radius), kinds


def allowed(right: Reference, convention: str, tensor: str) -> NDArray[np.float64]:
    """How far each element of a tensor may be off, in the narrowest arithmetic."""
    node = right.graphs[convention][tensor]
    asked = _Asked(right, convention, tensor, node.value, right.dtype)
    radius, _ = asked._radius(right.arithmetics[-1])
    with np.errstate(all="ignore"):
        error: NDArray[np.float64] = right.limit * radius
    return error


def _judge_tensor(
    right: Reference,
    convention: str,
    tensor: str,
    got: Array | None,
    has: str,
    wants: str,
) -> Judgement:
    fault = _structural_fault(right.graphs[convention][tensor].value, got, has, wants)
    if fault:
        message = f"{tensor}: {fault}"
        return Judgement(tensor, "malformed", limit=right.limit, message=message)
    assert got is not None
    asked = _Asked(right, convention, tensor, got.astype(right.wide), wants)
    for arithmetic in right.arithmetics:
        found = asked.judged(arithmetic)
        if found.verdict in BETTER:
            return replace(found, compute=arithmetic.name)
    if found.verdict == "disagree":
        return _excused(asked, found)
    if found.verdict == "nonfinite" and asked.overflowed():
        why = (
            "; intermediate values so large may overflow in another order of operations"
        )
        return replace(found, verdict="imprecise", message=found.message + why)
    return found


def _excused(asked: _Asked, found: Judgement) -> Judgement:
    """`imprecise`, where an honest but careless algorithm may be off as far."""
    ways = [asked.right.arithmetics[-1]]
    if ways[0].sums < ways[0].roundoff:
        ways.append(plain(PRECISIONS[asked.right.dtype]))
    for arithmetic in ways:
        if asked.explained(arithmetic):
            message = found.message + (
                "; the worst case of an honest algorithm, such as a sum of equal terms "
                f"added up one by one in {arithmetic.name}, explains it"
            )
            return replace(
                found, verdict="imprecise", message=message, compute=arithmetic.name
            )
    return found


def _structural_fault(value: Array, got: Array | None, has: str, wants: str) -> str:
    if got is None:
        return "None where a gradient is due"
    if got.shape != value.shape:
        return f"shape {got.shape}, expected {value.shape}"
    integer = value.dtype.kind == "i"
    if not integer and has != wants:
        return f"dtype {has or got.dtype}, expected {wants}"
    return ""


def _judge_indices(truth: Truth, got: Array) -> Judgement:
    """Any index of a maximum is right, by whatever convention it was chosen."""
    assert truth.admissible is not None
    axis, right = truth.admissible
    indices = np.expand_dims(got, axis)
    inside = (indices >= 0) & (indices < right.shape[axis]) & (indices == indices // 1)
    places = np.where(inside, indices, 0).astype(np.intp)
    good = inside & np.take_along_axis(right, places, axis)
    bad = ~good.squeeze(axis) & np.isfinite(truth.radius)
    if not bad.any():
        known = np.count_nonzero(np.isfinite(truth.radius))
        share = 1 - known / bad.size if bad.size else 1.0
        verdict = "vacuous" if share >= 0.5 else "agree"
        if verdict == "agree" and not np.array_equal(got, truth.value):
            verdict = "convention"
        message = f"{truth.tensor}: indices of maxima"
        return Judgement(truth.tensor, verdict, 0.0, vacuous=share, message=message)
    worst = tuple(int(i) for i in np.argwhere(bad)[0])
    here, there = float(got[worst]), float(truth.value[worst])
    message = (
        f"{truth.tensor}{list(worst)}: index {here:g} is of no maximum, {there:g} is"
    )
    return Judgement(
        truth.tensor, "disagree", np.inf, 0.0, 0.0, worst, here, there, 0.0,
        message=message,
    )  # fmt: skip


def _judge_numbers(
    truth: Truth, got: Array, limit: float, dtype: str, kinds: Array | None = None
) -> Judgement:
    """The verdict; `kinds` says of each element which of the two radii it has."""
    ratios, lost = _ratios(truth, got)
    informative = np.count_nonzero(_informative(truth, limit) | _undefined(truth, got))
    share = 1 - informative / ratios.size if ratios.size else 0.0
    verdict = _verdict(ratios, lost, share, limit)
    if not ratios.size:
        message = f"{truth.tensor}: no elements; its shape and dtype are right"
        return Judgement(truth.tensor, "agree", 0.0, limit, message=message)
    worst = np.unravel_index(int(np.argmax(ratios)), ratios.shape)
    found = Judgement(
        truth.tensor,
        verdict,
        ratio=float(ratios[worst]),
        limit=limit,
        vacuous=share,
        worst_index=tuple(int(i) for i in worst),
        got=float(got[worst]),
        expected=float(truth.value[worst]),
        radius=float(truth.radius[worst]),
        radius_kind="bound" if kinds is None else str(kinds[worst]),
    )
    return replace(found, message=_told(found, dtype))


def _ratios(truth: Truth, got: Array) -> tuple[NDArray[np.float64], bool]:
    """Error over radius, and whether something is infinite where it may not be, or not.

    Where an infinity is due, nothing else is right; where nothing is known, all is.
    """
    with np.errstate(all="ignore"):
        error = np.abs(got - truth.value).astype(np.float64)
        ratios: NDArray[np.float64] = error / truth.radius
        if ratios.size and ratios.max() < np.inf:  # false for nan
            return ratios, False
        due = truth.infinite
        judged = np.isfinite(truth.value) & np.isfinite(truth.radius) & ~due
        right = np.copysign(np.inf, truth.value)
        lost = (judged & ~np.isfinite(got)) | (due & (got != right))
        ratios = np.where(error == 0, 0.0, ratios)
    return np.where(lost, np.inf, np.where(judged, ratios, 0.0)), bool(lost.any())


def _informative(
    truth: Truth, limit: float, share: float = SAYS_NOTHING
) -> NDArray[np.bool_]:
    """Where what is allowed is little: beside the value, or at the end of the range.

    An infinity that is due says something, too.
    """
    with np.errstate(all="ignore"):
        size = np.abs(truth.value.astype(np.float64))
        enough: NDArray[np.bool_] = limit * truth.radius <= share * size
        if enough.all() and size.size and size.max() < np.inf:
            return enough
        enough = (enough | (truth.radius <= truth.zero)) & (size < np.inf)
        return enough | truth.infinite


def _undefined(truth: Truth, got: Array) -> NDArray[np.bool_]:
    """Where nan is due and has come. Something else is not judged: conventions vary."""
    undefined: NDArray[np.bool_] = np.isnan(truth.value) & np.isnan(got)
    return undefined


def _verdict(ratios: Array, lost: bool, share: float, limit: float) -> str:
    if lost:
        return "nonfinite"
    if (ratios > limit).any():
        return "disagree"
    return "vacuous" if share >= 0.5 else "agree"


def _told(j: Judgement, dtype: str) -> str:
    """The whole story in one sentence."""
    where = f"{j.tensor}[{', '.join(map(str, j.worst_index))}]"
    digits = 17 if dtype == "float64" else 9  # what tells two neighbours apart
    numbers = f"got {j.got:.{digits}g}, expected {j.expected:.{digits}g}"
    if j.verdict == "nonfinite":
        return f"{where}: {numbers}"
    if j.verdict == "vacuous":
        return (
            f"{j.tensor}: rounding in {dtype} may change {j.vacuous:.0%} of the "
            "elements by more than a tenth, so that agreement shows nothing"
        )
    if j.radius == 0 and j.ratio > 0:
        return f"{where}: {numbers}, and no rounding is involved"
    return (
        f"{where}: {numbers}; the error is {j.ratio:.3g} times the rounding radius "
        f"{j.radius:.3g} (what {dtype} arithmetic alone may be off by; it is the "
        f"{j.radius_kind}), and up to {j.limit:.3g} times is allowed"
    )


# The caller's arrays ------------------------------------------------------------


def _problem(
    op: str | Op, inputs: Sequence[Any], dy: Any, attributes: dict[str, Any], dtype: Any
) -> Problem:
    op = catalogue.load_op(op) if isinstance(op, str) else op
    arrays = [_array(a) for a in inputs]
    if len(arrays) != len(op.inputs):
        wanted = ", ".join(op.inputs)
        raise ValueError(f"{op.name} has inputs {wanted}; {len(arrays)} were given")
    _check_attributes(op, attributes)
    several = isinstance(dy, (tuple, list)) and len(op.outputs) > 1
    cotangents = list(dy) if several else [dy]
    if len(cotangents) != len(op.outputs):
        raise ValueError(
            f"{op.name} has outputs {', '.join(op.outputs)}: give a cotangent for each"
        )
    return Problem(
        op,
        dict(zip(op.inputs, arrays, strict=True)),
        [None if c is None else _array(c) for c in cotangents],
        attributes,
        dtype=_precision(_floating(op, inputs), dtype),
    )


def _check_attributes(op: Op, attributes: dict[str, Any]) -> None:
    named = _keywords(op.said("formula"))
    missing = [p.name for p in named if p.default is p.empty]
    missing = [name for name in missing if name not in attributes]
    if missing:
        raise ValueError(f"{op.name} needs the attribute {missing[0]!r}")
    for name in attributes:
        if name not in [p.name for p in named]:
            raise ValueError(f"{op.name} has no attribute {name!r}")


@functools.lru_cache(maxsize=256)
def _keywords(formula: Callable[..., Any]) -> tuple[inspect.Parameter, ...]:
    parameters = inspect.signature(formula).parameters.values()
    return tuple(p for p in parameters if p.kind is p.KEYWORD_ONLY)


def _floating(op: Op, inputs: Sequence[Any]) -> list[str]:
    """Dtypes of all inputs but constants of integers or truth values."""
    constants = getattr(op, "constants", ())  # an older commit's op has none
    named = ((name, _dtype_of(a)) for name, a in zip(op.inputs, inputs, strict=True))
    return [t for n, t in named if n not in constants or t not in _WHOLE]


def _precision(held: Sequence[str], dtype: str | None) -> str:
    held = sorted({*held})
    if dtype is None:
        if len(held) > 1:
            raise ValueError(f"inputs of several dtypes ({', '.join(held)}): say which")
        (dtype,) = held
    if dtype not in PRECISIONS:
        raise ValueError(f"no precision {dtype!r}; one of {', '.join(PRECISIONS)}")
    narrow = [n for n in held if _bits(n) < _bits(dtype)]
    if narrow:
        raise ValueError(f"inputs of {narrow[0]} cannot hold {dtype}")
    return dtype


def _bits(dtype: str) -> int:
    return 16 if dtype == "bfloat16" else np.dtype(dtype).itemsize * 8


def _named(
    op: Op, gradients: Sequence[Any], outputs: Sequence[Any] | None
) -> dict[str, Any]:
    if len(gradients) != len(op.differentiable):
        wanted = ", ".join(f"d{n}" for n in op.differentiable)
        raise ValueError(f"{op.name} has gradients {wanted}; {len(gradients)} given")
    if outputs is not None and len(outputs) != len(op.outputs):
        raise ValueError(f"{op.name} has outputs {', '.join(op.outputs)}")
    named = {f"d{n}": g for n, g in zip(op.differentiable, gradients, strict=True)}
    return {**named, **dict(zip(op.outputs, outputs or (), strict=False))}


_WHOLE = ("bool", *(f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)))


def _dtype_of(given: Any) -> str:
    """Name of the dtype of an array, or of a framework's tensor; "" of None."""
    if given is None:
        return ""
    dtype = given.dtype if hasattr(given, "dtype") else np.asarray(given).dtype
    return getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]


def _array(given: Any) -> Array:
    """The numbers of an array or tensor; NumPy lacks bfloat16, float32 holds it."""
    if hasattr(given, "detach"):
        given = given.detach().cpu()
        if _dtype_of(given) == "bfloat16":
            given = given.float()
        given = given.numpy()
    return np.asarray(given)
