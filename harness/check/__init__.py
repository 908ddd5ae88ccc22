"""Any PyTorch function as the reference: `check` runs a candidate and judges it.

Importing the room costs no PyTorch; calling `check` does.
"""

from harness.check.entry import check
from harness.check.report import Report, Row

__all__ = ["Report", "Row", "check"]
