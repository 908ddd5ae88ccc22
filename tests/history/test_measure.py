"""A page that nobody can load or judge by is left out of what asv measures."""

import importlib.util
import os
from types import SimpleNamespace

import asv.benchmarks

from gradwatch.benchmarks import recorded
from gradwatch.harness.history import asv_environment
from gradwatch.harness.history.asv_environment import offered
from gradwatch.harness.history.measure import unrunnable
from tests.pages import plant

FORMULA = "def formula(xp, x):\n    "


def test_only_pages_that_cannot_be_run_are_left_out(tmp_path):
    bad = {
        "import numpy as np": ("import os\nos._exit(0)", "crash: "),
        FORMULA: (f"{FORMULA}raise SystemExit(0)\n    ", "error: SystemExit"),
    }
    pages = {}
    for i, (old, (new, why)) in enumerate(bad.items()):
        (tmp_path / str(i)).mkdir()
        pages[plant(tmp_path / str(i), old, new)] = why
    right = plant(tmp_path)
    failed = unrunnable([*pages, right, "square"])
    assert failed.keys() == pages.keys()
    assert all(failed[page].startswith(why) for page, why in pages.items())


def test_the_processes_that_asv_starts_are_told(monkeypatch, caplog):
    """asv's own discovery, which would measure, is played."""
    for name in ("ASV_LEFT_OUT", "ASV_OFFERED", "ASV_OPS"):
        monkeypatch.setenv(name, "")
    played = classmethod(lambda cls, conf, regex, check: {})
    monkeypatch.setattr(asv.benchmarks.Benchmarks, "discover", played)
    crashed = {"cube": "crash: exited with status 0"}
    monkeypatch.setattr(asv_environment, "unrunnable", lambda ops: crashed)
    asv_environment._choose_by_default()
    asv.benchmarks.Benchmarks.discover(SimpleNamespace(matrix={}, include=[]))
    assert "cube is left out: crash" in caplog.text
    assert os.environ["ASV_LEFT_OUT"] == "cube"


def test_only_frameworks_of_the_configured_environments_have_rows(monkeypatch):
    """asv would show all others as n/a, at every commit."""
    include = [{"req": {"oneflow": "0.9.0", "numpy": "1.26.4"}}, {"python": "3.11"}]
    conf = SimpleNamespace(matrix={"req": {"torch": ["2.13.0"]}}, include=include)
    assert offered(conf) == {"numpy", "torch", "oneflow"}
    monkeypatch.setenv("ASV_OFFERED", "numpy torch")
    spec = importlib.util.spec_from_file_location("again", recorded.__file__)
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    families = {name.partition("_")[0] for name in again.BACKENDS}
    assert families == {"numpy", "torch"}
    assert {*again.BACKENDS} < {*recorded.BACKENDS}
