"""Functions of complex numbers: right ones pass, and known mistakes are caught."""

import runpy

import pytest

torch = pytest.importorskip("torch")
from torch import fft  # noqa: E402  # after importorskip

import gradwatch  # noqa: E402  # likewise
from gradwatch import check  # noqa: E402  # likewise
from gradwatch.harness.check.frameworks.loop import packed  # noqa: E402  # likewise
from gradwatch.harness.check.subjects.apart import unpacked  # noqa: E402  # likewise


def own(forward, backward):
    """A Function of a forward, and of a backward that gets dy and the inputs."""

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            ctx.save_for_backward(*inputs)
            return forward(*inputs)

        @staticmethod
        def backward(ctx, dy):
            return backward(dy, *ctx.saved_tensors)

    return Own.apply


def conj(z, right=True):
    return z.conj() if right else z


def middle(n):
    """The bins of which half a spectrum of length n holds one for two."""
    return slice(1, (n + 1) // 2)


def squares(right=True, factor=2):
    return own(
        lambda z: (z * z.conj()).real, lambda dy, z: factor * dy * conj(z, not right)
    )


def product(right=True):
    return own(torch.mul, lambda dy, a, b: (dy * conj(b, right), dy * a.conj()))


def quotient(right=True):
    return own(
        torch.div, lambda dy, a, b: (dy / b.conj(), -dy * conj(a / b / b, right))
    )


def matrices(right=True):
    return own(
        torch.matmul, lambda dy, a, b: (dy @ b.mH, (a.mH if right else a.mT) @ dy)
    )


def polar(right=True):
    def backward(dy, size, angle):
        turned = dy.conj() * torch.polar(torch.ones_like(size), angle)
        slope = (turned * size * 1j).real
        return turned.real, slope if right else -slope

    return own(torch.polar, backward)


def pairs(x):
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())


def rotated(x, angle):
    turn = torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(pairs(x) * turn).flatten(-2)


def rotary(right=True):
    """Rotary embedding, whose backward turns the other way."""

    def backward(dy, x, angle):
        slope = pairs(rotated(x, angle)) * 1j
        by_angle = (pairs(dy) * slope.conj()).real.sum(0)
        return rotated(dy, -angle if right else angle), by_angle

    return own(rotated, backward)


def rfft(n, bins=True, size=True):
    def backward(dy, x):
        dy = dy.clone()
        dy[..., middle(n)] /= 2 if bins else 1
        return fft.irfft(dy, n=n) * (n if size else 1)

    return own(fft.rfft, backward)


def irfft(n, bins=True, size=True, right=True):
    def backward(dy, z):
        dz = fft.rfft(dy) / (n if size else 1)
        dz[..., middle(n)] *= 2 if bins else 1
        return dz if right else dz.conj().resolve_conj()

    return own(lambda z: fft.irfft(z, n=n), backward)


NORMS = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def whole(norm, right=True, back=None):
    """The transform, whose transpose is the inverse with the other norm."""
    inverse = fft.ifft if right else fft.fft
    return own(
        lambda z: fft.fft(z, norm=norm),
        lambda dy, z: inverse(dy, norm=back or NORMS[norm]),
    )


def convolved(x, kernel):
    n = x.shape[-1] + kernel.shape[-1] - 1
    return fft.irfft(fft.rfft(x, n=n) * fft.rfft(kernel, n=n), n=n)


def convolution(right=True):
    def backward(dy, x, kernel):
        n = dy.shape[-1]
        lines = fft.rfft(dy)
        dx = fft.irfft(lines * conj(fft.rfft(kernel, n=n), right), n=n)
        dkernel = fft.irfft(lines * fft.rfft(x, n=n).conj(), n=n).sum(0)
        return dx[..., : x.shape[-1]], dkernel[..., : kernel.shape[-1]]

    return own(convolved, backward)


