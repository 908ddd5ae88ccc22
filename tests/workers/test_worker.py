"""A worker's process: where it puts what it compiles."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread

import psutil
import pytest

from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.workers.interpreters import interpreter_of
from gradwatch.harness.workers.lifetime import Died
from gradwatch.harness.workers.pool import Task
from gradwatch.harness.workers.worker import Worker
from gradwatch.impls.catalogue import load_op
from tests.pages import plant


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


FORGED = """
    import os, pickle, struct
    said = pickle.dumps({"kind": "result", "faults": [], "nonce": ""}, 4)
    for fd in range(3, 64):
        try:
            if "socket" in os.readlink(f"/proc/self/fd/{fd}"):
                os.write(fd, struct.pack("!i", len(said)) + said)
        except OSError:
            pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_an_answer_that_a_page_writes_is_none(tmp_path):
    forward = "def manual(x):\n"
    page = plant(tmp_path, forward, forward + FORGED)
    op = load_op(page)
    one = trial(op, op.cases["4"], REGIMES["normal"], "float64", 0, page)
    with contextlib.closing(Worker(interpreter_of("numpy"))) as worker:
        payload = Task(one, "numpy_manual").payload()
        with pytest.raises(Died, match="it wrote into the pipe of its process"):
            worker.ask("evaluate", **payload)
        assert worker.process.poll() is not None


KILLED = """
import os, signal, sys
from gradwatch.harness.workers.interpreters import interpreter_of
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
