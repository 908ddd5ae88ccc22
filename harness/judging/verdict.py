"""Verdicts on a candidate's tensors, by the first honest reading that explains them.

`readings` yields these, strictest first. Structure is judged before numbers: presence,
shape, dtype. Each element's error is divided by its rounding radius: a
ratio up to the limit is rounding, a larger one is a wrong gradient. The bound is that
radius where it is sharp, elsewhere the spread; where neither says anything, the tensor
is judged as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradwatch.harness.judging.excuses.overflow import cancels, magnitudes, risks
from gradwatch.harness.judging.judgement import EMPTY, FLUSHED, Judgement
from gradwatch.harness.judging.orders import is_second
from gradwatch.harness.judging.precisions import PRECISIONS, Arithmetic, Array, Mask
from gradwatch.harness.judging.radii import Radii, Truth
from gradwatch.harness.judging.reference import Reference
from gradwatch.harness.judging.rounding.analysis import Error, largest, local_errors
from gradwatch.harness.judging.rounding.thresholds import MOST, SAYS_NOTHING
from gradwatch.harness.judging.spread import EXCUSED, PAIRS, Whole
from gradwatch.impls.graph import Node, topological_order

Tensors = Mapping[str, Array | None]

#: Steps between an input and a choice, each from one element to the same element.
_ELEMENTWISE = frozenset(
    ("add", "subtract", "multiply", "divide", "negative", "maximum", "broadcast_to")
)

OVERFLOWED = "intermediate values so large may overflow in another order of operations"
LOSS = "an honest algorithm may lose as much, as one that adds one by one in {}"
MUCH = "a careless algorithm may lose so much that"
SILENT, HIDES = "nothing is told", "zero would pass as well"


def readings(
    right: Reference, got: Tensors, flushes: bool = False
) -> Iterator[tuple[str, Reference, str, Tensors]]:
    """Readings of a call, strictest first; `_judgement` tries arithmetics in each.

    Each has a name, a reference (for the given inputs, or with their subnormal numbers
    zero), a convention for ties or a side of a kink, and the tensors that it explains.
    """
    for name in right.graphs:
        yield name, right, name, got
    rows = _put_right(right, got) if len(right.graphs) > 1 else None
    if rows:
        yield "mixed", right, "first", {**got, **rows}
    if right.reordered is not None:
        yield "first", right.reordered, "first", got
    if flushes and right.flushed is not None:
        read = {n: None if a is None else right.flush(a) for n, a in got.items()}
        for name in right.flushed.graphs:
            yield FLUSHED, right.flushed, name, read


def judge_tensors(
    right: Reference, got: Tensors, dtypes: Mapping[str, str], *, flushes: bool = False
) -> tuple[Judgement, ...]:
    """Judge tensors by name against an evaluated reference.

    The first of the `readings` that explains all tensors decides, else the one that
    leaves the fewest wrong. A platform that `flushes` subnormal numbers to zero (Intel
    64 manual, volume 1, 10.2.3: FTZ and DAZ) may do so in some of the tensors alone.
    """
    found: tuple[Judgement, ...] = ()
    for name, source, ties, tensors in readings(right, got, flushes):
        if name not in right.graphs and all(j.passes for j in found):
            break
        judged = tuple(
            _named(name, source, _judgement(source, ties, n, tensors, dtypes))
            if n in right.tied or not found or source is not right
            else found[i]  # as in every convention
            for i, n in enumerate(tensors)
        )
        if name == FLUSHED:
            pairs = zip(found, judged, strict=True)
            judged = tuple(b if b.passes and not a.passes else a for a, b in pairs)
        if not found or _badness(judged) < _badness(found):
            found = judged
        if all(j.verdict in ("agree", "convention", "vacuous") for j in found):
            break
    return found


def _named(name: str, right: Reference, j: Judgement) -> Judgement:
    """The judgement, with verdict `convention` if a reading's name decides it."""
    if name == FLUSHED and j.passes and j.verdict != "vacuous":
        said = "right for subnormal numbers taken for zero"
    elif j.verdict == "agree" and j.tensor in right.tied:
        said = f"right at a tie, broken by the {name} convention"
    else:
        return j
    message = f"{j.tensor}: {said}"
    return replace(j, verdict="convention", convention=name, message=message)


