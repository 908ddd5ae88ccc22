"""Independent rows are evaluated block by block, with the values of the whole."""

import tracemalloc

import numpy as np
import pytest

from gradwatch.harness.judging.acceptance.large import Look, passing
from gradwatch.harness.judging.orders import nodes_of
from gradwatch.harness.judging.reference import Asked
from gradwatch.impls import graph
from gradwatch.impls.graph import blocks
from tests.judging.acceptance.test_large import SHAPES, problem

IN_BLOCKS = ["layer_norm", "softmax", "rms_norm"]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK", 1 << 10)


def evaluated(op, dtype="float64"):
    made, _ = problem(op, dtype)
    nodes = nodes_of(made, np.dtype(np.float64))
    found = {name: [] for name in nodes}
    order = graph.topological_order(nodes.values())
    for name, row, part in blocks.forward_in_blocks(nodes, passing(order)):
        found[name].append((row, part.value.copy()))
    return nodes, found


@pytest.mark.parametrize("op", IN_BLOCKS)
def test_blocks_and_sums_over_them_are_the_values_of_the_whole(op):
    nodes, found = evaluated(op)
    whole = nodes_of(problem(op, "float64")[0], np.dtype(np.float64))
    graph.forward(whole.values())
    for name, parts in found.items():
        rows, step = [row for row, _ in parts], parts[0][1].shape[0]
        assert rows == ([0] if nodes[name].ndim == 1 else [*range(0, 64, step)])
        joined = np.concatenate([value for _, value in parts])
        np.testing.assert_allclose(joined, whole[name].value, rtol=1e-12, atol=1e-14)
        assert nodes[name].held == (nodes[name].ndim == 1)


@pytest.mark.parametrize("op", IN_BLOCKS)
def test_sums_of_rows_are_held_in_the_end(op):
    nodes, _ = evaluated(op)
    order = graph.topological_order(nodes.values())
    whole = nodes_of(problem(op, "float64")[0], np.dtype(np.float64))
    others = graph.topological_order(whole.values())
    for node, other in zip(order, others, strict=True):
        if node.held:
            np.testing.assert_allclose(node.value, other.value, rtol=1e-12, atol=1e-14)
    sums = [n for n in order if n.primitive and n.primitive.name in ("sum", "sum_to")]
    assert sums
    assert all(node.held for node in sums)


def test_a_length_that_is_the_number_of_rows_by_chance_changes_nothing(monkeypatch):
    shapes = [(64, 64), (64,), (64,)]
    monkeypatch.setitem(SHAPES, "layer_norm", (shapes, {"eps": 1e-5}))
    test_blocks_and_sums_over_them_are_the_values_of_the_whole("layer_norm")


@pytest.mark.parametrize("op", ["matmul", "conv2d"])
def test_rows_that_a_product_adds_up_are_evaluated_as_a_whole(op):
    nodes, found = evaluated(op)
    assert all(len(parts) == 1 for parts in found.values())
    assert all(node.held for node in nodes.values())


def test_statistics_of_all_rows_leave_no_blocks():
    x, dy = (graph.variable(np.random.default_rng(i).random((64, 256))) for i in (0, 1))
    y = x - graph.mean(x, 0)
    (dx,) = graph.gradient([y], [dy], [x])
    parts = [*blocks.forward_in_blocks({"dx": dx, "y": y}, lambda n: False)]
    assert [node for _, _, node in parts] == [dx, y]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("op", IN_BLOCKS)
def test_a_look_at_blocks_is_that_at_the_whole(op, dtype, monkeypatch):
    made, got = problem(op, dtype)
    dtypes = dict.fromkeys(got, dtype)
    one = Look(Asked.of(made), got, dtypes)
    monkeypatch.setattr(blocks, "BLOCK", 1 << 30)
    other = Look(Asked.of(made), got, dtypes)
    assert one.judgements.keys() == other.judgements.keys()
    for name, judgement in one.judgements.items():
        assert judgement.ratio == pytest.approx(other.judgements[name].ratio, rel=0.1)
        assert judgement.expected == pytest.approx(judgement.got, rel=1e-2)


@pytest.mark.parametrize("row", [0, 3, 4, 37, 63])
@pytest.mark.parametrize("op", IN_BLOCKS)
def test_a_wrong_element_of_any_block_is_found_in_its_place(op, row):
    made, got = problem(op, "float32")
    dx = np.array(got["dx"])
    dx[row, 11] += 0.01
    look = Look(Asked.of(made), got | {"dx": dx}, dict.fromkeys(got, "float32"))
    assert "dx" not in look.judgements
    assert look.far["dx"][0] == row * 256 + 11


def test_blocks_need_a_fraction_of_the_memory(monkeypatch):
    made, _ = problem("layer_norm", "float64")

    def peak():
        nodes = nodes_of(made, np.dtype(np.float64))
        order = graph.topological_order(nodes.values())
        tracemalloc.start()
        for _ in blocks.forward_in_blocks(nodes, passing(order)):
            pass
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return held

    peak()  # what is imported and cached once
    inside = peak()
    monkeypatch.setattr(blocks, "BLOCK", 1 << 30)
    assert inside < peak() / 2
