"""One check: trials from what the caller gave, their judgements, the report."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch._functorch import config as functorch

from gradwatch.harness.check import inputs as made
from gradwatch.harness.check.choice import Choice, judged, out_of_memory, planned
from gradwatch.harness.check.examine import examined, steps_have_its_slope
from gradwatch.harness.check.inputs import Trial
from gradwatch.harness.check.report import Report, Row
from gradwatch.harness.check.runs import in_short, replica
from gradwatch.harness.check.shapes import (
    COMPLEX,
    Shapes,
    Specs,
    as_complex,
    each,
    parsed,
)
from gradwatch.harness.check.subjects import OpSubject, Subject, subject_of
from gradwatch.harness.check.subjects.apart import AFTER, CALLS, Apart
from gradwatch.harness.check.subjects.binding import ARGUMENTS, bind
from gradwatch.harness.check.subjects.pytorch import name_of, require_instance
from gradwatch.harness.judging.diagnosis import Diagnoses
from gradwatch.harness.judging.orders import ORDERS
from gradwatch.harness.tracing import Untraceable, plain_autograd
from gradwatch.impls.backends._torch_products import product_settings
from gradwatch.impls.catalogue import known
from gradwatch.impls.contract import Case

#: Elements computed in a call, above which few trials have to do: each takes seconds.
COSTLY = 2**19
#: Rows of a matrix above which no factorisation is tried but the caller's own: each
#: takes n^3 steps in the wide type, and seconds from here on.
FACTORED = 64


@dataclass
class Session:
    """A reference and a candidate on a device."""

    reference: Any
    candidate: Callable[..., Any] | Apart | None
    device: str = "cpu"
    compute: str | None = None
    seed: int = 0
    order: str = "vjp"
    source: str = ""  # lines that define `candidate` in a script
    choice: Choice = field(default_factory=lambda: Choice())
    name: str = ""
    cotangents: tuple[torch.Tensor | None, ...] = ()
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.subject: Subject = subject_of(self.reference)
        known("order", self.order, ORDERS)
        known("device", self.device.partition(":")[0], ("cpu", "cuda"))
        if self.device != "cpu" and not torch.cuda.is_available():
            version = torch.__version__
            raise ValueError(f"PyTorch {version} finds no GPU here: gradwatch doctor")
        require_instance(self.candidate)
        apart = isinstance(self.candidate, Apart)
        if isinstance(self.candidate, Apart):
            lacks = " and ".join(self.candidate.missing)
            self.notes += [f"the candidate could not be given {lacks}"] if lacks else []
        if apart and self.order != "vjp":
            raise ValueError(f"{self.order} is judged of trusted code alone: --trusted")
        if self.candidate is not None and not (apart or callable(self.candidate)):
            kind = type(self.candidate).__name__
            raise TypeError(
                f"the candidate cannot be called: it is of type {kind}; tensors of your"
                " own go into inputs="
            )

    def run(
        self,
        *,
        inputs: Mapping[str, Sequence[Any]] | None = None,
        shapes: Shapes | None = None,
        kwargs: Mapping[str, Any] | None = None,
        dtypes: Sequence[str] | None = None,
        cases: Sequence[Case] | None = None,
    ) -> Report:
        """All trials in all precisions; `inputs` holds argument lists by name."""
        started = time.monotonic()
        main = made.precision_of((inputs or {}, kwargs or {}, self.subject.state))
        with _settings(self.device, self.compute), self._with_the_way_round():
            trials = [
                replace(trial, order=self.order, cotangents=self.cotangents)
                for dtype in dtypes or [main]
                for trial in self._trials(
                    dtype, main, inputs, shapes, kwargs or {}, cases
                )
            ]
            trials = self.choice.of(trials)
            timed = self.choice.in_time(trials, started, self.notes)
            judge = partial(
                examined,
                self.subject,
                self.candidate,
                compute=self.compute,
                notes=self.notes,
                diagnoses=Diagnoses(),
            )
            rows = [*judged(timed, judge, self.notes), *self._after_calls(trials)]
            self._refuse_other_steps(trials, rows)
        names = self._names()
        report = self.choice.report(names, self.device, rows, self.notes, started)
        shown = report.failures or report.edges
        return replace(report, script=lambda: self._script(trials, shown))

    @property
    def _is_function(self) -> bool:
        """Whether the reference is the `apply` of a `torch.autograd.Function`."""
        owner = getattr(self.reference, "__self__", None)
        return inspect.isclass(owner) and issubclass(owner, torch.autograd.Function)

    def _after_calls(self, trials: Sequence[Trial]) -> Iterator[Row]:
        """Judge what is apart a few times more, among many calls that nobody judges."""
        apart, rng = self.candidate, random.Random(self.seed)
        if not isinstance(apart, Apart):
            return
        for _ in range(AFTER):
            apart.calls = rng.randrange(CALLS)
            trial = replace(trials[0], name=f"{trials[0].name}, after calls")
            yield from examined(self.subject, apart, replace(trial, thorough=False))

    def _refuse_other_steps(self, trials: Sequence[Trial], rows: Sequence[Row]) -> None:
        """Raise where a forward that was accused by cannot be the definition."""
        wrong = {r.trial for r in rows if r.own and r.judgement.verdict == "disagree"}
        own = next((t for t in trials if t.as_given and t.name in wrong), None)
        if self.candidate is not None or own is None:
            return
        if not steps_have_its_slope(self.subject, own):
            name = self.subject.name
            raise ValueError(
                f"the steps of {name}'s forward have another slope than its values (an"
                " iteration, a rounding), so it needs a reference:"
                f" gradwatch.check(REFERENCE, {name}, ...)"
            )

    @contextlib.contextmanager
    def _with_the_way_round(self) -> Iterator[None]:
        """Say what to give in place of what cannot be judged."""
        try:
            yield
        except MemoryError as error:
            raise ValueError(f"{out_of_memory(error)}: give smaller inputs") from error
        except TypeError as error:
            if not re.search("missing .* argument", str(error)):
                raise
            raise ValueError(f"{error}; {ARGUMENTS}") from error
        except Untraceable as error:
            if self.candidate is not None or not self._is_function:
                raise
            name = self.subject.name
            raise ValueError(
                f"the forward of {name} cannot be followed, so it needs a reference:"
                f" gradwatch.check(REFERENCE, {name}, ...); {error}"
            ) from error

    def _names(self) -> tuple[str, str]:
        """Of reference and candidate; the caller's own name goes to what is judged."""
        if self.candidate is None and self._is_function:
            return "its own forward", self.name or self.subject.name
        if self.candidate is None:
            return self.name or self.subject.name, "PyTorch's gradient"
        return self.subject.name, self.name or _name(self.candidate)

    def _trials(
        self,
        dtype: str,
        main: str,
        inputs: Mapping[str, Sequence[Any]] | None,
        shapes: Shapes | None,
        kwargs: Mapping[str, Any],
        cases: Sequence[Case] | None,
    ) -> Iterator[Trial]:
        loop, pairs = isinstance(self.candidate, Apart), dtype in COMPLEX
        dtype = COMPLEX.get(dtype, dtype)
        if inputs is not None:
            for label, args in inputs.items():
                yield from made.from_inputs(
                    args,
                    dtype,
                    kwargs=kwargs,
                    seed=self.seed,
                    device=self.device,
                    main=main,
                    label=label,
                    costly=self._is_costly,
                    admits=partial(admits, self.subject) if loop else None,
                )
            return
        for specs, extra in self._specs(shapes, cases):
            specs = tuple(map(as_complex, specs)) if pairs else specs
            given = {**kwargs, **extra}
            tried = planned(
                partial(made.from_arrays, kwargs=given, device=self.device, main=main),
                *(specs, dtype, self.seed),
                admits=partial(admits, self.subject),
                runs=partial(admits, self.subject, candidate=self.candidate),
                costly=self._is_costly,
                notes=self.notes,
                foreign=made.FOREIGN,
                pinned=self.subject.lengths,
            )
            first = next(tried)
            self._refuse_what_raises(first)
            yield from itertools.chain([first], tried)

    def _refuse_what_raises(self, trial: Trial) -> None:
        """Raise where the reference takes no ordinary numbers, as a loss may not."""
        try:
            bound = self.subject.bound(trial)
            bound.call(*map(replica, bound.tensors))
        except (RuntimeError, ArithmeticError, AssertionError, LookupError) as error:
            raise ValueError(
                f"the reference raises {in_short(error)} at {trial.name}, numbers of"
                " N(0, 1); give inputs= of its domain"
            ) from error

    def _is_costly(self, trial: Trial) -> bool:
        if self.subject.cost(trial) <= COSTLY:
            return False
        self.notes.append("few trials, as each takes seconds")
        return True

    def _specs(
        self, shapes: Shapes | None, cases: Sequence[Case] | None
    ) -> Iterator[tuple[Specs, dict[str, Any]]]:
        if shapes is not None:
            yield each(shapes), {}
            return
        op = self.subject.op if isinstance(self.subject, OpSubject) else None
        listed = cases if cases is not None else op.cases.values() if op else ()
        for case in listed:
            fields = case.fields.items()
            is_input = {n: n in op.inputs if op else _is_shape(v) for n, v in fields}
            if op is None or not op.aliases(case):
                specs = tuple(parsed(v) for n, v in fields if is_input[n])
                yield specs, {n: v for n, v in fields if not is_input[n]}
        if not listed:
            raise ValueError("nothing to run on: give inputs, shapes or cases")

    def _script(self, trials: Sequence[Trial], rows: Sequence[Row]) -> str:
        from gradwatch.harness.check.script import script

        with _settings(self.device, self.compute):
            return script(self.subject, self.candidate, trials, rows, self.source)