def _badness(judgements: Sequence[Judgement]) -> tuple[int, float]:
    ratios = [j.ratio for j in judgements if not np.isnan(j.ratio)]
    return sum(not j.passes for j in judgements), max(ratios, default=0.0)


@dataclass(frozen=True)
class _Tensor:
    """A tensor of the candidate's, one of those judged, and a reading's reference."""

    right: Reference
    convention: str
    tensor: str
    got: Array
    beside: tuple[str, ...] = ()

    @property
    def node(self) -> Node:
        return self.radii().nodes[self.tensor]

    @property
    def own(self) -> Arithmetic:
        """The narrowest arithmetic in which it may have been computed."""
        return self.right.arithmetics[-1]

    def radii(self, arithmetic: Arithmetic | None = None) -> Radii:
        return self.right.radii(self.convention, arithmetic)

    def truth(self, arithmetic: Arithmetic) -> Truth:
        return self.radii(arithmetic).bounds[self.tensor]

    def judged(self, arithmetic: Arithmetic) -> Judgement:
        """The judgement of the tensor as one computed in an arithmetic."""
        truth, limit, dtype = self.truth(arithmetic), self.right.limit, self.right.dtype
        if truth.admissible is not None:
            return judge_indices(truth, self.got, limit, dtype)
        judgement = judge_numbers(truth, self.got, limit, dtype)
        if judgement.verdict == "disagree":
            return judgement  # the spread can only accuse more
        radius, by_spread = self._radius(arithmetic)
        if by_spread.any():
            truth = replace(truth, radius=radius)
            judgement = judge_numbers(truth, self.got, limit, dtype, by_spread)
        if judgement.verdict == "vacuous":
            got = self._as_a_whole
            if (whole := self._whole(arithmetic, got)) is not None:
                of_all = judge_whole(judgement, whole, got)
                there = np.isfinite(self.got) | ~np.isfinite(truth.value)
                if of_all.verdict != "agree" or there.all():
                    return of_all
        return judgement

    def _whole(self, of: Arithmetic, got: Array, again: bool = False) -> Whole | None:
        """The effect of roundings, from more evaluations where they decide."""
        for pairs in self.right.pairs:
            whole = self.radii(of).wholes(pairs, again=again).get(self.tensor)
            if whole is None or whole.is_sure(got, pairs):
                break
        return whole

    @property
    def _as_a_whole(self) -> Array:
        """The tensor; where values overflow, the right ones for infinities and nan."""
        finite, peaks = np.isfinite(self.got), self.radii().peaks
        leaves = not finite.all() and any(
            peaks.overflow(node).any()
            or not (np.abs(node.value) < peaks.step.beyond).all()
            for node in self.radii().order
            if node.value.dtype.kind == "f"
        )
        return np.where(finite, self.got, self.node.value) if leaves else self.got

    def as_a_whole(self) -> tuple[bool, bool]:
        """Whether the tensor as a whole is wrong, and whether careless sums explain it.

        An excuse of zeros tells nothing, and products rounded for each use excuse no
        such tensor. Infinities and nan that underflow may explain are left to
        `overflowed`.
        """
        lost = self._underflow & ~np.isfinite(self.got)
        got = np.where(lost, self.node.value, self._as_a_whole)
        whole, radii = self._whole(self.own, got), self.radii()
        again = self._whole(self.own, got, again=True)
        excuse = radii.careless(self.right.dtype, self.beside).wholes().get(self.tensor)
        if whole is None or again is None or excuse is None:
            return False, False
        explained = excuse.worst(got)[0] <= EXCUSED
        tells = any(
            one.worst(got)[0] <= most
            and most * float(one.parts[0].norm) < MOST * float(one.parts[0].size)
            for one, most in ((excuse, EXCUSED), (again, again.limit))
        )
        wrong = whole.worst(got)[0] > whole.limit
        return wrong and not (explained or tells), tells

    @property
    def _underflow(self) -> Mask:
        """A mask: a partial product underflows in some order of the factors."""
        return self.radii().peaks.underflow(self.node)

    @property
    def _cancels(self) -> Mask:
        """A mask of sums of terms of both signs, whose own sign may change."""
        return cancels(self.node.value, magnitudes(self.radii().order)[self.node])

    def explained(self, sums: str) -> str | None:
        """Why errors that a careless algorithm explains tell nothing, if they do not.

        None if it does not explain them. Its loss may leave no element that says
        something, or zero would pass in each that needs the excuse. It adds one by
        one, in that precision, and computes a product of matrices again for each use.
        Underflow never turns a sign where all terms have the same. A number far below
        a unit in the last place of the possible loss shows none: a lost one would be
        zero.
        """
        own, limit = self.own, self.right.limit
        radius, by_spread = self._radius(own)
        again, known = self._radius(own, again=True)
        lost = self._lost(own, sums)
        excuse = np.where(known, np.maximum(radius, again), radius) + lost
        truth, value, small = self.truth(own), self.node.value, self._underflow
        judged = np.isfinite(radius) & np.isfinite(value) & np.isfinite(self.got)
        with np.errstate(all="ignore"):
            error = np.abs(self.got - value).astype(np.float64)
            wrong = judged & ~(error <= limit * radius)
            unknown = by_spread & ~known & wrong
            explained = (error <= limit * excuse) | unknown
            turned = explained & wrong & (self.got * value < 0)
            least = PRECISIONS[sums].trace * limit * excuse
            kept = explained & wrong & (self.got != 0) & (np.abs(self.got) < least)
            seen = (np.abs(value) > limit * excuse) | (np.abs(value) <= truth.nothing)
        if turned.any() or kept.any():
            explained &= ~(turned & small) | self._cancels
            explained &= ~kept | (small & (error <= limit * (radius + lost)))
        if (wrong & ~explained).any():
            return None
        # Where an element is unknown the tensor as a whole decides.
        if share_of_silent(replace(truth, radius=excuse), limit) == 1 or unknown.any():
            return SILENT
        return HIDES if wrong.any() and not (wrong & seen).any() else ""

    def _lost(self, own: Arithmetic, sums: str) -> Error:
        """The loss of a careless algorithm beside rounding; 0 if it is not known."""
        careless = self.radii(own).careless(sums, self.beside)
        bound = careless.bounds[self.tensor]
        with np.errstate(all="ignore"):
            lost = bound.radius - self.truth(own).radius
            if not self._sharp(bound, own).all():
                lost = np.fmin(lost, careless.spreads()[self.tensor])
        return np.where(np.isfinite(lost), lost, 0.0)

    def overflowed(self) -> bool:
        """Whether all wrong infinities, nan and missing infinities may be overflow.

        An infinity has another sign than the value only where terms of both signs may
        overflow, or the value may have it itself. Where one is due, a partial product
        that may underflow before excuses its absence.
        """
        truth = self.truth(self.own)
        due = np.copysign(np.inf, truth.value)
        wrong = np.where(truth.infinite, self.got != due, ~np.isfinite(self.got))
        wrong &= np.isfinite(truth.radius) & ~np.isnan(truth.value)
        lost, infinite = self._underflow, np.isinf(self.got)
        with np.errstate(all="ignore"):
            sure = np.abs(truth.value) > self.right.limit * truth.radius
        turned = infinite & (self.got != due) & (truth.infinite | sure)
        if turned.any():
            turned &= ~self._cancels
        excused = lost & ~infinite & truth.infinite
        radii = self.radii()  # in some honest order of operations
        if risk := risks(radii.order, radii.errors, radii.peaks).get(self.node):
            excused |= risk.infinite & infinite & ~truth.infinite & ~turned
            excused |= risk.undefined & ~np.isfinite(self.got) & ~turned
            excused |= lost & ~infinite & risk.infinite
        return not (wrong & ~excused).any()

    def _sharp(self, bound: Truth, arithmetic: Arithmetic) -> Mask:
        """A mask of elements of which the bound leaves at least half of the digits."""
        return informative(bound, self.right.limit, arithmetic.step.roundoff**0.5)

    def _radius(
        self, arithmetic: Arithmetic, *, again: bool = False
    ) -> tuple[Error, Mask]:
        """Radius of each element, and whether it is the spread's.

        The bound is the judge where it is sharp, or an element has its own rounding
        alone. Elsewhere, as it does not see errors cancel, the smaller of the two is
        the judge: a spread that fails is infinite.
        """
        radii, bound = self.radii(arithmetic), self.truth(arithmetic)
        sharp = self._sharp(bound, arithmetic) | ~np.isfinite(bound.value)
        if not sharp.all():  # some elements inherit no error, as a product of inputs
            rounding = local_errors(radii.errors, [self.node])[self.node]
            if rounding is not None:
                sharp |= rounding >= radii.errors.errors[self.node]
        if sharp.all():
            return bound.radius, ~sharp
        spread = radii.spreads(again=again)[self.tensor]
        closer = ~sharp & (spread < bound.radius)
        return np.where(closer, spread, bound.radius), closer


