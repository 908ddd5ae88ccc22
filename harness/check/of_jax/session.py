"""One check of functions of JAX's: traced to a jaxpr, differentiated by jax.vjp.

Arrays of JAX's have no strides and cannot be written to, so that there are fewer ways
to catch a candidate than in PyTorch: it is run once more, under `jax.jit`, and with the
cotangent of one output alone.
"""

from __future__ import annotations

import functools
import inspect
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradwatch.harness.check.choice import (
    HANDED_OVER,
    SCALES,
    Choice,
    Drawn,
    identity,
    judged,
    planned,
    widest,
)
from gradwatch.harness.check.report import Report, Row
from gradwatch.harness.check.shapes import Shapes, Specs, each
from gradwatch.harness.judging.cases import REGIMES, run_formula
from gradwatch.harness.judging.diagnosis import Diagnoses
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.orders import ORDERS
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.judging.question import Question
from gradwatch.harness.tracing.lax import Traced, is_float
from gradwatch.harness.tracing.names import parameters_of
from gradwatch.harness.workers.evaluate import in_short
from gradwatch.impls import graph
from gradwatch.impls.backends._jax_second import hvp, jvp
from gradwatch.impls.catalogue import known, load_op
from gradwatch.impls.contract import Op, Problem

#: What differs from the ordinary numbers by strides alone.
FOREIGN = ("permuted", "sliced", "expanded", "negative", "dy_transposed", "dy_expanded")
#: Equations of a jaxpr above which few trials have to do: each takes seconds.
COSTLY = 512


@dataclass(frozen=True, kw_only=True)
class Trial(Drawn):
    """One call to be judged; `arrays` hold its numbers in the types of `dtypes`."""

    arrays: tuple[Any, ...]
    dtypes: tuple[Any, ...]


