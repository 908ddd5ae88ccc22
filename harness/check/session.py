"""One check: trials from what the caller gave, their judgements, the report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._functorch import config as functorch

from gradwatch.harness.check import inputs as made
from gradwatch.harness.check.examine import examine
from gradwatch.harness.check.inputs import Trial
from gradwatch.harness.check.report import Report, Row
from gradwatch.harness.check.shapes import Specs, parsed
from gradwatch.harness.check.subjects import OpSubject, Subject, subject_of
from gradwatch.harness.check.subjects.pytorch import name_of
from gradwatch.harness.judging.orders import ORDERS
from gradwatch.impls.backends._torch_products import product_settings
from gradwatch.impls.catalogue import known
from gradwatch.impls.contract import Case

#: Elements of a module's own, above which two trials have to do: six transformer
#: layers of width 32 have 76,000, and a trial in float64 takes seconds.
LARGE = 2**14


@dataclass
class Session:
    """A reference and a candidate on a device."""

    reference: Any
    candidate: Callable[..., Any] | None
    device: str = "cpu"
    compute: str | None = None
    seed: int = 0
    order: str = "vjp"
    source: str = ""  # lines that define `candidate` in a script
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.subject: Subject = subject_of(self.reference)
        known("order", self.order, ORDERS)
        known("device", self.device.partition(":")[0], ("cpu", "cuda"))
        if self.candidate is not None and not callable(self.candidate):
            raise TypeError(f"the candidate cannot be called: {self.candidate!r}")

    def run(
        self,
        *,
        inputs: Mapping[str, Sequence[Any]] | None = None,
        shapes: Sequence[str | Sequence[int]] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        dtypes: Sequence[str] | None = None,
        cases: Sequence[Case] | None = None,
    ) -> Report:
        """All trials in all precisions; `inputs` holds argument lists by name."""
        started = time.monotonic()
        with _settings(self.device, self.compute):
            trials = [
                replace(trial, order=self.order)
                for dtype in dtypes or [made.precision_of((inputs or {}, kwargs or {}))]
                for trial in self._trials(dtype, inputs, shapes, kwargs or {}, cases)
            ]
            rows = tuple(
                examine(self.subject, self.candidate, trials, self.compute, self.notes)
            )
        report = Report(
            self.subject.name,
            self._candidate_name(),
            self.device,
            rows,
            tuple(dict.fromkeys(self.notes)),
            time.monotonic() - started,
            lambda: self._script(trials, rows),
        )
        return report

    def _candidate_name(self) -> str:
        return (
            "PyTorch's gradient" if self.candidate is None else name_of(self.candidate)
        )

    def _trials(
        self,
        dtype: str,
        inputs: Mapping[str, Sequence[Any]] | None,
        shapes: Sequence[str | Sequence[int]] | None,
        kwargs: Mapping[str, Any],
        cases: Sequence[Case] | None,
    ) -> Iterator[Trial]:
        if inputs is not None:
            for label, args in inputs.items():
                yield from made.from_inputs(
                    args,
                    dtype,
                    kwargs=kwargs,
                    seed=self.seed,
                    device=self.device,
                    label=label,
                    large=self.subject.size > LARGE,
                )
            return
        for specs, extra in self._specs(shapes, cases):
            yield from made.from_shapes(
                specs,
                dtype,
                kwargs={**kwargs, **extra},
                seed=self.seed,
                device=self.device,
                pinned=self.subject.lengths,
                admits=lambda trial: admits(self.subject, trial),
                notes=self.notes,
            )

    def _specs(
        self, shapes: Sequence[str | Sequence[int]] | None, cases: Sequence[Case] | None
    ) -> Iterator[tuple[Specs, dict[str, Any]]]:
        if shapes is not None:
            yield tuple(parsed(shape) for shape in shapes), {}
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


@contextlib.contextmanager
def _settings(device: str, compute: str | None) -> Iterator[None]:
    """Set what all trials run under; the caller's settings come back.

    What is compiled meanwhile keeps its buffers: a graph is swept more than once.
    """
    has = hasattr(functorch, "donated_buffer")  # older versions keep them anyway
    kept = functorch.patch(donated_buffer=False) if has else contextlib.nullcontext()
    with _one_thread(), _products_on_a_gpu(device, compute), kept:
        yield


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Small tensors lose by threads: on a busy machine a softmax of 200 took 15 ms."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
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


def admits(subject: Subject, trial: Trial) -> bool:
    """Whether the reference takes these inputs; it raises what it likes where not."""
    try:
        bound = subject.bound(trial)
        with torch.no_grad():
            bound.call(*bound.tensors)
    except Exception:  # noqa: BLE001  # every library refuses shapes in its own way
        return False
    return True
