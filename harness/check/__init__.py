"""Check: a candidate is run and judged; any PyTorch function is its reference.

Importing the room costs no PyTorch; calling `check` does.

- entry: `check`, `gradcheck`; one check, from what was given to the report
- subjects: references, and what is right
- frameworks: PyTorch and JAX, by what a check asks of them, a function being run in
  ways that catch kernels
- choice, shapes: what is tried, and how much of it
- examine: every tensor judged; report: the table
- child: all of it in another process, where names say what is checked
- script: a failure that runs alone, as small as it gets
"""

from gradwatch.harness.check.entry import check, gradcheck, gradgradcheck
from gradwatch.harness.check.report import Report, Row

__all__ = ["Report", "Row", "check", "gradcheck", "gradgradcheck"]
