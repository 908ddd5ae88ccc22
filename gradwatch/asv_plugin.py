"""The plugin for asv.conf.json, as ".gradwatch.asv_plugin", in your own project."""

from gradwatch.harness.history.asv_environment import setup

__all__ = ["setup"]
