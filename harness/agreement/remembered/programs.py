"""A folder for what JAX compiles, beside the remembered outcomes.

JAX compiles every primitive for each shape, and each process would do so again. Its own
persistent cache keeps the programs, under a hash of the program, the flags, the
version and the kind of the CPU; here is a folder for it of each machine. Another worker
reads there what it would have compiled. What is damaged is compiled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from gradwatch.harness.agreement.remembered.ingredients import machine

#: Bytes of programs: those of the sample of all ops take about 12 MB.
MOST = 128 << 20


def programs(place: Path) -> str:
    """This machine's folder within the cache `place`; "" if it cannot be made.

    Only its owner may read or write it: what lies there is run.
    """
    kind = hashlib.sha256(json.dumps(machine()).encode()).hexdigest()
    folder = place / "jax" / kind[:16]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return ""
    return str(folder)


def make_room(place: Path, most: int = MOST) -> None:
    """Remove the programs of all machines that were used longest ago, beyond a bound.

    Another run may do so at the same time.
    """
    files, total = list[tuple[float, int, Path]](), 0
    for file in place.glob("jax/*/*"):
        with contextlib.suppress(OSError):
            status = file.stat()
            used = max(status.st_atime, status.st_mtime)
            files.append((used, status.st_size, file))
    for _, size, file in sorted(files, reverse=True):
        total += size
        if total > most:
            with contextlib.suppress(OSError):
                file.unlink()
