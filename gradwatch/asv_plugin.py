"""What asv.conf.json names, as ".gradwatch.asv_plugin", in a project of your own."""

from gradwatch.harness.history.asv_environment import setup

__all__ = ["setup"]