def allowed(right: Reference, convention: str, tensor: str) -> Error:
    """The tolerance of each element of a tensor, in the narrowest arithmetic."""
    value = right.radii(convention).nodes[tensor].value
    asked = _Tensor(right, convention, tensor, value)
    radius, _ = asked._radius(asked.own)
    with np.errstate(all="ignore"):
        return np.asarray(right.limit * radius)


def vanished(node: Node, arithmetic: Arithmetic) -> str:
    """The constants before a node that are 0 in an arithmetic, in words."""
    step = arithmetic.step
    leaves = (n.value for n in topological_order([node]) if n.primitive is None)
    scalars = (float(v) for v in leaves if v.ndim == 0 and v.dtype.kind == "f")
    found = dict.fromkeys(f"{v:g}" for v in scalars if 0 < abs(v) <= step.nothing)
    return f"{' and '.join(found)} is 0 in {step.name}" if found else ""


def is_zero(right: Reference, tensor: str) -> bool:
    """Whether a tensor is zero but for rounding, and a lost term would be seen.

    The gradients of a key's bias, and of a bias before a batch norm, are zero so.
    """
    whole = right.radii().wholes(PAIRS).get(tensor)
    return bool(whole and whole.limit * whole.parts[0].norm < MOST * whole.terms)


