"""Nodes, the two sweeps over them, and how primitives are registered.

Source of the sweeps: Griewank and Walther, Evaluating Derivatives, 2nd ed., ch. 3.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from gradwatch.impls.graph.hints import miss

Array = NDArray[Any]
FLOATING = "fO"  # kinds of dtype: floating, and objects (numbers of an exact library)


class Foreign:
    """An array that is not in NumPy's memory, but to which its functions apply."""


def as_array(value: Any, dtype: Any = None) -> Array:
    """A value as an array: one on a device stays there, others become NumPy's."""
    if isinstance(value, Foreign):
        held: Any = value
        return cast(Array, held if dtype is None else held.astype(dtype, copy=False))
    return np.asarray(value, dtype)


def largest_magnitude(value: Array, least: float = 0.0, where: Any = True) -> Any:
    """The largest |value|, or `least`, without an array of magnitudes."""
    top = np.max(value, initial=least, where=where)
    return np.maximum(top, -np.min(value, initial=-least, where=where))


@dataclass(frozen=True)
class Primitive:
    """A function of arrays, and the VJP rule that returns its gradient as nodes.

    `gradient(dy, y, *inputs, **attributes)` returns one node (or None where no
    gradient flows) for each input; `dy` is the cotangent of the output node `y`.
    `dtype(*input dtypes, **attributes)` is the output's; by default that of the first
    input. A `floating` primitive takes integers as floating numbers.
    `shape(*input shapes, **attributes)` is the output's; without it the value must be
    computed to know. If it `stores` its input in a narrower type, the rule of that
    input's own primitive gets the stored value.
    """

    name: str
    compute: Callable[..., Any]
    gradient: Callable[..., Sequence[Node | None]]
    dtype: Callable[..., np.dtype[Any]] | None = None
    floating: bool = False
    shape: Callable[..., tuple[int, ...]] | None = None
    stores: bool = False

    @property
    def elementwise(self) -> bool:
        """Whether an element is computed from one element of each input, for sure."""
        return self.shape is broadcast


Function = TypeVar("Function", bound=Callable[..., Any])
#: The functions of formulas by name: xp.<name>(x, ...), and as a method x.<name>(...).
FUNCTIONS: dict[str, Callable[..., Any]] = {}
PRIMITIVES: dict[str, Primitive] = {}


def public(function: Function) -> Function:
    """Decorator: formulas may call this function by its name."""
    FUNCTIONS[function.__name__] = function
    return function


def _operator(name: str) -> Callable[..., Node]:
    def method(self: Node, *others: Any) -> Node:
        return cast(Node, FUNCTIONS[name](self, *others))

    return method


def _reflected(name: str) -> Callable[..., Node]:
    def method(self: Node, other: Any) -> Node:
        return cast(Node, FUNCTIONS[name](other, self))

    return method


Value = TypeVar("Value")


@contextlib.contextmanager
def setting(variable: ContextVar[Any], value: Value) -> Iterator[Value]:
    """Give a context variable this value inside."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


_PRECISION: ContextVar[str] = ContextVar("precision", default="")


def rounded_to(precision: str) -> AbstractContextManager[str]:
    """Give nodes made inside, and their gradients' nodes, this precision."""
    return setting(_PRECISION, precision)


