"""The parts of a nightly run, in the order in which they run."""

from __future__ import annotations

from pathlib import Path

from gradwatch.harness.nightly import opinfo
from gradwatch.harness.nightly.judging import agreement, second_orders
from gradwatch.harness.nightly.measuring import times, watch
from gradwatch.harness.nightly.model import Part
from gradwatch.harness.nightly.other_commands import (
    CAMPAIGN,
    dashboard,
    faults,
    fuzz,
    selftest,
)
from gradwatch.harness.project.paths import ROOT


def parts_of(root: Path) -> dict[str, Part]:
    """The parts by name; three of them are of this checkout and not of a project's."""
    swept: dict[str, Part] = {
        "second": second_orders,
        "opinfo": opinfo.pytorch_gradients,
    }
    injected: dict[str, Part] = {"faults": faults}
    return {
        "agree": agreement,
        "selftest": selftest,
        "fuzz": fuzz,
        **(swept if (root / opinfo.SCRIPT).is_file() else {}),
        **(injected if root.joinpath(*CAMPAIGN.split(".")).is_dir() else {}),
        "time": times,
        "watch": watch,
        "report": dashboard,
    }


PARTS = parts_of(ROOT)
