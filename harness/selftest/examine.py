"""Runs every judge on one trial, with planted errors and with right gradients.

A handler of `harness.endpoint`, in the framework's process. The size of an error is
measured without any judge: both backwards run again in extended precision. The rivals
have the documented defaults of NumPy 2, PyTorch 2 and OneFlow 0.9, and compare with
PyTorch's own gradient in the same precision, as their users do.

    effect   max |wrong - right| / max |right| of a tensor; the largest over all tensors
             that are not vacuous
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from gradwatch.harness.diagnosis.search import explanations
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.orders import ORDERS
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.judging.reference import Reference, reference
from gradwatch.harness.judging.verdict import judge_tensors, readings
from gradwatch.harness.selftest import mutants
from gradwatch.harness.selftest.mutants import Manual, Sweep, mistakes, planted
from gradwatch.harness.workers.evaluate import problem_of
from gradwatch.impls import catalogue
from gradwatch.impls.backends import numpy_manual
from gradwatch.impls.contract import Array, Problem, Result, Unsupported

JUDGE = "gradwatch"
WIDE = "longdouble"
GRADCHECK_ELEMENTS = 48  # users keep inputs small: its cost is quadratic in them

_UNFIT = (TypeError, ValueError, IndexError)
Tensors = Mapping[str, Array | None]
Names = tuple[str, ...]


# The rivals -----------------------------------------------------------------------

#: A rival: called with `got`, `expected` and the precision, raises if they differ.
Comparison = Callable[[Any, Array, str], None]


def _allclose(got: Any, expected: Array, dtype: str, **tolerances: Any) -> None:
    assert np.allclose(got, expected, **tolerances)


#: Tolerances of jax.test_util.check_grads, by dtype; JAX scales them by array size.
_JAX = {"float64": 1e-5, "float32": 2e-3, "float16": 1e-2, "bfloat16": 1e-1}


def _torch(name: str, *arguments: Any, **more: Any) -> None:
    """Run one of PyTorch's judges; only `impls.backends` imports the framework."""
    door = importlib.import_module(f"{catalogue.__package__}.backends._torch_judges")
    getattr(door, name)(*arguments, **more)


COMPARISONS: dict[str, Comparison] = {
    "numpy.allclose": _allclose,
    "allclose, atol=1e-5": partial(_allclose, atol=1e-5),
    "KernelBench": partial(_allclose, rtol=1e-2, atol=1e-2),
    "JAX check_grads": lambda a, b, t: _allclose(a, b, t, rtol=_JAX[t], atol=_JAX[t]),
    "OneFlow autotest": partial(_allclose, rtol=1e-4, atol=1e-5, equal_nan=True),
    "assert_close": partial(_torch, "assert_close"),
}
GRADCHECKS: dict[str, Callable[..., None]] = {
    "gradcheck, slow": partial(_torch, "gradcheck", fast=False),
    "gradcheck, fast": partial(_torch, "gradcheck", fast=True),
}
OF_TORCH = ("assert_close", *GRADCHECKS)  # these need PyTorch


def _rejects(check: Callable[..., None], *arguments: Any) -> bool:
    try:
        check(*arguments)
    except Exception:  # noqa: BLE001  # a judge may reject by any exception, TypeError too
        return True
    return False


# Requests and replies -------------------------------------------------------------


class Run(NamedTuple):
    """A wrong backward on one trial, and the judges that rejected it.

    `kind` is "number", "structure" (None, shape, dtype, not finite), "silent" (all
    tensors are vacuous), or "same" (bit for bit equal to the right one, so no judge was
    asked). `ratio` is the one that our judge measured, `said` its diagnosis of each
    wrong tensor, where diagnoses are requested.
    """

    mistake: str
    kind: str
    effect: float
    ratio: float
    limit: float
    accused_by: Names
    asked: Names
    said: Names = ()


class Alarm(NamedTuple):
    """A right tensor of a backend; each judge in `accused_by` raised a false alarm."""

    backend: str
    version: str
    tensor: str
    verdict: str
    ratio: float
    limit: float
    accused_by: Names
    asked: Names


