"""Where a GPU may use TF32, and nowhere else, its float32 products are judged so."""

import numpy as np
import pytest

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.precisions import TF32_ROUNDOFF, compute_on
from gradwatch.harness.timing.proof import Judge
from gradwatch.harness.workers.arrays import encoded
from gradwatch.harness.workers.pool import Outcome
from gradwatch.impls.catalogue import load_op
from gradwatch.impls.contract import Problem, Result
from tests.agreed import agree

RNG = np.random.default_rng(7)
A, B, DY = (RNG.uniform(1, 2, (32, 32)).astype("float32") for _ in range(3))
PROBLEM = Problem(load_op("matmul"), {"a": A, "b": B}, [DY], dtype="float32")


def in_tf32(array):
    """Rounded to the digits that enter a TF32 product."""
    significand, exponent = np.frexp(array)
    rounded = np.round(significand / TF32_ROUNDOFF) * TF32_ROUNDOFF
    return np.ldexp(rounded, exponent).astype("float32")


class TF32Fleet:
    """Workers whose products are those of TF32."""

    def run(self, tasks, timeout):
        a, b, dy = map(in_tf32, (A, B, DY))
        gradients = {"da": dy @ b.T, "db": a.T @ dy}
        arrays = {"y": a @ b, **gradients}
        dtypes = {name: str(array.dtype) for name, array in arrays.items()}
        result = Result({"y": a @ b}, gradients, {}, dtypes)
        for task in tasks:
            yield Outcome(task, "result", result=result)


@pytest.mark.parametrize(
    ("allowed", "device", "verdict"),
    [
        ("1", "cuda", "agree"),
        ("0", "cuda", "disagree"),
        ("1", "cpu", "disagree"),  # TF32 is of GPUs
    ],
)
def test_tf32_is_right_on_a_gpu_where_it_is_allowed(
    monkeypatch, allowed, device, verdict
):
    monkeypatch.setenv("GRADWATCH_TF32", allowed)
    trial = Trial("matmul", "own", "normal", PROBLEM)
    agreed = agree(
        [trial], ["torch_autograd"], devices=(device,), entries=(), fleet=TF32Fleet()
    )
    assert {record.verdict for record in agreed.records} == {verdict}
    if verdict == "agree":
        assert {record.compute for record in agreed.records} == {"tf32"}


@pytest.mark.parametrize("allowed", ["0", "1"])
def test_timed_results_are_judged_alike(monkeypatch, allowed):
    monkeypatch.setenv("GRADWATCH_TF32", allowed)
    y = in_tf32(A) @ in_tf32(B)
    kept = {"inputs": 0, "cotangents": 0, "dtypes": {"y": "float32"}}
    kept["tensors"] = encoded({"y": y})
    why = Judge([PROBLEM], "cuda").why_any_wrong({"forward": [kept]})
    assert (why == "") == (allowed == "1")


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_other_precisions_have_no_tf32(monkeypatch, dtype):
    monkeypatch.setenv("GRADWATCH_TF32", "1")
    assert compute_on("cuda", dtype) is None
