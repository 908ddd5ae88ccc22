"""Write docs/pytorch.md from what scripts/studies/opinfo.py recorded.

    python scripts/studies/opinfo_page.py

The records are results/opinfo/<dtype>.json, the findings results/pytorch/*.py: their
docstrings are the text, and their exit code says whether the installed PyTorch has the
defect still.
"""

from __future__ import annotations

import ast
import datetime
import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradwatch.harness.project.documents import replace_file
from gradwatch.harness.project.machines import machine_name
from gradwatch.harness.project.markdown import table
from gradwatch.harness.project.verdicts import PASSING

sys.path.insert(0, str(Path(__file__).parents[2]))
from scripts.studies.opinfo import (  # scripts is no installed package
    FINDINGS,
    RESULTS,
    ROOT,
    SAMPLES,
    caught,
    listed_findings,
)

PAGE = ROOT / "docs" / "pytorch.md"
Record = dict[str, Any]

_MISSED = (
    "Missed, with what is allowed at the element that the error moves most, as a share"
    " of it. In bicubic interpolation and grid sampling a rounding may move a place"
    " across a border; elsewhere large terms cancel:"
)
REASONS = {
    "complex": "an operator of it has no rule for complex numbers",
    "factorisation": "it factorises a matrix",
    "random": "it draws random numbers",
    "custom": "it has a backward of its own",
    "control": "a value decides what is computed",
    "sparse": "it takes sparse tensors",
    "no rule": "the engine has no rule for an operator of it",
    "no gradient": "its output has no gradient",
    "storage": "it reads storage outside of its input, which no copy has",
    "time": "it took longer than the sweep allows",
    "error": "tracing or judging failed",
    "samples": "PyTorch could not make its samples",
}


def main() -> None:
    """Write the page."""
    sweeps = {
        dtype: json.loads((RESULTS / f"{dtype}.json").read_text())
        for dtype in ("float64", "float32")
    }
    replace_file(PAGE, page(sweeps))


def page(sweeps: dict[str, list[Record]]) -> str:
    """The page's text."""
    today = datetime.date.today().isoformat()
    sections = {
        "How much is judged": coverage(sweeps),
        "What is not judged, and why": reasons(sweeps),
        "How large honest errors are": ratios(sweeps),
        "Planted errors": planted(sweeps),
        "Findings": findings(sweeps),
    }
    body = "\n".join(f"## {title}\n\n{text}\n" for title, text in sections.items())
    return f"""# PyTorch's own gradients on trial

PyTorch tests its operators on a database of samples, OpInfo. Here every entry of it
that has a float autograd on the CPU is traced and becomes a graph of gradwatch's
engine; outputs and gradients of the first {SAMPLES} samples, as PyTorch computes them,
are judged against that graph (none of more than 100,000 elements).
PyTorch's backward is not used, but its forward decompositions are: an error there is
not found.

PyTorch {torch.__version__}, `{machine_name()}`, {today}: `python
scripts/studies/opinfo.py float64`, the same with `float32`, then `python
scripts/studies/opinfo_page.py`, which wrote this page. `gradwatch list covered`
prints the operators that can be traced.

{body}"""


def coverage(sweeps: dict[str, list[Record]]) -> str:
    """Entries judged completely, in part or not; tensors by verdict."""
    rows = []
    for dtype, records in sweeps.items():
        whole = sum(_whole(r) for r in records)
        part = sum(bool(r["samples"]) for r in records) - whole
        share = f"{whole} ({whole / len(records):.1%})"
        rows.append([dtype, len(records), share, part, len(records) - whole - part])
    head = ["", "entries", "all samples judged", "some judged", "none judged"]
    verdicts = []
    for dtype, records in sweeps.items():
        every = list(_judged(records))
        kinds = Counter(j["verdict"] for _, j in every)
        empty = sum(j["empty"] for _, j in every)
        told = ", ".join(f"{n} {verdict}" for verdict, n in kinds.most_common())
        verdicts.append(
            f"- {dtype}: {len(every)} tensors; {told}. {empty} of them are empty:"
            " only their shape and dtype are judged."
        )
    return f"{table(head, rows)}\n\n" + "\n".join(verdicts)


def reasons(sweeps: dict[str, list[Record]]) -> str:
    """Each kind of reason, with the entries it keeps from being judged completely."""
    found: dict[str, set[str]] = defaultdict(set)
    for r in (r for records in sweeps.values() for r in records):
        for kind in {n["kind"] for n in r["not"]}:
            found[kind].add(r["name"])
    rows = [
        [REASONS[kind], len(names), some(names)]
        for kind, names in sorted(found.items(), key=lambda item: -len(item[1]))
    ]
    return table(["because", "entries", "such as"], rows)


