"""Hosts: sends batches of work to other machines, and puts the answers together.

- identity: what a host runs and offers, and in what it differs from here
- batches: `Batch`, which is names only; how a run is split, and merged again
- host: the far side: judges batches with a fleet that it keeps
- dispatch: `agree_on_hosts`: batches to hosts and back, also where a host is lost
- dask: a Dask cluster as hosts
"""
