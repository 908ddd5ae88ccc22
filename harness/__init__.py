"""Judging gradients and times: is it right, is it fast, since when.

For a gradient of your own: `judge` says what is wrong with it, `assert_agrees` raises
if anything is. Neither imports a framework; both take NumPy arrays.
"""

from harness.judging import Judgement, assert_agrees, judge

__all__ = ["Judgement", "assert_agrees", "judge"]