def _name(candidate: Any) -> str:
    return candidate.name if isinstance(candidate, Apart) else name_of(candidate)


@contextlib.contextmanager
def _settings(device: str, compute: str | None) -> Iterator[None]:
    """Set what all trials run under; the caller's settings come back.

    Neither autocast nor no_grad around the check has a say. What is compiled meanwhile
    keeps its buffers: a graph is swept more than once.
    """
    has = hasattr(functorch, "donated_buffer")  # older versions keep them anyway
    kept = functorch.patch(donated_buffer=False) if has else contextlib.nullcontext()
    drawing = torch.random.fork_rng([] if device == "cpu" else [device])
    products = _products_on_a_gpu(device, compute)
    with plain_autograd(), _one_thread(), products, kept, drawing:
        yield


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Small tensors lose by threads, which wait for each other in a loop.

    On a busy machine a softmax of 200 took 15 ms, and three layers of 300 took twenty
    times the processor time by NumPy's OpenBLAS.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1, "blas"):
            yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _products_on_a_gpu(device: str, compute: str | None) -> Iterator[None]:
    """Set TF32 only where it is asked for, and sums of 16 bits in float32, as `agree`.

    By default cuDNN's convolutions of float32 have TF32, and a right one would be
    accused. The caller's settings come back.
    """
    if device == "cpu":
        yield
        return
    wanted = product_settings(compute == "tf32")
    before = [(owner, name, _get(owner, name)) for owner, name, _ in wanted]
    general = _general()
    if general not in ("highest", None):  # or its getter would raise
        torch.set_float32_matmul_precision("highest")
    try:
        for owner, name, value in wanted:
            setattr(owner, name, value)
        yield
    finally:
        if general not in ("highest", None):
            torch.set_float32_matmul_precision(general)
        for owner, name, value in before:
            if value is not None:
                setattr(owner, name, value)


def _get(owner: Any, name: str) -> Any:
    """Return a setting; None where PyTorch's two interfaces contradict each other."""
    try:
        return getattr(owner, name)
    except RuntimeError:
        return None


def _general() -> Any:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _is_shape(value: Any) -> bool:
    if isinstance(value, str):
        return True
    return isinstance(value, tuple) and all(isinstance(n, int) for n in value)


def admits(
    subject: Subject,
    trial: Trial,
    candidate: Callable[..., Any] | Apart | None = None,
) -> bool:
    """Whether the reference, or the candidate, takes these inputs.

    It raises what it likes where it does not.
    """
    try:
        bound = subject.bound(trial)
        if candidate is None or isinstance(candidate, Apart):
            call = bound.call
        else:
            call = bind(candidate, bound)
        if bound.traced and bound.traced.factored > FACTORED:
            return False
        with torch.no_grad():
            call(*map(replica, bound.tensors))
    except Exception:  # noqa: BLE001  # every library refuses shapes in its own way
        return False
    return True
