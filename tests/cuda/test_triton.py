"""Kernels in Triton are judged on a GPU: right ones pass, planted mistakes do not."""

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU, and Triton", allow_module_level=True)

from gradwatch import check  # noqa: E402  # PyTorch is optional
from tests.cuda.sizes import KERNELS, planted  # noqa: E402  # Triton is, too

pytestmark = pytest.mark.cuda

SMALL = {
    "softmax": ["33x1025"],
    "layer_norm": ["65x257", "257", "257"],
    "attention": ["1x2x129x=32"] * 3,
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_right_kernel_passes(name, dtype):
    reference, kernel, _ = KERNELS[name]
    report = check(reference, kernel, shapes=SMALL[name], dtypes=dtype, device="cuda")
    report.assert_ok()


@pytest.mark.parametrize("mistake", ["a tail", "a factor", "a zero"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_mistake_in_its_gradient_is_found(name, mistake):
    reference, kernel, _ = KERNELS[name]
    report = check(
        reference,
        planted(kernel, mistake),
        shapes=SMALL[name],
        quick=True,
        device="cuda",
    )
    assert not report.passes
    assert {row.judgement.tensor[0] for row in report.failures} == {"d"}
