"""Functions that draw: their draws are data, and the candidate gets the same ones."""

import subprocess
import sys
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402  # after importorskip
from torch.nn import functional as F  # noqa: E402, N812  # likewise; its usual name
from torch.utils.checkpoint import checkpoint  # noqa: E402  # likewise

from gradwatch import check  # noqa: E402  # likewise

KEPT = 0.7
GENERATOR = torch.Generator().manual_seed(3)
SQUARE = [(5, 6)]
BOTH = ["float64", "float32"]


def dropped(x):
    return F.dropout(x * x, 1 - KEPT)


def fresh(x):
    return torch.rand(x.shape, generator=torch.Generator().manual_seed(5))


def recomputed(x, **how):
    return checkpoint(dropped, x, **how)


def mended(x):
    """With half of the gradient."""
    y = dropped(x)
    return y / 2 + y.detach() / 2


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(F.dropout(F.relu(self.first(x)), 0.3, self.training))


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.2)


def written_out(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    return F.dropout(torch.softmax(scores, -1), 0.2) @ v


def rewritten(x):
    """In place, where a view of it shows the noise."""
    y = x * 1
    view = y[1:]
    F.rrelu(y, training=True, inplace=True)
    return view * 2


def drawn_in_place(x):
    noise = torch.zeros(6, 5)
    noise.t().exponential_()
    return x * noise.t().log()


RIGHT = {
    "mlp": (Mlp(), SQUARE),
    "attention": (attention, [(2, 3, 5, 4)] * 3),
    "alpha": (lambda x: F.alpha_dropout(x, 0.3, True), SQUARE),
    "features": (lambda x: F.feature_alpha_dropout(x, 0.3, True), [(2, 5, 6)]),
    "leaky": (lambda x: F.rrelu(x, training=True), SQUARE),
    "leaky in place": (rewritten, SQUARE),
    "leaky in evaluation": (torch.nn.RReLU().eval(), SQUARE),
    "all dropped": (lambda x: F.dropout(x, 1.0) + x, SQUARE),
    "gumbel": (F.gumbel_softmax, SQUARE),
    "sample": (
        lambda m, s: torch.distributions.Normal(m, s.exp()).rsample(),
        SQUARE * 2,
    ),
    "in place": (drawn_in_place, SQUARE),
    "mask of x": (lambda x: x * torch.bernoulli(torch.sigmoid(x)), SQUARE),
    "its own generator": (lambda x: x * fresh(x), SQUARE),
    "generator": (lambda x: x * torch.rand(x.shape, generator=GENERATOR), SQUARE),
    "checkpoint": (lambda x: recomputed(x, use_reentrant=False), SQUARE),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_function_that_draws_is_judged_by_what_it_drew(name):
    function, shapes = RIGHT[name]
    report = check(function, shapes=shapes, dtypes=BOTH)
    assert report.passes, report
    assert {judgement.tensor for judgement in report} > {"y"}


def test_a_layer_is_judged_in_training():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    assert layer.training
    assert check(layer, shapes=[(2, 3, 8)], quick=True).passes


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_draws_its_mask_again(reentrant):
    report = check(
        dropped, lambda x: recomputed(x, use_reentrant=reentrant), shapes=SQUARE
    )
    assert report.passes, report


class Dropout(torch.autograd.Function):
    backwards: ClassVar = {
        "right": lambda dy, mask: dy * mask / KEPT,
        "mask left out": lambda dy, mask: dy / KEPT,
        "scale left out": lambda dy, mask: dy * mask,
        "drawn again": lambda dy, mask: (
            dy * torch.empty_like(dy).bernoulli_(KEPT) / KEPT
        ),
        "complement": lambda dy, mask: dy * (1 - mask) / KEPT,
    }

    @staticmethod
    def forward(ctx, x, kind):
        mask = torch.empty_like(x).bernoulli_(KEPT)
        ctx.kind = kind
        ctx.save_for_backward(mask)
        return x * (mask / KEPT)

    @staticmethod
    def backward(ctx, dy):
        return Dropout.backwards[ctx.kind](dy, *ctx.saved_tensors), None


@pytest.mark.usefixtures("undiagnosed")
@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("kind", Dropout.backwards)
def test_a_backward_has_to_use_the_mask_of_the_forward(kind, seed):
    torch.manual_seed(seed)
    report = check(
        *(lambda x: F.dropout(x, 1 - KEPT), lambda x: Dropout.apply(x, kind)),
        shapes=SQUARE,
        dtypes=BOTH,
        seed=seed,
        quick=kind != "right",
    )
    assert report.passes == (kind == "right")
    assert {row.judgement.tensor for row in report.failures} <= {"dx"}


def test_a_checkpoint_that_forgets_the_generator_is_wrong():
    def forgets(x):
        return recomputed(x, use_reentrant=False, preserve_rng_state=False)

    report = check(dropped, forgets, shapes=SQUARE)
    assert {row.judgement.tensor for row in report.failures} == {"dx"}


def test_attention_written_out_draws_alike_and_its_wrong_backward_is_caught():
    shapes = [(2, 3, 5, 4)] * 3
    assert check(attention, written_out, shapes=shapes, quick=True).passes

    def stale(q, k, v):
        y = written_out(q, k, v)
        return y + 0.1 * (q - q.detach())

    report = check(attention, stale, shapes=shapes, quick=True)
    assert {row.judgement.tensor for row in report.failures} == {"dq"}


OTHERS = {
    "other calls": lambda x: x * (torch.rand_like(x) < KEPT) / KEPT,
    "drawn before": lambda x: F.dropout(x + torch.rand(()) * 0, 1 - KEPT),
    "own generator": lambda x: x * torch.rand(x.shape, generator=GENERATOR),
    "none": lambda x: x,
}


@pytest.mark.parametrize("name", OTHERS)
def test_who_draws_otherwise_is_told_so_and_does_not_pass(name):
    report = check(lambda x: F.dropout(x, 1 - KEPT), OTHERS[name], shapes=SQUARE)
    assert not report.passes
    assert "make the mask or the noise an input" in str(report)


def test_a_forward_that_is_wrong_with_the_same_draws_is_accused():
    report = check(*(dropped, lambda x: dropped(x) * KEPT), shapes=SQUARE, quick=True)
    assert {row.judgement.verdict for row in report.failures} == {"disagree"}


def test_the_callers_generator_stays_where_it_was():
    before = torch.get_rng_state()
    check(dropped, shapes=SQUARE, quick=True)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_script_of_a_failure_draws_the_same_numbers(tmp_path):
    """It is wrong in the gradient alone: the outputs are those of the reference."""
    report = check(dropped, mended, shapes=SQUARE, dtypes=["float64"], quick=True)
    script = tmp_path / "shown.py"
    script.write_text(report.repro())
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("dx: ")
    assert "\ny: " not in done.stdout
