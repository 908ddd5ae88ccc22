"""A small automatic differentiation engine on NumPy.

Calling a function of this module only *builds* a graph: a `Node` remembers its
`Primitive` and its input nodes. `forward` walks the graph in topological order
(post-order depth-first search from the outputs) and fills in the values; `gradient`
walks it in reverse and *adds* what reaches a node by several paths. A rule returns
nodes, not numbers, so a gradient is a node of the same graph: it can be evaluated,
inspected, and given a running error, like any other.

    x, w = variable(np.ones(3)), variable(np.arange(3.0))
    y = sum(exp(x) * w)
    dx, dw = gradient([y], [np.ones(())], [x, w])
    dx.value

The module is itself the `xp` that an op's formula is called with: names and
arguments are those of the array API standard, plus `sigmoid`, `exp2` and
`stop_gradient`. What it lacks raises AttributeError with the nearest name.

Source of the rules: Griewank and Walther, Evaluating Derivatives, 2nd ed., ch. 3.
"""

from __future__ import annotations

import builtins
import contextlib
import difflib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Primitive:
    """A function of arrays, and the VJP rule that says its gradient in nodes.

    `gradient(dy, y, *inputs, **attributes)` returns one node (or None where no
    gradient flows) for each input; `dy` is the cotangent of the output node `y`.
    """

    name: str
    compute: Callable[..., Any]
    gradient: Callable[..., Sequence[Node | None]]


class Node:
    """A value that is known, or that a primitive will compute from its inputs."""

    __slots__ = ("_value", "attributes", "dtype", "inputs", "primitive")
    __array_ufunc__ = None  # NumPy arrays on the left leave the operator to us

    def __init__(
        self,
        primitive: Primitive | None,
        inputs: tuple[Node, ...] = (),
        attributes: dict[str, Any] | None = None,
        value: Array | None = None,
    ) -> None:
        self.primitive = primitive
        self.inputs = inputs
        self.attributes = attributes or {}
        self._value = value
        self.dtype: np.dtype[Any] = inputs[0].dtype if value is None else value.dtype

    @property
    def value(self) -> Array:
        """The node's array; runs what is missing of the forward sweep."""
        if self._value is None:
            forward([self])
        assert self._value is not None
        return self._value

    @property
    def shape(self) -> tuple[int, ...]:
        """The value's shape; the value is computed if it must be."""
        return self.value.shape

    @property
    def ndim(self) -> int:
        """The value's number of axes."""
        return self.value.ndim

    @property
    def size(self) -> int:
        """The value's number of elements."""
        return self.value.size

    @property
    def T(self) -> Node:  # noqa: N802  # the array API calls it so
        """The axes in reverse order."""
        return permute_dims(self, tuple(range(self.ndim))[::-1])

    def __getitem__(self, index: Any) -> Node:
        return take(self, index=index)

    def __repr__(self) -> str:
        return f"Node({self.primitive.name if self.primitive else 'variable'})"

    def __add__(self, other: Any) -> Node:
        return add(self, other)

    def __radd__(self, other: Any) -> Node:
        return add(other, self)

    def __sub__(self, other: Any) -> Node:
        return subtract(self, other)

    def __rsub__(self, other: Any) -> Node:
        return subtract(other, self)

    def __mul__(self, other: Any) -> Node:
        return multiply(self, other)

    def __rmul__(self, other: Any) -> Node:
        return multiply(other, self)

    def __truediv__(self, other: Any) -> Node:
        return divide(self, other)

    def __rtruediv__(self, other: Any) -> Node:
        return divide(other, self)

    def __matmul__(self, other: Any) -> Node:
        return matmul(self, other)

    def __neg__(self) -> Node:
        return negative(self)


# The two sweeps -----------------------------------------------------------------


def topological_order(
    outputs: Iterable[Node], stop: Callable[[Node], bool] | None = None
) -> list[Node]:
    """All nodes that the outputs need, inputs before their users.

    Post-order depth-first search with a stack of its own, so that a chain of 100,000
    nodes needs no recursion. Nodes for which `stop` holds are left out, and so is
    what lies behind them.
    """
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[Node | None] = [*outputs]
    while stack:
        node = stack.pop()
        if node is None:  # above a node whose inputs are all in the order
            order.append(cast(Node, stack.pop()))
        elif node not in seen and not (stop and stop(node)):
            seen.add(node)
            stack += (node, None)
            stack += node.inputs
    return order


