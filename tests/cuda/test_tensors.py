"""Graphs on a GPU: values, errors and draws are those of NumPy."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from gradwatch.impls.graph.tensors import _UFUNCS, put  # noqa: E402  # PyTorch is optional
from tests.judging.test_tensors import require_the_same  # noqa: E402  # PyTorch is optional
from tests.primitives import ALL  # noqa: E402  # likewise

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("name", ALL)
def test_a_primitive_is_the_same_on_a_gpu(name):
    require_the_same(name, "cuda")


BINARY = [u for u in _UFUNCS if u.nin == 2 and u is not np.matmul]


@pytest.mark.parametrize("ufunc", BINARY, ids=lambda u: u.__name__)
def test_a_function_takes_a_single_number_beside_a_tensor(ufunc):
    whole = "bitwise" in ufunc.__name__
    x = np.arange(1, 4) if whole else np.arange(1.0, 4)
    one = 2 if whole or ufunc is np.ldexp else np.float64(2)
    there = put(x, "cuda")
    np.testing.assert_allclose(np.asarray(ufunc(there, one)), ufunc(x, one), 1e-15)
    if ufunc is not np.ldexp:
        np.testing.assert_allclose(np.asarray(ufunc(one, there)), ufunc(one, x), 1e-15)