def ratios(sweeps: dict[str, list[Record]]) -> str:
    """Quantiles of error over rounding radius of what agrees."""
    rows = []
    for dtype, records in sweeps.items():
        for kind in ("bound", "spread"):
            every = [
                j["ratio"]
                for _, j in _judged(records)
                if j["verdict"] == "agree"
                and j["radius_kind"] == kind
                and not j["empty"]
            ]
            if every:
                shares = np.percentile(every, [50, 90, 99, 100])
                rows.append([dtype, kind, len(every), *(f"{s:.2g}" for s in shares)])
    head = ["", "radius", "tensors", "median", "90 %", "99 %", "largest"]
    told = "Error over rounding radius, of tensors that agree; 16 and more are allowed."
    return f"{told}\n\n{table(head, rows)}"


def planted(sweeps: dict[str, list[Record]]) -> str:
    """What share of the planted errors was caught, and which were missed."""
    found = {dtype: caught(records) for dtype, records in sweeps.items()}
    kinds = dict.fromkeys(kind for each in found.values() for kind in each)
    rows = [[k, *(_of(each.get(k, (0, 0))) for each in found.values())] for k in kinds]
    missed = [
        f"- {dtype}: {r['name']}, {kind}: {each}"
        for dtype, records in sweeps.items()
        for r in records
        for s in r["samples"]
        for kind, (_, _, names) in s["planted"].items()
        for each in names
    ]
    return "\n\n".join(
        (
            "In each gradient that agrees and says something: all of it scaled by"
            " 1 + 1e-6 (float64) or 1 + 1e-3 (float32); its sign turned; its largest"
            " element zeroed; the gradient for another cotangent (a stale buffer); the"
            " first use of each input left out (a lost path). An error counts where it"
            " moves an element by half of that scale or more.",
            table(["planted", *(f"{dtype}: caught" for dtype in found)], rows),
            "\n".join([_MISSED, "", *missed]) if missed else "None was missed.",
        )
    )


def findings(sweeps: dict[str, list[Record]]) -> str:
    """Each finding with its script, what gradcheck says, and whether it holds here."""
    wrong, rows = _disagreeing(sweeps), []
    for script in sorted(FINDINGS.glob("*.py")):
        title = (ast.get_docstring(ast.parse(script.read_text())) or "").splitlines()[0]
        names = [n for n, of in listed_findings().items() if of == script.stem]
        names = [n for n in names if n in wrong]
        checks = sorted({wrong[n][1].partition(":")[0] for n in names})
        rows.append(
            [
                f"[{script.stem}](../{script.relative_to(ROOT)})",
                (title.partition(": ")[2] or title).rstrip("."),
                some(names) or "none in this run",
                ", ".join(checks) or "not run",
                _holds(script),
            ]
        )
    rest = sorted(set(wrong) - {*listed_findings()})
    return "\n\n".join(
        (
            "Each script tells the cause, and exits 1 where the defect is there."
            " gradcheck had the entry's own samples in float64.",
            table(["script", "defect", "entries", "gradcheck", "here"], rows),
            f"Not explained: {', '.join(rest)}." if rest else "All are explained.",
        )
    )


def some(names: Iterable[str]) -> str:
    """The first three names, and how many others there are."""
    first, rest = sorted(names)[:3], sorted(names)[3:]
    return ", ".join(first) + (f" and {len(rest)} others" if rest else "")


def _disagreeing(sweeps: dict[str, list[Record]]) -> dict[str, tuple[list[str], str]]:
    """Entries with a tensor that does not pass: the dtypes, and gradcheck's word."""
    found: dict[str, tuple[list[str], str]] = {}
    for dtype, records in sweeps.items():
        for r in records:
            if any(j["verdict"] not in PASSING for _, j in _judged([r])):
                dtypes, _ = found.get(r["name"], ([], ""))
                found[r["name"]] = ([*dtypes, dtype], r["gradcheck"] or "not run")
    return found


def _holds(script: Path) -> str:
    done = subprocess.run([sys.executable, script], capture_output=True, check=False)
    return "holds" if done.returncode == 1 else "does not hold on this machine"


def _whole(record: Record) -> bool:
    return bool(record["samples"]) and not record["not"]


def _judged(records: Iterable[Record]) -> Iterable[tuple[str, Record]]:
    return ((r["name"], j) for r in records for s in r["samples"] for j in s["judged"])


def _of(counts: tuple[int, int]) -> str:
    hit, tried = counts
    return f"{hit} of {tried} ({hit / tried:.2%})" if tried else "none planted"


if __name__ == "__main__":
    main()
