"""No process of ours outlives its parent, whenever that ends."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.workers import lifetime

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="others end when they are idle"
)

#: Starts a child with the code of an argument, says its number, and waits for it.
PARENT = """
import subprocess, sys
from gradwatch.harness.workers.lifetime import first_line, with_this_process
nap = "import time; time.sleep(60)"
def asvs():
    from gradwatch.harness.history.asv_environment import Prebuilt
    environment = object.__new__(Prebuilt)
    environment.run_executable = lambda _, call: subprocess.Popen(
        [sys.executable, *call]
    )
    return environment.run([sys.argv[2]])
how = {
    "asv": asvs,
    "first line": lambda: subprocess.Popen([sys.executable, "-c", first_line() + nap]),
    "preexec_fn": lambda: subprocess.Popen(
        [sys.executable, "-c", nap], preexec_fn=with_this_process()
    ),
}
child = how[sys.argv[1]]()
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.parametrize("way", ["first line", "asv", "preexec_fn"])
def test_a_child_ends_with_a_parent_that_is_killed(tmp_path, way):
    nap = tmp_path / "nap.py"
    nap.write_text("import time\ntime.sleep(60)\n")
    call = [sys.executable, "-c", PARENT, way, str(nap)]
    with subprocess.Popen(call, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    _, alive = psutil.wait_procs([child], timeout=20)
    assert not alive


def test_a_child_whose_parent_has_ended_already_ends_at_once():
    code = f"{lifetime.CODE}\ndie_with_parent({os.getpid()})\n"
    code += "print('with it', flush=True)\ndie_with_parent(1 << 30)\nprint('goes on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "with it\n")
