"""Judges the results of a worker, and decides whether they are fit to be timed.

`agree`, `time`, `compare` and the history all use this rule, so none of them times a
gradient that another one calls wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.question import Question
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.project.verdicts import PASSING
from gradwatch.harness.workers.messages import Outcome
from gradwatch.impls.contract import Array


def judge_outcome(outcome: Outcome, asked: Question) -> Iterator[Judgement]:
    """The verdicts on all tensors of a result, or one verdict if there is no result."""
    if outcome.result is None:
        yield Judgement("all", outcome.kind, message=outcome.message)
        return
    for name, message in outcome.faults:
        yield Judgement(name, "malformed", message=message)
    result, task = outcome.result, outcome.task
    flushes = bool(traits_of(task.framework).flushes) and task.problem.device == "cpu"

    def judgements(got: Mapping[str, Array | None]) -> tuple[Judgement, ...]:
        return asked.judge(got, result.dtypes, flushes=flushes)

    yield from judgements(result.tensors)
    for how, gradients in outcome.others:
        for j in judgements(gradients):
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
