"""Acceptance of large right tensors; those left are judged in part."""
