"""What decides is the caller's domain; its edges and refusals are told apart."""

import copy
import functools

import pytest
import torch
from torch.nn import functional as F  # noqa: N812  # as in its docs
from torch.utils.checkpoint import checkpoint

from gradwatch.harness.check import Report, Row, check
from gradwatch.harness.check.choice import Spec, lengths, parsed, resized
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.impls.catalogue import UnknownName


def square(x):
    return x * x


def kernel(factor):
    """The square, its gradient times what `factor` makes of x."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            return 2 * x * dy * factor(x)

    return Square.apply


RIGHT = kernel(lambda x: 1.0)


def trials(report):
    return {row.trial.split()[0] for row in report.rows}


# --- the edges ------------------------------------------------------------------------


def at_the_edge(x):
    """Doubled where 1e6 is exceeded, which only the trial `huge` does."""
    return torch.where(x.abs() > 1e6, 2.0, 1.0)


@pytest.mark.parametrize(
    ("options", "passes"),
    [({}, True), ({"edges": "fail"}, False), ({"strict": True}, False)],
)
def test_the_edges_are_told_and_fail_where_that_is_asked_for(options, passes):
    report = check(square, kernel(at_the_edge), shapes=[(4, 8)], **options)
    assert report.passes is passes, str(report)
    assert {row.trial.split()[0] for row in report.edges} == {"huge"}
    assert "at the edges: dx disagree in huge" in str(report)


def test_the_edges_may_be_left_out():
    report = check(square, kernel(at_the_edge), shapes=[(4, 8)], edges="skip")
    assert report.passes
    assert "edges" not in str(report)
    assert "huge" not in trials(report)


@pytest.mark.parametrize(
    "factor",
    [
        lambda x: 1 + 1e-4,
        lambda x: torch.where(x.abs() > 1e3, 1.01, 1.0),  # large and mixed only
        lambda x: torch.where(x.abs() < 1e-4, 1.01, 1.0),  # tiny and mixed only
        lambda x: 1.01 if x.numel() == 1 else 1.0,
        lambda x: 1.01 if x.shape[-1:] == (1025,) else 1.0,
        lambda x: 1.0 if x.is_contiguous() else 1.01,
    ],
)
def test_no_wrong_gradient_of_the_domain_hides_behind_the_edges(factor):
    report = check(square, kernel(factor), shapes=[(4, 8)])
    assert not report.passes
    assert "FAILS" in str(report)


def test_a_gradient_of_zero_never_passes():
    assert not check(square, kernel(lambda x: 0.0), shapes=[(4, 8)]).passes
    assert not check(square, kernel(lambda x: 0.0), [torch.randn(3)], quick=True).passes


# --- refusals -------------------------------------------------------------------------


def picky(step):
    def function(x):
        if x.shape[-1] % step:
            raise ValueError(f"rows of {step}")
        return RIGHT(x)

    return function


def test_what_raises_away_from_the_caller_s_shape_has_refused():
    report = check(square, picky(16), shapes=[(4, 32)])
    assert report.passes, str(report)
    assert len(report.refused) == 3  # of one element, and two with tails
    assert "raises in 3 of the trials" in report.headline
    assert "the candidate raises ValueError: rows of 16: single" in str(report)
    assert not check(square, picky(16), shapes=[(4, 32)], strict=True).passes


def test_an_output_of_another_shape_is_named_and_no_refusal():
    """PyTorch's own words on its backward were shown, and other sizes had refused."""

    def short(x):
        return square(x)[:, : min(x.shape[-1], 100)]

    report = check(square, short, shapes=[(4, 32)])
    assert {row.judgement.verdict for row in report.failures} == {"malformed"}
    assert "\ny: shape (4, 100), expected (4, 1025)\n" in str(report)
    assert not report.refused
    second = check(square, short, shapes=[(4, 132)], order="hvp", quick=True)
    assert "output: shape (4, 100), not (4, 132)" in str(second)


def test_what_always_raises_says_it_once():
    report = check(square, picky(99), shapes=[(4, 32)])
    assert not report.passes
    assert "raises in" in report.headline
    assert "note: the candidate raises" not in str(report)


def test_layouts_are_tried_at_a_shape_that_the_candidate_takes():
    def wrong(x):
        return picky(16)(x) if x.is_contiguous() else square(x).detach() + 0 * x

    report = check(square, wrong, shapes=[(4, 32)])
    assert {row.trial.split()[0] for row in report.failures} >= {"permuted", "sliced"}


