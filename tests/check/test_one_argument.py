"""One argument is enough; and PyTorch's gradcheck, drop-in."""

import numpy as np
import pytest
import torch
from torch.autograd.gradcheck import GradcheckError

from gradwatch import check, gradcheck, gradgradcheck
from gradwatch.harness.check.child import answered


def function(factor, power=2):
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.detach() * x * x

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            return factor * x**power * dy

    return Cube


Cube, Wrong = function(3), function(3.001)


class InNumPy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.square(x.detach().cpu().numpy()))

    @staticmethod
    def backward(ctx, dy):
        return 2 * ctx.saved_tensors[0] * dy


class ByPointer(InNumPy):
    @staticmethod
    def forward(ctx, x):
        """As Triton and ctypes get at the numbers."""
        ctx.save_for_backward(x)
        return x * (x.data_ptr() != 0) * x


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_a_function_is_judged_against_its_own_forward(dtype):
    report = check(Cube.apply, shapes=[(4, 8)], dtypes=[dtype])
    assert report.passes, str(report)
    assert "Cube.apply against its own forward: passes" in report.headline


@pytest.mark.parametrize(
    "wrong",
    [
        Wrong.apply,
        lambda x: Wrong.apply(x),
        lambda x: Wrong.apply(x).sum(-1),
        function(3, 1).apply,
        function(0).apply,
    ],
)
def test_its_wrong_backward_is_caught(wrong):
    report = check(wrong, shapes=[(4, 8)])
    assert {row.judgement.tensor for row in report.failures} == {"dx"}
    assert check(wrong, inputs=[torch.randn(4, 8)]).failures


def test_inside_of_a_module_it_is_judged_too():
    class Layer(torch.nn.Linear):
        def forward(self, x):
            return self.kernel.apply(super().forward(x))

    for kernel, passes in ((Cube, True), (Wrong, False)):
        layer = Layer(3, 4)
        layer.kernel = kernel
        assert check(layer, inputs=[torch.randn(5, 3)]).passes is passes


@pytest.mark.parametrize("kernel", [InNumPy, ByPointer])
def test_a_forward_that_cannot_be_followed_needs_a_reference(kernel):
    words = rf"{kernel.__name__}.apply cannot be followed.*check\(REFERENCE, "
    with pytest.raises(ValueError, match=words):
        check(kernel.apply, shapes=[(4, 8)])
    assert check(lambda x: x * x, kernel.apply, shapes=[(4, 8)], quick=True).passes


def root(factor):
    """The cube root by bisection, whose steps have no slope; its own is 1 / 3 y^2."""

    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            low, high = torch.full_like(x, -9), torch.full_like(x, 9)
            for _ in range(60):
                middle = (low + high) / 2
                above = middle**3 > x
                low = torch.where(above, low, middle)
                high = torch.where(above, middle, high)
            ctx.save_for_backward(middle)
            return middle

        @staticmethod
        def backward(ctx, dy):
            return factor * dy / (3 * ctx.saved_tensors[0] ** 2)

    return Root


@pytest.mark.parametrize("factor", [1, 1.01])
def test_a_forward_whose_steps_have_another_slope_needs_a_reference(factor):
    kernel = root(factor).apply
    with pytest.raises(ValueError, match=r"another slope.*check\(REFERENCE, "):
        check(kernel, inputs=[torch.rand(3, 4) + 1], quick=True)

    def power(x):
        return x ** (1 / 3)

    assert check(power, kernel, inputs=[torch.rand(9) + 1], quick=True).passes is (
        factor == 1
    )


