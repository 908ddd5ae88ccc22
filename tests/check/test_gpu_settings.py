"""What `check` sets for a GPU, and that the caller's settings come back."""

import contextlib

import pytest

torch = pytest.importorskip("torch")

from gradwatch.harness.check.entry import Session  # noqa: E402  # likewise
from gradwatch.harness.check.frameworks.pytorch import _products_on_a_gpu  # noqa: E402  # PyTorch is optional
from gradwatch.impls.backends._torch_products import product_settings  # noqa: E402  # likewise

REDUCED = [f"allow_{name}_reduced_precision_reduction" for name in ("fp16", "bf16")]


def asked(get):
    try:
        return get()
    except RuntimeError:  # the two interfaces contradict each other
        return "contradictory"


def settings():
    cuda, cudnn, mkldnn = (
        getattr(torch.backends, name) for name in ("cuda", "cudnn", "mkldnn")
    )
    kinds = (cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv)
    return [
        *(asked(lambda kind=kind: kind.fp32_precision) for kind in kinds),
        *(asked(lambda part=part: part.allow_tf32) for part in (cuda.matmul, cudnn)),
        *(getattr(cuda.matmul, name) for name in REDUCED),
        asked(torch.get_float32_matmul_precision),
    ]


def high():
    torch.set_float32_matmul_precision("high")


def new_interface_alone():
    torch.backends.cuda.matmul.fp32_precision = "tf32"


@pytest.fixture
def kept():
    """The settings as they are, and again after the test."""
    before = [(o, name, getattr(o, name)) for o, name, _ in product_settings(False)]
    yield
    torch.set_float32_matmul_precision("highest")
    for owner, name, old in before:
        setattr(owner, name, old)


@pytest.mark.parametrize("changed", [lambda: None, high, new_interface_alone])
@pytest.mark.parametrize("compute", [None, "tf32"])
def test_tf32_is_there_where_it_is_asked_for_and_the_callers_settings_come_back(
    kept, changed, compute
):
    changed()
    before = settings()
    with contextlib.suppress(KeyError), _products_on_a_gpu("cuda", compute):
        products, convolutions, *_ = settings()
        allowed = compute == "tf32"
        assert {products, convolutions} == {"tf32" if allowed else "ieee"}
        assert torch.backends.cuda.matmul.allow_tf32 == allowed
        assert torch.backends.cudnn.allow_tf32 == allowed
        assert not any(getattr(torch.backends.cuda.matmul, n) for n in REDUCED)
        torch.get_float32_matmul_precision()  # compilers ask it
        raise KeyError
    # A contradiction of the two interfaces may be gone, with the new one as it was.
    pairs = zip(settings(), before, strict=True)
    assert all(old in (now, "contradictory") for now, old in pairs)


def test_a_check_on_a_gpu_runs_so_and_one_on_the_cpu_is_left_alone(kept, monkeypatch):
    seen = []

    def trials(self, *given):
        seen.append(torch.backends.cudnn.allow_tf32)
        return iter(())

    monkeypatch.setattr(Session, "_trials", trials)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.random, "fork_rng", contextlib.nullcontext)
    torch.backends.cudnn.allow_tf32 = True
    for device in ("cuda", "cpu"):
        Session(torch.sin, None, device).run(shapes=["3"])
    assert seen == [False, True]
