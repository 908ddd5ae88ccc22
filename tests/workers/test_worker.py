"""A worker's process: where it puts what it compiles."""

from pathlib import Path
from queue import SimpleQueue

import psutil

from gradwatch.harness.workers.pythons.interpreters import interpreter_of
from gradwatch.harness.workers.worker import Worker


def test_what_a_worker_compiles_has_a_folder_that_goes_with_the_worker():
    worker = Worker(interpreter_of("numpy"), SimpleQueue())
    try:
        environment = psutil.Process(worker.process.pid).environ()
        folder = Path(environment["TORCHINDUCTOR_CACHE_DIR"])
        folder.mkdir()  # fails for one that another has used
        (folder / "a.so").touch()
    finally:
        worker.close()
    assert not folder.exists()
