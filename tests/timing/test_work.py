"""Bytes and operations counted from the formula, against counts made by hand."""

import numpy as np
import pytest

from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.timing.proof import work
from gradwatch.impls.catalogue import load_op


def counted(op, case):
    page = load_op(op)
    cases = {**page.cases, **page.sizes}
    return work(trial(page, cases[case], REGIMES["normal"], "float32").problem)


def test_a_matrix_product_takes_two_operations_a_term():
    n = 256
    found = counted("linear", f"{n}x{n}-{n}")
    assert found["forward"].flops == 2 * n**3 + n * n  # and the bias
    assert found["forward"].bytes == 4 * (3 * n * n + n)
    # dx = dy @ weight and dweight = dy.T @ x, and the bias summed
    assert found["backward"].flops == pytest.approx(4 * n**3, rel=0.01)


def test_an_elementwise_op_moves_each_array_once():
    n = 65536
    found = counted("square", f"{n}")
    assert found["forward"].bytes == 4 * 2 * n
    assert found["backward"].bytes == 4 * 3 * n
    assert found["forward"].flops == n


def test_a_view_costs_no_operation():
    found = counted("softmax", "64x1024")
    elements = 64 * 1024
    per_element = found["forward"].flops / elements
    # max, subtract, exp, sum, divide
    assert per_element == pytest.approx(5, abs=0.01)
    assert np.isfinite(found["backward"].flops)