def examine(request: Mapping[str, Any]) -> dict[str, Any]:
    """Judge the wrong and the right backwards of one problem with every judge.

    Options: `backends` (whose right gradients to judge), `planted` (also judge the
    planted errors), `edits` (the page's own mistakes), `gradcheck` (also run gradcheck,
    if the problem is small enough), `diagnosed` (diagnose rejected tensors), `seed` (of
    the edges of a double backward where mistakes are made).
    """
    options = request["options"]
    with np.errstate(all="ignore"):
        bench = _bench(problem_of(request), request["backend"], options)
        alarms = [*_alarms(bench, options)]
        runs = [*_runs(bench, options)] if options["planted"] else []
    return {"alarms": [*map(tuple, alarms)], "runs": [*map(tuple, runs)]}


def read(reply: Mapping[str, Any]) -> tuple[list[Alarm], list[Run]]:
    """Decode the reply of `examine`."""
    return [Alarm(*a) for a in reply["alarms"]], [Run(*r) for r in reply["runs"]]


@dataclass(frozen=True)
class _Bench:
    """The references of a trial, with which all its backwards are compared."""

    problem: Problem
    right: Reference
    inside: Reference  # for planted errors, which compute 16-bit types in float32
    expected: Tensors  # of another implementation, for the rivals
    comparisons: Names
    gradcheck: bool
    diagnosed: bool


def _bench(problem: Problem, backend: str, options: Mapping[str, Any]) -> _Bench:
    right = reference(problem)
    if problem.order != ORDERS[0]:  # the rivals take no second order
        return _Bench(problem, right, right, {}, (), False, False)
    torch = catalogue.framework_of(backend) == "torch"
    small = sum(a.size for a in problem.inputs.values()) <= GRADCHECK_ELEMENTS
    checkable = torch and small and problem.dtype == "float64"
    narrow = len(right.arithmetics) > 1
    # The rivals compare with PyTorch's gradient, or else with the page's `manual`.
    if torch:  # in C order
        dys = [a if a is None else np.array(a, order="C") for a in problem.cotangents]
        inputs = {n: np.array(a, order="C") for n, a in problem.inputs.items()}
        plain = replace(problem, inputs=inputs, cotangents=dys)
        other = _run_step(catalogue.load_backend(backend).prepare(plain))
    else:
        other = _result(problem, mutants.right(problem.op))
    return _Bench(
        problem,
        right,
        reference(problem, "float32") if narrow else right,
        _tensors(other),
        tuple(n for n in COMPARISONS if torch or n not in OF_TORCH),
        options.get("gradcheck", False) and checkable,
        options.get("diagnosed", False),
    )


def _asked(
    bench: _Bench, judged: Iterable[Judgement], tensors: Tensors
) -> tuple[Names, Names]:
    """The judges that reject some tensors, and all that were asked."""
    own: Names = () if all(j.passes for j in judged) else (JUDGE,)
    dtype = bench.problem.dtype
    others = [
        name
        for name in bench.comparisons
        if any(
            _rejects(COMPARISONS[name], tensors[t], bench.expected[t], dtype)
            for t in tensors
        )
    ]
    return (*own, *others), (JUDGE, *bench.comparisons)


# Right gradients ------------------------------------------------------------------


def _alarms(bench: _Bench, options: Mapping[str, Any]) -> Iterator[Alarm]:
    problem, found = bench.problem, list[tuple[str, str, Result]]()
    for name in options["backends"]:
        backend = catalogue.load_backend(name)
        # `gradwatch agree` reports the failures.
        with contextlib.suppress(Unsupported, AttributeError, RuntimeError, *_UNFIT):
            step = backend.prepare(problem)
            first = problem.order == ORDERS[0]
            result = _run_step(step) if first else getattr(step, problem.order)()
            found.append((name, backend.version(), result))
    if options["planted"] and problem.order == ORDERS[0]:  # the one with mistakes, too
        spoilt = _result(problem, mutants.right(problem.op))
        found.append(("manual", np.__version__, spoilt))
    for name, version, result in found:
        tensors = _tensors(result)
        for j in _judge(bench.right, result):
            asked = _asked(bench, [j], {j.tensor: tensors[j.tensor]})
            yield Alarm(name, version, j.tensor, j.verdict, j.ratio, j.limit, *asked)
    if bench.gradcheck:
        accused = _gradcheck(problem, mutants.right(problem.op))
        nothing = ("all", "", 0.0, 0.0)  # gradcheck judges all gradients at once
        yield Alarm("manual", np.__version__, *nothing, accused, (*GRADCHECKS,))


