"""Tasks for workers and their outcomes, and how both are encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gradwatch.harness.workers.arrays import Packed, pack, plain, unpack_all
from gradwatch.impls.catalogue import framework_of
from gradwatch.impls.contract import Array, Problem, Result

if TYPE_CHECKING:
    from gradwatch.harness.judging.cases import Trial

LARGEST = 2_000_000_000  # bytes: both sides hold a message several times


@dataclass(frozen=True)
class Task:
    """A trial for a backend on a device, "cpu" or "cuda".

    `request` is the name of a handler of `harness.endpoint`, which also gets `options`.
    """

    trial: Trial
    backend: str
    device: str = "cpu"
    request: str = "evaluate"
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def problem(self) -> Problem:
        """The trial's problem on the device."""
        return replace(self.trial.problem, device=self.device)

    @property
    def framework(self) -> str:
        """The framework whose worker runs it."""
        return framework_of(self.backend)

    def payload(self) -> dict[str, Any]:
        """The request in builtin types.

        Raises:
            TypeError: An array or an attribute has a type that cannot be sent.
            ValueError: The arrays are too large to be sent.
        """
        problem, second = self.problem, dict[str, Any]()
        arrays = (*problem.inputs.values(), *problem.cotangents)
        nbytes = sum(array.nbytes for array in arrays if array is not None)
        if nbytes > LARGEST:
            raise ValueError(f"{nbytes} bytes of arrays: at most {LARGEST} fit")
        if getattr(problem, "order", "vjp") != "vjp":  # an older commit has none
            tangents = {n: pack(a) for n, a in problem.tangents.items()}
            second = {"order": problem.order, "tangents": tangents}
        return {
            "op": self.trial.op,
            "backend": self.backend,
            "inputs": {n: self._packed(n) for n in problem.inputs},
            "cotangents": [
                None if array is None else pack(array, self.trial.cotangent_layout)
                for array in problem.cotangents
            ],
            "attributes": plain(dict(problem.attributes)),
            "aliases": dict(problem.aliases),
            "dtype": problem.dtype,
            "device": problem.device,
            "options": plain({"stress": self.trial.stress, **self.options}),
            **second,
        }

    def _packed(self, name: str) -> Packed:
        """An input in the layout asked for; integers and other constants contiguous."""
        array, op = self.problem.inputs[name], self.problem.op
        constant = array.dtype.kind in "biu" or name in getattr(op, "constants", ())
        return pack(array, "contiguous" if constant else self.trial.layout)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a task.

    kind          result, unsupported (declared), error (an exception), crash, timeout,
                  or missing (no such framework or device here)
    result        the arrays, if kind is "result" and the request was "evaluate"
    message       one line, for every other kind
    faults        what was written to that is the caller's, or saved by the graph, and
                  in words what has happened
    repeatable    False if a fresh run differs from the first in any bit but a NaN's
    others        gradients that are not those of the first run, and how they were got:
                  with another graph alive, another cotangent, an input frozen
    version       the framework's
    reply         the worker's whole answer, if the request is another
    """

    task: Task
    kind: str
    result: Result | None = None
    message: str = ""
    faults: Sequence[tuple[str, str]] = ()
    repeatable: bool = True
    others: Sequence[tuple[str, Mapping[str, Array | None]]] = ()
    version: str = ""
    reply: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, task: Task, reply: Mapping[str, Any], version: str) -> Outcome:
        """Decode a worker's answer to a task."""
        given = {n: v for n, v in reply.items() if n in ("kind", "message")}
        if task.request != "evaluate" or reply["kind"] != "result":
            return cls(task, **given, version=version, reply=reply)
        result = Result(
            outputs=unpack_all(reply["outputs"]),
            gradients=unpack_all(reply["gradients"]),
            state=unpack_all(reply["state"]),
            dtypes=dict(reply["dtypes"]),
        )
        return cls(
            task,
            **given,
            result=result,
            faults=reply["faults"],
            repeatable=reply["repeatable"],
            others=[(how, unpack_all(g)) for how, g in reply.get("others", ())],
            version=version,
        )
