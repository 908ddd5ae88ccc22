"""Reads the recorded history: asv's result files as series of values.

A series belongs to one machine, one environment, one benchmark and one set of
parameters; two are never merged. Reading is strict: an unreadable file stops it with a
message, because a silently missing point looks like a benchmark that was not run.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwatch.harness.history.recorded import asv_files, index
from gradwatch.harness.history.recorded.gathering import gathered
from gradwatch.harness.history.recorded.series import Series
from gradwatch.harness.project import git
from gradwatch.harness.project.documents import Unreadable, machine_name
from gradwatch.harness.project.paths import ROOT

RESULTS = ROOT / "results" / "asv"

#: Two machines differ if one of these differs; memory and kernel may change.
IDENTITY = ("arch", "cpu", "num_cpu")

Json = Mapping[str, Any]


class OtherMachine(Exception):
    """Results would be mixed with those of another machine of the same name."""


def read(
    folder: Path = RESULTS,
    order: Sequence[str] | None = None,
    troubles: list[Unreadable] | None = None,
) -> tuple[Series, ...]:
    """All series in a results folder of asv.

    Args:
        folder: The results folder; empty or missing means no history yet.
        order: Commits, oldest first; by default those of this checkout. Any other
            commits come before these, sorted by date.
        troubles: Takes the reason for each file that cannot be read, and the others
            are read; without it the first such file ends the call.

    Raises:
        Unreadable: benchmarks.json is damaged; or, without `troubles`, a file is
            damaged, foreign, a duplicate, or of another machine.
    """
    files = index.listed(folder)
    if not files:
        return ()
    known = asv_files.benchmarks(folder)
    rank = {commit: i for i, commit in enumerate(order or git.commits())}
    series, unreadable = index.consult(
        folder, files, lambda indexed: gathered(indexed, known, rank)
    )
    if unreadable and troubles is None:
        raise unreadable[0]
    if troubles is not None:
        troubles += unreadable
    return series


# Machines -----------------------------------------------------------------------


def machine_for(folder: Path, traits: Json) -> str:
    """The name under which a machine's results are recorded.

    It is GRADWATCH_MACHINE, or else a plain name such as cpu-2core; if another machine
    has that name, cpu-2core-2 and so on.

    Raises:
        OtherMachine: GRADWATCH_MACHINE is the name of another machine.
    """
    given = os.environ.get("GRADWATCH_MACHINE")
    if given:
        check_machine(folder, {**traits, "machine": given})
        return given
    plain = machine_name()
    for number in itertools.count(1):
        name = plain if number == 1 else f"{plain}-{number}"
        if not _differences(folder, {**traits, "machine": name}):
            return name
    raise AssertionError("numbers do not end")


def check_machine(folder: Path, traits: Json) -> None:
    """Raise OtherMachine unless results of `traits["machine"]` are of that machine."""
    differences = _differences(folder, traits)
    if differences:
        raise OtherMachine(
            f"results of {traits['machine']} were recorded on another machine"
            f" ({'; '.join(differences)}): give this one another name in"
            " GRADWATCH_MACHINE"
        )


def _differences(folder: Path, traits: Json) -> list[str]:
    file = folder / traits["machine"] / "machine.json"
    if not file.exists():
        return []
    recorded = asv_files.load(file)
    return [
        f"{name} {recorded.get(name)!r}, here {traits.get(name)!r}"
        for name in IDENTITY
        if str(recorded.get(name)) != str(traits.get(name))
    ]