def _run_step(step: Any) -> Result:
    step.forward()
    step.backward()
    step.wait()
    result: Result = step.read()
    return result


def _tensors(result: Result) -> Tensors:
    return {**result.gradients, **result.state}


def _judge(right: Reference, result: Result) -> tuple[Judgement, ...]:
    return judge_tensors(right, _tensors(result), result.dtypes)


# Planted errors -------------------------------------------------------------------


#: A mistake, its wrong `manual` if any, the result, and its tensors in a wide type.
Wrong = tuple[str, Manual | None, Result, Tensors]


def _runs(bench: _Bench, options: Mapping[str, Any]) -> Iterator[Run]:
    first = bench.problem.order == ORDERS[0]
    errors = _first_order(bench, options) if first else _second_order(bench, options)
    (_, _, right, wide), *_ = found = [*errors]
    judged = _judge(bench.inside, right)
    informative = [j.tensor for j in judged if j.vacuous < 0.5]
    for mistake, manual, result, wrong in found[1:]:
        if _same(result, right):
            yield Run(mistake, "same", 0.0, 0.0, bench.right.limit, (), ())
            continue
        measured = _measure(bench, wide, wrong, result.dtypes, informative)
        yield _run(bench, mistake, manual, result, measured)


def _first_order(bench: _Bench, options: Mapping[str, Any]) -> Iterator[Wrong]:
    """The right backward of the page, then the wrong ones."""
    problem, manual = bench.problem, mutants.right(bench.problem.op)
    for mistake, one in (("", manual), *planted(problem.op, options["edits"])):
        try:
            result = _result(problem, one)
            wide = _tensors(_result(replace(problem, dtype=WIDE), one))
        except _UNFIT:  # it does not fit these shapes: there is nothing to catch
            continue
        yield mistake, one, result, wide


def _second_order(bench: _Bench, options: Mapping[str, Any]) -> Iterator[Wrong]:
    """The right double backward of the engine, then the wrong ones; None means zero."""
    zeros = {n: np.zeros(t.value.shape) for n, t in bench.right.graphs["first"].items()}
    rng = np.random.default_rng(options["seed"])
    for mistake, found in mistakes(Sweep(bench.problem), rng):
        dtypes = {name: a.dtype.name for name, a in found.items() if a is not None}
        wide = {n: zeros[n] if a is None else a for n, a in found.items()}
        result = Result({}, dict(found), {}, dtypes)
        yield f"double backward: {mistake}", None, result, wide


def _same(one: Result, other: Result) -> bool:
    return one.dtypes == other.dtypes and all(
        a is not None and b is not None and np.array_equal(a, b, equal_nan=True)
        for a, b in zip(_tensors(one).values(), _tensors(other).values(), strict=True)
    )


def _run(
    bench: _Bench,
    mistake: str,
    manual: Manual | None,
    result: Result,
    measured: tuple[str, float],
) -> Run:
    judged = _judge(bench.inside, result)
    accused, asked = _asked(bench, judged, _tensors(result))
    if bench.gradcheck and manual:
        asked += (*GRADCHECKS,)
        accused += _gradcheck(bench.problem, manual)
    ratio = max((j.ratio for j in judged if j.ratio == j.ratio), default=0.0)
    wrong = judged if bench.diagnosed else ()
    _, found = explanations(bench.inside, _tensors(result), wrong)
    said = tuple(first.sentence for first, *_ in found.values())
    return Run(mistake, *measured, ratio, bench.right.limit, accused, asked, said)