class Node:
    """A known value, or one that a primitive will compute from its inputs.

    Attributes:
        dtype: The value's dtype, known before the value is.
        floating: The floating dtype of the value, or of a node it was computed from;
            None where neither the node nor any node before it is floating.
        precision: Name of the format to which implementations round the value, if that
            is another than the one they are computed in; see `rounded_to`.
    """

    __slots__ = (
        *("_shape", "_value", "attributes", "dtype", "floating", "inputs"),
        *("precision", "primitive"),
    )
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
        self._shape: tuple[int, ...] | None = None
        self.dtype: np.dtype[Any] = (
            value.dtype if value is not None else self._computed_dtype()
        )
        self.floating = self._floating()
        self.precision = _PRECISION.get()

    def _computed_dtype(self) -> np.dtype[Any]:
        rule = self.primitive.dtype if self.primitive else None
        if rule is None:
            return self.inputs[0].dtype
        return np.dtype(rule(*(node.dtype for node in self.inputs), **self.attributes))

    def _floating(self) -> np.dtype[Any] | None:
        if self.dtype.kind in FLOATING:
            return self.dtype
        return next((n.floating for n in self.inputs if n.floating), None)

    @property
    def value(self) -> Array:
        """The node's array; runs the missing part of the forward sweep."""
        if self._value is None:
            forward([self])
        assert self._value is not None
        return self._value

    @property
    def held(self) -> bool:
        """Whether the value is known, and needs no sweep."""
        return self._value is not None

    def hold(self, value: Array) -> None:
        """Take a value that was computed elsewhere."""
        self._value = value

    def drop(self) -> None:
        """Forget the value, but not its shape; it is computed again if it is asked for.

        Raises:
            ValueError: nothing computes the value of a leaf.
        """
        if self.primitive is None:
            raise ValueError("the value of a leaf cannot be dropped")
        self._shape, self._value = self.shape, None

    @property
    def shape(self) -> tuple[int, ...]:
        """The value's shape; the value is computed only if it must be."""
        value = self._value
        if value is not None:
            return value.shape
        return _inferred(self) if self._shape is None else self._shape

    @property
    def ndim(self) -> int:
        """The value's number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The value's number of elements."""
        return math.prod(self.shape)

    @property
    def T(self) -> Node:  # noqa: N802  # the array API calls it so
        """The axes in reverse order."""
        return _operator("permute_dims")(self, tuple(range(self.ndim))[::-1])

    @property
    def mT(self) -> Node:  # noqa: N802  # as above
        """The last two axes exchanged."""
        return _operator("matrix_transpose")(self)

    def __getattr__(self, name: str) -> Any:
        """Every function is a method, too: x.sum(axis=0) is xp.sum(x, axis=0)."""
        if name.startswith("_"):
            raise AttributeError(name)
        function = FUNCTIONS[name] if name in FUNCTIONS else miss(name, FUNCTIONS)
        return functools.partial(function, self)

    def __getitem__(self, index: Any) -> Node:
        return cast(Node, FUNCTIONS["take"](self, index=index))

    def __repr__(self) -> str:
        return f"Node({self.primitive.name if self.primitive else 'variable'})"

    def __bool__(self) -> NoReturn:
        raise TypeError(
            "a node has no truth value: its numbers come after the graph. Write "
            "xp.where(condition, a, b) for `if`, and & | ~ for and, or, not"
        )

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() of a node without axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Node]:
        return (self[i] for i in range(len(self)))

    __hash__ = object.__hash__  # a node is itself, though == builds a comparison

    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("subtract"), _reflected("subtract")
    __mul__, __rmul__ = _operator("multiply"), _reflected("multiply")
    __truediv__, __rtruediv__ = _operator("divide"), _reflected("divide")
    __floordiv__, __rfloordiv__ = _operator("floor_divide"), _reflected("floor_divide")
    __mod__, __rmod__ = _operator("remainder"), _reflected("remainder")
    __matmul__, __rmatmul__ = _operator("matmul"), _reflected("matmul")
    __pow__, __rpow__ = _operator("pow"), _reflected("pow")
    __and__, __rand__ = _operator("logical_and"), _reflected("logical_and")
    __or__, __ror__ = _operator("logical_or"), _reflected("logical_or")
    __xor__, __rxor__ = _operator("logical_xor"), _reflected("logical_xor")
    __invert__ = _operator("logical_not")
    __neg__, __pos__, __abs__ = (
        _operator("negative"),
        _operator("positive"),
        _operator("abs"),
    )
    __eq__ = _operator("equal")  # type: ignore[assignment]  # builds a node, no bool
    __ne__ = _operator("not_equal")  # type: ignore[assignment]  # as above
    __lt__, __le__ = _operator("less"), _operator("less_equal")
    __gt__, __ge__ = _operator("greater"), _operator("greater_equal")


