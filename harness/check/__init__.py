"""Check: a candidate is run and judged; any PyTorch function is its reference.

Importing the room costs no PyTorch; calling `check` does.

- entry: `check`, `gradcheck`; session: one check, from what was given to the report
- subjects: references and candidates as functions of tensors; targets: by their names
- shapes, inputs: what is tried; runs: forward and backward in ways that catch kernels
- examine: every tensor judged; report: the table; child: all of it in another process
- of_jax: functions of JAX's; choice: which trials are run
- script: a failure that runs alone; shrink: as small as it gets; origin: its candidate
"""

from gradwatch.harness.check.entry import check, gradcheck, gradgradcheck
from gradwatch.harness.check.report import Report, Row

__all__ = ["Report", "Row", "check", "gradcheck", "gradgradcheck"]