def says_little(right: Reference | None, j: Judgement) -> bool:
    """Whether a tensor that passes might be a tenth too large, and is no zero."""
    if right is None or j.vacuous < MOST:
        return j.vacuous >= MOST
    whole = right.radii().wholes(PAIRS).get(j.tensor)
    seen = j.verdict == "agree" and whole and whole.least_seen <= SAYS_NOTHING
    return not (seen or is_zero(right, j.tensor))


def zeros_pass(right: Reference, tensor: str) -> bool:
    """Whether a tensor of zeros would not be seen to be wrong."""
    size = np.abs(right.graphs["first"][tensor].value)
    if ((allowed(right, "first", tensor) < size) & np.isfinite(size)).any():
        return False
    whole = right.radii().wholes().get(tensor)
    return whole is None or whole.least_seen >= 1


def _judgement(
    right: Reference,
    convention: str,
    tensor: str,
    tensors: Tensors,
    dtypes: Mapping[str, str],
) -> Judgement:
    value, fault = right.graphs[convention][tensor].value, ""
    got, has = tensors[tensor], dtypes.get(tensor, "")
    if got is None and is_second(tensor) and not value.any():
        # With None frameworks say that the backward is constant.
        got, has = np.zeros(value.shape), right.dtype
    if got is None:
        fault = "None where a gradient is due"
        if is_second(tensor):
            fault += ": the backward is constant there, as far as the framework can see"
    elif got.shape != value.shape:
        fault = f"shape {got.shape}, expected {value.shape}"
    elif value.dtype.kind != "i" and has != right.dtype:
        fault = f"dtype {has or got.dtype}, expected {right.dtype}"
    if got is None or fault:
        message = f"{tensor}: {fault}"
        return Judgement(tensor, "malformed", limit=right.limit, message=message)
    asked = _Tensor(right, convention, tensor, got.astype(right.wide), (*tensors,))
    sure = list[Judgement]()  # rounding loses an operand or keeps it: both are known
    for name in right.absorbed if convention == "first" else ():
        judgement = _explained(replace(asked, convention=name))
        if judgement.verdict == "agree":
            return judgement
        sure.append(replace(judgement, convention=name))
    judgement = _explained(asked)
    if sure and judgement.verdict == "vacuous":
        return max(sure, key=lambda j: 2 * j.passes - (j.verdict == "vacuous"))
    return judgement


