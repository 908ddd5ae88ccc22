"""Workers: runs each framework in a process of its own, and talks to it.

- pythons: which Python runs which framework, and what it has
- process: `Process`: starts, hears and ends a process of ours
- worker: `Worker`: a framework's process that answers requests
- pool: `Fleet` and `sweep`: many tasks on several workers
- messages: `Task` and `Outcome`, and how they are encoded
- arrays: arrays as bytes
- evaluate: forward and backward of one problem, also under stress (in the worker)
- allocator: fixes glibc's allocator, so that times can be compared
"""