def _inferred(node: Node) -> tuple[int, ...]:
    """A node's shape from its inputs' shapes; by a loop, as chains are long."""

    def known(behind: Node) -> bool:
        return behind._value is not None or behind._shape is not None

    for behind in topological_order([node], stop=known):
        assert behind.primitive is not None
        rule = behind.primitive.shape
        if rule is None:
            forward([behind])
        else:
            shapes = (source.shape for source in behind.inputs)
            behind._shape = rule(*shapes, **behind.attributes)
    return node.shape


def broadcast(*shapes: tuple[int, ...], **attributes: Any) -> tuple[int, ...]:
    """The shape of an elementwise result."""
    if len(shapes) > 2:
        return np.broadcast_shapes(*shapes)
    first, second = shapes[0], shapes[-1]
    if first == second or not second:
        return first
    return np.broadcast_shapes(*shapes) if first else second


def reduced(x: tuple[int, ...], axis: Any, keepdims: bool) -> tuple[int, ...]:
    """The shape that is left of another one without some axes, or with 1 for these."""
    axes = axes_of(axis, len(x))
    if keepdims:
        return tuple(1 if i in axes else n for i, n in enumerate(x))
    return tuple(n for i, n in enumerate(x) if i not in axes)


# The two sweeps -----------------------------------------------------------------


def topological_order(
    outputs: Iterable[Node], stop: Callable[[Node], bool] | None = None
) -> list[Node]:
    """All nodes that the outputs need, inputs before their users.

    Post-order depth-first search with a stack of its own, so that a chain of 100,000
    nodes needs no recursion. Nodes for which `stop` holds are left out, and so are
    nodes that only these need.
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
            if node.inputs:
                stack += (node, None)
                stack += node.inputs
            else:
                order.append(node)
    return order


Compute = Callable[["Node", "Sequence[Array | None]", "Array | None"], Any]


def computed(
    node: Node, arrays: Sequence[Array | None], spare: Array | None = None
) -> Array:
    """A node's value, from those of its inputs.

    It is written into `spare`, if that is given: one of the arrays, of the value's
    shape and dtype, that is not needed any more (see `forward_dropping`).
    """
    assert node.primitive is not None
    if spare is not None:
        return as_array(node.primitive.compute(*arrays, out=spare))
    return as_array(node.primitive.compute(*arrays, **node.attributes))


_COMPUTE: ContextVar[Compute] = ContextVar("compute", default=computed)


@dataclass
class Record:
    """The origin of the nodes of a gradient.

    Attributes:
        outputs: The nodes that were differentiated, each with its cotangent.
        inputs: The nodes that they were differentiated by.
        rules: Each node whose rule was used, its cotangent, and its inputs' gradients.
        places: Lines of the user's code, by the node that they returned.
        parts: Nodes by those with some of their elements; `names` of all tensors.
    """

    outputs: list[tuple[Node, Node]] = field(default_factory=list)
    inputs: list[Node] = field(default_factory=list)
    rules: list[tuple[Node, Node, Sequence[Node | None]]] = field(default_factory=list)
    places: dict[Node, Any] = field(default_factory=dict)
    parts: dict[Node, Node] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)


_RECORD: ContextVar[Record | None] = ContextVar("record", default=None)
recorded = _RECORD.get


def recording() -> AbstractContextManager[Record]:
    """Record the origin of the nodes of gradients that are built inside."""
    return setting(_RECORD, Record())


def computing(compute: Compute) -> AbstractContextManager[Compute]:
    """Compute the values of nodes inside by this function, in place of `computed`."""
    return setting(_COMPUTE, compute)


def forward(outputs: Iterable[Node]) -> None:
    """Compute the values of the outputs and of all nodes that they need."""
    compute = _COMPUTE.get()
    with np.errstate(all="ignore"):  # inf and nan are valid results here
        for node in topological_order(outputs, stop=lambda n: n._value is not None):
            node._value = compute(node, [n._value for n in node.inputs], None)


def forward_dropping(outputs: Iterable[Node], passing: Callable[[Node], bool]) -> None:
    """As `forward`; values that are `passing` are dropped after their last use.

    So are known values that are not used here. An elementwise node that is the last
    user gets the array for its own value: it has just been read, so that it is in the
    cache, and no new pages are needed.
    """
    compute, order = _COMPUTE.get(), topological_order(outputs)
    ends = _last_uses(order)
    alone: set[Node] = set()  # their arrays were made here, and are not shared
    with np.errstate(all="ignore"):
        for node in order:
            done = [source for source in ends.get(node, ()) if passing(source)]
            if node._value is None:
                arrays = [source._value for source in node.inputs]
                spare = _spare(node, alone.intersection(done))
                node._value = compute(node, arrays, spare)
                if _writes_anywhere(node):
                    alone.add(node)
                else:  # the value may be a view of its inputs'
                    alone.difference_update(node.inputs)
            for source in done:
                source.drop()


def _last_uses(order: Sequence[Node]) -> dict[Node, list[Node]]:
    """The values that are used for the last time by each node."""
    last = {node: node for node in order}
    for node in order:
        if node._value is None:
            last.update(dict.fromkeys(node.inputs, node))
    ends: dict[Node, list[Node]] = {}
    for node, user in last.items():
        ends.setdefault(user, []).append(node)
    return ends


def _writes_anywhere(node: Node) -> bool:
    """Whether the value can be written into any array, even an input's."""
    step = node.primitive
    return step is not None and step.elementwise and isinstance(step.compute, np.ufunc)