def _explained(asked: _Tensor) -> Judgement:
    """The judgement in the first arithmetic that explains a tensor, or an excuse."""
    for arithmetic in asked.right.arithmetics:
        judgement = asked.judged(arithmetic)
        if judgement.verdict in ("agree", "convention", "vacuous"):
            return replace(judgement, compute=arithmetic.name)
    return _excused(asked, judgement)


def _excused(asked: _Tensor, judgement: Judgement) -> Judgement:
    """The judgement, `imprecise` if an honest but careless algorithm explains it."""
    lost = judgement.verdict == "nonfinite"
    if lost and not asked.overflowed():
        return judgement
    sums = asked.own.step.name
    if (nothing := asked.explained(sums)) is None:
        return judgement
    if judgement.vacuous >= MOST or nothing == SILENT:
        off, tells = asked.as_a_whole()
        if off:
            return judgement
        nothing = "" if tells else nothing
    if nothing:
        message = f"{judgement.message}; {MUCH} {nothing}"
        return replace(judgement, verdict="vacuous", message=message)
    why = vanished(asked.node, asked.own) or OVERFLOWED if lost else LOSS.format(sums)
    return replace(
        judgement,
        verdict="imprecise",
        message=f"{judgement.message}; {why}",
        compute="" if lost else sums,
    )


def _put_right(right: Reference, got: Tensors) -> dict[str, Array] | None:
    """The tensors that depend on ties, with right groups as by the first convention.

    Each tied row may pick its own member: a vectorised maximum takes the first of one
    row and the last of the next. A *group* is the same row of all these gradients,
    along the axes of the maxima: one element at a kink. It is right if each of its tied
    elements lies between those of the conventions, and so does their total. None where
    rows cannot be told apart: that needs choices among tensors of one shape, which only
    elementwise steps separate from the inputs, and gradients of that shape.
    """
    names = [name for name in got if name in right.tied]
    arrays, first = [got[name] for name in names], right.graphs["first"]
    sources = [source for choice in right.choices for source in choice.among]
    shapes = {None if a is None else a.shape for a in arrays}
    shapes |= {node.shape for node in (*sources, *(first[name] for name in names))}
    behind = {n.primitive.name for n in topological_order(sources) if n.primitive}
    if not names or len(shapes) != 1 or not behind <= _ELEMENTWISE:
        return None
    axes = sorted({c.axis for c in right.choices if c.axis is not None})
    given = np.stack([np.asarray(a).astype(right.wide) for a in arrays])
    values = np.stack([[g[n].value for n in names] for g in right.graphs.values()])
    room = np.stack([[allowed(right, c, n) for n in names] for c in right.graphs])
    group: Any = {"axis": (0, *(axis + 1 for axis in axes)), "keepdims": True}
    along = (1, *(axis + 2 for axis in axes))  # for all conventions at once
    with np.errstate(all="ignore"):
        tied = (values != values[0]).any(axis=0)
        slack = np.where(tied, room.max(axis=0), 0.0)
        least = np.min(values.min(axis=0), where=tied, initial=np.inf, **group)
        most = np.max(values.max(axis=0), where=tied, initial=-np.inf, **group)
        inside = ~tied | ((given >= least - slack) & (given <= most + slack))
        totals = np.sum(np.where(tied, values, 0.0), axis=along, keepdims=True)
        total, enough = (np.sum(np.where(tied, a, 0), **group) for a in (given, slack))
        inside &= total >= totals.min(axis=0) - enough
        inside &= total <= totals.max(axis=0) + enough
        good = np.all(inside, **group)
    return dict(zip(names, np.where(tied & good, values[0], given), strict=True))


