"""Project: where the checkout is, what git knows about it, and its JSON documents.

- paths: `ROOT`, the project that is worked on, and what other interpreters import
- git: commits, their order, and their files
- lock: one run at a time; removes what killed runs left
- requested: which backends run, by default and of what a change touches
- traits: what is peculiar about a framework, as its file says
- documents: the JSON document that every command writes; the newest, merged
- machines: the name of this machine
- records: the types of all records and summaries
- verdicts: the names of the verdicts
- markdown: escapes text for Markdown
- descent: shrinks an input as long as it still fails
"""
