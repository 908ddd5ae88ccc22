"""A part of the self-test in a process of its own, as a host of a cluster runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from gradwatch.harness.selftest.run import FULL, QUICK, Plan, chosen, planned
from gradwatch.harness.workers.child import Link
from gradwatch.harness.workers.pool import Fleet


class Part(Struct, kw_only=True):
    """What is to be tried; the worker of the framework `leader` plants the errors.

    jobs: how many workers run at the same time; 0 for as many as there are cores.
    """

    ops: Sequence[str]
    orders: Sequence[str]
    backends: Sequence[str]
    leader: str = ""
    quick: bool = False
    seed: int = 0
    jobs: int = 0
    timeout: float = 60.0


class Tried(Struct):
    """The replies of workers by the name of the task, and why others gave none.

    missing: why a backend has no task at all.
    """

    replies: dict[str, dict[str, Any]] = {}
    lost: dict[str, str] = {}
    missing: dict[str, str] = {}


def attempt(content: bytes, link: Link) -> None:
    """The job: try the judges on all trials of the ops, and hand over the replies."""
    part = msgspec.msgpack.decode(content, type=Part)
    plan: Plan = {}
    extent = QUICK if part.quick else FULL
    for op in part.ops:
        with link.at(op, patience=part.timeout):
            trials = chosen(extent, [op], part.seed, part.orders)
            plan |= planned(trials, extent, part.backends, part.leader)
    tried = Tried()
    fleet = link.kept(Fleet, jobs=part.jobs)
    for outcome in fleet.run([t for _, t in plan.values()], timeout=part.timeout):
        if outcome.kind == "result":
            tried.replies[outcome.task.id] = outcome.reply
        else:
            tried.lost[outcome.task.id] = f"{outcome.kind}: {outcome.message}"
    link.tell(tried)
