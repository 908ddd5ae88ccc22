"""Judging gradients and times: is it right, is it fast, since when.

For a gradient of your own: `judge` says what is wrong with it, `assert_agrees` raises
if anything is. For a series of your own, night by night: `find_changes` finds steps and
slow drift. None of them imports a framework; all take NumPy arrays.
"""

from harness.history.changepoints import Change, find_changes
from harness.judging.entry import assert_agrees, judge
from harness.judging.judgement import Judgement

__all__ = ["Change", "Judgement", "assert_agrees", "find_changes", "judge"]
