"""Ctrl-C before there is a command to interrupt."""

import subprocess
import sys

import pytest

from gradwatch.harness.project.paths import ROOT

#: Presses Ctrl-C while that module is imported.
PRESSED = """
import sys

class Pressed:
    def find_spec(self, name, *_):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Pressed())
sys.argv = ["gradwatch", "watch"]
from gradwatch.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["gradwatch.harness.__main__", "click", "msgspec"])
def test_ctrl_c_while_modules_are_imported_is_one_line(module):
    done = subprocess.run(
        [sys.executable, "-c", PRESSED.format(module=module)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (130, "gradwatch: interrupted\n")