@pytest.mark.parametrize("carried", [True, False])
def test_a_forward_that_runs_in_float32_alone_is_its_own_reference(carried):
    """Its first state has no type of its inputs'."""

    class Scan(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            h, states = torch.zeros(2, 3), []
            for step in x.unbind(1):
                states.append(h)
                h = step + h @ w
            ctx.save_for_backward(w, *states)
            return h

        @staticmethod
        def backward(ctx, dh):
            w, *states = ctx.saved_tensors
            dx, dw = [], torch.zeros_like(w)
            for h in states[::-1]:
                dx.append(dh)
                dw += h.mT @ dh
                dh = dh @ (w.mT if carried else w)
            return torch.stack(dx[::-1], 1), dw

    report = check(Scan.apply, inputs=[torch.randn(2, 4, 3), torch.randn(3, 3)])
    assert report.passes is carried, str(report)
    assert ("stands for `permute_dims(" in str(report)) != carried


@pytest.mark.parametrize("factor", [1, 1.01])
def test_a_gradient_that_is_meant_to_be_another_one_is_told_to_need_a_reference(factor):
    class Sign(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return torch.sign(x)

        @staticmethod
        def backward(ctx, dy):
            return factor * dy

    report = check(Sign.apply, shapes=[(5,)], quick=True)
    assert report.failures
    assert "needs a reference" in str(report)
    straight = check(
        lambda x: x + (torch.sign(x) - x).detach(), Sign.apply, shapes=[(5,)]
    )
    assert straight.passes is (factor == 1), str(straight)
    assert "needs a reference" not in str(straight)


def test_a_hook_may_give_the_gradient_of_an_iteration():
    """As deep equilibrium models do; it needs a reference, as an iteration does."""

    def settled(x, factor=1.0):
        with torch.no_grad():
            y = x
            for _ in range(40):
                y = torch.cos(x + y / 2)
        at = y.detach().requires_grad_()
        with torch.enable_grad():
            step = torch.cos(x.detach() + at / 2)
            (slope,) = torch.autograd.grad(step.sum(), at)
        y = torch.cos(x + y / 2)
        if y.requires_grad:
            y.register_hook(lambda dy: factor * dy / (1 - slope))
        return y

    def unrolled(x):
        y = x
        for _ in range(40):
            y = torch.cos(x + y / 2)
        return y

    given = [torch.rand(5)]
    with pytest.raises(ValueError, match=r"another slope.*check\(REFERENCE, "):
        check(settled, inputs=given, quick=True)
    assert check(unrolled, settled, given, quick=True).passes
    wrong = lambda x: settled(x, 1.01)  # noqa: E731  # planted
    assert check(unrolled, wrong, given, quick=True).failures


def test_the_command_takes_one_argument(tmp_path, monkeypatch):
    (tmp_path / "ours.py").write_text(
        "import torch\nclass Twice(torch.autograd.Function):\n"
        "    forward = staticmethod(lambda ctx, x: 2 * x)\n"
        "    backward = staticmethod(lambda ctx, dy: 3 * dy)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    asked = {
        "reference": "ours:Twice", "candidate": None, "shapes": ["3x4"],
        "kernelbench": [], "kwargs": {}, "dtypes": [], "repro": False,
        "choice": {"quick": True},
    }  # fmt: skip
    found = answered(asked)
    assert not found["passes"]
    assert "Twice.apply against its own forward: FAILS" in found["kept"]["told"]


# --- gradcheck ------------------------------------------------------------------------


def given(dtype=torch.float32):
    return torch.randn(4, 8, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gradcheck_needs_no_float64(dtype):
    assert gradcheck(Cube.apply, given(dtype)) is True
    assert gradcheck(lambda x: Cube.apply(x), (given(dtype),), eps=1e-3, atol=9) is True
    assert gradcheck(function(0).apply, given(dtype), raise_exception=False) is False
    assert gradgradcheck(Cube.apply, given(dtype)) is True


def test_gradcheck_raises_what_pytorch_s_does_with_our_table():
    with pytest.raises(GradcheckError, match=r"FAILS(.|\n)*dx(.|\n)*eps.*not used"):
        gradcheck(Wrong.apply, given(), atol=1.0)
    with pytest.raises(GradcheckError) as raised:
        gradcheck(Wrong.apply, (given(),))
    assert "note" not in str(raised.value)


def test_gradcheck_differentiates_what_requires_a_gradient():
    def times(x, w, scale):
        return x * w.detach() * scale

    x, w = given(), given().detach()
    assert gradcheck(times, (x, w, 3))
    assert gradcheck(lambda x, w: Wrong.apply(x) * w, (x.detach(), given()))
    assert not gradcheck(lambda x, w: Wrong.apply(x) * w, (x, w), raise_exception=False)
    with pytest.raises(ValueError, match="requires a gradient"):
        gradcheck(times, (x.detach(), w.detach(), 3))


def test_gradcheck_judges_forward_mode_where_asked():
    assert gradcheck(torch.sin, given(), check_forward_ad=True)
    with pytest.raises(GradcheckError, match="unsupported"):
        gradcheck(Cube.apply, given(), check_forward_ad=True)


def test_gradgradcheck_finds_a_double_backward_that_is_a_constant():
    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.slope = 3 * x * x
            return x**3

        @staticmethod
        def backward(ctx, dy):
            return ctx.slope * dy

    assert gradcheck(Kept.apply, given())
    assert not gradgradcheck(Kept.apply, given(), raise_exception=False)
    dy = torch.ones(4, 8)
    assert not gradgradcheck(Kept.apply, (given(),), dy, raise_exception=False)
    assert gradgradcheck(
        Cube.apply, (given(),), (dy,), gen_non_contig_grad_outputs=True
    )


def test_an_argument_that_pytorch_has_not_is_refused():
    with pytest.raises(TypeError, match="tolerance"):
        gradcheck(Cube.apply, given(), tolerance=1)


def test_a_detach_that_is_meant_needs_no_reference():
    """Straight through a rounding; here with a gradient that is wrong beside it."""

    def rounded(x):
        return x + (x.round() - x).detach()

    assert check(rounded, shapes=[(4, 8)]).passes

    def doubled(x):
        y = rounded(x)
        if y.requires_grad:
            y.register_hook(lambda dy: 2 * dy)
        return y

    assert check(doubled, shapes=[(4, 8)]).failures
