"""A step in a finer type than the inputs' is rounded to its own type, not to theirs."""

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402, N812  # after importorskip

from gradwatch.harness.check import check  # noqa: E402  # likewise

SEED = torch.Generator().manual_seed(0)
TYPES = ("bfloat16", "float16")


def drawn(dtype, *shape):
    return torch.randn(shape, generator=SEED).to(getattr(torch, dtype))


def rotated(q, turn=1.0):
    """Rotary embeddings at positions from 2000 on: in bfloat16 all are the same."""
    position = torch.arange(2000, 2000 + q.shape[-2])[:, None].float()
    angle = position * 10000.0 ** (-torch.arange(4) / 4)
    c, s = angle.cos().to(q.dtype), angle.sin().to(q.dtype) * turn
    a, b = q[..., :4], q[..., 4:]
    return torch.cat((a * c - b * s, b * c + a * s), -1)


class TurnedBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q):
        return rotated(q)

    @staticmethod
    def backward(ctx, dy):
        return rotated(dy)  # rotated(dy, -1.0) is right


@pytest.mark.parametrize("dtype", TYPES)
def test_angles_in_float32_hide_no_rotation(dtype):
    q = drawn(dtype, 2, 6, 8)
    found = check(rotated, None, [q])
    assert found.passes, str(found)
    assert not any(j.verdict == "vacuous" for j in found), str(found)
    assert not check(rotated, TurnedBack.apply, [q], quick=True).passes


def wave(x):
    return torch.sin(300.0 * x.float()).to(x.dtype)


class Wave(torch.autograd.Function):
    """The slope, times a factor, of an argument that is rounded to a type."""

    factor, rounded = 1.0, torch.float32

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return wave(x)

    @classmethod
    def backward(cls, ctx, dy):
        (x,) = ctx.saved_tensors
        slope = torch.cos((300.0 * x.float()).to(Wave.rounded).float())
        return (dy.float() * slope * (300.0 * Wave.factor)).to(dy.dtype)


@pytest.mark.parametrize(
    ("changed", "right"),
    [
        ({}, True),
        ({"factor": 0.0}, False),
        ({"factor": -1.0}, False),
        ({"factor": 1.2}, False),
        ({"rounded": torch.bfloat16}, False),
    ],
)
def test_a_step_in_float32_excuses_no_rounding_to_16_bits(changed, right, monkeypatch):
    for name, value in changed.items():
        monkeypatch.setattr(Wave, name, value)
    found = check(wave, Wave.apply, [drawn("bfloat16", 8, 9)], quick=True)
    assert found.passes is right, str(found)


@pytest.mark.parametrize("size", [(4, 9), (64, 1024)])  # in full, and as a large one
def test_a_cotangent_is_rounded_where_it_leaves_the_finer_type(size):
    def loss(x):
        return (x.float() * x.float().softmax(-1)).sum(-1)

    x = drawn("bfloat16", *size)
    assert check(loss, None, [x], quick=True).passes
    halved = check(loss, lambda x: loss(x) / 2 + loss(x).detach() / 2, [x], quick=True)
    assert not halved.passes


def by_hand(x, w, b):
    centred = x - x.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    return centred * scale * w + b


def layer_norm(x, w, b):
    return F.layer_norm(x, x.shape[-1:], w, b)


def test_what_an_operator_does_inside_is_its_own_affair():
    """PyTorch's formula of a layer norm has steps in float32: an implementation's."""
    given = [drawn("bfloat16", *shape) for shape in ((8, 64), (64,), (64,))]
    found = check(layer_norm, by_hand, given, quick=True)
    assert {j.verdict for j in found} == {"agree"}, str(found)


def test_float64_steps_of_a_float32_function_are_finer():
    def differences(x):
        total = x.double().exp().cumsum(-1)
        return (total[:, 1:] - total[:, :-1]).log().float()

    found = check(differences, None, [8 * drawn("float32", 4, 40)], quick=True)
    assert found.passes, str(found)
    assert not any(j.verdict == "vacuous" for j in found), str(found)
    lossy = check(
        differences,
        lambda x: differences(x.half().float()),
        quick=True,
        inputs=[8 * drawn("float32", 4, 40)],
    )
    assert not lossy.passes
