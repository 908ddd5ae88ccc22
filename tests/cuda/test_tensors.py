"""Graphs on a GPU: values, errors and draws are those of NumPy."""

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from tests.judging.test_tensors import require_the_same  # noqa: E402  # PyTorch is optional
from tests.primitives import ALL  # noqa: E402  # likewise

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("name", ALL)
def test_a_primitive_is_the_same_on_a_gpu(name):
    require_the_same(name, "cuda")
