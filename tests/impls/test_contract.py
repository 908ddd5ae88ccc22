"""The contract of a custom Function: what it gives, gets and may keep.

tests/behaviours.py is run on PyTorch 2.13 and on OneFlow 0.9.0. Where they differ the
test states both sides, so that a new version of either is noticed.
"""

import numpy as np
import pytest

from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.impls.catalogue import load_op, op_names
from gradwatch.impls.contract import sum_to
from tests.frameworks import FRAMEWORKS, observed

# Our pages ----------------------------------------------------------------------------


class Context:
    """Keeps what save_for_backward takes; anything else put on it is an error."""

    __slots__ = ("saved_tensors",)

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors):
        assert all(not tensor.dtype.is_floating_point for tensor in tensors)


@pytest.mark.parametrize("name", op_names())
def test_a_page_gives_one_gradient_for_each_input_and_keeps_nothing_on_ctx(name):
    """None for state and constants; else of its input's shape and dtype, in order."""
    torch = pytest.importorskip("torch")
    op = load_op(name)
    said = op.said("custom", "torch")
    for case in op.cases.values():
        problem = trial(op, case, REGIMES["normal"], "float64").problem
        ctx, leaves = Context(), {n: torch.tensor(a) for n, a in problem.inputs.items()}
        inputs, attributes = problem.arguments(leaves), problem.attributes
        outputs = said.forward(ctx, *inputs, **attributes)
        several = outputs if isinstance(outputs, tuple) else (outputs,)
        gradients = said.backward(ctx, *map(torch.ones_like, several), **attributes)
        gradients = gradients if isinstance(gradients, tuple) else (gradients,)
        expected = [
            (tensor.shape, tensor.dtype) if name in op.differentiable else None
            for name, tensor in zip(op.inputs, inputs, strict=True)
        ]
        assert expected == [g if g is None else (g.shape, g.dtype) for g in gradients]


def test_a_function_that_keeps_something_else_on_ctx_is_noticed():
    with pytest.raises(AttributeError):
        Context().shape = (2, 3)


@pytest.mark.parametrize(
    "shape", [(), (1,), (4,), (3, 1), (1, 4), (3, 4), (2, 3, 4), (1, 1, 1)]
)
def test_sum_to_is_the_transpose_of_broadcasting(shape):
    """<broadcast(a), dy> = <a, sum_to(dy)> for all a and dy, in small integers."""
    rng = np.random.default_rng(3)
    a, dy = rng.integers(-9, 10, shape), rng.integers(-9, 10, (2, 3, 4))
    summed = sum_to(dy, shape)
    assert summed.shape == shape
    assert np.sum(np.broadcast_to(a, dy.shape) * dy) == np.sum(a * summed)


def test_sum_to_leaves_alone_what_was_not_copied():
    dy = np.ones((2, 3))
    assert sum_to(dy, (2, 3)) is dy
    assert sum_to(np.ones((0, 3)), (1, 3)).tolist() == [[0, 0, 0]]


# Where the frameworks agree -----------------------------------------------------------

BOTH = {
    "one_gradient_for_each_input": [[3], [2]],
    "none_where_no_gradient_is_due": [[3], None],
    "the_same_tensor_passed_twice": [4, 6],
    "cotangents_run_backward_together": {"cotangents": [[1, 1]], "gradient": 3},
    "cotangents_run_backward_one_after_the_other": {
        "cotangents": [[1, 0], [0, 1]],  # the unused one is zero
        "gradient": 3,
    },
    "accumulation": [[2, 4], [4, 8], [2, 4]],
    "accumulation_through_a_function": [10, 10],
    "non_scalar_with_cotangent": [2, 4],
}

BOTH_FAIL = {
    "too_few_gradients": "incorrect number of gradients (expected 2, got 1)",
    "too_many_gradients": "incorrect number of gradients (expected 1, got 2)",
    "requires_grad_too_late": "does not require grad",
    "non_scalar_without_cotangent": "only for scalar outputs",
    "backward_twice_without_retain_graph": "second time",
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("behaviour", BOTH)
def test_what_both_frameworks_do(framework, behaviour):
    assert observed(framework)[behaviour] == BOTH[behaviour]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("behaviour", BOTH_FAIL)
def test_what_both_frameworks_refuse(framework, behaviour):
    assert BOTH_FAIL[behaviour] in observed(framework)[behaviour]["error"]


# Where they differ --------------------------------------------------------------------


INDEX = {"needs": False, "dx": [[0, 1, 0]]}

DIFFERENT = {
    # behaviour: (PyTorch 2.13, OneFlow 0.9.0); a string is part of an error
    "gradient_of_another_shape": ("invalid gradient at index 0", [1]),
    "bias_gradient_not_summed": ([3, 3], [[1, 1]] * 3),
    "gradient_of_another_dtype": ("float32", "float64"),
    "none_where_a_gradient_is_due": ([[3], None], "but got None grad"),
    "a_none_too_many": ([1, 1], "incorrect number of gradients"),
    "an_argument_that_is_no_tensor": ([3, 6], "expected Tensor or None"),
    "needs_input_grad": ([[True]], "needs_input_grad not found"),
    "grad_of_an_input_not_used": (None, "unexpected keyword argument 'allow_unused'"),
    "cotangent_of_a_sum_is_contiguous": ([False], [True]),
    "cotangent_of_an_integer_output": (
        {"dindices": [[0]], **INDEX},
        {"dindices": [None], **INDEX},
    ),
    "backward_writes_to_its_cotangent": (
        {"da": [2, 2], "db": [1, 1]},
        {"da": [2, 2], "db": [2, 2]},  # the sibling's gradient is wrong
    ),
    "forward_returns_its_input": ([5, 5], None),
    "an_attribute_of_ctx_outlives_the_forward": (
        {"alive": True, "value": [1, 2]},
        {"alive": False, "value": [1, 2]},  # freed: reading it in backward may crash
    ),
}


@pytest.mark.parametrize("framework", ["torch", "oneflow"])
@pytest.mark.parametrize("behaviour", DIFFERENT)
def test_where_the_frameworks_differ(framework, behaviour):
    seen = observed(framework)[behaviour]
    expected = dict(zip(("torch", "oneflow"), DIFFERENT[behaviour], strict=True))
    if isinstance(seen, dict) and "error" in seen:
        assert expected[framework] in seen["error"]
    else:
        assert seen == expected[framework]


@pytest.mark.parametrize("behaviour", DIFFERENT)
def test_a_difference_is_one(behaviour):
    assert observed("torch")[behaviour] != observed("oneflow")[behaviour]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_behaviour_is_asserted(framework):
    """A behaviour without a claim, or a claim without a behaviour, is a leftover."""
    elsewhere = {"has_exp2"}  # tests/worked
    claimed = {*BOTH, *BOTH_FAIL, *DIFFERENT, *elsewhere}
    assert set(observed(framework)) == claimed
