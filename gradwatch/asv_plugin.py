"""What asv.conf.json names, as ".gradwatch.asv_plugin", in a project of your own."""

from harness.history.asv_environment import setup
from harness.history.asv_page import Dashboard

__all__ = ["Dashboard", "setup"]
