"""Commands: one file for each command of `gradwatch`, named as the command is.

A file defines `command`, a click command; `harness.__main__` finds it by its name and
imports it only when it is called. Files whose names begin with "_" are not commands.
"""
