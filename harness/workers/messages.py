"""Tasks for workers and their outcomes, and how both are encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gradwatch.harness.workers.arrays import Packed, pack, plain, unpack
from gradwatch.impls.catalogue import framework_of
from gradwatch.impls.contract import Array, Problem, Result

if TYPE_CHECKING:
    from gradwatch.harness.judging.cases import Trial

LARGEST = 2_000_000_000  # bytes: both sides hold a message several times


@dataclass(frozen=True)
class Task:
    """A problem for a backend. `op` is a name, or the path of a page.

    All inputs arrive in `layout` and all cotangents in `cotangent_layout`, names of
    `gradwatch.harness.workers.arrays.LAYOUTS`. `request` is the name of a handler of
    `harness.endpoint`, which also gets `options`. `id` and `trial` are for the caller
    only.
    """

    id: str
    op: str
    backend: str
    problem: Problem
    layout: str = "contiguous"
    cotangent_layout: str = "contiguous"
    request: str = "evaluate"
    options: Mapping[str, Any] = field(default_factory=dict)
    trial: Trial | None = None

    @classmethod
    def of(cls, trial: Trial, backend: str, device: str = "cpu") -> Task:
        """The task of running a trial on a backend and a device."""
        return cls(
            f"{trial.name} {backend} {device}",
            trial.op,
            backend,
            replace(trial.problem, device=device),
            trial.layout,
            trial.cotangent_layout,
            options={"stress": trial.stress} if trial.stress else {},
            trial=trial,
        )

    @property
    def framework(self) -> str:
        """The framework whose worker runs it."""
        return framework_of(self.backend)

    @property
    def device(self) -> str:
        """The device: "cpu" or "cuda"."""
        return self.problem.device

    @cached_property
    def nbytes(self) -> int:
        """The size of its arrays when they are sent, in bytes."""
        arrays = (*self.problem.inputs.values(), *self.problem.cotangents)
        return sum(array.nbytes for array in arrays if array is not None)

    def payload(self) -> dict[str, Any]:
        """The request in builtin types.

        Raises:
            TypeError: An array or an attribute has a type that cannot be sent.
            ValueError: The arrays are too large to be sent.
        """
        if self.nbytes > LARGEST:
            raise ValueError(f"{self.nbytes} bytes of arrays: at most {LARGEST} fit")
        problem, second = self.problem, dict[str, Any]()
        if getattr(problem, "order", "vjp") != "vjp":  # an older commit has none
            tangents = {n: pack(a) for n, a in problem.tangents.items()}
            second = {"order": problem.order, "tangents": tangents}
        return {
            "op": self.op,
            "backend": self.backend,
            "inputs": {n: self._packed(n) for n in problem.inputs},
            "cotangents": [
                None if array is None else pack(array, self.cotangent_layout)
                for array in problem.cotangents
            ],
            "attributes": plain(dict(problem.attributes)),
            "aliases": dict(problem.aliases),
            "dtype": problem.dtype,
            "device": problem.device,
            "options": plain(dict(self.options)),
            **second,
        }

    def _packed(self, name: str) -> Packed:
        """An input in the layout asked for; integers and other constants contiguous."""
        array, op = self.problem.inputs[name], self.problem.op
        constant = array.dtype.kind in "biu" or name in getattr(op, "constants", ())
        return pack(array, "contiguous" if constant else self.layout)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a task.

    kind          result, unsupported (declared), error (an exception), crash, timeout,
                  or missing (no such framework or device here)
    result        the arrays, if kind is "result" and the request was "evaluate"
    message       one line, for every other kind; `trace` is the traceback or stderr
    mutated       names of overwritten inputs and cotangents ("d" and the output)
    saved_intact  False if a second backward on the same graph differs from the first,
                  while a fresh run does not: saved tensors were written to
    repeatable    False if a fresh run differs from the first in any bit but a NaN's
    others        gradients that are not those of the first run, and how they were got:
                  with another graph alive, another cotangent, an input frozen
    reused        gradients that a later backward wrote over
    seconds       what the worker took for all of it
    version       the framework's
    reply         the worker's whole answer, if the request is another
    """

    task: Task
    kind: str
    result: Result | None = None
    message: str = ""
    trace: str = ""
    mutated: tuple[str, ...] = ()
    saved_intact: bool = True
    repeatable: bool = True
    others: Sequence[tuple[str, Mapping[str, Array | None]]] = ()
    reused: tuple[str, ...] = ()
    seconds: float = 0.0
    version: str = ""
    reply: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, task: Task, reply: Mapping[str, Any], version: str) -> Outcome:
        """Decode a worker's answer to a task."""
        evaluated = task.request == "evaluate" and reply["kind"] == "result"
        return cls(
            task,
            reply["kind"],
            result=_result(reply) if evaluated else None,
            message=reply.get("message", ""),
            trace=reply.get("trace", ""),
            mutated=tuple(reply.get("mutated", ())),
            saved_intact=reply.get("saved_intact", True),
            repeatable=reply.get("repeatable", True),
            others=[(how, _unpacked(g)) for how, g in reply.get("others", ())],
            reused=tuple(reply.get("reused", ())),
            seconds=reply["seconds"],
            version=version,
            reply={} if evaluated else reply,
        )


def _unpacked(gradients: Mapping[str, Any]) -> dict[str, Array | None]:
    return {
        n: None if packed is None else unpack(packed) for n, packed in gradients.items()
    }


def _result(reply: Mapping[str, Any]) -> Result:
    return Result(
        outputs={name: unpack(packed) for name, packed in reply["outputs"].items()},
        gradients=_unpacked(reply["gradients"]),
        state={name: unpack(packed) for name, packed in reply["state"].items()},
        dtypes=dict(reply["dtypes"]),
    )
