"""Findings in PyTorch: a script each, which exits 1 while the defect is there."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parent.parent.parent
FIRST = sorted((ROOT / "results" / "pytorch").glob("*.py"))
SECOND = sorted((ROOT / "results" / "pytorch" / "second").glob("*.py"))
SCRIPTS = FIRST + SECOND
#: Processors where a defect is one of their instructions: AMX has others.
CAPABLE = torch.backends.cpu.get_cpu_capability() == "AVX512"
THERE = {"conv3d": CAPABLE and not torch.cpu._is_amx_tile_supported()}
KNOWN = ("hardsigmoid", "trigamma", "expm1", "as_strided_scatter", "max_unpool")


def test_the_defects_that_were_known_are_there():
    assert {*KNOWN} <= {script.stem for script in SCRIPTS}


#: Imports PyTorch once: each script that is asked for runs in a fork, as its own main
#: program.
RUN = """
import json, os, runpy, sys, tempfile, traceback
import numpy, torch

def run(script, out, err):
    os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
    sys.argv, sys.stdout, sys.stderr = [script], out, err
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 3
    finally:
        out.flush(), err.flush()
        os._exit(code)

for line in sys.stdin:
    script = line.strip()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            run(script, out, err)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0), err.seek(0)
        print(json.dumps((code, out.read(), err.read())), flush=True)
"""


@pytest.fixture(scope="module")
def run():
    """Runs a script: its exit code, standard output and standard error."""
    call, pipes = [sys.executable, "-c", RUN], {"stdin": PIPE, "stdout": PIPE}
    with subprocess.Popen(call, text=True, **pipes) as process:

        def told(script):
            print(script, file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        yield told


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="recorded with PyTorch 2.13"
)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: f"{s.parent.name}-{s.stem}")
def test_a_finding_holds(run, script):
    """Where it has gone, PyTorch has mended it: take the script away."""
    if not THERE.get(script.stem, True):
        pytest.skip("there with AVX512 and without AMX alone")
    code, told, complaints = run(script)
    assert code == 1, told + complaints
    assert complaints == ""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: f"{s.parent.name}-{s.stem}")
def test_a_finding_needs_pytorch_and_numpy_alone(script):
    nodes = list(ast.walk(ast.parse(script.read_text())))
    names = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    names += [n.module for n in nodes if isinstance(n, ast.ImportFrom)]
    assert {name.partition(".")[0] for name in names} <= {
        *("subprocess", "sys", "warnings"),
        *("numpy", "torch"),
    }


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: f"{s.parent.name}-{s.stem}")
def test_a_finding_is_on_its_page(script):
    page = ROOT / "docs" / ("pytorch.md" if script in FIRST else "second-order.md")
    assert str(script.relative_to(ROOT)) in page.read_text()
