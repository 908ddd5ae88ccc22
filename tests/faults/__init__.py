"""A campaign of faults from a seed: nothing may be lost, and nothing green by accident.

    python -m tests.faults --faults 500 --seed 1

- campaign: kinds of faults, what each of them may cost, the table
- documents: every reader, with documents that are mutated
- pages: op pages that exit, hang, crash or raise, beside a right one
- disks: writers on a disk that is full or cannot be written
- kills: every command, with a process of it killed at a random moment
- project: the small repository that the commands work on
"""
