"""Diagnosis: names the mistake in a gradient, the edit of the right one that gives it.

- entry: `judge` and `assert_agrees`, the functions that users call, and their results
  as tables at a prompt and in a notebook
- sweep: the right gradient's graph, evaluated with edits, and its nodes in words
- edits: the list of mistakes, as edits of a right value
- search: tries the edits against the candidate's tensors; the sentences of a report
"""
