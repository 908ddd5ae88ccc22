"""A check in a process of its own: the caller's code may exit, hang or die there."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gradwatch.harness.check.report import Report
from gradwatch.harness.console.streams import ticking
from gradwatch.harness.workers.child import Link

Announce = Callable[[str], None] | None

#: Of the caller's code: neither a verdict nor a mistake of the call.
REFUSED = "refused"


def check(content: bytes, link: Link) -> None:
    """The job: check what the request says."""
    sys.path.insert(0, os.getcwd())
    asked, at = msgspec.msgpack.decode(content), ""

    def announce(place: str) -> None:
        nonlocal at
        at = f" {place}"
        link.moved(place)

    link.patience = asked["timeout"]
    with link.running(""), ticking(lambda: f"checking{at}"):
        found = answered(asked, announce)
    link.tell(found)


def answered(asked: Mapping[str, Any], announce: Announce = None) -> dict[str, Any]:
    """The report of a request, as the command shows it and as a document.

    Or the line that says why it cannot be judged. `announce` gets each trial before it
    is run.
    """
    judged = _kernelbench if asked["kernelbench"] else _named
    try:
        with contextlib.ExitStack() as stack:
            report = judged({**asked, "announce": announce}, stack)
            return {
                "text": report.text(asked.get("width", 0)),
                "document": report.document(),
                "kept": report.kept(),
                "passes": report.passes,
                "script": report.repro() if asked["repro"] else "",
            }
    except Exception as error:  # noqa: BLE001  # a call that cannot be judged, in a line
        lines = str(error).strip().splitlines() or [""]
        return {REFUSED: f"{_kind(error)}{lines[0]}"}


def _kind(error: Exception) -> str:
    """The class of an exception, unless it is one that we raise for a wrong call."""
    from gradwatch.harness.tracing import Untraceable
    from gradwatch.impls.catalogue import UnknownName

    ours = (UnknownName, Untraceable, ValueError)
    return "" if isinstance(error, ours) else f"{type(error).__name__}: "


def _named(asked: Mapping[str, Any], stack: contextlib.ExitStack) -> Report:
    from gradwatch.harness.check.frameworks import are_of_jax
    from gradwatch.harness.check.session import Session
    from gradwatch.harness.check.targets import target

    reference, name = target(asked["reference"]), asked["candidate"]
    file, colon, rest = (name or "").partition(":")
    apart = str(Path.cwd()), name
    if file.endswith(".py"):
        path = Path(file).resolve()
        apart = str(path.parent), f"{path}{colon}{rest}"
    load = (lambda: target(name)) if name else lambda: None
    candidate, options = _loaded(asked, apart, load, stack)
    options["of_jax"] = are_of_jax(reference, candidate, None)
    return Session(reference, candidate, **options).run(
        shapes=asked["shapes"] or None,
        kwargs=asked["kwargs"],
        dtypes=asked["dtypes"] or None,
    )


def _loaded(
    asked: Mapping[str, Any],
    apart: Sequence[Any],
    load: Callable[[], Any],
    stack: contextlib.ExitStack,
) -> tuple[Any, dict[str, Any]]:
    """The candidate, and options of the session; apart, where nobody trusts it.

    A seed that is not given is drawn when the candidate has been loaded, which cannot
    know it.
    """
    from gradwatch.harness.check.choice import Choice

    if asked.get("untrusted"):
        from gradwatch.harness.check.subjects.apart import Apart

        named = Apart(asked["timeout"], *apart)
        candidate = stack.enter_context(contextlib.closing(named))
    else:
        candidate = load()
    seed = asked.get("seed")
    drawn = random.SystemRandom().randrange(1 << 31) if seed is None else seed
    names = ("device", "compute", "order", "name", "announce")
    options = {name: asked[name] for name in names if name in asked}
    options |= {"seed": drawn, "choice": Choice(**asked.get("choice", {}))}
    if seed is None or asked.get("untrusted"):
        options["notes"] = [f"the numbers are those of --seed {drawn}"]
    return candidate, options


def _kernelbench(asked: Mapping[str, Any], stack: contextlib.ExitStack) -> Report:
    """The problem's own inputs at two seeds: kernels are known that pass but one."""
    from gradwatch.harness.check.session import Session
    from gradwatch.harness.check.targets import kernelbench

    problem, solution = map(Path, asked["kernelbench"])
    reference, load, inputs, source = kernelbench(problem, solution)
    candidate, options = _loaded(asked, load.args, load, stack)
    seeds = (options["seed"], options["seed"] + 1)
    return Session(reference, candidate, source=source, **options).run(
        inputs={f"seed {seed}": inputs(seed) for seed in seeds},
        dtypes=asked["dtypes"] or None,
    )
