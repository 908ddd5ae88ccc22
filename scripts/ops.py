"""Writes docs/ops.md, the index of all ops by group, from the pages in impls/ops.

`python scripts/ops.py` runs it.
"""

from __future__ import annotations

from gradwatch.harness.dashboard.pages import by_group
from gradwatch.harness.project.documents import replace_file
from gradwatch.harness.project.paths import SOURCE
from gradwatch.impls.catalogue import op_names

PAGE = SOURCE / "docs" / "ops.md"


def page() -> str:
    """The whole page, in Markdown."""
    groups = by_group(op_names())
    jumps = ", ".join(f"[{g}](#{g.replace(' ', '-')})" for g in groups)
    parts = [
        "# The ops\n",
        f"{len(op_names())} ops in {len(groups)} groups: {jumps}.\n",
        "Each is one page with its formula, its cases and its dialects. This index is\n"
        "generated from the pages by `python scripts/ops.py`.\n",
    ]
    for group, ops in groups.items():
        parts += [f"## {group}\n", "| op | what it is |\n|---|---|"]
        parts += [
            f"| [{op}](../impls/ops/{op}.py) | {one.title.rstrip('.')} |"
            for op, one in ops.items()
        ]
        parts[-1] += "\n"
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    replace_file(PAGE, page())