def forward(outputs: Iterable[Node]) -> None:
    """Fill in the values of the outputs and of all that they need."""
    with np.errstate(all="ignore"):  # inf and nan are results here, not accidents
        for node in topological_order(outputs, stop=lambda n: n._value is not None):
            assert node.primitive is not None
            arrays = (source.value for source in node.inputs)
            node._value = np.asarray(node.primitive.compute(*arrays, **node.attributes))


def gradient(
    outputs: Sequence[Node], cotangents: Sequence[Any], inputs: Sequence[Node]
) -> list[Node | None]:
    """Vector-Jacobian products: d(sum of cotangent * output) / d(input).

    Args:
        outputs: Nodes; evaluated if they are not yet.
        cotangents: One array for each output, of its shape.
        inputs: The nodes to differentiate by.

    Returns:
        A node for each input, of its shape; None where no path leads to it.

    Raises:
        ValueError: a cotangent's shape is not its output's.
    """
    forward(outputs)
    reached: dict[Node, Node] = {}
    for output, cotangent in zip(outputs, cotangents, strict=True):
        _add_to(reached, output, _cotangent(output, cotangent))
    for node in reversed(topological_order(outputs)):
        if node.primitive is None or node not in reached:
            continue
        parts = node.primitive.gradient(
            reached[node], node, *node.inputs, **node.attributes
        )
        for source, part in zip(node.inputs, parts, strict=True):
            if part is not None:
                _add_to(reached, source, part)
    return [reached.get(node) for node in inputs]


def _add_to(reached: dict[Node, Node], node: Node, part: Node) -> None:
    reached[node] = add(reached[node], part) if node in reached else part


def _cotangent(output: Node, cotangent: Any) -> Node:
    array = np.asarray(cotangent, dtype=output.dtype)
    if array.shape != output.shape:
        raise ValueError(
            f"the cotangent has shape {array.shape}, its output {output.shape}"
        )
    return variable(array)


# Building nodes -----------------------------------------------------------------

PRIMITIVES: dict[str, Primitive] = {}
Builder = Callable[..., "Node"]


def variable(array: Any) -> Node:
    """A leaf: an input, a cotangent or a constant."""
    return Node(None, value=np.asarray(array))


def primitive(
    name: str,
    compute: Callable[..., Any],
    rule: Callable[..., Sequence[Node | None]],
) -> Builder:
    """Register a primitive and return the function that builds its nodes."""
    defined = PRIMITIVES[name] = Primitive(name, compute, rule)

    def build(*inputs: Any, **attributes: Any) -> Node:
        return Node(defined, _nodes(inputs), attributes)

    build.__name__ = name
    return build


def _nodes(inputs: Sequence[Any]) -> tuple[Node, ...]:
    """Inputs as nodes; a Python number takes the dtype of the first node beside it."""
    if all(isinstance(value, Node) for value in inputs):
        return tuple(inputs)
    dtype = next(value.dtype for value in inputs if isinstance(value, Node))
    return tuple(
        value if isinstance(value, Node) else variable(np.asarray(value, dtype))
        for value in inputs
    )


def _broadcasting(rule: Callable[..., Sequence[Node]]) -> Callable[..., list[Node]]:
    """A gradient of a broadcast input is summed over the axes that it was copied to."""

    def fitted(dy: Node, y: Node, *inputs: Node) -> list[Node]:
        parts = rule(dy, y, *inputs)
        return [_fit(p, y.shape, a.shape) for p, a in zip(parts, inputs, strict=True)]

    return fitted


def _fit(part: Node, have: tuple[int, ...], want: tuple[int, ...]) -> Node:
    return part if have == want else sum_to(part, shape=want)


# Arithmetic ---------------------------------------------------------------------


