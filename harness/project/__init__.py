"""Project: where the checkout is, what git knows about it, and its JSON documents.

- paths: `ROOT`, the folder of the checkout
- git: commits, their order, and their files
- affected: which ops and backends a change of files can affect
- documents: the JSON document that every command writes
- markdown: escapes text for Markdown
"""
