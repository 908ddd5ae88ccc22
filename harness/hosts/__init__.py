"""Hosts: sends batches of work to other machines, and puts the answers together.

- identity: what a host runs and offers, and in what it differs from here
- batches: how a run is split into parts that are names only, and merged again
- host: the far side: judges batches with a fleet that it keeps
- dispatch: `agree_on_hosts`: batches to hosts and back, also where a host is lost
- dask: a Dask cluster as hosts
"""