@dataclass
class Session:
    """A reference and a candidate, one of them a function of JAX's."""

    reference: Any
    candidate: Callable[..., Any] | None = None
    compute: str | None = None
    seed: int = 0
    order: str = "vjp"
    choice: Choice = field(default_factory=Choice)
    name: str = ""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    #: Runs the candidate forward; `bridge.started_in_torch` does it in PyTorch.
    start: Callable[..., Any] = field(default_factory=lambda: started)
    notes: list[str] = field(default_factory=list)
    _tree: Any = None
    _names: tuple[str, ...] = ()
    _traced: dict[Any, Op] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known("order", self.order, ORDERS)
        if isinstance(self.reference, str):
            self.reference = load_op(self.reference)
        if isinstance(self.reference, Op) and self.candidate is None:
            raise ValueError(f"{self.reference.name} needs a candidate")

    def run(
        self,
        inputs: Sequence[Any] | None = None,
        shapes: Shapes | None = None,
        dtypes: Sequence[str] | None = None,
    ) -> Report:
        """All trials in all precisions."""
        started = time.monotonic()
        if inputs is None and shapes is None:
            raise ValueError("nothing to run on: give inputs or shapes")
        rows: list[Row] = []
        main = self._precision(inputs)
        for dtype in dtypes or [main]:
            with jax.enable_x64(jax.config.jax_enable_x64 or dtype == "float64"):
                known("dtype", dtype, PRECISIONS)
                if inputs is not None:
                    made = self._from_inputs(inputs, dtype, main)
                else:
                    made = self._from_shapes(each(shapes or ()), dtype)
                trials = self.choice.of(list(made))
                timed = self.choice.in_time(trials, started, self.notes)
                judge = functools.partial(self._examined, diagnoses=Diagnoses())
                rows += judged(timed, judge, self.notes)
        own = self.reference.name if isinstance(self.reference, Op) else None
        own = own or name_of(self.reference)
        theirs = name_of(self.candidate) if self.candidate else "JAX's gradient"
        names = own, self.name or theirs
        device = jax.default_backend()
        return self.choice.report(names, device, rows, self.notes, started)

    # Trials ---------------------------------------------------------------------------

    def _precision(self, inputs: Sequence[Any] | None) -> str:
        leaves = jax.tree.leaves((inputs, dict(self.kwargs)))
        return widest(str(a.dtype) for a in leaves if _is_array(a))

    def _from_inputs(
        self, inputs: Sequence[Any], dtype: str, main: str
    ) -> Iterator[Trial]:
        args = tuple(inputs)
        paths, tree = jax.tree.flatten_with_path((args, {}))
        arrays = [i for i, (_, leaf) in enumerate(paths) if _is_array(leaf)]
        leaves = [leaf for _, leaf in paths]

        def rebuilt(*given: Any) -> Any:
            pairs = dict(zip(arrays, given, strict=True))
            return tree.unflatten([pairs.get(i, v) for i, v in enumerate(leaves)])[0]

        self._tree, held = rebuilt, [np.asarray(leaves[i]) for i in arrays]
        parameters = _inputs_of(self.reference, len(args))
        self._names = tuple(
            parameters[paths[i][0][1].idx]
            + jax.tree_util.keystr(paths[i][0][2:]).replace(" ", "_")
            for i in arrays
        )
        kinds = tuple(_dtype(dtype if str(a.dtype) == main else a.dtype) for a in held)
        for name in HANDED_OVER:
            if name in FOREIGN:
                continue
            plain, scale = name == "normal", SCALES.get(name, 1.0)
            made = [a * a.dtype.type(scale) if is_float(a.dtype) else a for a in held]
            label = "given" if plain else f"given, {name}"
            yield Trial(
                arrays=tuple(a.astype(t) for a, t in zip(made, kinds, strict=True)),
                dtypes=kinds,
                **identity(label, dtype, REGIMES[name], self.seed, plain, plain),
            )

    def _from_shapes(self, specs: Specs, dtype: str) -> Iterator[Trial]:
        kinds = {"float": _dtype(dtype), "int": np.int32, "bool": np.bool_}
        if not all(spec.kind in kinds for spec in specs):
            raise ValueError("of JAX's no complex numbers: give both parts as floats")
        types_of = tuple(_dtype(kinds[spec.kind]) for spec in specs)
        self._tree = lambda *given: given
        self._names = tuple(_inputs_of(self.reference, len(specs)))
        if len(self._names) != len(specs):
            raise ValueError(f"{len(specs)} shapes for inputs {', '.join(self._names)}")

        def construct(arrays: Sequence[Any], _: Specs, **fields: Any) -> Trial:
            with np.errstate(over="ignore"):
                held = tuple(a.astype(t) for a, t in zip(arrays, types_of, strict=True))
            return Trial(arrays=held, dtypes=types_of, **fields)

        runs = functools.partial(self._admits, own=False)
        yield from planned(
            *(construct, specs, dtype, self.seed, self._admits, runs),
            *(self._is_costly, self.notes, FOREIGN),
        )

    def _admits(self, trial: Trial, own: bool = True) -> bool:
        """Whether the reference, or the candidate, takes these inputs."""
        given = self.reference if own or self.candidate is None else self.candidate
        try:
            if isinstance(given, Op):
                self._expected(self._problem(trial))
            else:
                abstract = own or self.start is started
                start = _started_abstractly if abstract else self.start
                start(self._call(given), trial.arrays)
        except Exception:  # noqa: BLE001  # every library refuses shapes in its own way
            return False
        return True

    def _is_costly(self, trial: Trial) -> bool:
        formula = self._op(trial).said("formula")
        if not isinstance(formula, Traced):
            return False
        costly = formula.equations([a.shape for a in trial.arrays]) > COSTLY
        self.notes += ["few trials, as each takes seconds"] if costly else []
        return costly

    # What is right --------------------------------------------------------------------

    def _call(self, function: Callable[..., Any]) -> Callable[..., list[Any]]:
        """A function of arrays alone that returns a list of them."""

        def call(*arrays: Any) -> list[Any]:
            out = function(*self._tree(*arrays), **self.kwargs)
            return list(jax.tree.leaves(out))

        return call

    def _op(self, trial: Trial) -> Op:
        """The reference as an op: its formula walks its jaxpr."""
        if isinstance(self.reference, Op):
            return self.reference
        call, shapes = self._call(self.reference), [a.shape for a in trial.arrays]
        wide = bool(jax.config.jax_enable_x64)
        key = (trial.dtypes, wide, len(shapes))
        if key not in self._traced:
            try:
                outputs = jax.eval_shape(call, *trial.arrays)
            except Exception as error:  # whatever it raises
                message = f"the reference raises {in_short(error)} at {trial.name}"
                raise ValueError(f"{message}; give inputs= of its domain") from error
            returned = [y.dtype for y in outputs]
            formula = Traced(call, trial.dtypes, wide, returned)
            self._traced[key] = op_of(name_of(self.reference), formula, self._names)
        return self._traced[key]

    def _returned(self, trial: Trial) -> Sequence[Any]:
        """The types of what the reference returns."""
        op = self._op(trial)
        formula, plain = op.said("formula"), _dtype(trial.dtype)
        return getattr(formula, "returned", (plain,) * len(op.outputs))

    def _problem(self, trial: Trial) -> Problem:
        op = self._op(trial)
        inputs = dict(zip(op.inputs, map(_held, trial.arrays), strict=True))
        attributes = dict(self.kwargs) if op is self.reference else {}
        return Problem(op, inputs, [], attributes, dtype=trial.dtype)

    def _expected(self, problem: Problem) -> list[Any]:
        """The reference's own outputs."""
        leaves = {
            name: graph.variable(a.astype(np.float64) if a.dtype.kind == "f" else a)
            for name, a in problem.inputs.items()
        }
        count = len(problem.op.outputs)
        return [node.value for node in run_formula(problem, leaves)[:count]]

    def _cotangents(self, trial: Trial, problem: Problem) -> list[Any]:
        outputs = self._expected(problem)
        floats = [y for y in outputs if y.dtype.kind == "f" and y.size]
        if floats and not trial.edge and all(np.isnan(y).all() for y in floats):
            raise ValueError("the reference returns nothing but nan for these numbers")
        made = []
        for i, (y, dtype) in enumerate(
            zip(outputs, self._returned(trial), strict=True)
        ):
            values = trial.drawn_cotangent(y.shape, i).astype(dtype)
            made.append(values if y.dtype.kind == "f" else None)
        if not any(dy is not None for dy in made):
            raise ValueError("the reference has no output that can be differentiated")
        return made

    # What the candidate does ----------------------------------------------------------

    def _examined(self, trial: Trial, diagnoses: Diagnoses) -> list[Row]:
        problem = self._problem(trial)
        cotangents = self._cotangents(trial, problem)
        call = self._call(self.candidate or self.reference)
        if self.order != "vjp":
            return self._second(trial, problem, cotangents, call)
        rows = self._judged(trial, problem, cotangents, call, "", diagnoses)
        if not trial.thorough:
            return rows
        if self.start is started:
            rows += self._judged(trial, problem, cotangents, jax.jit(call), "under jit")
        several = [i for i, dy in enumerate(cotangents) if dy is not None]
        for i in several if len(several) > 1 else ():
            alone = [
                None if dy is None else dy * (i == j) for j, dy in enumerate(cotangents)
            ]
            how = f"only {problem.op.outputs[i]} used"
            rows += self._judged(trial, problem, alone, call, how)
        return rows

    def _judged(
        self,
        trial: Trial,
        problem: Problem,
        cotangents: Sequence[Any],
        call: Callable[..., Any],
        how: str,
        diagnoses: Diagnoses | None = None,
    ) -> list[Row]:
        problem = replace(problem, cotangents=list(map(_held, cotangents)))
        op = problem.op
        try:
            outputs, back = self.start(call, trial.arrays)
            gradients = back(cotangents)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises
            failed = Judgement("all", "error", message=f"raised {in_short(error)}")
            return [trial.row(failed, how, None)]
        if len(outputs) < len(op.outputs):
            message = f"returns {len(outputs)} arrays of {len(op.outputs)}"
            failed = Judgement("outputs", "malformed", message=message)
            return [trial.row(failed, how, None)]
        if len(outputs) > len(op.outputs):
            self.notes.append("it returns more than the reference, which is not judged")
        got = {f"d{n}": g for n, g in zip(op.inputs, gradients, strict=True)}
        got = {n: g for n, g in got.items() if n[1:] in op.differentiable}
        got |= dict(zip(op.outputs, outputs, strict=False))
        asked = Question.of(problem, self.compute)
        return self._told(trial, asked, got, how, diagnoses)

    def _told(
        self,
        trial: Trial,
        asked: Question,
        got: Mapping[str, Any],
        how: str = "",
        diagnoses: Diagnoses | None = None,
    ) -> list[Row]:
        arrays = {name: _held(array) for name, array in got.items()}
        op = self._op(trial)
        outputs = zip(op.outputs, self._returned(trial), strict=True)
        inputs = zip(op.inputs, trial.dtypes, strict=True)
        like = {name: t for y, t in outputs for name in (y, f"jvp.{y}", f"hvp.dd{y}")}
        like |= {name: t for x, t in inputs for name in (f"d{x}", f"hvp.d{x}")}
        dtypes = {
            name: trial.dtype if a.dtype == like[name] else str(a.dtype)
            for name, a in got.items()
            if a is not None
        }
        found = asked.judge(arrays, dtypes)
        if diagnoses is not None and not trial.edge:
            found = diagnoses.told_of(asked.known, arrays, found, trial.dtype)
        return [trial.row(j, how, asked.known) for j in found]

    def _second(
        self,
        trial: Trial,
        problem: Problem,
        cotangents: Sequence[Any],
        call: Callable[..., Any],
    ) -> list[Row]:
        op = problem.op
        along = {}
        for i, (name, a) in enumerate(zip(op.inputs, trial.arrays, strict=True)):
            if name in op.differentiable:
                along[name] = trial.drawn_tangent(a.shape, i).astype(a.dtype)
        problem = replace(
            problem,
            order=self.order,
            cotangents=list(map(_held, cotangents)),
            tangents={n: _held(v) for n, v in along.items()},
        )
        wanted = [i for i, n in enumerate(op.inputs) if n in along]
        kept = [i for i, dy in enumerate(cotangents) if dy is not None]

        def of_wanted(ws: Sequence[Any], _: Any) -> tuple[Any, Any]:
            pairs = dict(zip(wanted, ws, strict=True))
            out = call(*(pairs.get(i, a) for i, a in enumerate(trial.arrays)))
            return [out[i] for i in kept], None

        ws = [jnp.asarray(trial.arrays[i]) for i in wanted]
        vs = tuple(jnp.asarray(along[op.inputs[i]]) for i in wanted)
        dys = [jnp.asarray(cotangents[i]) for i in kept]
        try:
            if self.order == "jvp":
                found = jvp(of_wanted, ws, None, vs)
            else:
                found = hvp(of_wanted, ws, None, dys, vs)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises
            refused = isinstance(error, (TypeError, NotImplementedError))
            message = f"{'JAX:' if refused else 'raised'} {in_short(error)}"
            verdict = "unsupported" if refused else "error"
            failed = Judgement("all", verdict, message=message)
            return [trial.row(failed, "", None)]
        flat = [np.asarray(a) for a in jax.tree.leaves(list(found))]
        got = dict(zip(problem.derivatives, flat, strict=True))
        return self._told(trial, Question.of(problem, self.compute), got)


