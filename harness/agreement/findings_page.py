"""Writes docs/findings.md: all findings, grouped by defect."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from gradwatch.harness.agreement.findings import Finding
from gradwatch.harness.agreement.store import headline, named, paragraph

Defect = tuple[str, str, str, tuple[str, ...]]

_RESULTS = "../results/findings"  # relative to docs

_OPENING = """# Findings

Defects of the frameworks in the ops of this project, and differences of
convention. `gradwatch fuzz` found each of them, shrank it to the input below and wrote
a script that reproduces it; this page is generated. *Exact* is the value in a wider
type. A *rounding radius* is how far rounding in the precision under test may move it;
up to about 17 radii count as rounding.

To check one finding, run its `repro.py` with NumPy and the framework: it exits with 1
while the defect is there, and with 0 when it is gone. `gradwatch fuzz --replay` checks
all of them. `make findings` writes this page again.
"""


def page(findings: Sequence[Finding]) -> str:
    """The whole page, in Markdown."""
    defects = defaultdict(list)
    for finding in findings:
        defects[_defect(finding)].append(finding)
    by_kind: dict[str, list[list[Finding]]] = {"defects": [], "conventions": []}
    for (_, _, kind, _), several in sorted(defects.items()):
        by_kind["conventions" if kind == "convention" else "defects"].append(several)
    parts = [_OPENING, "## At a glance\n", *_table(by_kind["defects"])]
    framework = ""
    for several in by_kind["defects"]:
        name = _framework(several[0])
        if name != framework:
            parts.append(f"\n## {name}\n")
        framework = name
        parts += _section(several)
    if by_kind["conventions"]:
        parts.append(
            "\n## Conventions\n\nBoth sides are right, but their results differ.\n"
        )
    for several in by_kind["conventions"]:
        parts += _section(several)
    return "\n".join(parts).rstrip() + "\n"


def _defect(finding: Finding) -> Defect:
    """Groups of one defect: findings that differ only in dtype or backend."""
    site = finding.site
    numeric = site.verdict in ("disagree", "nonfinite")
    kind = "wrong" if numeric else site.verdict
    return finding.record.framework, site.op, kind, (*site.flags, site.convention)


def _framework(finding: Finding) -> str:
    record = finding.record
    version = record.framework_version.partition("+")[0]
    return f"{named(record.framework)} {version}"


def _smallest(several: Iterable[Finding]) -> list[Finding]:
    """Sorts the clearest first: a framework's own call, few elements, no NaN."""
    return sorted(
        several,
        key=lambda f: (
            not f.site.backend.endswith("_autograd"),
            f.site.verdict == "nonfinite",
            f.site.part != "forward",
            f.elements,
            f.site.id,
        ),
    )


def _table(defects: Iterable[list[Finding]]) -> Iterator[str]:
    yield "| framework | op | what | off by (radii) | smallest input | script |"
    yield "|---|---|---|---|---|---|"
    for several in defects:
        first = _smallest(several)[0]
        ratio = first.record.ratio
        off = "" if ratio is None else f"{ratio:.3g}"
        off = off if first.record.radius else ""
        shapes = ", ".join(f"{n} {tuple(s)}" for n, s in first.shapes.items())
        what = headline(first).partition(": ")[2]
        link = f"[repro]({_RESULTS}/{first.site.id}/repro.py)"
        cells = (_framework(first), first.site.op, what, off, shapes, link)
        yield f"| {' | '.join(cells)} |"


def _section(several: Sequence[Finding]) -> Iterator[str]:
    first, *others = _smallest(several)
    title, _, rest = paragraph(first).partition("\n")
    yield f"\n### {title.strip('*').partition(': ')[2]}\n{rest}"
    if others:
        links = (f"[{f.site.id}]({_RESULTS}/{f.site.id}/finding.md)" for f in others)
        yield f"\nThe same defect, or a similar one: {', '.join(links)}."
