"""Workers: runs each framework in a process of its own, and talks to it.

- pythons: which Python runs which framework, and what it has
- process: `Worker`: starts, asks and ends one process
- client: `Line`: a worker that gets one request at a time
- pool: `Fleet` and `sweep`: many tasks on several workers, each a `Lane`
- messages: `Task` and `Outcome`, and how they are encoded
- arrays: arrays as bytes
- evaluate: forward and backward of one problem (runs in the worker)
- stress: the same in the ways that catch kernels: two graphs alive, frozen inputs
- allocator: fixes glibc's allocator, so that times can be compared
"""
