"""Workers: runs each framework in a process of its own, and talks to it.

- interpreters: which Python runs which framework, and whether it has it
- process: `Process`: starts, reads and ends a process of ours; `Child`: a job in one
- worker: `Worker`: a framework's process that answers requests
- fork: `Fork`: a fork of a process, for code of a page; limits of untrusted code
- pool: `Task` and `Outcome`; `Fleet`: many tasks on several workers
- arrays: arrays as bytes
- evaluate: forward and backward of one problem, also under stress (in the worker)
"""