def _subtract_rule(dy: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    """The minus after the sum over copies, which leaves fewer elements to turn."""
    return _fit(dy, y.shape, a.shape), -_fit(dy, y.shape, b.shape)


def _divide_rule(dy: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    da = dy / b
    return _fit(da, y.shape, a.shape), -_fit(da * y, y.shape, b.shape)


add = primitive("add", np.add, _broadcasting(lambda dy, y, a, b: (dy, dy)))
subtract = primitive("subtract", np.subtract, _subtract_rule)
multiply = primitive(
    "multiply", np.multiply, _broadcasting(lambda dy, y, a, b: (dy * b, dy * a))
)
divide = primitive("divide", np.divide, _divide_rule)
negative = primitive("negative", np.negative, lambda dy, y, a: (-dy,))

# Functions of one element ---------------------------------------------------------


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow for large negative x."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype)


def _exp2(x: Array) -> Array:
    """Numbers of several precisions (object arrays) have powers, but no exp2."""
    return np.exp2(x) if x.dtype != object else np.asarray(2.0**x)


exp = primitive("exp", np.exp, lambda dy, y, a: (dy * y,))
exp2 = primitive("exp2", _exp2, lambda dy, y, a: (dy * (y * _ln2(y)),))
log = primitive("log", np.log, lambda dy, y, a: (dy / a,))
sqrt = primitive("sqrt", np.sqrt, lambda dy, y, a: (dy * 0.5 / y,))
square = primitive("square", np.square, lambda dy, y, a: (dy * (2.0 * a),))
sin = primitive("sin", np.sin, lambda dy, y, a: (dy * cos(a),))
cos: Builder = primitive("cos", np.cos, lambda dy, y, a: (-(dy * sin(a)),))
tanh = primitive("tanh", np.tanh, lambda dy, y, a: (dy * (1.0 - y * y),))
sigmoid = primitive("sigmoid", _sigmoid, lambda dy, y, a: (dy * (y * (1.0 - y)),))


def _ln2(like: Node) -> Node:
    """ln 2 in the precision of `like`; a node, so that it carries its own rounding."""
    number = like.dtype.type if like.dtype != object else type(like.value.item(0))
    return log(variable(number(2)))


stop_gradient = primitive("stop_gradient", np.asarray, lambda dy, y, a: (None,))

# Selection: the gradient at a tie is a set, of which `ties` names a member ---------

TIES = ("first", "last", "even")
_TIES: ContextVar[str] = ContextVar("ties", default="first")


@contextlib.contextmanager
def ties(convention: str) -> Iterator[None]:
    """Which subgradient rules written inside take: one of `TIES`."""
    if convention not in TIES:
        raise ValueError(f"no convention {convention!r}; one of {', '.join(TIES)}")
    token = _TIES.set(convention)
    try:
        yield
    finally:
        _TIES.reset(token)


def _share(a: Array, b: Array, *, at_tie: float) -> Array:
    """1 where a wins, 0 where b does, `at_tie` where they are equal."""
    share = np.where(a == b, at_tie, np.where(a > b, 1.0, 0.0))
    known = (a == a) & (b == b)  # false for nan, in any dtype
    weight: Array = np.where(known, share, np.nan).astype(a.dtype)
    return weight


def _pick(x: Array, *, axis: int, convention: str) -> Array:
    """Weights of the maxima along an axis, adding up to 1; nan where one is nan."""
    largest = np.max(x, axis=axis, keepdims=True)
    top = x == largest
    if convention == "even":
        weight: Array = top / np.sum(top, axis=axis, keepdims=True)
    else:
        ordered = top if convention == "first" else np.flip(top, axis)
        weight = ordered & (np.cumsum(ordered, axis=axis) == 1)
        weight = weight if convention == "first" else np.flip(weight, axis)
    known: Array = np.where(largest == largest, weight, np.nan)
    return known.astype(x.dtype)


def _sign(a: Array, *, at_tie: float) -> Array:
    sign: Array = np.where(a == 0, at_tie, np.sign(a))
    return sign.astype(a.dtype)


def _none(dy: Node, y: Node, *inputs: Node, **attributes: Any) -> list[None]:
    """Piecewise constant: no gradient flows."""
    return [None] * len(inputs)


share = primitive("share", _share, _none)
pick = primitive("pick", _pick, _none)
sign = primitive("sign", _sign, _none)
argmax = primitive("argmax", lambda x, axis: np.argmax(x, axis=axis), _none)
SELECTIONS = ("share", "pick", "sign")
_WEIGHT = {"first": (1.0, 0.0), "last": (0.0, 1.0), "even": (0.5, 0.5)}


def _maximum_rule(dy: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    to_a, to_b = _WEIGHT[_TIES.get()]
    return dy * share(a, b, at_tie=to_a), dy * share(b, a, at_tie=to_b)


def _abs_rule(dy: Node, y: Node, a: Node) -> tuple[Node]:
    one_sided = {"first": 1.0, "last": -1.0, "even": 0.0}
    return (dy * sign(a, at_tie=one_sided[_TIES.get()]),)


def _max_rule(dy: Node, y: Node, x: Node, *, axis: int, keepdims: bool) -> tuple[Node]:
    spread = _spread(dy, x, axis, keepdims)
    return (spread * pick(x, axis=axis, convention=_TIES.get()),)


maximum = primitive("maximum", np.maximum, _broadcasting(_maximum_rule))
abs = primitive("abs", np.abs, _abs_rule)
_max = primitive(
    "max", lambda x, axis, keepdims: np.max(x, axis=axis, keepdims=keepdims), _max_rule
)


def max(x: Node, *, axis: int, keepdims: bool = False) -> Node:
    """Largest element along an axis."""
    return _max(x, axis=axis, keepdims=keepdims)


# Sums and products ----------------------------------------------------------------


def _spread(dy: Node, x: Node, axis: Any, keepdims: bool) -> Node:
    """A reduction's cotangent, copied along the axes that were reduced."""
    if not keepdims:
        reduced = _axes(axis, x.ndim)
        kept = (1 if i in reduced else n for i, n in enumerate(x.shape))
        dy = reshape(dy, tuple(kept))
    return broadcast_to(dy, x.shape)


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    axes = axis if isinstance(axis, tuple) else (axis,)
    return tuple(i % ndim for i in axes)


_sum = primitive(
    "sum",
    lambda x, axis, keepdims: np.sum(x, axis=axis, keepdims=keepdims, dtype=x.dtype),
    lambda dy, y, x, axis, keepdims: (_spread(dy, x, axis, keepdims),),
)


def sum(x: Node, *, axis: Any = None, keepdims: bool = False) -> Node:
    """Sum over an axis, several, or all."""
    return _sum(x, axis=axis, keepdims=keepdims)


def mean(x: Node, *, axis: Any = None, keepdims: bool = False) -> Node:
    """Sum over the axes divided by the number of terms."""
    count = math.prod(x.shape[i] for i in _axes(axis, x.ndim))
    return sum(x, axis=axis, keepdims=keepdims) / float(count)


def _sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    new = x.ndim - len(shape)
    copied = (i + new for i, n in enumerate(shape) if n == 1 and x.shape[i + new] != 1)
    axes = (*range(new), *copied)
    return np.sum(x, axis=axes, keepdims=True, dtype=x.dtype).reshape(shape)


sum_to = primitive(
    "sum_to", _sum_to, lambda dy, y, x, shape: (broadcast_to(dy, x.shape),)
)


def _swap(x: Node) -> Node:
    return permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _matmul_rule(dy: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    batch = y.shape[:-2]
    da, db = dy @ _swap(b), _swap(a) @ dy
    return (
        _fit(da, (*batch, *a.shape[-2:]), a.shape),
        _fit(db, (*batch, *b.shape[-2:]), b.shape),
    )


_matmul = primitive("matmul", np.matmul, _matmul_rule)


def matmul(a: Any, b: Any) -> Node:
    """Matrix product with the array API's treatment of vectors and leading axes."""
    a, b = _nodes((a, b))
    rows = reshape(a, (1, a.shape[0])) if a.ndim == 1 else a
    columns = reshape(b, (b.shape[0], 1)) if b.ndim == 1 else b
    product = _matmul(rows, columns)
    if a.ndim > 1 and b.ndim > 1:
        return product
    shape = product.shape[:-2] + a.shape[-2:-1] + (b.shape[-1:] if b.ndim > 1 else ())
    return reshape(product, shape)


# Shapes ---------------------------------------------------------------------------

_reshape = primitive(
    "reshape",
    lambda x, shape: np.reshape(x, shape),
    lambda dy, y, x, shape: (reshape(dy, x.shape),),
)
_permute_dims = primitive(
    "permute_dims",
    lambda x, axes: np.transpose(x, axes),
    lambda dy, y, x, axes: (permute_dims(dy, tuple(np.argsort(axes).tolist())),),
)
_broadcast_to = primitive(
    "broadcast_to",
    lambda x, shape: np.broadcast_to(x, shape),
    lambda dy, y, x, shape: (_fit(dy, y.shape, x.shape),),
)


def reshape(x: Node, shape: tuple[int, ...]) -> Node:
    """The same elements in another shape."""
    return x if x.shape == shape else _reshape(x, shape=shape)


def permute_dims(x: Node, axes: tuple[int, ...]) -> Node:
    """The axes in another order."""
    return _permute_dims(x, axes=axes)


def broadcast_to(x: Node, shape: tuple[int, ...]) -> Node:
    """Copies along new axes and along those of length 1."""
    return x if x.shape == shape else _broadcast_to(x, shape=shape)


# Moves by index: these two, each the other's VJP, carry every other move --------------


def _gather(*sources: Array, index: Array) -> Array:
    whole = [source.reshape(-1) for source in sources]
    if index.size and (len(whole) > 1 or index.min() < 0):
        whole.append(np.zeros(1, whole[0].dtype))  # where an index of -1 points to
        moved: Array = np.concatenate(whole)[index]
        return moved
    return np.asarray(whole[0][index])


def _scatter_add(values: Array, *, index: Array, shape: tuple[int, ...]) -> Array:
    whole = np.zeros(math.prod(shape) + 1, values.dtype)
    np.add.at(whole, index, values)
    return whole[:-1].reshape(shape)


def _gather_rule(dy: Node, y: Node, *sources: Node, index: Array) -> list[Node | None]:
    parts: list[Node | None] = []
    start = 0
    for source in sources:
        inside = (index >= start) & (index < start + source.size)
        place = index if inside.all() and not start else index - start
        place = place if inside.all() else np.where(inside, place, -1)
        parts.append(scatter_add(dy, index=place, shape=source.shape))
        start += source.size
    return parts


_gather_primitive = primitive("gather", _gather, _gather_rule)
_scatter_primitive = primitive(
    "scatter_add",
    _scatter_add,
    lambda dy, y, values, index, shape: (gather(dy, index=index),),
)


def gather(*sources: Any, index: Any) -> Node:
    """Elements picked by their flat position, in the shape of `index`.

    Args:
        sources: Nodes of any shapes; positions count through them one after another,
            each in C order.
        index: Integers of any shape, from 0 to the number of elements; -1 gives 0.

    Raises:
        IndexError: a position lies outside.
    """
    places = _places(index)
    nodes = _nodes(sources)
    _check_places(places, builtins.sum(node.size for node in nodes))
    return _gather_primitive(*nodes, index=places)


def scatter_add(values: Any, *, index: Any, shape: tuple[int, ...]) -> Node:
    """Zeros of a shape, to which each value is added at its flat position.

    Args:
        values: A node of the shape of `index`.
        index: Integers, from 0 to the number of elements of `shape`; values at -1
            are dropped. Where several values have one position, their sum stands.

    Raises:
        IndexError: a position lies outside.
        ValueError: `index` has not the shape of the values.
    """
    places = _places(index)
    (node,) = _nodes((values,))
    if places.shape != node.shape:
        raise ValueError(f"values of shape {node.shape}, index of {places.shape}")
    _check_places(places, math.prod(shape))
    return _scatter_primitive(node, index=places, shape=tuple(shape))


def _places(index: Any) -> Array:
    places = np.asarray(index.value if isinstance(index, Node) else index)
    if places.size and places.dtype.kind not in "iu":
        raise IndexError(f"an index holds integers, not {places.dtype}")
    return places.astype(np.intp, copy=False)


def _check_places(places: Array, count: int) -> None:
    if places.size and not (places.min() >= -1 and places.max() < count):
        outside = places[(places < -1) | (places >= count)][0]
        raise IndexError(f"index {outside} lies outside of {count} elements")


def _numbered(shape: tuple[int, ...], index: Any) -> Array:
    """The flat positions that NumPy's indexing of such an array picks."""
    return np.asarray(np.arange(math.prod(shape)).reshape(shape)[index])


def take(x: Node, *, index: Any) -> Node:
    """x[index], with anything that NumPy takes as an index."""
    return gather(x, index=_numbered(x.shape, index))


def put(values: Node, *, index: Any, shape: tuple[int, ...]) -> Node:
    """Zeros of a shape, to which the values are added at [index]; VJP of `take`."""
    return scatter_add(values, index=_numbered(shape, index), shape=shape)


def __getattr__(name: str) -> Any:
    public = sorted({*PRIMITIVES, "mean", "put", "take"})
    near = difflib.get_close_matches(name, public, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(public)}"
    raise AttributeError(f"the graph engine has no {name!r}{hint}")