def test_what_raises_at_the_caller_s_own_shape_is_an_error():
    report = check(square, picky(64), shapes=[(4, 32)])
    assert not report.passes
    assert {r.judgement.verdict for r in report.failures} == {"error"}


def test_a_candidate_that_only_raises_does_not_pass():
    report = check(square, picky(10**9), shapes=[(4, 32)])
    assert not report.passes
    assert len(report.failures) == 1


def test_a_reference_that_raises_costs_that_trial_alone():
    def rows(x):
        """With an index of -1 where there is a nan."""
        return x.gather(-1, (x == x).all(-1, keepdim=True).long() - 1) ** 2

    report = check(rows, shapes=["8x40"])
    assert report.passes, str(report)
    assert any("left out, the reference raised" in note for note in report.notes)
    assert "infnan" not in trials(report)


def test_a_reference_that_takes_no_ordinary_numbers_says_what_to_give():
    loss = torch.nn.functional.binary_cross_entropy
    with pytest.raises(ValueError, match=r"RuntimeError: all elements.*give inputs="):
        check(loss, shapes=[(8, 4), (8, 4)])
    given = [torch.rand(8, 4) for _ in range(2)]
    report = check(loss, inputs=given)
    assert any("left out, the reference raised" in note for note in report.notes)


def test_a_reference_that_takes_no_16_bits_says_how_to_compute_in_32():
    def thirds(x):
        return torch.quantile(x, 1 / 3, dim=-1)

    with pytest.raises(ValueError, match=r"f\(x.float\(\)\).to\(x.dtype\)"):
        check(thirds, thirds, shapes=[(4, 8)], dtypes=["bfloat16"], quick=True)

    def at_most_32(x):
        return thirds(x.float()).to(x.dtype)

    report = check(
        at_most_32, at_most_32, shapes=[(4, 8)], dtypes=["bfloat16"], quick=True
    )
    assert report.passes, str(report)


def test_what_warns_of_other_inputs_than_the_caller_s_warns_nobody(recwarn):
    def standardised(x):  # of one number there is no deviation, which PyTorch says
        return (x - x.mean()) / x.std()

    report = check(standardised, standardised, shapes=[(4, 8)])
    assert "single 1x1" in str(report)
    assert not [w for w in recwarn if "degrees of freedom" in str(w.message)]


def test_whatever_a_reference_raises_for_them():
    nll = torch.nn.functional.gaussian_nll_loss
    with pytest.raises(ValueError, match=r"ValueError: var has negative.*give inputs="):
        check(nll, shapes=[(4, 5)] * 3)
    x = torch.randn(4, 5, generator=torch.manual_seed(0))
    report = check(nll, inputs=[x, x.flip(0), x.sigmoid()], quick=True)
    assert report.passes
    assert all(note.startswith("in PyTorch: a value") for note in report.notes)


@pytest.mark.parametrize("classes", [36, 40, 64, 100])
def test_labels_stay_below_the_length_that_they_index(classes):
    def loss(x, t):
        return -torch.log_softmax(x, -1).gather(-1, t[:, None]).mean()

    report = check(loss, shapes=[f"8x{classes}", f"8:{classes}"])
    assert report.passes, str(report)
    assert not report.notes


def test_a_label_below_a_shorter_length_stays_below_it_too():
    specs = parsed("8x1000"), parsed("8:900")
    assert resized(specs, {1000: 5, 8: 3})[1] == Spec((3,), "int", 5)
    assert resized(specs, {1000: 1025})[1].below == 900


def test_a_length_can_be_pinned():
    specs = (parsed("8x=3"), parsed((3,)))
    assert lengths(specs) == (8,)
    report = check(square, picky(3), shapes=["8x=3"])
    assert report.passes, str(report)
    assert not report.refused


# --- which trials ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "tried"),
    [
        ({"quick": True}, {"normal"}),
        ({"only": "tails"}, {"normal", "tails"}),
        ({"only": ["large", "single 1x1"]}, {"normal", "large", "single"}),
    ],
)
def test_trials_are_chosen_by_name(options, tried):
    report = check(square, RIGHT, shapes=[(4, 8)], **options)
    assert trials(report) == tried
    assert report.passes


def test_what_is_wrong_away_from_the_caller_s_numbers_alone_says_how_to_leave_it_out():
    """Its exponential overflows, where the sum of its logarithms does not."""

    def summed(x):
        return x.exp().sum(-1).log()

    x = torch.arange(6.0).reshape(2, 3)
    found = check(lambda x: x.logsumexp(-1), summed, [x], only="large")
    assert "own shape and numbers; what" in str(found)
    assert "skip=['given, large']" in str(found)
    left = check(lambda x: x.logsumexp(-1), summed, [x], skip=["given, large"])
    assert left.passes, str(left)
    assert "skip=" not in str(left)


