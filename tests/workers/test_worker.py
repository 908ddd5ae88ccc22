"""A worker's process: where it puts what it compiles."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread

import psutil

from gradwatch.harness.workers.pythons.interpreters import interpreter_of
from gradwatch.harness.workers.worker import Worker


def environment_of(worker):
    """What it was started with; for a moment nothing can be read of it."""
    until = time.monotonic() + 10
    while not (found := psutil.Process(worker.process.pid).environ()):
        assert time.monotonic() < until
        time.sleep(0.01)
    return found


def test_what_a_worker_compiles_has_a_folder_that_goes_with_the_worker():
    worker = Worker(interpreter_of("torch"))
    try:
        folder = Path(environment_of(worker)["TORCHINDUCTOR_CACHE_DIR"])
        folder.mkdir()  # fails for one that another has used
        (folder / "a.so").touch()
    finally:
        worker.close()
    assert not folder.exists()


KILLED = """
import os, signal, sys
from gradwatch.harness.workers.pythons.interpreters import interpreter_of
from gradwatch.harness.workers.worker import Worker
worker = Worker(interpreter_of("torch"))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_folder_of_a_killed_runs_worker_goes_when_the_next_one_starts(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    temporary = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", KILLED], env=temporary)
    (left,) = tmp_path.iterdir()
    (left / "a.so").touch()
    workers = [Worker(interpreter_of("torch")) for _ in range(2)]
    assert len([*tmp_path.iterdir()]) == 2
    assert not left.exists()
    closing = Thread(target=workers[0].close)  # not the thread that started it
    closing.start()
    closing.join()
    workers[1].close()
    assert not [*tmp_path.iterdir()]
