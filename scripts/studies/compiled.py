#!/usr/bin/env python3
"""What compiling gains: PyTorch and JAX, eager and compiled, in one table.

    python -m scripts.studies.compiled

Runs `gradwatch time` on the ops below, all backends in turn, and prints its medians
with their 95 % intervals as a table of Markdown. Compiling is what the first forward
and backward take longer than later ones; it is in no other figure. Two minutes.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from subprocess import run

from gradwatch.harness.project import documents
from gradwatch.harness.project.records import TIME, TimeRecord

OPS = ("softmax", "layer_norm", "attention")
CALLED = {
    "torch_autograd": "PyTorch, eager",
    "torch_compile": "PyTorch, torch.compile",
    "jax_autograd": "JAX, jax.nn, eager",
    "jax_formula": "JAX, formula, eager",
    "jax_jit": "JAX, formula, jit",
}


def command(file: Path) -> list[str]:
    """The call of `gradwatch time`; four seconds for each backend of an op."""
    named = [word for op in OPS for word in ("--op", op)]
    named += [word for name in CALLED for word in ("--backend", name)]
    options = ["--size", "middle", "--budget", str(len(CALLED) * 4)]
    return [
        sys.executable,
        "-m",
        "harness",
        "time",
        *named,
        *options,
        "--json",
        str(file),
    ]


def table(records: Sequence[TimeRecord]) -> Iterator[str]:
    """Lines of Markdown: microseconds, and seconds of compiling."""
    yield "| op | backend | first call longer by | forward | backward |"
    yield "|---|---|---|---|---|"
    order = list(CALLED)
    rows = sorted(records, key=lambda r: (OPS.index(r.op), order.index(r.backend)))
    for (op, size, name), own in groupby(rows, lambda r: (r.op, r.case, r.backend)):
        phases = {row.phase: row for row in own}
        steady = sum(row.seconds for row in phases.values())
        compiling = phases["forward"].first - steady
        cells = (
            f"{_shown(row.seconds)} ({_shown(row.low)} to {_shown(row.high)})"
            for row in (phases["forward"], phases["backward"])
        )
        yield (
            f"| {op} {size} | {CALLED[name]} | {compiling:.2g} s | "
            + " | ".join(cells)
            + " |"
        )


def _shown(seconds: float) -> str:
    """Microseconds; with a decimal where that is a digit of three."""
    return f"{seconds * 1e6:,.{int(seconds < 1e-4)}f} µs"


def main() -> int:
    """Time, and print the table."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "time.json")
        code = run(command(file)).returncode
        if not code:
            records = documents.read(file, TIME).records
            print("\n".join(table(records)))
    return code


if __name__ == "__main__":
    sys.exit(main())
