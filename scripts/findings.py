"""Writes docs/findings.md, the list of all findings, from results/findings.

`python scripts/findings.py` runs it.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from gradwatch.harness.agreement.store import defect, headline, load
from gradwatch.harness.project.documents import replace_file
from gradwatch.harness.project.paths import SOURCE
from gradwatch.harness.project.records import FindingRecord

PAGE = SOURCE / "docs" / "findings.md"
_RESULTS = "../results/findings"  # relative to docs

_OPENING = """# Findings

Defects of the frameworks in the ops of this project.
`gradwatch fuzz` found them and shrank the inputs. Each line links a plain script of the
framework's own calls, ready for a bug report: it exits with 1 while the defect is there
and with 0 when it has gone. `gradwatch fuzz --replay` runs them all, `make findings`
writes this page again. *Off by* counts rounding radii, of which about 17 are allowed.
"""


def page(findings: Sequence[FindingRecord]) -> str:
    """The whole page, in Markdown."""
    scripts = defaultdict(list)
    for finding in findings:
        scripts[finding.script].append(finding)
    defects = [smallest_first(several) for _, several in sorted(scripts.items())]
    parts = [_OPENING]
    for framework in sorted({_framework(first) for first, *_ in defects}):
        own = [several for several in defects if _framework(several[0]) == framework]
        parts += [f"## {framework}\n", "| defect | seen in | off by |", "|---|---|---|"]
        parts += [*_rows(own), ""]
    return "\n".join(parts).rstrip() + "\n"


def _framework(finding: FindingRecord) -> str:
    return headline(finding).partition(": ")[0]


def smallest_first(several: Iterable[FindingRecord]) -> list[FindingRecord]:
    """Sorts the clearest first: a framework's own call, few elements, no NaN."""
    return sorted(
        several,
        key=lambda f: (
            not f.record.backend.endswith("_autograd"),
            f.record.verdict == "nonfinite",
            f.part != "forward",
            f.elements,
            f.id,
        ),
    )


def _rows(defects: Iterable[Sequence[FindingRecord]]) -> Iterator[str]:
    for several in defects:
        first = several[0]
        ratio = first.record.ratio if first.record.radius else None
        off = "" if ratio is None else f"{ratio:.2g}"
        seen = sorted({f.record.backend.partition("_")[2] for f in several})
        link = f"[{defect(first)}]({_RESULTS}/{first.script})"
        yield f"| {link} | {', '.join(seen)} | {off} |"


if __name__ == "__main__":
    found, troubles = load()
    replace_file(PAGE, page(found))
    sys.exit("\n".join(troubles) or 0)
