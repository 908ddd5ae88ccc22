"""The Markdown table of `gradwatch compare`."""

from __future__ import annotations

from collections import Counter

from gradwatch.harness.project.documents import Document
from gradwatch.harness.project.markdown import cell
from gradwatch.harness.project.records import CompareRecord, CompareSummary

SHOWN = 10

Comparisons = Document[CompareRecord, CompareSummary]


def compared(document: Comparisons) -> str:
    """The rows of `gradwatch compare`; those with a difference come first."""
    quiet = "no difference", "not resolved"
    rows = sorted(
        document.records, key=lambda r: (r.verdict in quiet, -abs(r.ratio - 1))
    )
    failed = [f"- not compared: {cell(w)}" for w in document.summary.failed[:SHOWN]]
    if not rows:
        none = "No implementation differs that could be compared."
        return "\n".join([none, *failed, ""])
    counts = Counter(row.verdict for row in rows)
    counted = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    lines = [f"**{rows[0].b} against {rows[0].a}**: {counted}", ""]
    lines += ["| op | size | phase | backend | ratio | 95 % | verdict |"]
    lines += ["|---|---|---|---|--:|---|---|"]
    lines += [
        f"| {r.op} | {r.case} | {r.phase} | {r.backend} | {r.ratio:.3f}"
        f" | {r.low:.3f} to {r.high:.3f} | {r.verdict} |"
        for r in rows[: 3 * SHOWN]
    ]
    left = len(rows) - 3 * SHOWN
    lines += ["", f"and {left} more"] if left > 0 else []
    return "\n".join([*lines, *([""] if failed else []), *failed]) + "\n"
