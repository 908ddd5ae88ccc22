"""One name for one machine, in every command, by its processor.

asv keeps the description of a machine in results/asv/NAME/machine.json, which reserves
the name for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import platform
import re
from pathlib import Path
from typing import Any

from gradwatch.harness.project.paths import ROOT

RECORDED = ROOT / "results" / "asv"

_IDENTITY = ("arch", "cpu", "num_cpu")


class OtherMachine(Exception):
    """GRADWATCH_MACHINE is the name of another machine; the message says which."""

    exit_code = 2


def memory() -> int:
    """The bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def release_memory() -> None:
    """Give the system what glibc keeps after it was freed: up to 64 MB."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


@functools.cache
def traits() -> dict[str, str]:
    """The description of this machine, in the fields of asv's machine.json."""
    cpu = platform.machine()
    with contextlib.suppress(OSError):  # of Linux
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        if model := re.search(r"^model name\s*:(.*)", text, re.MULTILINE):
            cpu = model[1].strip()
    return {
        "arch": platform.machine(),
        "cpu": cpu,
        "num_cpu": str(os.cpu_count() or 1),
        "os": platform.system(),
        "ram": f"{memory() / 2**30:.0f} GiB",
    }


def machine_name(folder: Path = RECORDED) -> str:
    """Return the name of this machine.

    It is GRADWATCH_MACHINE; or the name in the folder that was recorded here; or a
    plain one that no other machine has, such as cpu-2core or cpu-2core-2.

    Raises:
        OtherMachine: GRADWATCH_MACHINE is the name of another machine.
    """
    if given := os.environ.get("GRADWATCH_MACHINE"):
        if differing := differences(folder, given):
            raise OtherMachine(
                f"results of {given} were recorded on another machine"
                f" ({'; '.join(differing)}): give this one another name in"
                " GRADWATCH_MACHINE"
            )
        return given
    taken = sorted(file.parent.name for file in folder.glob("*/machine.json"))
    own = [name for name in taken if not differences(folder, name)]
    plain = f"cpu-{traits()['num_cpu']}core"
    names = itertools.chain([plain], (f"{plain}-{n}" for n in itertools.count(2)))
    return own[0] if own else next(name for name in names if name not in taken)


def differences(folder: Path, name: str) -> list[str]:
    """The differences of this machine from the one of a name; none if not recorded."""
    from gradwatch.harness.project import documents  # which imports this

    file = folder / name / "machine.json"
    if not file.exists():
        return []
    try:
        there = documents.load(file, dict[str, Any])
    except documents.Unreadable:
        return [f"{file.name} cannot be read"]
    pairs = ((t, str(there.get(t)), traits()[t]) for t in _IDENTITY)
    return [f"{t} {a!r}, here {b!r}" for t, a, b in pairs if a != b]


def has_cuda() -> bool:
    """Whether this machine has a CUDA driver; does not start it."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()