def started(
    call: Callable[..., list[Any]], arrays: Sequence[Any]
) -> tuple[list[Any], Callable[..., list[Any]]]:
    """Outputs, and what takes cotangents and gives the gradient by each array.

    An output of another shape than its cotangent's takes no part in the gradients;
    whole numbers have none.
    """
    wanted = [i for i, a in enumerate(arrays) if is_float(a.dtype)]

    def of_wanted(*ws: Any) -> list[Any]:
        pairs = dict(zip(wanted, ws, strict=True))
        return call(*(pairs.get(i, jnp.asarray(a)) for i, a in enumerate(arrays)))

    outputs, back = jax.vjp(of_wanted, *(jnp.asarray(arrays[i]) for i in wanted))

    def backward(cotangents: Sequence[Any]) -> list[Any]:
        dys = [*cotangents, *[None] * len(outputs)]
        pulled = back([_like(y, dy) for y, dy in zip(outputs, dys, strict=False)])
        found = dict(zip(wanted, map(np.asarray, pulled), strict=True))
        return [found.get(i) for i in range(len(arrays))]

    return list(map(np.asarray, outputs)), backward


def _started_abstractly(call: Callable[..., list[Any]], arrays: Sequence[Any]) -> None:
    jax.eval_shape(call, *arrays)


