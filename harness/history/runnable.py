"""Which pages asv can load and judge by, found out in a process of its own.

asv and the processes that it starts load every page, and judge by its formula. A page
that exits, crashes or hangs there would cost the figures of all others, so it is left
out before they begin.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gradwatch.harness.judging.cases import trials
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.workers.child import Child, Failed, Link
from gradwatch.impls.catalogue import load_op


class Pages(msgspec.Struct):
    """The ops, or pages, to try."""

    ops: Sequence[str]


def unrunnable(ops: Sequence[str]) -> dict[str, str]:
    """The reason why a page cannot be loaded, or its formula not run, by op."""
    with Child(probe) as child:
        found = list(child.run(ops, Pages, str))
    return {
        one.op: f"{one.verdict}: {one.message}"
        for one in found
        if isinstance(one, Failed)
    }


def probe(content: bytes, link: Link) -> None:
    """The job: load each page, and run its formula on its first case."""
    for op in msgspec.msgpack.decode(content, type=Pages).ops:
        with link.at(op):
            one = next(trials(load_op(op), regimes=["normal"], dtypes=["float64"]))
            reference(one.problem)
