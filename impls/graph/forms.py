"""Forms of an array: what is read in another order, or of which each element changes.

`formed` is a form as a node, which has a gradient.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gradwatch.impls.graph.engine import (
    PRIMITIVES,
    Array,
    Node,
    Primitive,
    no_gradient,
)
from gradwatch.impls.graph.moves import gather

#: How far-fetched it is, words with {} for the value, and the form.
Form = tuple[float, str, Callable[[Array], Array]]

#: Replacements of a value that are computed from it alone.
_VALUES: Sequence[Form] = (
    (4, "1 stands for {}", np.ones_like),
    (5, "0 stands for {}", np.zeros_like),
    (5, "|{}| stands for it", np.abs),
    (5, "the square of {} stands for it", np.square),
    (6, "1 / {} stands for it", lambda x: 1 / x),
    (6, "1 - {} stands for it", lambda x: 1 - x),
    (6, "1 + {} stands for it", lambda x: 1 + x),
    (6, "the sign of {} stands for it", np.sign),
    (6, "{} is clipped at 0", lambda x: np.maximum(x, 0)),
    (6, "{} is halved", lambda x: x / 2),
    (6, "{} is counted twice", lambda x: 2 * x),
    (6.2, "{} is given the wrong sign", lambda x: -x),
)
_MASKS: Sequence[Form] = (
    (4.9, "{} is not applied", np.ones_like),
    (4.9, "{} is not applied", np.zeros_like),  # where it is true for what is left out
    (5, "{} is inverted", np.logical_not),
)


def _shifted(x: Array, by: int = 1) -> Array:
    """The array shifted along its first axis; its first or last is kept."""
    return x[np.clip(np.arange(len(x)) - by, 0, len(x) - 1)]


#: A mask that has one more or one fewer along an axis.
_BORDERS: Sequence[Form] = (
    (5.5, "{} begins one earlier", lambda x: x | _shifted(x, -1)),
    (5.5, "{} begins one later", lambda x: x & _shifted(x)),
    (5.5, "{} ends one later", lambda x: x | _shifted(x)),
    (5.5, "{} ends one earlier", lambda x: x & _shifted(x, -1)),
    (5.6, "{} is one wider", lambda x: x | _shifted(x) | _shifted(x, -1)),
    (5.6, "{} is one narrower", lambda x: x & _shifted(x) & _shifted(x, -1)),
)
_MATRICES: Sequence[Form] = (
    (6, "{} is read in column order", lambda x: x.reshape(x.shape[::-1]).T),
    (6, "{} is its transpose, read in rows", lambda x: x.T.reshape(x.shape)),
)
#: Changes of rows, or of all elements as one row.
_ROWS: Sequence[Form] = (
    (5.5, "{} is reversed", lambda x: x[::-1]),
    (6, "{} is shifted by one", lambda x: np.roll(x, 1, 0)),
    (6, "{} is shifted back by one", lambda x: np.roll(x, -1, 0)),
    (6.5, "{} is shifted, its first kept", _shifted),
    (
        6.5,
        "the halves of {} alternate",
        lambda x: np.stack(np.split(x, 2), 1).reshape(x.shape),
    ),
    (6.5, "pairs stand for the halves of {}", lambda x: np.r_[x[::2], x[1::2]]),
    (6, "the mean of {} stands for it", lambda x: 0 * x + x.mean(0)),
    (6, "the sum of {} stands for it", lambda x: 0 * x + x.sum(0)),
    (6, "the last of {} is left out", lambda x: np.r_[x[:-1], 0 * x[-1:]]),
    (6, "the first of {} is left out", lambda x: np.r_[0 * x[:1], x[1:]]),
    (6, "all but the first of {} is left out", lambda x: np.r_[x[:1], 0 * x[1:]]),
    (6, "the last copy overwrites all of {}", lambda x: np.r_[0 * x[:-1], x[-1:]]),
    (7.5, "the first of {} stands for all", lambda x: 0 * x + x[0]),
)


def _along(axis: int | None, form: Callable[[Array], Array], x: Array) -> Array:
    if axis is None:
        return form(x.ravel()).reshape(x.shape)
    return np.moveaxis(form(np.moveaxis(x, axis, 0)), 0, axis)


def counts(node: Node) -> Iterator[Form]:
    """A mean that divides by one fewer or one more, as an unbiased variance does."""
    divides = node.primitive is PRIMITIVES["divide"] and node.inputs[1].size == 1
    n = float(node.inputs[1].value.reshape(-1)[0]) if divides else 0.0
    for other in (n - 1, n + 1) if n > 2 and n.is_integer() else ():
        said = f"{other:g} stands for {n:g} in {{}}"
        yield 6.5, said, partial(np.multiply, n / other)


def part_is(where: str, how: str) -> str:
    """Words with {term} for a value, slices of which are replaced."""
    several = re.match(r"the (first|last) \d|slices", where)
    return f"{where} of {{term}} {'are' if several else 'is'} {how}"


def _numbers(x: Array) -> Iterator[Form]:
    """Replacements of numbers, but for those of rows."""
    low = x < -1e4
    if x.size > 1 and low.any() and (low | (x == 0)).all():  # added to scores
        yield 3.9, "{} is not applied", np.zeros_like
    yield from _VALUES
    if 0 < np.count_nonzero(x) == (x == 1).sum() < x.size:
        for slope in (0.01, 0.1, 0.2):  # as of a leaky ReLU
            text = f"{slope} stands for 0 in {{}}"
            yield 6, text, partial(np.maximum, slope)
    if x.shape[-1:] == (2,):
        yield 4, "the conjugate of {} stands for it", lambda x: x * (1, -1)


def forms(x: Array) -> Iterator[Form]:
    """Replacements of a value, computed from it alone."""
    mask, rows = x.dtype.kind == "b", _ROWS if x.size > 1 else ()
    yield from _MASKS if mask else _numbers(x)
    if x.ndim > 1:
        yield from _MATRICES
    if x.ndim > 2:
        text = "{} is turned about in its last two axes"
        yield 5.4, text, lambda x: np.flip(x, (-2, -1))
    for i, j in itertools.combinations(range(x.ndim), 2):
        if 1 < x.shape[i] == x.shape[j]:
            text = f"axes {i} and {j} of {{}} are swapped"
            text = "{} is transposed" if i + 2 == x.ndim else text
            yield 5, text, partial(np.swapaxes, axis1=i, axis2=j)
    for axis in (None, *(i for i, n in enumerate(x.shape) if 1 < n < x.size)):
        at = "" if axis is None else f" along axis {axis}"
        for rank, text, form in (*rows, *(_BORDERS if mask and at else ())):
            yield rank, text + at, partial(_along, axis, form)
    yield from _parts(x)


def _parts(x: Array) -> Iterator[Form]:
    """Exchanges of two of up to four equal parts, as gates of a recurrent cell."""
    for axis, n in enumerate(x.shape):
        for size in (i for i in (2, 3, 4) if n % i == 0 and n > i):
            for i, j in itertools.combinations(range(size), 2):
                which = f"parts {i} and {j} of {size}" if size > 2 else "the halves"
                text = f"{which} of {{}} are exchanged along axis {axis}"
                yield 5.5, text, partial(_along, axis, partial(_exchanged, size, i, j))


def _exchanged(size: int, i: int, j: int, x: Array) -> Array:
    """The array with two of its equal parts exchanged."""
    parts = np.split(x, size)
    parts[i], parts[j] = parts[j], parts[i]
    return np.concatenate(parts)


#: Functions of one value, by name.
CURVES: Mapping[str, Callable[[Array], Array]] = {
    "tanh": np.tanh,
    "sigmoid": PRIMITIVES["sigmoid"].compute,
    "erf": lambda x: PRIMITIVES["erf"].compute(x / 2**0.5),
    "the tanh approximation of erf": lambda x: np.tanh(
        (2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)
    ),
    "the sigmoid of quick GELU": lambda x: np.tanh(0.851 * x),
    "the sigmoid of SiLU": lambda x: np.tanh(x / 2),
    "exp": np.exp,
    "log2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
}


def formed(form: Callable[..., Any], *given: Node) -> Node:
    """The node of a form that moves elements, or changes each by itself."""
    made, x = np.asarray(form(*(n.value for n in given))), given[0]
    if len(given) == 1 and made.dtype == x.dtype:
        at = np.asarray(form(np.arange(1.0, 1 + x.size).reshape(x.shape)))
        places = np.clip(at, 0, x.size).astype(int) - 1
        moved = gather(x, index=places)
        if (at == places + 1).all() and np.array_equal(made, moved.value):
            return moved
    slopes = Primitive("slope", partial(_slope, form), no_gradient)
    step = Primitive(
        "form",
        form,
        lambda dy, y, *x: [dy * Node(slopes, x)] if len(x) == 1 else [None] * len(x),
        dtype=lambda *_: made.dtype,
    )
    return Node(step, given)


def _slope(form: Callable[[Array], Array], x: Array) -> Array:
    """The derivative of an elementwise form, by central differences."""
    h = 1e-4 * np.maximum(np.abs(x), 1e-2)
    near, far = (form(x + n * h) - form(x - n * h) for n in (1, 2))
    return np.asarray((8 * near - far) / (12 * h), x.dtype)