def _result(problem: Problem, manual: Manual) -> Result:
    """Run a `manual` in its precision; 16 bits in float32, as fused kernels do."""
    precision = PRECISIONS.get(problem.dtype)
    if precision is None or precision.digits >= PRECISIONS["float32"].digits:
        return _run_step(numpy_manual.Manual(problem, manual))
    result = _run_step(numpy_manual.Manual(replace(problem, dtype="float32"), manual))
    named = {n: d.replace("float32", problem.dtype) for n, d in result.dtypes.items()}
    gradients = {
        n: None if g is None else precision.round(g)
        for n, g in result.gradients.items()
    }
    state = {n: precision.round(s) for n, s in result.state.items()}
    return Result(result.outputs, gradients, state, named)


# The size of an error ---------------------------------------------------------------


def _measure(
    bench: _Bench,
    wide: Tensors,
    wrong: Tensors,
    dtypes: Mapping[str, str],
    informative: Sequence[str],
) -> tuple[str, float]:
    """The kind and the effect of an error."""
    if any(dtypes.get(n, bench.problem.dtype) != bench.problem.dtype for n in wide):
        return "structure", np.inf
    if any(_broken(bench, n, right, wrong[n]) for n, right in wide.items()):
        return "structure", np.inf
    if not informative:
        return "silent", 0.0
    return "number", max(_effect(bench, n, wide[n], wrong) for n in informative)


def _broken(bench: _Bench, name: str, right: Any, wrong: Any) -> bool:
    # None, another shape, or not finite where overflow cannot be the reason.
    if wrong is None or np.shape(wrong) != np.shape(right):
        return True
    truth = bench.inside.radii().bounds[name]
    sound = np.isfinite(right) & np.isfinite(truth.radius) & ~truth.infinite
    return bool((sound & ~np.isfinite(wrong)).any())


def _effect(bench: _Bench, name: str, right: Any, wrong: Tensors) -> float:
    """The effect on a tensor; at a tie, against the nearest right answer.

    The wide type's own rounding has none: a zero consists of nothing else.
    """
    inside, effects = bench.inside, list[float]()
    answers = [(wrong[name], right, inside.radii().bounds[name].radius)]
    for _, source, ties, tensors in [*readings(inside, wrong)][1:]:
        truth = source.radii(ties).bounds[name]
        answers.append((tensors[name], truth.value, truth.radius))
    own = float(np.finfo(right.dtype).eps) / 2 / inside.radii().arithmetic.step.roundoff
    own *= inside.limit if own < 1 else 0.0  # the second order has no wider type
    for got, answer, radius in answers:
        gaps, sound = np.abs(got - answer), np.isfinite(answer) & np.isfinite(radius)
        gap = float(np.max(gaps, initial=0, where=sound & (gaps > own * radius)))
        scale = float(np.abs(answer[sound]).max(initial=0))
        effects.append(gap and (gap / scale if scale else np.inf))
    return min(effects)


# gradcheck ------------------------------------------------------------------------


def _gradcheck(problem: Problem, manual: Manual) -> Names:
    """Names of the gradchecks that reject this backward with the right forward."""
    names = list(problem.wanted)
    state = {n: problem.inputs[n] for n in problem.op.state}

    def ready(said: Manual, arrays: Sequence[Array]) -> numpy_manual.Manual:
        inputs = {**dict(zip(names, arrays, strict=True)), **state}
        step = numpy_manual.Manual(replace(problem, inputs=inputs), said)
        step.forward()
        return step

    def run(*arrays: Array) -> tuple[list[Array], Callable[..., list[Array | None]]]:
        right = ready(mutants.right(problem.op), arrays)
        suspect = ready(manual, arrays)

        def swept(*dys: Array) -> list[Array | None]:
            suspect.cotangents = list(dys)
            suspect.backward()
            return list(suspect.gradients.values())

        return right.outputs, swept

    inputs = [problem.inputs[n] for n in names]
    return tuple(n for n, check in GRADCHECKS.items() if _rejects(check, run, inputs))
