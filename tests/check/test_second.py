"""Double backward and forward mode of a candidate, and the words for what is wrong."""

import subprocess
import sys

import pytest
import torch
from torch.autograd.function import once_differentiable

from gradwatch.harness.check import check
from gradwatch.harness.check import script as scripting
from tests.command_line import gradwatch

silu = torch.nn.functional.silu
SHAPES = [(5, 7)]


class Silu(torch.autograd.Function):
    """Right, and differentiable: the input alone is saved."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return dy * s * (1 + x * (1 - s))


class Intermediate(Silu):
    """The classic: a value of the forward is saved, and is a constant from then on."""

    @staticmethod
    def forward(ctx, x):
        s = x.sigmoid()
        ctx.save_for_backward(x, s)
        return x * s

    @staticmethod
    def backward(ctx, dy):
        x, s = ctx.saved_tensors
        return dy * s * (1 + x * (1 - s))


class OnContext(Silu):
    @staticmethod
    def forward(ctx, x):
        s = x.sigmoid()
        ctx.slope = s * (1 + x * (1 - s))
        return x * s

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.slope


class Unrecorded(Silu):
    @staticmethod
    def backward(ctx, dy):
        x, dy = ctx.saved_tensors[0].data, dy.data
        s = x.sigmoid()
        return dy * s * (1 + x * (1 - s))


class Detached(Silu):
    """Half of the chain rule is lost."""

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return dy * s * (1 + x * (1 - s.detach()))


class UnderNoGrad(Silu):
    @staticmethod
    def backward(ctx, dy):
        with torch.no_grad():
            return Silu.backward(ctx, dy)


class Scaled(Silu):
    """Wrong, but not by a constant."""

    @staticmethod
    def backward(ctx, dy):
        return 1.01 * Silu.backward(ctx, dy)


class Once(Silu):
    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        return Silu.backward(ctx, dy)


def between(x):
    """The Function that PyTorch refuses lies between other steps."""
    return Once.apply(x * 1.0) + 0.0 * x


class WithForwardMode(Silu):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return Silu.forward(ctx, x)

    @staticmethod
    def jvp(ctx, v):
        s = ctx.x.sigmoid()
        return v * s * (1 + ctx.x * (1 - s))


class HastyForwardMode(WithForwardMode):
    @staticmethod
    def jvp(ctx, v):
        return WithForwardMode.jvp(ctx, v) * (1 + 1e-4)


def messages(report):
    return " | ".join(row.judgement.message for row in report.failures)


@pytest.mark.parametrize("order", ["jvp", "hvp"])
@pytest.mark.parametrize(
    ("reference", "shapes"),
    [
        (silu, SHAPES),
        (torch.matmul, [(3, 4), (4, 2)]),
        (torch.nn.Linear(4, 3), [(5, 4)]),
    ],
    ids=["silu", "matmul", "a module"],
)
def test_pytorch_s_own_passes(reference, shapes, order):
    report = check(reference, shapes=shapes, order=order)
    assert report.passes, str(report)
    assert all(j.tensor.startswith(f"{order}.") for j in report)


def test_a_differentiable_backward_passes():
    report = check(silu, Silu.apply, shapes=SHAPES, order="hvp", dtypes=["float64"])
    assert report.passes, str(report)
    assert {j.tensor for j in report} == {"hvp.dinput", "hvp.ddy"}


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (Intermediate, r"treats ctx.saved_tensors[1] as a constant"),
        (OnContext, "treats ctx.slope as a constant"),
        (Unrecorded, "with .data in test_second.py:"),
        (Detached, "(return dy * s * (1 + x * (1 - s.detach())))"),
        (UnderNoGrad, "with torch.no_grad() in test_second.py:"),
    ],
)
def test_a_silently_constant_double_backward_is_caught_and_named(candidate, words):
    """Each gradient is right: only its derivative is not."""
    assert check(silu, candidate.apply, shapes=SHAPES).passes
    report = check(silu, candidate.apply, shapes=SHAPES, order="hvp")
    assert not report.passes
    assert words in messages(report)


def test_a_candidate_that_keeps_no_constants_is_not_said_to():
    wrong = check(silu, Detached.apply, shapes=SHAPES, order="hvp")
    assert "as a constant" not in messages(wrong)
    wrong = check(silu, Scaled.apply, shapes=SHAPES, order="hvp")
    assert "hvp.dinput[" in messages(wrong)
    assert "autograd's graph" not in messages(wrong)


@pytest.mark.parametrize(
    ("candidate", "order", "words"),
    [
        (
            Once,
            "hvp",
            "PyTorch: trying to differentiate twice a function that was marked",
        ),
        (Silu, "jvp", "PyTorch: You must implement the jvp function"),
    ],
)
def test_what_pytorch_refuses_is_unsupported_in_its_words_and_does_not_pass(
    candidate, order, words
):
    candidate = getattr(candidate, "apply", candidate)
    report = check(silu, candidate, shapes=SHAPES, order=order)
    assert {j.verdict for j in report} == {"unsupported"}
    assert not report.passes
    assert words in str(report)


def test_a_jvp_of_one_s_own_is_judged():
    assert check(silu, WithForwardMode.apply, shapes=SHAPES, order="jvp").passes
    report = check(silu, HastyForwardMode.apply, shapes=SHAPES, order="jvp")
    assert {row.judgement.verdict for row in report.failures} == {"disagree"}


def test_the_script_of_a_failure_shows_it(tmp_path, monkeypatch):
    monkeypatch.setattr(scripting, "SECONDS", 0.5)
    report = check(silu, Intermediate.apply, shapes=[(2, 1)], order="hvp")
    file = tmp_path / "repro.py"
    file.write_text(report.repro())
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "hvp.dinput" in done.stdout


def test_the_command_knows_orders():
    done = gradwatch(
        "check", "torch.nn.functional.silu", "--shape", "4x5", "--order", "vhp"
    )
    assert done.returncode == 2
    assert "'vhp' is not one of" in done.stderr