def _spare(node: Node, unused: Set[Node]) -> Array | None:
    """An array of unused inputs that can hold the node's value."""
    if unused and _writes_anywhere(node):
        for source in node.inputs:
            alike = source.shape == node.shape and source.dtype == node.dtype
            if alike and source in unused:
                return source._value
    return None


def gradient(
    outputs: Sequence[Node], cotangents: Sequence[Any], inputs: Sequence[Node]
) -> list[Node | None]:
    """Vector-Jacobian products: d(sum of cotangent * output) / d(input).

    Args:
        outputs: Nodes; they need not be evaluated.
        cotangents: One array for each output, of its shape; or a node, where the
            gradient is to be differentiated by it.
        inputs: The nodes to differentiate by.

    Returns:
        A node for each input, of its shape; None where no path leads to it.

    Raises:
        ValueError: a cotangent's shape is not its output's.
    """
    reached: dict[Node, list[Node]] = {}
    taken: dict[Node, Node | None] = {}  # where a branch is taken; None: everywhere
    stored: dict[Node, Node] = {}
    record = recorded() or Record()
    record.inputs += inputs
    for output, cotangent in zip(outputs, cotangents, strict=True):
        dy = _cotangent(output, cotangent)
        reached.setdefault(output, []).append(dy)
        taken[output] = None
        record.outputs.append((output, dy))
    for node in reversed(topological_order(outputs)):
        if node.primitive is None or node not in reached:
            continue
        y, dy = stored.get(node, node), _total(reached, node)
        if node.primitive.stores:
            stored[node.inputs[0]] = y
        with rounded_to(node.precision):
            parts = node.primitive.gradient(dy, y, *node.inputs, **node.attributes)
        record.rules.append((node, dy, parts))
        for i, (source, part) in enumerate(zip(node.inputs, parts, strict=True)):
            if part is None or source.dtype.kind not in FLOATING:
                continue
            branch = _branch(node, i, taken[node])
            if branch is not None and node.primitive.name not in _KEEP_ZEROS:
                part = cast(Node, FUNCTIONS["where"](branch, part, 0.0))
            other = taken.get(source) if source in reached else branch
            both = branch is not None and other is not None and branch is not other
            if both:
                branch = cast(Node, FUNCTIONS["logical_or"](branch, other))
            taken[source] = branch if other is not None else None
            reached.setdefault(source, []).append(part)
    return [_total(reached, node) if node in reached else None for node in inputs]


#: Primitives that keep a zero cotangent zero; an infinite slope of others makes it nan.
_KEEP_ZEROS = frozenset(("add", "subtract", "negative", "where"))