def _like(y: Any, dy: Any) -> Any:
    """A cotangent as JAX wants it: of the output's own type."""
    if not is_float(y.dtype):
        return np.zeros(y.shape, jax.dtypes.float0)
    if dy is None or dy.shape != y.shape:
        return jnp.zeros(y.shape, y.dtype)
    return jnp.asarray(dy, y.dtype)


def op_of(name: str, formula: Traced, names: Sequence[str]) -> Op:
    """A traced function as an op; `names` are those of its inputs."""
    many = len(formula.returned) > 1
    outputs = {f"y{i}" if many else "y": t for i, t in enumerate(formula.returned)}
    fixed = zip(names, formula.dtypes, strict=True)
    return Op(
        name,
        inputs=" ".join(names),
        outputs=" ".join(outputs),
        constants=" ".join(n for n, t in fixed if not is_float(t)),
        integers=" ".join(n for n, t in outputs.items() if not is_float(t)),
        formula=formula,
    )


def name_of(function: Any) -> str:
    """As a person would write it."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    return str(getattr(function, "__qualname__", None) or type(function).__name__)


def speaks(value: Any, *frameworks: str) -> bool:
    """Whether a function is made by a framework, or names it in its code."""
    inner = inspect.unwrap(value) if callable(value) else value
    inner = getattr(inner, "func", inner)  # of a partial
    code, around = getattr(inner, "__code__", None), getattr(inner, "__globals__", {})
    used = [around.get(name) for name in _names_in(code)] if code else []
    homes = {home for one in (value, inner, *used) for home in _homes(one)}
    return not homes.isdisjoint(frameworks)


def _homes(value: Any) -> Iterator[str]:
    """The packages that a module, a function or an object comes from."""
    for one in (value, *type(value).__mro__):
        module = isinstance(one, types.ModuleType)
        name = one.__name__ if module else getattr(one, "__module__", "")
        yield str(name).partition(".")[0]


def _names_in(code: types.CodeType) -> list[str]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return [*code.co_names, *(n for c in inner for n in _names_in(c))]


def _inputs_of(function: Any, count: int) -> list[str]:
    """Names of an op's inputs, or of a function's first parameters."""
    if isinstance(function, Op):
        return list(function.inputs)
    return parameters_of(function, count)


def _is_array(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic, jax.Array))


def _dtype(name: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = jnp.dtype(name)
    return dtype


def _held(array: Any) -> Any:
    """In a type that NumPy has: float32 holds bfloat16."""
    known_type = array is None or array.dtype.kind in "fiub"
    return array if known_type else np.asarray(array, np.float32)


def holds_arrays(inputs: Any) -> bool:
    """Whether some of the inputs are JAX's."""
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(inputs))