def spectral(x, y):
    a, b = fft.rfft(x), fft.rfft(y)
    turns = 1 - torch.cos(a.angle() - b.angle())
    return (a.abs() - b.abs()).square().mean() + turns.mean()


# Inputs, what is right, and what is planted.
Z, PAIR = ["5x6:complex"], ["5x6:complex"] * 2
JUDGED = {
    "squares": (Z, squares(), {"conj": squares(right=False), "2": squares(factor=1)}),
    "product": (PAIR, product(), {"conj": product(right=False)}),
    "quotient": (PAIR, quotient(), {"conj": quotient(right=False)}),
    "matrices": (
        ["5x6:complex", "6x3:complex"],
        matrices(),
        {"conj": matrices(right=False)},
    ),
    "polar": (["5x6", "5x6"], polar(), {"sign": polar(right=False)}),
    "rotary": (["2x3x=8", "3x=4"], rotary(), {"sign": rotary(right=False)}),
    "convolution": (["3x16", "5"], convolution(), {"conj": convolution(right=False)}),
    "spectral loss": (["4x16", "4x16"], spectral, {}),
}
for n in (7, 8):
    JUDGED[f"rfft {n}"] = (
        [f"3x={n}"],
        rfft(n),
        {"bins": rfft(n, bins=False), "n": rfft(n, size=False)},
    )
    JUDGED[f"irfft {n}"] = (
        [f"3x={n // 2 + 1}:complex"],
        irfft(n),
        {
            "bins": irfft(n, bins=False),
            "1 / n": irfft(n, size=False),
            "sign": irfft(n, right=False),
        },
    )
    for norm in NORMS:
        JUDGED[f"fft {n} {norm}"] = (
            [f"3x={n}:complex"],
            whole(norm),
            {"direction": whole(norm, right=False), "norm": whole(norm, back=norm)},
        )
    del JUDGED[f"fft {n} ortho"][2]["norm"]  # which is the same
PLANTED = [(name, mistake) for name, (*_, wrong) in JUDGED.items() for mistake in wrong]


@pytest.mark.parametrize("name", JUDGED)
def test_what_is_right_passes_in_every_regime(name):
    shapes, right, _ = JUDGED[name]
    report = check(right, shapes=shapes, edges="skip")
    assert report.passes, str(report)


@pytest.mark.usefixtures("undiagnosed")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "mistake"), PLANTED)
def test_a_known_mistake_is_caught_at_the_first_numbers(name, mistake, dtype):
    shapes, _, wrong = JUDGED[name]
    report = check(wrong[mistake], shapes=shapes, dtypes=[dtype], quick=True)
    assert {row.judgement.verdict for row in report.failures} == {"disagree"}


@pytest.mark.parametrize("order", ["jvp", "hvp"])
@pytest.mark.parametrize("function", ["exp", "abs", "tanh"])
def test_second_order_and_forward_mode_are_judged(function, order):
    report = check(getattr(torch, function), shapes=Z, order=order, quick=True)
    assert report.passes, str(report)


FUNCTIONS = ("abs", "angle", "exp", "log", "sgn", "sin", "sqrt", "tanh")


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_pytorch_s_functions_pass_in_every_regime(name, dtype):
    """Also where a square, an exponential or its derivative leaves the range."""
    function = getattr(torch, name)
    report = check(function, shapes=["5x6"], dtypes=[dtype], edges="skip")
    assert report.passes, str(report)


AT_ZERO = {
    "1 / |z|": (lambda z: 1 / z.abs(), Z),
    "a power": (lambda z, w: z**w, PAIR),
    "a root": (lambda z: z**0.3, Z),
}


@pytest.mark.parametrize("name", AT_ZERO)
def test_what_has_no_slope_at_0_is_not_judged_there(name):
    function, shapes = AT_ZERO[name]
    report = check(function, shapes=shapes, only=["ties", "zeros"])
    assert report.passes, str(report)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("off", "right"), [(1e-8, True), (3, False)])