# Element by element ----------------------------------------------------------------


def judge_indices(truth: Truth, got: Array, limit: float, dtype: str) -> Judgement:
    """Judge indices: any index of a maximum is right, whatever the convention."""
    assert truth.admissible is not None
    axis, right = truth.admissible
    indices = np.expand_dims(got, axis)
    inside = (indices >= 0) & (indices < right.shape[axis]) & (indices == indices // 1)
    places = np.where(inside, indices, 0).astype(np.intp)
    good = (inside & np.take_along_axis(right, places, axis)).squeeze(axis)
    chosen = replace(truth, value=np.where(good, got, truth.value))
    judgement = judge_numbers(chosen, got, limit, dtype)
    if judgement.verdict == "agree" and not np.array_equal(got, truth.value):
        judgement = replace(judgement, verdict="convention")
    return judgement


def judge_numbers(
    truth: Truth, got: Array, limit: float, dtype: str, by_spread: Mask | None = None
) -> Judgement:
    """Judge elements by their radii; those in `by_spread` have the spread's radius."""
    ratios, lost = _ratios(truth, got)
    if not ratios.size:
        message = f"{truth.tensor}: {EMPTY}"
        return Judgement(truth.tensor, "agree", 0.0, limit, message=message)
    share = share_of_silent(truth, limit, got)
    worst = np.unravel_index(int(ratios.argmax()), ratios.shape)
    ratio = float(ratios[worst])
    verdict = "vacuous" if share >= MOST else "agree"
    if lost or ratio > limit:
        verdict = "nonfinite" if lost else "disagree"
    judgement = Judgement(
        truth.tensor,
        verdict,
        ratio=ratio,
        limit=limit,
        vacuous=share,
        worst_index=tuple(int(i) for i in worst),
        got=float(got[worst]),
        expected=float(truth.value[worst]),
        radius=float(truth.radius[worst]),
        radius_kind="spread" if by_spread is not None and by_spread[worst] else "bound",
    )
    return replace(judgement, message=sentence(judgement, dtype))


def judge_whole(judgement: Judgement, whole: Whole, got: Array) -> Judgement:
    """Judge a tensor whose elements say nothing, by its norm and its projection.

    It can agree only where a tensor half too large would be seen.
    """
    ratio, kind, part, at = whole.worst(got)
    if ratio <= whole.limit and (seen := whole.least_seen) > MOST:
        only = f"; only an error of {seen:.0%} as a whole is seen" if seen < 1 else ""
        return replace(judgement, message=judgement.message + only)
    verdict = "agree" if ratio <= whole.limit else "disagree"
    moved = float((part.norm if kind == "norm" else part.projection).flat[at])
    where = "" if part.axis is None else f", slice {at} along axis {part.axis}"
    wrong = "is off" if kind == "norm" else "is too large or too small"
    off = ratio * moved if ratio else 0.0  # `moved` is infinite if nothing is known

    def share(amount: float) -> str:
        """The amount relative to the norm of the right tensor or slice, unless 0."""
        size = float(part.size.flat[at])
        return f"{amount / size:.2%}" if size else f"{amount:.3g}"

    return replace(
        judgement,
        verdict=verdict if ratio < np.inf else "nonfinite",
        ratio=ratio,
        limit=whole.limit,
        worst_index=(),
        got=off,
        expected=0.0,
        radius=moved,
        radius_kind=kind,
        message=(
            f"{judgement.tensor}{where} {wrong} by {share(off)} as a whole, "
            f"{ratio:.3g} times what one rounding at each step does "
            f"({share(moved)}), and up to {whole.limit:.3g} times is allowed"
        ),
    )


def _ratios(truth: Truth, got: Array) -> tuple[Error, bool]:
    """Errors over radii, and whether an infinity or nan is wrong, or one is missing.

    Where an infinity is due, only that is right; where nothing is known, anything is.
    """
    with np.errstate(all="ignore"):
        error = np.abs((got - truth.value).astype(np.float64))
        ratios: Error = error / truth.radius
        due = truth.infinite
        if ratios.size and largest(ratios) < np.inf and not due.any():  # nan is not
            return ratios, False
        judged = np.isfinite(truth.value) & np.isfinite(truth.radius) & ~due
        right = np.copysign(np.inf, truth.value)
        lost = (judged & ~np.isfinite(got)) | (due & (got != right))
        ratios = np.where(error == 0, 0.0, ratios)
    return np.where(lost, np.inf, np.where(judged, ratios, 0.0)), bool(lost.any())


def informative(truth: Truth, limit: float, share: float = SAYS_NOTHING) -> Mask:
    """A mask: the tolerance is small beside the value, or due to underflow alone.

    The second counts only if other elements are informative, or where zero is due: a
    tensor of nothing else may have any sign. An infinity that is due is informative.
    """
    with np.errstate(all="ignore"):
        size = np.abs(truth.value.astype(np.float64))
        enough = np.asarray(limit * truth.radius <= share * size)
        small, there = truth.radius <= truth.zero, size > truth.nothing
        if not (enough & there).any():
            small = small & ~there
        enough = (enough | small) & (size < np.inf)
        return enough | truth.infinite


def share_of_silent(truth: Truth, limit: float, got: Array | None = None) -> float:
    """The share of the elements for which the comparison is not informative.

    It is 1 if some elements are not zero, and it is informative for none of these: the
    other sign would pass as well.
    """
    says = informative(truth, limit)
    if says.all():
        return 0.0
    there = np.abs(truth.value) > truth.nothing
    if there.any() and not (says & there).any():
        return 1.0
    if got is not None:  # a nan that is due has come; else nothing is judged there
        says |= np.isnan(truth.value) & np.isnan(got)
    return float(1 - np.count_nonzero(says) / says.size)


def sentence(j: Judgement, dtype: str) -> str:
    """The whole story in one sentence."""
    where = f"{j.tensor}[{', '.join(map(str, j.worst_index))}]"
    digits = 17 if dtype == "float64" else 9  # enough to tell two neighbours apart
    numbers = f"got {j.got:.{digits}g}, expected {j.expected:.{digits}g}"
    if j.verdict == "nonfinite":
        if j.expected == 0 and np.isnan(j.got):
            numbers += "; nan where the gradient is zero: 0 times an infinite slope"
        return f"{where}: {numbers}"
    if j.verdict == "vacuous":
        return (
            f"{j.tensor}: rounding in {dtype} may change {j.vacuous:.0%} of the "
            "elements by more than a tenth, so that agreement shows nothing"
        )
    if j.radius == 0 and j.ratio > 0:
        return f"{where}: {numbers}, and no rounding is involved"
    if j.radius_kind == "least":
        return (
            f"{where}: {numbers}; agrees, seen without its rounding radius: the error "
            f"is {j.ratio:.3g} times {j.radius:.3g}, the least that the radius can be, "
            f"and {j.limit:.3g} times the whole radius is allowed"
        )
    return (
        f"{where}: {numbers}; the error is {j.ratio:.3g} times the rounding radius "
        f"{j.radius:.3g} (what {dtype} arithmetic alone may be off by; it is the "
        f"{j.radius_kind}), and up to {j.limit:.3g} times is allowed"
    )