def _branch(node: Node, i: int, taken: Node | None) -> Node | None:
    """A mask where an input's cotangent may differ from zero; None if not known.

    A function is constant where its branch is not taken: its gradient there is zero,
    whatever infinite slope the branch has (`where(x > 0, sqrt(x), 0)` below zero).
    """
    step, source = node.primitive, node.inputs[i]
    if step is None or source.shape != node.shape:
        return None
    if step.name != "where":
        return taken if step.elementwise else None
    chosen = node.inputs[0] if i == 1 else FUNCTIONS["logical_not"](node.inputs[0])
    both = chosen if taken is None else FUNCTIONS["logical_and"](taken, chosen)
    return cast(Node, both)


_APART: ContextVar[bool] = ContextVar("apart", default=False)


def cancelling_last() -> AbstractContextManager[bool]:
    """Let gradients built inside not begin with parts whose sum is zero, if they can.

    Of (a, -a, b) the sum is b without any rounding, or (a + b) - a with one of a + b: a
    framework may add up its parts in any order.
    """
    return setting(_APART, True)


def is_cancelling_last() -> bool:
    """Whether gradients are being built inside `cancelling_last`."""
    return _APART.get()


def _total(reached: dict[Node, list[Node]], node: Node) -> Node:
    """The sum of the parts of a node's gradient, which from then on is its only one."""
    parts = reached[node]
    if _APART.get() and len(parts) > 2:
        turned = (parts[k:] + parts[:k] for k in range(len(parts)))
        parts = next((turn for turn in turned if not _cancel(*turn[:2])), parts)
    with rounded_to(node.precision):
        reached[node] = [functools.reduce(operator.add, parts)]
    return reached[node][0]


def _cancel(a: Node, b: Node) -> bool:
    return bool(((a.value + b.value == 0) & (a.value != 0)).any())


def _cotangent(output: Node, cotangent: Any) -> Node:
    node: Node = cotangent
    if not isinstance(cotangent, Node):
        node = variable(as_array(cotangent, output.dtype))
    if node.shape != output.shape:
        raise ValueError(
            f"the cotangent has shape {node.shape}, its output {output.shape}"
        )
    return node


# Building nodes -----------------------------------------------------------------

NUMBER = {"number": True}  # marks a leaf that stands as a number in the formula
Builder = Callable[..., "Node"]


#: Least size of a leaf that is put on a device: below, starting a kernel takes longer
#: than NumPy.
WORTH = 1 << 14
#: The user's choice, which replaces that of `on`: "numpy", or a device of PyTorch's.
_WANTED = os.environ.get("GRADWATCH_TRUTH", "")
_PLACE: ContextVar[tuple[str, int]] = ContextVar(
    "place", default=(_WANTED or "numpy", WORTH)
)


_PUT = (np.dtype(np.float64), np.dtype(np.bool_))


def on(device: str, least: int = WORTH) -> AbstractContextManager[tuple[str, int]]:
    """Put leaves made inside on a device of PyTorch's; "numpy" leaves them in NumPy.

    Only leaves of at least `least` elements are moved, of float64 or booleans. Nodes
    that depend on one of them are computed there.
    """
    return setting(_PLACE, (_WANTED or device, least))


def variable(array: Any) -> Node:
    """A leaf: an input, a cotangent or a constant."""
    value, (device, least) = as_array(array), _PLACE.get()
    if device != "numpy" and value.size >= least and value.dtype in _PUT:
        from gradwatch.impls.graph.tensors import put  # needs PyTorch

        value = put(value, device)
    return Node(None, value=value)


def primitive(
    name: str,
    compute: Callable[..., Any],
    rule: Callable[..., Sequence[Node | None]],
    *,
    dtype: Callable[..., Any] | None = None,
    floating: bool = False,
    shape: Callable[..., tuple[int, ...]] | None = None,
    stores: bool = False,
) -> Builder:
    """Register a primitive and return the function that builds its nodes."""
    defined = Primitive(name, compute, rule, dtype, floating, shape, stores)
    PRIMITIVES[name] = defined

    def build(*inputs: Any, **attributes: Any) -> Node:
        return Node(defined, as_nodes(inputs, floating=floating), attributes)

    build.__name__ = name
    return build


