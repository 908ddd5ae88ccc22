"""What asv.conf.json names, as ".gradwatch.asv_plugin", in a project of your own."""

from gradwatch.harness.history.asv_environment import setup
from gradwatch.harness.history.asv_page import Dashboard

__all__ = ["Dashboard", "setup"]
