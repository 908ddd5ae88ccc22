"""`check` runs a candidate itself and judges what comes out."""

import functools

import numpy as np
import pytest
import torch

import gradwatch
from gradwatch.harness.check import check
from gradwatch.harness.tracing import Untraceable
from gradwatch.impls.catalogue import UnknownName
from gradwatch.impls.contract import Case, Op
from tests.check.seven import BUGS, candidate, square_times

silu = torch.nn.functional.silu
SHAPES = [(4, 5), (4, 5)]


def function(backward, forward=lambda ctx, x: x * x):
    """y = x^2 as a Function whose backward is given: (x, dy) to dx."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(ctx, x)

        @staticmethod
        def backward(ctx, dy):
            return backward(ctx.saved_tensors[0], dy)

    return Square.apply


def square(x):
    return x * x


def right(x, dy):
    return 2 * x * dy


def verdicts(report):
    return {row.judgement.verdict for row in report.failures}


# --- the seven bugs ---------------------------------------------------------------


@pytest.mark.parametrize("bug", BUGS)
def test_each_of_the_seven_bugs_is_caught(bug):
    report = check(square_times, candidate(bug), shapes=SHAPES)
    at_the_edge = bug == "wrong beyond 2e6"
    assert report.passes is at_the_edge
    assert report.edges if at_the_edge else report.failures
    assert not check(square_times, candidate(bug), shapes=SHAPES, edges="fail").passes


def test_without_a_bug_it_passes():
    report = check(square_times, candidate("none"), shapes=SHAPES)
    assert report.passes, str(report)


@pytest.mark.parametrize("bug", BUGS)
def test_each_is_caught_at_the_caller_s_own_numbers_too_where_they_can_show_it(bug):
    x, w = torch.randn(2, 3, 100, generator=torch.Generator().manual_seed(0))
    x = torch.cat((x, torch.full((3, 1), 3e6)), 1)
    w = torch.cat((w, torch.ones(3, 1)), 1)
    assert not check(square_times, candidate(bug), (x, w)).passes


# --- verdicts, not crashes ----------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "verdict", "said"),
    [
        (lambda x, dy: None, "malformed", "None where a gradient is due"),
        (lambda x, dy: 2 * x * dy.mul_(2) / 2, "malformed", "overwrites its cotangent"),
        (lambda x, dy: torch.full_like(x, torch.nan), "nonfinite", "got nan"),
        (lambda x, dy: 1 / 0, "error", "ZeroDivisionError"),
        (lambda x, dy: exec("raise SystemExit(0)"), "error", "SystemExit: 0"),
        (lambda x, dy: 2 * x * dy * (1 + 1e-4), "disagree", "times the rounding"),
        (lambda x, dy: 2 * x, "disagree", "times the rounding"),
        (lambda x, dy: right(x.mul_(1.5), dy), "malformed", "saved tensors"),
    ],
)
def test_what_a_backward_does_wrong_is_a_verdict(wrong, verdict, said):
    report = check(square, function(wrong), shapes=[(3, 4)])
    assert not report.passes
    assert verdict in verdicts(report)
    assert said in str(report) or said in "".join(j.message for j in report)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda x: (x * x)[:1], "shape"),
        (lambda x: (x * x).double(), "dtype float64, expected float32"),
        (lambda x: (x * x).detach(), "None where a gradient is due"),
        (lambda x: x.data.add_(1) * x, "overwrites its input"),
        (lambda x: 7, "returned 0 tensors, expected 1"),
    ],
)
def test_what_a_forward_does_wrong_is_a_verdict(wrong, said):
    report = check(square, wrong, shapes=[(3, 4)])
    assert not report.passes
    assert said in "\n".join(j.message for j in report)


def test_tensors_beyond_the_reference_s_are_a_note():
    report = check(square, lambda x: (x * x, x.exp()), shapes="3x4", quick=True)
    assert report.passes
    assert "returns 1 tensor more than the reference: not judged" in str(report)
    wrong = check(square, lambda x: (x * x.detach(), x), shapes=(3, 4), quick=True)
    assert {row.judgement.tensor for row in wrong.failures} == {"dx"}


@pytest.mark.parametrize("a", [2.0, 2.01])
def test_outputs_with_names_are_matched_by_these(a):
    def named(x):
        return {"a": x * 2, "b": x.sin()}

    def other(x):
        return {"b": x.sin(), "a": x * a}

    report = check(named, other, shapes=(3, 4), quick=True)
    wrong = {row.judgement.tensor for row in report.failures}
    assert wrong == ({"a", "dx"} if a > 2.0 else set())


def test_what_is_random_is_wrong_with_a_hint():
    def dropped(x):
        return torch.nn.functional.dropout(x * x)

    report = check(square, dropped, shapes=[(8, 40)], quick=True)
    assert not report.passes
    assert "gave other bits; what is random must be an input" in str(report)


def test_a_second_backward_that_repeats_the_first_is_caught():
    kept = {}

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, dy):
            return kept.setdefault(ctx, right(*ctx.saved_tensors, dy))

    report = check(square, Square.apply, shapes=[(3, 4)])
    assert {row.how for row in report.failures} == {"second backward"}


def test_an_output_that_is_not_used_is_tried():
    def two(x):
        return x * x, 3 * x

    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x, 3 * x

        @staticmethod
        def backward(ctx, dy, dz):
            (x,) = ctx.saved_tensors
            return 2 * x * dy + 3 * dz if dz.any() else 3 * x * dy

    report = check(two, Two.apply, shapes=[(3, 4)])
    assert {row.how for row in report.failures} == {"only y0 used"}


def test_what_is_not_repeatable_is_told_and_not_judged():
    noise = torch.Generator().manual_seed(0)

    def noisy(x, dy):
        return right(x, dy) * (1 + 1e-7 * torch.randn(x.shape, generator=noise))

    report = check(square, function(noisy), shapes=[(64, 100)])
    assert report.passes, str(report)
    assert any("other bits" in note for note in report.notes)


# --- what can be a reference, what inputs -------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", torch.bfloat16])
def test_pytorch_s_own_gradient_is_judged_where_no_candidate_is_given(dtype):
    report = check(silu, shapes=[(4, 33)], dtypes=[dtype])
    assert report.passes, str(report)
    assert {j.tensor for j in report} == {"y", "dinput"}


def test_an_op_of_one_s_own_is_a_reference():
    op = Op("cube", inputs="x", formula=lambda xp, x: x * x * x)
    assert check(op, lambda x: x**3, shapes=[(3, 4)]).passes
    assert not check(op, lambda x: x**3 * 1.001, shapes=[(3, 4)]).passes


def test_an_op_page_brings_its_cases_and_attributes():
    report = check("softmax", lambda x, axis: torch.softmax(x, axis))
    assert report.passes, str(report)


def test_a_page_without_a_candidate_judges_pytorch_s_own_call():
    assert check("sigmoid", shapes=[(3, 4)]).passes


def test_cases_are_shapes_and_keyword_arguments():
    cases = [Case("rows", x=(5, 6), dim=-1), Case("columns", x=(5, 6), dim=0)]
    report = check(torch.softmax, cases=cases)
    assert report.passes, str(report)


def test_whole_numbers_are_left_alone_and_masks_are_made():
    def masked(x, mask, index):
        return torch.where(mask, x, 0.5)[index]

    report = check(masked, shapes=["6x8", "6x8:bool", "5:6"])
    assert report.passes, str(report)
    assert {j.tensor for j in report} == {"y", "dx"}


def test_inputs_that_need_a_gradient_are_chosen_by_the_caller():
    x, w = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)
    assert {j.tensor for j in check(square_times, None, (x, w))} == {"y", "dx"}


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"shapes": ["3xy"]}, ValueError, "no shape"),
        ({}, ValueError, "nothing to run on"),
        ({"inputs": [torch.ones(3)], "shapes": [(3,)]}, ValueError, "one alone"),
        ({"shapes": [(3,)], "dtypes": ["float31"]}, UnknownName, "float32"),
        ({"shapes": [(3,)], "device": "gpu"}, UnknownName, "cuda"),
        ({"shapes": [(3,)], "candidate": 3}, TypeError, "cannot be called"),
    ],
)
def test_a_wrong_call_is_an_error_that_says_why(arguments, error, said):
    with pytest.raises(error, match=said):
        check(silu, **arguments)


def test_a_reference_that_raises_is_an_error_with_the_line():
    def halved(x):
        raise ArithmeticError("odd")

    with pytest.raises(ValueError, match=r"odd at .*test_entry.py:\d+: raise Arith"):
        check(halved, shapes=[(3, 4)])


def test_a_reference_that_cannot_be_followed_names_operator_and_way_round():
    with pytest.raises(Untraceable, match=r"gamma.*random.*input"):
        check(torch._standard_gamma, inputs=[torch.ones(3)])


def test_it_is_gradwatch_s():
    assert gradwatch.check is check


def test_what_the_reference_detaches_has_no_gradient_in_the_truth():
    report = check(lambda x: x * x.detach(), shapes=[(3, 4)])
    assert report.passes, str(report)
    assert not check(lambda x: x * x.detach(), square, shapes=[(3, 4)]).passes


# --- modules --------------------------------------------------------------------------


def test_a_module_s_parameters_are_judged_and_given_to_the_candidate():
    def linear(x, weight, bias):
        return x @ weight.T + bias

    module = torch.nn.Linear(6, 3)
    report = check(module, linear, shapes=[(5, 6)])
    assert report.passes, str(report)
    assert {j.tensor for j in report} == {"y", "dinput", "dweight", "dbias"}


def test_a_candidate_that_forgets_the_bias_s_gradient_is_caught():
    def linear(x, weight, bias):
        return x @ weight.T + bias.detach()

    assert not check(torch.nn.Linear(6, 3), linear, shapes=[(5, 6)]).passes


def test_parameters_are_moved_a_little_so_that_a_bias_of_zero_hides_nothing():
    module = torch.nn.LayerNorm(8)
    without = functools.partial(torch.nn.functional.layer_norm, normalized_shape=[8])

    def forgets(x, weight, bias):
        return without(x) + 0 * (weight + bias)

    assert not check(module, forgets, shapes=[(5, 8)]).passes


def test_parameters_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"weight 3x6.*expected.*bias 3"):
        check(torch.nn.Linear(6, 3), torch.nn.Linear(6, 3, bias=False), shapes=[(5, 6)])


def test_the_caller_s_module_and_inputs_are_as_they_were():
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    x = torch.randn(6, 4)
    kept, threads = x.clone(), torch.get_num_threads()
    check(module, None, (x,), dtypes=["float32", "bfloat16"])
    after = module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(x, kept)
    assert torch.get_num_threads() == threads


def test_the_same_seed_gives_the_same_numbers():
    first, again = (
        [j.got for j in check(silu, shapes=[(3, 4)], seed=5)] for _ in range(2)
    )
    assert np.array_equal(first, again, equal_nan=True)


def test_torch_compile_may_have_made_candidate_and_reference():
    """Its backend "eager" generates nothing, which would take minutes."""
    compiled = torch.compile(square, backend="eager", dynamic=True)
    inputs = (torch.randn(3, 4),)
    assert check(square, compiled, inputs).passes
    assert check(compiled, function(lambda x, dy: 1.01 * x * dy), inputs).failures
    linear = torch.nn.Linear(4, 2)
    assert check(linear, torch.compile(linear, backend="eager"), inputs).passes


def test_a_target_of_whole_numbers_has_no_gradient_and_no_other_values():
    loss = torch.nn.functional.cross_entropy
    given = torch.randn(8, 10), torch.randint(10, (8,))
    report = check(loss, None, given)
    assert {j.tensor for j in report} == {"dinput", "y"}
    assert report.passes, str(report)
    assert check(loss, lambda x, t: loss(x, (t + 1) % 10), given, quick=True).failures


@pytest.mark.parametrize("seed", [0, 12, 47, 121, 137])
def test_causal_attention_passes_and_a_lost_row_does_not(seed):
    """PyTorch's kernel computes in blocks; the first row attends to one key alone.

    It computes dy v twice, in two orders: of scores around 1e6 nothing else is left.
    """
    attention = torch.nn.functional.scaled_dot_product_attention
    torch.manual_seed(seed)
    given = [torch.randn(1, 2, 7, 8, requires_grad=True) for _ in range(3)]
    causal = {"is_causal": True}
    report = check(attention, None, given, kwargs=causal)
    assert report.passes, str(report)

    def lost(q, k, v, **more):
        rows = torch.arange(7)[:, None] != 6
        return attention(torch.where(rows, q, q.detach()), k, v, **more)

    assert check(attention, lost, given, kwargs=causal, quick=True).failures


def in_blocks(wrong):
    """Attention that computes p once more, of a saved logsumexp, as kernels do."""

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            s = q @ k.mT / 4
            y = torch.softmax(s, -1) @ v
            ctx.save_for_backward(q, k, v, y, torch.logsumexp(s, -1, keepdim=True))
            return y

        @staticmethod
        def backward(ctx, dy):
            q, k, v, y, total = ctx.saved_tensors
            p = torch.exp(q @ k.mT / 4 - total)
            product = (dy * y).sum(-1, keepdim=True)
            ds = p * (dy @ v.mT - product.roll(int(wrong == "ds"), -2)) / 4
            return ds @ k, ds.mT @ q, p.mT @ dy.roll(int(wrong == "dv"), -2)

    return Attention.apply


@pytest.mark.usefixtures("undiagnosed")
@pytest.mark.parametrize("seed", [0, 3, 18, 23, 29])
def test_attention_by_a_saved_logsumexp_passes_and_another_row_does_not(seed):
    """Scores around 1e6 are off by a tenth, and so is p: more is a wrong row."""

    def attention(q, k, v):
        return torch.softmax(q @ k.mT / 4, -1) @ v

    torch.manual_seed(seed)
    given = [torch.randn(1, 2, 7, 16, requires_grad=True) for _ in range(3)]
    options = {"seed": seed, "only": "large"}
    report = check(attention, in_blocks(""), given, **options)
    assert report.passes, str(report)
    for wrong, tensors in (("ds", {"dq", "dk"}), ("dv", {"dv"})):
        report = check(attention, in_blocks(wrong), given, **options)
        large = [r.judgement for r in report.rows if "large" in r.trial]
        assert {j.tensor for j in large if not j.passes} == tensors


@pytest.mark.filterwarnings("ignore:flex_attention called without:UserWarning")
@pytest.mark.parametrize("seed", [0, 3, 14])
def test_pytorch_s_flex_attention_passes_and_a_wrong_dv_does_not(seed):
    """Scores around 1e6 are off by a tenth, and so is p."""
    attention = pytest.importorskip("torch.nn.attention.flex_attention").flex_attention
    torch.manual_seed(seed)
    given = [torch.randn(1, 2, 7, 16, requires_grad=True) for _ in range(3)]
    report = check(attention, None, given, only="large")
    assert report.passes, str(report)
    wrong = check(attention, in_blocks("dv"), given, only="large")
    large = [r.judgement for r in wrong.rows if "large" in r.trial]
    assert [j.tensor for j in large if not j.passes] == ["dvalue"]
