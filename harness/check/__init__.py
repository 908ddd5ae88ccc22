"""Check: a candidate is run and judged; any PyTorch function is its reference.

- entry: `check`, `gradcheck`; `Session`: one check, from its arguments to the report
- subjects: references, and their right tensors
- frameworks: PyTorch and JAX, with the same functions; the ways in which a function is
  run, so that wrong kernels fail
- choice: the trials, and how many of them fit the budget
- examine: every tensor judged; report: the table
- child: a check in another process, of functions given by name
- script: a minimal failure as a script that runs alone
"""

from gradwatch.harness.check.entry import check, gradcheck, gradgradcheck
from gradwatch.harness.check.report import Report, Row

__all__ = ["Report", "Row", "check", "gradcheck", "gradgradcheck"]
