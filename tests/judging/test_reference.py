"""The reference itself is judged: by differences of the forward in 400-bit balls."""

import weakref
import zlib

import numpy as np
import pytest

from gradwatch.harness.judging.cases import REGIMES, is_floating, trial
from gradwatch.harness.judging.question import Question
from gradwatch.harness.judging.reference import reference
from gradwatch.impls import catalogue, graph
from gradwatch.impls.contract import Problem, as_tuple
from tests.balls import balls, digits, precise

STEP = 2.0**-130  # one-sided: truncation leaves 39 digits, cancellation 80
ENOUGH = 25

CASES = [
    pytest.param(op, case, id=f"{op.name}-{case.name}")
    for op in map(catalogue.load_op, catalogue.op_names())
    for case in op.cases.values()
]

#: A row that an op reads, but that by definition does not learn: it is not moved here.
FROZEN = {("2x9-5x4-padding0", "weight"): 0}


def outputs(op, problem, arrays):
    """The differentiable outputs of the formula, evaluated in balls."""
    leaves = {n: graph.variable(a) for n, a in arrays.items()}
    returned = as_tuple(
        op.said("formula")(graph, *problem.arguments(leaves), **problem.attributes)
    )
    named = zip(op.outputs, returned, strict=False)
    return leaves, [node for name, node in named if name not in op.integers]


def pulled(op, problem, arrays, cotangents):
    """Sum of cotangent * output: the scalar whose gradient the VJP is."""
    _, nodes = outputs(op, problem, arrays)
    pairs = zip(nodes, cotangents, strict=True)
    return sum(np.sum(n.value * dy) for n, dy in pairs)


def against_difference(op, case, rule=lambda gradient: gradient):
    """Digits in which the engine's VJP and a difference agree, for each input."""
    problem: Problem = trial(op, case, REGIMES["normal"], "float64").problem
    rng = np.random.default_rng(zlib.crc32(f"{op.name}{case.name}".encode()))
    arrays = {n: balls(a) if is_floating(a) else a for n, a in problem.inputs.items()}
    cotangents = [balls(c) for c in problem.cotangents if c is not None]
    leaves, nodes = outputs(op, problem, arrays)
    wanted = [leaves[n] for n in problem.wanted]
    gradients = graph.gradient(nodes, cotangents, wanted)
    at = pulled(op, problem, arrays, cotangents)
    for name, gradient in zip(problem.wanted, gradients, strict=True):
        direction = balls(rng.standard_normal(arrays[name].shape))
        if (case.name, name) in FROZEN:
            direction[FROZEN[case.name, name]] *= 0
        moved = {**arrays, name: arrays[name] + direction * balls(STEP)}
        slope = (pulled(op, problem, moved, cotangents) - at) / STEP
        yield name, digits(slope, np.sum(rule(gradient.value) * direction))


@pytest.mark.parametrize(("op", "case"), CASES)
def test_vjp_is_the_derivative_of_the_forward_to_25_digits(op, case):
    with precise():
        for name, agreed in against_difference(op, case):
            assert agreed >= ENOUGH, f"d{name}: only {agreed:.1f} digits"


def test_a_vjp_off_by_one_part_in_a_billion_is_noticed():
    op = catalogue.load_op("layer_norm")
    with precise():
        spoilt = against_difference(
            op, op.cases["3x8"], rule=lambda g: g * (1 + flint_tiny())
        )
        assert all(agreed < ENOUGH for _, agreed in spoilt)


def flint_tiny():
    return balls(1e-9).item()


def test_one_question_asked_in_two_ways_is_answered_once():
    op = catalogue.load_op("softmax")
    case = next(iter(op.cases.values()))
    right = reference(trial(op, case, REGIMES["normal"], "float32").problem)
    narrow = right.arithmetics[-1]
    radii = right.radii("first", narrow)
    assert radii is right.radii()
    assert radii.bounds is radii.bounds
    careless = radii.careless("float32", ("dx",))
    assert careless is radii.careless("float32", ("dx",))
    assert careless.bounds["dx"] is not radii.bounds["dx"]
    assert careless.bounds.keys() == {"dx"}  # nothing is computed for others


def test_what_was_judged_goes_before_garbage_is_collected():
    """A cycle would keep the arrays of all checks until then."""
    x = graph.variable(np.ones(3))
    question = Question(lambda _: {"y": graph.exp(x)}, "float32")
    right = weakref.ref(question.right)
    assert right() is not None
    del question
    assert right() is None
