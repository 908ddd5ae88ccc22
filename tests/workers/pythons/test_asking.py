"""What a Python says that it has."""

import importlib.metadata
import sys
from pathlib import Path

from gradwatch.harness.workers.pythons.interpreters import ask

HERE = Path(sys.executable)


def test_frameworks_are_asked_for_together():
    facts = ask(HERE, ["numpy", "torch", "none_such"])
    assert facts.frameworks == ["numpy", "torch"]
    assert facts.numpy == importlib.metadata.version("numpy")
    assert facts.python == sys.version