def test_trials_are_left_out_by_name():
    report = check(square, RIGHT, shapes=[(4, 8)], skip=("empty", "large"))
    assert not {"empty", "large"} & trials(report)
    with pytest.raises(UnknownName, match="large"):
        check(square, RIGHT, shapes=[(4, 8)], skip="larg")
    with pytest.raises(UnknownName, match="report"):
        check(square, RIGHT, shapes=[(4, 8)], edges="none")


def test_a_backward_that_ends_the_process_is_a_line(capfd):
    """PyTorch's of pdist does, where there are no rows."""
    report = check(torch.pdist, shapes=[(3, 5)], only="empty")
    assert report.passes
    (row,) = report.edges
    assert (row.trial, row.judgement.verdict) == ("empty 0x5", "error")
    assert row.judgement.message == "ended the process: killed by SIGSEGV"
    own = check(torch.pdist, shapes=[(0, 5)], quick=True)
    assert not own.passes
    assert [r.judgement.message for r in own.failures] == [row.judgement.message]


def test_what_a_reference_does_not_take_without_elements_is_left_out():
    report = check(lambda x: x.reshape(-1, x.shape[1]), shapes=[(4, 2)], only="empty")
    assert trials(report) == {"normal"}
    assert report.notes == ()


def test_quick_is_one_trial_in_each_precision():
    two = ["float32", "bfloat16"]
    report = check(square, RIGHT, shapes=[(4, 8)], quick=True, dtypes=two)
    assert {(r.trial, r.dtype) for r in report.rows} == {("normal 4x8", d) for d in two}


def test_a_lambda_may_have_a_name():
    assert "mine against" in check(square, RIGHT, shapes=[(4,)], name="mine").headline
    assert "against mine" in check(square, shapes=[(4,)], name="mine").headline


def test_wide_and_peaked_are_tried_together():
    """A block without a maximum: wrong where a row is long and has one large number."""

    def wrong(x):
        y = torch.softmax(x, -1)
        peaked = (x.shape[-1] > 512) & (y.amax(-1, keepdim=True) > 0.9)
        return torch.where(peaked, y.detach() + 0.9 * (y - y.detach()), y)

    report = check(lambda x: torch.softmax(x, -1), wrong, shapes=[(4, 1000)])
    assert {r.trial.split()[0] for r in report.failures} == {"peaked"}


def test_a_long_recurrence_is_tried_as_often_as_the_budget_allows():
    lstm = torch.nn.LSTM(2, 8, batch_first=True)
    report = check(lambda x: lstm(x)[0], None, [torch.randn(1, 30, 2)], budget=0.5)
    assert 1 <= len({row.trial for row in report.rows}) < 8
    assert any("left out, the budget being 0.5 s" in note for note in report.notes)


# --- nothing hides --------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1, 1.01])
def test_what_is_marked_as_needing_no_gradient_keeps_its_numbers(factor):
    """A target of 1000 is none: two ways to write a loss differ there."""

    def focal(x, target):
        p = x.sigmoid()
        sure = p * target + (1 - p) * (1 - target)
        loss = F.binary_cross_entropy_with_logits(x, target, reduction="none")
        return ((1 - sure) ** 2 * loss).sum()

    def by_signs(x, target):
        z = (2 * target - 1) * x
        return (torch.sigmoid(-z) ** 2 * -F.logsigmoid(factor * z)).sum()

    g = torch.manual_seed(0)
    x, target = torch.randn(4, 9, generator=g), torch.randn(4, 9, generator=g) > 0
    found = check(focal, by_signs, [x.requires_grad_(), target.float()])
    assert found.passes is (factor == 1), str(found)


def row(trial, verdict="agree", *, tensor="dx", **fields):
    silent = verdict == "vacuous"
    judgement = Judgement(tensor, verdict, 3.0, 16.0, message=f"{tensor}: {verdict}")
    return Row(trial, "float32", judgement, silent=silent, **fields)


def report_of(*rows):
    return Report("reference", "candidate", "cpu", rows)


def test_the_caller_s_own_numbers_must_be_judged():
    rows = [row("tiny"), row("given", "vacuous", own=True)]
    found = report_of(*rows)
    assert not found.passes
    assert "nothing could be said of dx in float32" in found.headline
    assert "given: nothing could be said of dx in float32; dx: vacuous" in str(found)
    assert "judged in 1 of 2" in str(found)
    assert report_of(row("tiny", "vacuous"), row("given", own=True)).passes


