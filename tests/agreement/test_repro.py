"""The script of a finding calls wrong what the judge calls wrong."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import fields

from gradwatch.harness.agreement.store import repro
from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.workers.interpreters import interpreter_of
from gradwatch.impls.catalogue import load_op
from tests.frameworks import usable
from tests.pages import plant

LARGEST = {"float32": 1e20, "float64": 1e200}  # whose cubes are beyond the range

_REQUIRED = [one.name for one in fields(AgreeRecord) if one.required]
_PLACE = [name for name in _REQUIRED if name not in ("tensor", "verdict")]


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize(
    ("y", "code"),
    [
        ("x**3", 0),
        ("np.where(np.isinf(x**3), np.nan, x**3).astype(x.dtype)", 1),
        ("np.minimum(x**3, np.finfo(x.dtype).max).astype(x.dtype)", 1),
        ("-(x**3)", 1),
    ],
)
def test_an_infinity_that_is_due_is_looked_for(tmp_path, dtype, y, code):
    page = plant(tmp_path, "return x**3, lambda", f"return {y}, lambda")
    op = load_op(page)
    drawn = trial(op, op.cases["4"], REGIMES["normal"], dtype, source=page)
    x = np.array([2.0, LARGEST[dtype], np.inf, 0.0], dtype)
    drawn = replace(drawn, problem=replace(drawn.problem, inputs={"x": x}))
    right = reference(drawn.problem)
    facts = dict.fromkeys(_PLACE, "")
    record = AgreeRecord(**facts, tensor="y", verdict="nonfinite", limit=right.limit)
    script = tmp_path / "repro.py"
    script.write_text(repro(drawn, "numpy_manual", record, "a headline", right))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stdout


#: By backend: what is wrong on its page, and the tensor that is wrong for it.
TORCH = {
    "torch_autograd": ("return x**3\n", "return x**3 + x.detach()\n", "y"),
    "torch_custom": ("return 3 * x * x * dy", "return 4 * x * x * dy", "dx"),
    "torch_formula": ("x * x * x\n", "x * x * x + 0.0 * x\n", "y"),
}

#: Runs scripts where nothing of ours can be imported, and says how each has ended.
#: One process for all of them: PyTorch's import takes seconds.
RUN = """
import json, runpy, sys
sys.modules.update(dict.fromkeys(("harness", "impls", "gradwatch")))
def code(script):
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return end.code
print(json.dumps([code(script) for script in sys.argv[1:]]))
"""


def test_scripts_for_pytorch_need_only_pytorch(tmp_path):
    pytest.importorskip("torch")
    scripts = []
    for backend, (old, new, tensor) in TORCH.items():
        page = plant(tmp_path, old, new)
        op = load_op(page)
        drawn = trial(op, op.cases["4"], REGIMES["normal"], "float32", source=page)
        right = reference(drawn.problem)
        facts = dict.fromkeys(_PLACE, "")
        limit = right.limit if backend != "torch_formula" else 0.0  # rounding is wrong
        record = AgreeRecord(**facts, tensor=tensor, verdict="disagree", limit=limit)
        scripts.append(tmp_path / f"{backend}.py")
        scripts[-1].write_text(repro(drawn, backend, record, "a headline", right))
        assert "impls" not in scripts[-1].read_text()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN, *map(str, scripts)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert json.loads(done.stdout.splitlines()[-1]) == [1] * len(scripts)


def test_the_script_of_a_compiled_backend_compiles_the_page_s_own_call():
    op = load_op("elu")
    drawn = trial(op, op.cases["7"], REGIMES["normal"], "float32")
    facts = dict.fromkeys(_PLACE, "")
    record = AgreeRecord(**facts, tensor="y", verdict="disagree", limit=16.5)
    right = reference(drawn.problem)
    plain, compiled = (
        repro(drawn, f"torch_{flavour}", record, "a headline", right).splitlines()
        for flavour in ("autograd", "compile")
    )
    assert "y = torch.nn.functional.elu(x, 1.0)" in plain
    assert [line.strip() for line in compiled if line not in plain] == [
        "@torch.compile(fullgraph=True, dynamic=False)",
        "def call(x):",
        "return torch.nn.functional.elu(x, 1.0)",
        "y = call(x)",
    ]


@pytest.mark.parametrize("backend", ["jax_formula", "jax_custom"])
@pytest.mark.parametrize(("limit", "code"), [(16.5, 0), (0.0, 1)])
def test_a_script_has_all_names_that_its_framework_gives_a_page(
    tmp_path, backend, limit, code
):
    """GELU calls erf, which the doors add to the other names by |=."""
    usable("jax")
    op = load_op("gelu")
    drawn = trial(op, next(iter(op.cases.values())), REGIMES["normal"], "float32")
    facts = dict.fromkeys(_PLACE, "")
    record = AgreeRecord(**facts, tensor="dx", verdict="disagree", limit=limit)
    script = tmp_path / "repro.py"
    right = reference(drawn.problem)
    script.write_text(repro(drawn, backend, record, "a headline", right))
    called = [interpreter_of("jax").python, script]
    done = subprocess.run(called, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
