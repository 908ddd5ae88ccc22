"""A worked example runs on every backend, in its own interpreter, in both float types.

A test narrows that down by parametrizing `backend` or `dtype` itself.
"""

import numpy as np
import pytest

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.workers.pool import Task
from gradwatch.impls.catalogue import load_op
from gradwatch.impls.contract import Problem
from tests.frameworks import ON_EVERY_PAGE


@pytest.fixture(params=ON_EVERY_PAGE)
def backend(request):
    return request.param


@pytest.fixture
def device():
    return "cpu"


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    return request.param


@pytest.fixture
def run(fleet, backend, device, dtype):
    """A function that runs an op, or skips with the reason why that cannot be."""

    def run(op, inputs, *dy, aliases=None, **attributes):
        problem = Problem(
            load_op(op),
            {name: np.asarray(value, dtype) for name, value in inputs.items()},
            [None if c is None else np.asarray(c, dtype) for c in dy or (1.0,)],
            attributes,
            aliases or {},
            dtype,
            device,
        )
        (outcome,) = fleet.run([Task(Trial(op, "", "", problem), backend, device)])
        if outcome.kind == "missing":
            pytest.skip(outcome.message)
        assert outcome.kind == "result", outcome.message
        return outcome.result

    return run
