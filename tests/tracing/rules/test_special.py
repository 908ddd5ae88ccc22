"""Special functions: value, slope and rounding rule, each against ball arithmetic."""

import sys

import flint
import numpy as np
import pytest

pytest.importorskip("torch")


from gradwatch.harness.judging.precisions import PRECISIONS, arithmetics
from gradwatch.harness.judging.rounding.analysis import running_errors
from gradwatch.harness.tracing.aten.elementwise import ON_FLOATS
from gradwatch.harness.tracing.rules import special
from gradwatch.impls import graph
from tests.balls import balls, digits, precise

STEP = 2.0**-130
POSITIVE = np.array([0.3, 1.0, 1.4616, 2.5, 9.75])
ANY = np.array([-2.7, -0.6, 0.05, 1.25, 4.5])
INSIDE = np.array([-0.95, -0.3, 0.01, 0.5, 0.99])


def hurwitz(n):
    """Polygamma by Hurwitz's zeta function (Abramowitz and Stegun, 6.4.10)."""
    factor = (-1) ** (n + 1) * flint.arb.fac_ui(n)
    return lambda x: factor * flint.arb(n + 1).zeta(x)


# The function, what python-flint has of it, and where it is tried.
SPECIAL = {
    "digamma": (lambda x: special.polygamma(x, n=0), lambda x: x.digamma(), POSITIVE),
    "trigamma": (lambda x: special.polygamma(x, n=1), hurwitz(1), POSITIVE),
    "polygamma 3": (lambda x: special.polygamma(x, n=3), hurwitz(3), POSITIVE),
    "lgamma": (special.lgamma, lambda x: x.lgamma(), POSITIVE),
    "erfinv": (special.erfinv, lambda x: x.erfinv(), INSIDE),
    "ndtri": (
        special.ndtri,
        lambda x: flint.arb(2).sqrt() * (2 * x - 1).erfinv(),
        INSIDE[2:],
    ),
    "erfcx": (special.erfcx, lambda x: (x * x).exp() * x.erfc(), ANY),
    "i0": (lambda x: special.bessel_i(x, n=0), lambda x: x.bessel_i(0), ANY),
    "i1": (lambda x: special.bessel_i(x, n=1), lambda x: x.bessel_i(1), ANY),
    "i1e": (
        lambda x: special.bessel_ie(x, n=1),
        lambda x: x.bessel_i(1) * (-abs(x)).exp(),
        ANY,
    ),
}


def errors_behind(y):
    """In float32, at one rounding."""
    order = graph.topological_order([y])
    return running_errors(order, arithmetics("float32")[0], 1.0).errors


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize(("dtype", "wanted"), [(np.float64, 13), (np.longdouble, 18)])
def test_values_are_right_to_the_digits_of_the_type(name, dtype, wanted):
    function, exact, where = SPECIAL[name]
    found = function(graph.variable(where.astype(dtype))).value
    with precise():
        for x, y in zip(where, found, strict=True):
            high = float(y)
            got = flint.arb(high) + flint.arb(float(y - dtype(high)))
            assert digits(got, exact(flint.arb(float(x)))) > wanted


@pytest.mark.parametrize("name", SPECIAL)
def test_a_rule_is_the_derivative_to_25_digits(name):
    function, _, where = SPECIAL[name]
    with precise():
        x = balls(where)
        leaf = graph.variable(x)
        y = function(leaf)
        (slope,) = graph.gradient([y], [balls(np.ones(where.shape))], [leaf])
        there = function(graph.variable(x + balls(np.full(where.shape, STEP)))).value
        for moved, here, got in zip(there, y.value, slope.value, strict=True):
            assert digits((moved - here) / flint.arb(STEP), got) > 25


@pytest.mark.parametrize("name", SPECIAL)
def test_the_rounding_rule_bounds_what_a_rounded_input_changes(name):
    """x / 3 is rounded to float32: the true change lies within the radius, in balls."""
    function, exact, where = SPECIAL[name]
    precision = PRECISIONS["float32"]
    x = graph.variable(3 * where) / 3.0
    y = function(x)
    errors = errors_behind(y)
    rounded = np.float64(np.float32(where))
    with precise():
        for a, b, e in zip(where, rounded, errors[y], strict=True):
            moved = exact(flint.arb(float(b))) - exact(flint.arb(float(a)))
            assert float(abs(moved)) <= precision.roundoff * e


def test_at_a_pole_nothing_is_bounded():
    x = graph.variable(np.array([-1.0 + 1e-9, 1e-9])) * 0.9 / 0.9
    y = special.lgamma(x)
    errors = errors_behind(y)
    assert not np.isfinite(errors[y][0])


def test_every_special_primitive_is_tried():
    names = {n for n in graph.PRIMITIVES if n.startswith("special.")}
    names -= {"special.inverse", "special.determinant"}  # in test_systems.py
    names -= {"special.polynomial"}  # the identity, behind matrix_exp
    names -= {"special.logsumexp"}  # in test_logsumexp.py
    tried = set()
    for function, _, where in SPECIAL.values():
        y = function(graph.variable(where))
        tried |= {n.primitive.name for n in graph.topological_order([y]) if n.primitive}
    assert names <= tried


def test_without_mpmath_it_is_said_what_to_install(monkeypatch):
    """JAX and NumPy alone said `No module named 'mpmath'`."""
    monkeypatch.setitem(sys.modules, "mpmath", None)
    monkeypatch.delitem(sys.modules, special.__name__)
    monkeypatch.delattr(sys.modules[special.__package__], "special")
    with pytest.raises(ImportError, match="lgamma needs mpmath: pip install 'gradw"):
        ON_FLOATS["lgamma"](graph.variable(POSITIVE))
