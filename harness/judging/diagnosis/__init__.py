"""Names the mistake in a wrong gradient: the one edit of the right one that gives it.

- sweep: the right gradient's graph, evaluated with edits, and its nodes in words
- edits: the list of what may stand in place of a right value
- search: tries the edits against what came back; the sentences of a report
"""
