"""The suite on the frameworks themselves: defects that were seen are seen again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradwatch.harness.judging.cases import Trial, trials
from gradwatch.harness.project.requested import by_default
from gradwatch.harness.workers.interpreters import interpreter_of
from gradwatch.impls.catalogue import load_op
from gradwatch.impls.contract import Problem
from tests.agreed import agree
from tests.square import PROBLEM, page

needs_oneflow = pytest.mark.skipif(
    bool(interpreter_of("oneflow").why_missing),
    reason=f"OneFlow: {interpreter_of('oneflow').why_missing}",
)
ALL = [name for name in by_default() if not name.startswith("numpy")] + ["numpy_manual"]


def run(fleet, op, inputs, dy, backends=ALL, dtype="float32", **attributes):
    """Records of one problem of our own on some backends, no outcome announced."""
    arrays = {name: np.asarray(a, dtype) for name, a in inputs.items()}
    problem = Problem(
        load_op(op), arrays, [np.asarray(dy, dtype)], attributes, dtype=dtype
    )
    trial = Trial(op, "own", "normal", problem)
    return agree([trial], backends, entries=(), fleet=fleet)


def batch_norm(fleet, x, dy, dtype, backends=ALL):
    """Training mode on one channel."""
    inputs = {"x": np.reshape(x, (-1, 1)), "weight": [1], "bias": [0]}
    inputs |= {"running_mean": [0], "running_var": [1]}
    settings = {"eps": 1e-5, "momentum": 0.1, "training": True}
    dy = np.reshape(dy, (-1, 1))
    return run(fleet, "batch_norm", inputs, dy, backends, dtype, **settings)


def verdicts(found, tensor):
    records = [r for r in found.records if r.tensor == tensor]
    return {r.backend: r.verdict for r in records}


@needs_oneflow
def test_oneflow_batch_norm_at_100_disagrees_and_is_the_outlier(fleet):
    """Exact dx0 60.567, PyTorch 60.558, OneFlow 23.677 (judging.md, C1)."""
    x = 100 + 0.01 * np.array([0, 1, -1, 2])
    found = batch_norm(fleet, x, [1, 0, 0, 0], "float32")
    assert {b for b, v in verdicts(found, "dx").items() if v == "disagree"} == {
        "oneflow_autograd"
    }
    (record,) = [r for r in found.unexpected if r.tensor == "dx"]
    elsewhere = record.worst_index != [0, 0]
    assert elsewhere or record.expected == pytest.approx(60.567, abs=0.01)
    assert "outlier: oneflow_autograd" in record.message


def test_who_returns_nothing_agrees_with_nobody(fleet, tmp_path):
    """One raises and one lacks the dialect: neither makes the third an outlier."""
    only_numpy = "dy = 3 * dy if isinstance(dy, np.ndarray) else 1 / 0"
    path = page(tmp_path, backward=only_numpy)
    trial = Trial(path, "3", "", replace(PROBLEM, op=load_op(path)))
    backends = ["numpy_manual", "torch_custom", "torch_autograd"]
    found = agree([trial], backends, entries=(), fleet=fleet)
    assert {r.backend: r.verdict for r in found.records if r.tensor != "y"} == dict(
        zip(backends, ("disagree", "error", "unsupported"), strict=True)
    )
    assert not [r for r in found.records if "outlier" in r.message]


@needs_oneflow
@pytest.mark.parametrize(
    "x",
    [1e4 + 0.001 * np.array([0, 1, -1, 2]), 1e-6 * np.array([1, 0, -1, 2])],
    ids=["cancelling variance", "eps rounded to float32"],
)
def test_oneflow_batch_norm_is_not_float64_inside(fleet, x):
    found = batch_norm(fleet, x, [1, 0, 0, 0], "float64")
    wrong = {b for b, v in verdicts(found, "dx").items() if v == "disagree"}
    assert wrong == {"oneflow_autograd"}


@needs_oneflow
def test_oneflow_log_softmax_of_ordinary_logits_agrees(fleet):
    """1e-6 off where PyTorch is not, and still within rounding: ratio below 10."""
    rng = np.random.default_rng(3)
    x, dy = rng.standard_normal((2, 16, 32))
    found = run(fleet, "log_softmax", {"x": 3 * x}, dy, axis=-1)
    assert set(verdicts(found, "dx").values()) == {"agree"}


@needs_oneflow
@pytest.mark.parametrize("op", ["matmul", "softmax", "batch_norm"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_oneflow_lacks_in_half_precision_is_unsupported(fleet, op, dtype):
    """It has no kernels of these for a CPU: no error of the backward."""
    backends = [name for name in ALL if name.startswith("oneflow")]
    chosen = list(trials(load_op(op), regimes=["normal"], dtypes=[dtype]))
    found = agree(chosen, backends, entries=(), fleet=fleet)
    assert {r.verdict for r in found.records} == {"unsupported"}
    assert dtype in found.records[0].message


@needs_oneflow
def test_an_error_in_full_precision_stays_an_error(fleet):
    """OneFlow's linear of one axis: "size mismatch"."""
    found = run(
        fleet, "linear", {"x": [1.0, 2.0], "weight": [[1.0, 1.0]], "bias": [0.0]}, [1.0]
    )
    told = verdicts(found, "y")
    assert told["torch_autograd"] == "agree"
    assert "error" in {r.verdict for r in found.records}


@needs_oneflow
def test_a_view_is_read_from_oneflow_at_its_place(fleet):
    """OneFlow 0.9 forgets where a view begins once it is detached and reshaped."""
    weight = np.arange(12.0).reshape(4, 3)
    problem = Problem(
        load_op("embedding"),
        {"index": np.array(2), "weight": weight},
        [np.ones(3)],
        {"padding": None},
        dtype="float64",
    )
    backends = ["oneflow_custom", "oneflow_formula"]
    trial = Trial("embedding", "own", "normal", problem)
    read = agree([trial], backends, entries=(), fleet=fleet)
    assert verdicts(read, "y") == dict.fromkeys(backends, "agree")


@needs_oneflow
def test_pairs_tell_the_outlier_without_a_reference(fleet):
    x = 100 + 0.01 * np.array([0, 1, -1, 2])
    pairs = batch_norm(fleet, x, [1, 0, 0, 0], "float32").pairs["batch_norm"]
    ratios = {(a, b): r for a, row in pairs.items() for b, r in row.items()}
    limit = 17
    assert all(
        (r > limit) == ("oneflow_autograd" in pair) for pair, r in ratios.items()
    )


def test_every_backend_gets_the_same_bytes_and_is_judged_once(fleet):
    x = np.arange(6.0)
    found = run(fleet, "square", {"x": x}, np.ones(6), ["numpy_manual", "numpy_graph"])
    told = [(r.backend, r.tensor, r.verdict) for r in found.records]
    assert told == [
        (backend, tensor, "agree")
        for backend in ("numpy_graph", "numpy_manual")
        for tensor in ("dx", "y")
    ]


def test_cuda_is_missing_with_a_reason_where_there_is_none(fleet):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    problem = Problem(load_op("square"), {"x": np.ones(3)}, [np.ones(3)])
    trial = Trial("square", "own", "normal", problem)
    found = agree(
        [trial], ["torch_autograd"], devices=("cuda",), entries=(), fleet=fleet
    )
    assert "CUDA" in found.missing["torch_autograd"]
    assert not found.records