def test_one_bin_of_a_long_transform_is_judged(dtype, off, right):
    """`off` is counted in units of the least that the bound of a sum let pass."""
    n = 4096
    scale = {"float32": 2e-4, "float64": 4e-13}[dtype]

    def changed(z):
        factor = torch.ones(n, dtype=z.real.dtype)
        factor[5] += off * scale
        return fft.fft(z) * factor

    report = check(
        fft.fft, changed, shapes=["4096:complex"], dtypes=[dtype], quick=True
    )
    assert report.passes == right, str(report)


def test_a_sigmoid_is_0_where_an_exponential_overflows():
    """PyTorch's is nan there: results/pytorch/sigmoid.py."""
    z = torch.tensor([1j, -1000 + 1j]).repeat_interleave(16)

    def right(z):
        return torch.exp(z) / (1 + torch.exp(z))

    assert check(torch.sigmoid, right, inputs=[z], quick=True).passes
    assert not check(torch.sigmoid, inputs=[z], quick=True).passes


def test_a_forgotten_conjugate_is_named():
    """One tensor is judged, by both of its parts."""
    report = check(squares(right=False), shapes=["8:complex"], quick=True)
    (row,) = report.failures
    assert row.judgement.tensor == "dx"
    assert "the imaginary part of dx is given the wrong sign" in row.judgement.diagnosis


def test_a_real_part_of_the_wrong_sign_is_named():
    def other(z):
        z = z * 1
        z.register_hook(lambda d: -d.conj())
        return z * z

    report = check(lambda z: z * z, other, shapes=["8:complex"], quick=True)
    (row,) = report.failures
    assert "the real part of dz is given the wrong sign" in row.judgement.diagnosis


def test_inputs_of_one_s_own_keep_their_types_and_may_be_conjugates():
    z, x = torch.randn(4, 5, dtype=torch.complex64).conj(), torch.randn(5)
    report = check(lambda z, x: (z * x).abs(), inputs=[z, x], dtypes=["float64"])
    assert report.passes, str(report)
    assert {row.judgement.tensor for row in report.rows} == {"y", "dz", "dx"}


def test_gradcheck_takes_complex_tensors():
    a, b = (torch.randn(3, dtype=torch.complex128, requires_grad=True) for _ in "ab")
    assert gradwatch.gradcheck(torch.mul, (a, b), check_forward_ad=True)
    assert gradwatch.gradgradcheck(torch.mul, (a, b))


def test_a_module_may_have_complex_parameters():
    class Spectrum(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3, 2, 5, dtype=torch.complex64))

        def forward(self, x):
            modes = fft.rfft(x)[..., :5]
            mixed = torch.einsum("bix,iox->box", modes, self.weight)
            return fft.irfft(mixed, n=x.shape[-1])

    assert check(Spectrum(), shapes=["2x3x16"], quick=True).passes


class Squares(torch.autograd.Function):
    """Its conjugate is forgotten."""

    @staticmethod
    def forward(ctx, z):
        ctx.save_for_backward(z)
        return (z * z.conj()).real

    @staticmethod
    def backward(ctx, dy):
        (z,) = ctx.saved_tensors
        return 2 * dy * z.conj()


def test_a_failure_s_script_shows_it_again(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(check(Squares.apply, shapes=["3:complex"], quick=True).repro())
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script))
    assert ended.value.code == 1
    assert "dz: element 1" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bfloat16])
def test_one_element_of_any_strides_reaches_the_judge(dtype):
    sent = torch.ones(4, 6, dtype=dtype).conj()[:1, ::2][:, :1]
    assert torch.equal(unpacked(packed(sent)), sent)


def test_pytorch_has_no_complex_numbers_of_bfloat16():
    with pytest.raises(ValueError, match="no complex numbers of bfloat16"):
        check(torch.mul, shapes=PAIR, dtypes=["bfloat16"])