def test_a_gradient_of_zero_is_named_as_what_it_is():
    small = row("given", "vacuous", own=True, zero=True)
    assert "zero within rounding" in str(report_of(small))
    wrong = row("given", "disagree", own=True, zero=True)
    assert "zero" not in str(report_of(wrong))


def test_what_hides_at_the_caller_s_own_numbers_fails_a_whole_check():
    """Numbers around 1 are lost beside 1e8, those around 1e3 are not."""
    report = check(lambda x: x + 1e8 - 1e8, lambda x: x + 8e7 - 8e7, [torch.randn(4)])
    assert report.silent == (("y", "float32"),)
    assert not report.failures
    assert not report.passes
    assert "judged in" in str(report)


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)

    def forward(self, x):
        h = self.conv(x)
        return self.norm(h)


def test_a_step_in_which_terms_cancel_is_named_with_a_way_round():
    """Of two numbers a batch norm in training returns the signs: the slope is 0."""
    torch.manual_seed(0)
    net, two, many = Normed(), torch.randn(2, 3, 3, 3), torch.randn(8, 3, 5, 5)
    found = check(net, None, [two], quick=True, dtypes="bfloat16")
    lines = str(found).splitlines()
    (said,) = [s for s in lines if s.startswith("given: nothing could be said of dx")]
    assert "dconv.weight" in said  # for the same reason
    assert "return self.norm(h)" in said
    assert "float64 tells more" in said
    assert "a larger batch" in said
    assert "could be said of dx" not in str(check(net, None, [many], quick=True))


def test_a_step_that_overflows_is_named_not_blamed_on_rounding():
    """The square of 1e30, in float32 alone; the norm itself is of order 1."""

    def norm(x, w):
        return F.rms_norm(x, w.shape, w)

    x, w = torch.randn(4, 8) * 1e30, torch.randn(8)
    found = check(norm, None, [x, w], quick=True)
    assert {name for name, _ in found.silent} == {"y", "dx", "dw"}
    said = "nothing could be said of y, dx, dw in float32; `square(x)` (test_domain.py"
    assert said in str(found)
    assert "return F.rms_norm(x, w.shape, w)) overflows in float32" in str(found)
    assert "rounding grows" not in str(found)
    assert check(norm, None, [x, w], quick=True, dtypes="float64").passes


def test_a_gradient_that_the_function_does_not_have_is_not_blamed_on_rounding():
    """The slope of p log p at 0 is infinite, of which frameworks make nan."""

    def entropy(p, least=0.0):
        return torch.xlogy(p, p.clamp(min=least))

    other = functools.partial(entropy, least=0.5)
    found = str(check(entropy, other, inputs=[torch.eye(4)], quick=True))
    said = "given: little could be said of dp in float32; it is undefined (nan) in 12"
    assert f"{said} of 16 elements" in found
    assert "rounding grows" not in found


def test_a_mean_of_zero_beside_a_variance_counts_as_judged():
    """Of what a batch norm has centred; a wrong one has the size of the others."""

    class Twice(torch.nn.Module):
        off = 0.0

        def __init__(self):
            super().__init__()
            self.first = torch.nn.BatchNorm1d(
                4, affine=False, track_running_stats=False
            )
            self.second = torch.nn.BatchNorm1d(3)
            self.between = torch.nn.Linear(4, 3, bias=False)

        def forward(self, x):
            return self.second(self.between(self.first(x)) + self.off)

    torch.manual_seed(0)
    net, x = Twice(), torch.randn(8, 4)
    found = check(net, None, [x], quick=True)
    assert found.passes, str(found)
    assert "second.running_mean" in {r.judgement.tensor for r in found.rows if r.zero}
    wrong = copy.deepcopy(net)
    wrong.off = 0.01
    (failed,) = check(net, wrong, [x], quick=True).failures
    assert failed.judgement.tensor == "second.running_mean"


def test_a_batch_norm_that_is_called_twice_updates_its_buffers_twice():
    class Siamese(torch.nn.Module):
        def __init__(self, turned=False):
            super().__init__()
            self.norm, self.turned = torch.nn.BatchNorm1d(4), turned

        def forward(self, a, b):
            if self.turned:
                y = self.norm(b)
                return self.norm(a) * y
            return self.norm(a) * self.norm(b)

    inputs = torch.randn(2, 8, 4, generator=torch.Generator().manual_seed(0)).unbind()
    assert check(Siamese(), None, inputs, quick=True).passes
    wrong = check(Siamese(), Siamese(turned=True), inputs, quick=True).failures
    named = {row.judgement.tensor for row in wrong}
    assert named == {"norm.running_mean", "norm.running_var"}


