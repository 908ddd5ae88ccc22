"""Diagnosis: names the mistake in a gradient, the edit of the right one that gives it.

- entry: `judge` and `assert_agrees`, what users call
- tables: what these return, at a prompt and in a notebook
- sweep: the right gradient's graph, evaluated with edits, and its nodes in words
- edits: the list of what may stand in place of a right value
- search: tries the edits against what came back; the sentences of a report
"""
