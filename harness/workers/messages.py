"""Tasks for workers and their outcomes: how both are encoded, and judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.project.verdicts import PASSING
from gradwatch.impls.catalogue import framework_of
from gradwatch.impls.contract import Array, Problem, Result

if TYPE_CHECKING:
    from gradwatch.harness.judging.cases import Trial
    from gradwatch.harness.judging.question import Question

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
        """The request in arrays and builtin types.

        Raises:
            ValueError: The arrays are too large to be sent.
        """
        problem, trial, second = self.problem, self.trial, dict[str, Any]()
        arrays = (*problem.inputs.values(), *problem.cotangents)
        nbytes = sum(array.nbytes for array in arrays if array is not None)
        if nbytes > LARGEST:
            raise ValueError(f"{nbytes} bytes of arrays: at most {LARGEST} fit")
        if getattr(problem, "order", "vjp") != "vjp":  # an older commit has none
            second = {"order": problem.order, "tangents": dict(problem.tangents)}
        constant = {*getattr(problem.op, "constants", ())}
        constant |= {n for n, a in problem.inputs.items() if a.dtype.kind in "biu"}
        return {
            "op": trial.op,
            "backend": self.backend,
            "inputs": dict(problem.inputs),
            "layouts": {
                name: "contiguous" if name in constant else trial.layout
                for name in problem.inputs
            },
            "cotangents": [*problem.cotangents],
            "cotangent_layout": trial.cotangent_layout,
            "attributes": dict(problem.attributes),
            "aliases": dict(problem.aliases),
            "dtype": problem.dtype,
            "device": problem.device,
            "options": {"stress": trial.stress, **self.options},
            **second,
        }


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
            outputs=reply["outputs"],
            gradients=reply["gradients"],
            state=reply["state"],
            dtypes=reply["dtypes"],
        )
        return cls(
            task,
            **given,
            result=result,
            faults=reply["faults"],
            repeatable=reply["repeatable"],
            others=reply.get("others", ()),
            version=version,
        )

    def judged(self, asked: Question) -> Iterator[Judgement]:
        """Yield the verdicts on all tensors, or one verdict if there is no result.

        `agree`, `time`, `compare` and the history all judge so: none of them times a
        gradient that another one calls wrong.
        """
        if self.result is None:
            yield Judgement("all", self.kind, message=self.message)
            return
        for name, message in self.faults:
            yield Judgement(name, "malformed", message=message)
        on_cpu, dtypes = self.task.problem.device == "cpu", self.result.dtypes
        flushes = on_cpu and bool(traits_of(self.task.framework).flushes)
        yield from asked.judge(self.result.tensors, dtypes, flushes=flushes)
        for how, gradients in self.others:
            for j in asked.judge(gradients, dtypes, flushes=flushes):
                if not j.passes:
                    yield replace(j, message=f"{how}: {j.message}")


def why_unfit(verdicts: Iterable[tuple[str, str]]) -> str:
    """The reason why an implementation must not be timed; "" if it can be.

    Args:
        verdicts: The verdict and the message of each of its tensors. It is not timed if
            one of them does not pass, if it is declared as unsupported, or if there is
            no verdict at all.
    """
    listed = list(verdicts)
    unfit = (
        f"{verdict}: {message}"
        for verdict, message in listed
        if verdict not in PASSING or verdict == "unsupported"
    )
    return next(unfit, "") if listed else "nothing was judged"