def test_a_row_whose_mask_overflow_decides_says_nothing_and_the_others_do():
    def masked(x):
        y = x.exp() - x.exp().flip(-1)  # infinity less infinity, in the first row
        return torch.where((y > 5).any(-1, keepdim=True), x.sin(), 0.0)

    rows = torch.tensor([[89.5, 1.0, 2.0, 89.2], [1.0, 2.0, 3.0, 4.0], [1.0] * 4])
    assert check(masked, None, [rows], quick=True).passes
    wrong = lambda x: masked(x) + (x[1:2] * 1e-3).sum()  # noqa: E731  # planted
    assert check(masked, wrong, [rows], quick=True).failures


def test_the_step_is_the_one_that_cancels_and_not_one_beside_it():
    def lost(x, w):
        near = (x + 1e7) - 1e7
        return near * w.exp(), (w - 1.0).sin()

    numbers = torch.randn(2, 5, generator=torch.manual_seed(0)).unbind()
    found = [r for r in check(lost, None, numbers, quick=True).rows if r.step]
    assert {r.judgement.tensor for r in found} == {"y0", "dw"}
    assert all("near = (x + 1e7) - 1e7" in r.step for r in found)


def test_a_constant_that_is_zero_in_the_precision_is_named():
    """In float16 1e-8 is 0, and so is the square of 1e-4."""

    def normed(x):
        return x / (x.square().sum(-1, keepdim=True) + 1e-8).sqrt()

    x = 1e-4 * torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    found = check(normed, None, (x,), dtypes="float16", quick=True)
    said = "nothing could be said of y, dx in float16; 1e-08 is 0 in float16: compute"
    assert said in str(found)
    assert "grows" not in str(found)


def test_so_it_is_where_nan_comes_of_it():
    def step(m, v):
        return m / (v.sqrt() + 1e-8)

    m = torch.tensor([0.0, 1.0, 2.0])
    found = check(step, None, (m, m.clone()), dtypes="float16", quick=True)
    assert found.passes
    assert "y[0]: got nan, expected 0" in str(found)
    assert "1e-08 is 0 in float16" in str(found)


def test_what_no_single_step_hides_has_a_way_round_too():
    def chaotic(x):  # a checkpoint keeps nothing that tells how rounding went
        return checkpoint(steps, x.bfloat16(), use_reentrant=False).float()

    def steps(h):
        for _ in range(7):
            h = 3.75 * h * (1 - h)
        return h

    given = [torch.tensor([0.15, 0.31, 0.44, 0.83])]
    (silent,) = (r for r in check(chaotic, None, given, quick=True).rows if r.silent)
    assert "in no step by much: float64 tells more" in silent.step


def test_what_an_excuse_hides_is_no_growth_of_rounding():
    """One by one 0.11 adds up to 245.4, of 220: a larger sum would lose more."""

    def one_by_one(x):
        total = torch.zeros_like(x[0])
        for row in x:
            total = total + row
        return total

    given = [torch.full((2000, 2), 0.11)]
    found = check(lambda x: x.sum(0), one_by_one, given, dtypes="float16", quick=True)
    (said,) = {r.step for r in found.rows if r.shown == "vacuous"}
    assert "a careless algorithm may lose so much" in said
    assert said.endswith("float64 tells more")
    assert "grows" not in str(found)

    def wrong(x):
        return 0.5 * one_by_one(x)

    asked = {"dtypes": "float16", "quick": True}
    assert not check(lambda x: x.sum(0), wrong, given, **asked).passes


def test_what_needs_more_memory_than_there_is_is_a_line_with_the_number():
    def outer(a):
        return a[:, None] * a[None, :]

    with pytest.raises(ValueError, match=r"needs 596 GiB .* this machine has \d"):
        check(outer, inputs=[torch.randn(400_000)], quick=True)


def test_a_wrong_softmax_of_rows_of_which_one_is_empty_is_a_verdict():
    def rows(x):
        return torch.cat([torch.softmax(row, 0) for row in x.split([3, 0, 5])])

    def wrong(x):
        return rows(x.detach() + 0.9 * (x - x.detach()))

    assert check(rows, None, [torch.arange(8.0)], quick=True).passes
    assert check(rows, wrong, [torch.arange(8.0)], quick=True).failures
