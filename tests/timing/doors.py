"""Sends pages through every door by which a time can come, each in a fork of its own.

    python -m tests.timing.doors

Reads a request from each line of standard input, and answers with a line: why there is
no figure, or "". A page may change its process for good, so each request has a fork of
this one, which has imported PyTorch once. There a door is entered by the function that
the command itself calls; only the worker's process is played by this one.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from gradwatch.harness.history import measure as history
from gradwatch.harness.judging.cases import REGIMES, Trial, trial
from gradwatch.harness.timing import compare, proof, rotation
from gradwatch.harness.timing.compare import time_trial
from gradwatch.harness.workers import integrity
from gradwatch.harness.workers.lifetime import Died
from gradwatch.harness.workers.worker import Worker
from gradwatch.impls.catalogue import load_backend, load_op
from tests import asked
from tests.perf import test_speed as perf

BACKEND, SIZE, DTYPE = "torch_custom", "65536", "float32"
BUDGET = 0.1  # seconds: some hundred calls
CALLS = 100  # of a benchmark


class Played:
    """A worker that is this very process: `Worker` without the wire."""

    framework = "torch"
    cpu_seconds = staticmethod(time.process_time)
    waited_seconds = Worker.waited_seconds
    alive = True
    rest, unrest = int, float  # it is asked by itself

    def __init__(self, *_: object, **__: object) -> None:
        self.process = SimpleNamespace(pid=os.getpid())
        probe = {"request": "probe", "framework": "torch", "handlers": ["prepare"]}
        self.facts = asked.answer(probe)

    def reply(self, request: str, **payload: Any) -> dict[str, Any]:
        return asked.answer({"request": request, **payload})

    def ask(self, request: str, **payload: Any) -> dict[str, Any]:
        reply = self.reply(request, **payload)
        if reply["kind"] != "result":
            raise Died(reply["message"])
        return reply

    def begin(self, request: str, **payload: Any) -> Callable[[], dict[str, Any]]:
        return partial(self.ask, request, **payload)

    def close(self) -> None:
        pass


class PlayedTarget:
    """What `asv run` measures, without a checkout."""

    complete, frameworks = True, ("torch",)

    def start(self) -> Played:
        return Played()


def by_time(one: Trial) -> str:
    line = Played()
    plan = compare.Plan(one, BUDGET)
    compare._check(line, compare.Side(BACKEND, BACKEND), plan)  # as `agree` does first
    records, untimed = time_trial(one, [BACKEND], lambda _: line, budget=BUDGET)
    assert bool(records) != bool(untimed)
    return untimed.get(BACKEND, "")


def by_compare(one: Trial) -> str:
    side = compare.Side(BACKEND, BACKEND)
    for phase in ("forward", "backward"):
        compare.compare_phases(side, side, compare.Plan(one, BUDGET), [phase])
    return ""


def by_asv(one: Trial) -> str:
    target: Any = PlayedTarget()
    once = {"processes": 1, "seconds": BUDGET / 2}
    (figures,) = history.measure([one], [BACKEND], ["cpu"], target, **once).values()
    assert bool(figures.why) != bool(figures.forward and figures.backward)
    return figures.why


def by_perf(one: Trial) -> str:
    place = one.op, SIZE, BACKEND, "cpu"
    why, _ = perf.judged(*place)
    for phase in () if why else ("forward", "backward"):
        steps = perf.ready(*place)
        call = perf.waited(steps.step(phase), phase)
        for _ in itertools.repeat(None, CALLS):
            call()
        right = perf.judge(one.op, SIZE, "cpu")
        why = why or perf.why_not_shown(steps, phase, right)
    return why


DOORS = {"time": by_time, "compare": by_compare, "asv": by_asv, "perf": by_perf}

#: What stands against an attack; without it, the attack must succeed.
DEFENCES = {
    "functions and settings": (integrity, "changes", lambda *_: []),
    "forbidden calls": (integrity, "WATCHED", {}),
    "kept results": (rotation.Rotation, "results", lambda self, phase: []),
    "unseen numbers": (proof, "TRIES", 0),
}


def answer(page: str, door: str, without: Sequence[str] = ()) -> str:
    """Why a page gets no figure by a door, or ""; `without` some defences."""
    for owner, name, instead in map(DEFENCES.__getitem__, without):
        setattr(owner, name, instead)
    integrity.remember("torch")
    try:
        op = load_op(page)
        return DOORS[door](trial(op, op.sizes[SIZE], REGIMES["normal"], DTYPE, 0, page))
    except Exception as reason:  # noqa: BLE001  # a figure is refused by any error
        return str(reason)


def say(why: str) -> None:
    sys.stdout.write(json.dumps(why) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answer until there are no more requests."""
    load_backend(BACKEND)
    compare.Worker = Played
    for line in sys.stdin:
        child = os.fork()
        if not child:
            say(answer(**json.loads(line)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            say(f"ended with status {status}")


if __name__ == "__main__":
    main()
