"""Project: where the checkout is, what git knows about it, and its JSON documents.

- paths: `ROOT`, the folder of the project, and the imports of other interpreters;
  one run at a time; removes the files of killed runs
- git: commits, their order, and their files
- requested: which backends run, by default and after a change
- traits: the peculiarities of a framework, as its file declares them
- documents: the JSON document that every command writes; the newest, merged
- machines: the name of this machine
- records: the types of all records and summaries
- verdicts: the names of the verdicts
- markdown: escapes text for Markdown
- descent: shrinks an input as long as it still fails
"""