def as_nodes(
    inputs: Sequence[Any], *, like: Node | None = None, floating: bool = False
) -> tuple[Node, ...]:
    """Inputs as nodes of one dtype: floating where one of them is.

    Numbers and arrays take the dtype of the nodes beside them (or of `like`), and
    integer nodes beside floating ones become floating.

    Raises:
        TypeError: an integer meets a fraction, and nothing says in which precision.
    """
    dtypes = [value.dtype for value in inputs if isinstance(value, Node)]
    alike = len(dtypes) == len(inputs) and len(set(dtypes)) == 1
    if alike and (not floating or dtypes[0].kind in FLOATING):
        return tuple(inputs)
    dtype = _common_dtype(inputs, dtypes, like, floating)
    return tuple(_as_node(value, dtype) for value in inputs)


def _as_node(value: Any, dtype: np.dtype[Any]) -> Node:
    if not isinstance(value, Node):
        return Node(None, attributes=NUMBER, value=as_array(value, dtype))
    return value if value.dtype == dtype else _operator("astype")(value, dtype)


def _common_dtype(
    inputs: Sequence[Any],
    dtypes: Sequence[np.dtype[Any]],
    like: Node | None,
    floating: bool,
) -> np.dtype[Any]:
    known = [dtype for dtype in dtypes if dtype.kind in FLOATING]
    if known:
        return np.result_type(*known)
    numbers = [np.asarray(v).dtype for v in inputs if not isinstance(v, Node)]
    if not floating and all(dtype.kind in "biu" for dtype in numbers):
        return np.result_type(*dtypes, *numbers)
    nodes = [v for v in (*inputs, like) if isinstance(v, Node)]
    behind = [node.floating for node in nodes if node.floating]
    if behind:
        return behind[0]
    if not dtypes:  # numbers alone
        return np.result_type(np.float64, *numbers)
    raise TypeError(
        "integers are mixed with floating numbers of unknown precision: write "
        "xp.astype(integers, x.dtype), where x is a floating input"
    )


def broadcasting(
    rule: Callable[..., Sequence[Node | None]],
) -> Callable[..., list[Node | None]]:
    """The rule with each gradient summed over the axes its input was copied along."""

    def fitted(
        dy: Node, y: Node, *inputs: Node, **attributes: Any
    ) -> list[Node | None]:
        parts = rule(dy, y, *inputs, **attributes)
        return [
            part if part is None else fit(part, y.shape, source.shape)
            for part, source in zip(parts, inputs, strict=True)
        ]

    return fitted


def fit(part: Node, have: tuple[int, ...], want: tuple[int, ...]) -> Node:
    """A cotangent of shape `have`, summed to the shape `want` that was copied."""
    return part if have == want else cast(Node, FUNCTIONS["sum_to"](part, shape=want))


def axes_of(axis: Any, ndim: int) -> tuple[int, ...]:
    """A tuple of axes counted from 0, from one, several, or None (all).

    Raises:
        AxisError: there is no such axis (an IndexError and a ValueError).
    """
    if axis is None:
        return tuple(range(ndim))
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    for i in axes:
        if not -ndim <= i < ndim:
            raise np.exceptions.AxisError(i, ndim)
    return tuple(i % ndim for i in axes)


def summed_axes(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of an input of this shape over which `sum` or `sum_to` adds up."""
    if "axis" in node.attributes:
        return axes_of(node.attributes["axis"], len(shape))
    kept = node.attributes["shape"]
    inner = (*[1] * (len(shape) - len(kept)), *kept)
    return tuple(i for i, n in enumerate(inner) if n != shape[i])


def no_gradient(dy: Node, y: Node, *inputs: Node, **attributes: Any) -> list[None]:
    """The rule of a piecewise constant function: no gradient flows."""
    return [None] * len(inputs)


def to_bool(*dtypes: Any, **attributes: Any) -> np.dtype[Any]:
    """The dtype of comparisons and logic."""
    return np.dtype(bool)
