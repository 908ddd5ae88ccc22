"""JAX: a function as a graph of the engine, by its jaxpr, equation by equation.

Three tables map the primitives of lax; calls of other jaxprs are followed into these.
Floats are nodes. Values that depend on no float are computed by JAX itself, random
numbers of a known key, too; no gradient flows through whole numbers.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import partial_eval

from gradwatch.harness.judging.question import Cost
from gradwatch.harness.tracing.aten import elementwise
from gradwatch.harness.tracing.aten.elementwise import times_log
from gradwatch.harness.tracing.aten.windows import prefixes, reduced_into
from gradwatch.harness.tracing.rules import complex, matrices
from gradwatch.harness.tracing.rules.matrices import solved, triangle, turned
from gradwatch.harness.tracing.untraceable import Place, Untraceable
from gradwatch.harness.tracing.values import (
    Complex,
    as_float,
    as_mask,
    both,
    constant,
    finer,
    in_type,
    is_number,
    joined,
    leaf,
    narrow,
    parts,
    rounded,
)
from gradwatch.impls import graph
from gradwatch.impls.graph import Node, recorded
from gradwatch.impls.graph.indexing import gathered, shared, windows
from gradwatch.impls.graph.products import convolved

Rule = Callable[..., Any]
#: Most equations of an unrolled loop: each operation takes the judge milliseconds.
UNROLLED = 1 << 14

_FACTORISATIONS = "geqrf geqp3 ormqr eig schur hessenberg tridiagonal tridiagonal_solve"


def is_inexact(dtype: Any) -> bool:
    """Whether a dtype, bfloat16 and its like too, holds real or complex numbers."""
    return bool(jnp.issubdtype(dtype, jnp.inexact))


def is_complex(dtype: Any) -> bool:
    """Whether a dtype holds complex numbers."""
    return bool(jnp.issubdtype(dtype, jnp.complexfloating))


@dataclass
class Traced:
    """A function of arrays whose jaxpr is made once for each set of shapes.

    Called as the formula of an op, with nodes, it returns nodes.

    Attributes:
        call: The function; it returns any tree of arrays.
        dtypes: The dtypes of its arguments.
        wide: Whether JAX's 64-bit types are switched on for it.
    """

    call: Callable[..., Any]
    dtypes: Sequence[Any]
    wide: bool
    _made: dict[Any, Any] = field(default_factory=dict)

    def jaxpr(self, shapes: Sequence[tuple[int, ...]]) -> Any:
        """The jaxpr, without equations that lead to no result, and its constants."""
        key = tuple(map(tuple, shapes))
        if key not in self._made:
            pairs = zip(key, self.dtypes, strict=True)
            given = [jax.ShapeDtypeStruct(s, d) for s, d in pairs]
            with jax.enable_x64(self.wide):
                made = jax.make_jaxpr(lambda *a: jax.tree.leaves(self.call(*a)))(*given)
            every = [True] * len(made.jaxpr.outvars)
            kept, _ = partial_eval.dce_jaxpr(made.jaxpr, every, True)
            self._made[key] = kept, made.consts
        return self._made[key]

    def returned(self, shapes: Sequence[tuple[int, ...]]) -> list[Any]:
        """The dtypes of its results."""
        return [variable.aval.dtype for variable in self.jaxpr(shapes)[0].outvars]

    def cost(self, shapes: Sequence[tuple[int, ...]]) -> Cost:
        """The elements and equations computed; a loop's count as often as it runs."""
        return Cost(*_count(self.jaxpr(shapes)[0]))

    def __call__(self, _: Any, *leaves: Node, **held: Any) -> tuple[Node, ...]:
        """The results as nodes, by what `call` holds; complex parts are an axis."""
        made, vectors = self._walked(leaves)
        plain = vectors and matrices.TURNED.get() is None
        if plain and matrices.signs_show(lambda: self._walked(leaves)[0]):
            refuse(vectors[0], matrices.SIGNS, "signs")
        return made

    def _walked(self, leaves: Sequence[Node]) -> tuple[tuple[Node, ...], list[Any]]:
        pairs = list(zip(leaves, self.dtypes, strict=True))
        jaxpr, consts = self.jaxpr(
            [n.shape[:-1] if is_complex(t) else n.shape for n, t in pairs]
        )
        eps = [float(jnp.finfo(d).eps) for d in self.dtypes if is_inexact(d)]
        kinds = [n.dtype for n in leaves if n.dtype.kind in graph.FLOATING]
        walk = Walk(min(eps, default=0.0))
        wide = (*kinds, np.dtype(np.float64))[0]
        with jax.enable_x64(self.wide), in_type(wide):
            out = walk.run(jaxpr, consts, [walk.given(n, t) for n, t in pairs])
        nodes = (joined(y) for y in out)
        return tuple(
            y if isinstance(y, Node) else graph.variable(np.asarray(y)) for y in nodes
        ), walk.vectors


def _count(jaxpr: Any) -> tuple[int, int]:
    elements = operations = 0
    for equation in jaxpr.eqns:
        inner = [_count(getattr(j, "jaxpr", j)) for j in _jaxprs(equation.params)]
        sizes = [math.prod(getattr(v.aval, "shape", ())) for v in equation.outvars]
        times = equation.params.get("length", 1) if inner else 1
        for inside in inner or [(sum(sizes), 1)]:
            elements += times * inside[0]
            operations += times * inside[1]
    return elements, operations


def _jaxprs(params: Any) -> list[Any]:
    found = [params[name] for name in _INLINED if name in params]
    return [*found, *params.get("branches", ())]


def _is_of_bits(params: Any) -> bool:
    """Whether a function with a custom rule makes floats from bits, as frexp does."""
    made = [e for jaxpr in _jaxprs(params) for e in getattr(jaxpr, "jaxpr", jaxpr).eqns]
    casts = [e for e in made if e.primitive.name == "bitcast_convert_type"]
    return any(is_inexact(e.outvars[0].aval.dtype) for e in casts)


def place_of(equation: Any) -> Place:
    """The line of the caller's code that an equation comes from."""
    from jax._src import source_info_util  # nothing public says it

    frame = source_info_util.user_frame(equation.source_info.traceback)
    return Place(frame.file_name, frame.start_line) if frame else Place("", 0)


def _name(equation: Any) -> str:
    """The primitive's name, or that of JAX's own function with a rule here."""
    primitive, called = equation.primitive, equation.params.get("call_jaxpr")
    info: Any = getattr(getattr(called, "jaxpr", called), "debug_info", None)
    own = info is not None and str(info.func_filename).startswith(jax.__path__[0])
    return str(info.func_name if own and info.func_name in ON_NODES else primitive)


def refuse(equation: Any, why: str, kind: str) -> NoReturn:
    """Raise Untraceable, with the caller's line."""
    name = f"lax.{equation.primitive.name}"
    raise Untraceable(name, why, kind, place_of(equation))


@dataclass
class Walk:
    """One evaluation of a jaxpr.

    `widest` is the machine epsilon of the widest input, `left` how many equations are
    still allowed, `vectors` are those that made vectors of free signs. A variable of
    floats is always a node of floats, one of complex numbers a pair of such.
    """

    widest: float
    left: int = UNROLLED
    vectors: list[Any] = field(default_factory=list)

    def given(self, node: Node, dtype: Any) -> Any:
        """An input, whose gradient is rounded to its own type."""
        if not is_inexact(dtype):
            return jnp.asarray(node.value, dtype)
        node = narrow(leaf, node, jnp.finfo(dtype), self.widest)
        return Complex.split(node) if is_complex(dtype) else node

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """Evaluate a jaxpr; its results are nodes and exact arrays."""
        known = dict(zip(jaxpr.constvars, map(self.held, consts), strict=True))
        known |= dict(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            return self.literal(atom) if hasattr(atom, "val") else known[atom]

        record = recorded()
        for equation in jaxpr.eqns:
            self.left -= 1
            if self.left < 0:
                refuse(equation, f"comes to over {UNROLLED} equations", "long")
            made = self.equation(equation, [read(atom) for atom in equation.invars])
            for variable, value in zip(equation.outvars, made, strict=True):
                known[variable] = value
                if record:
                    for node in parts(value):
                        record.places.setdefault(node, place_of(equation))
        return [read(atom) for atom in jaxpr.outvars]

    def inside(self, closed: Any, args: Sequence[Any]) -> list[Any]:
        """Evaluate a jaxpr with its own constants, or one that has none."""
        consts = getattr(closed, "consts", ())
        return self.run(getattr(closed, "jaxpr", closed), consts, args)

    def held(self, value: Any) -> Any:
        """A value from JAX's array: a node if of floats, else the array."""
        if not is_inexact(value.dtype):
            return value
        with graph.rounded_to(self.finer(value.dtype)):
            if is_complex(value.dtype):
                return Complex.of(np.asarray(value))
            return constant(np.asarray(value, np.float64))

    def literal(self, atom: Any) -> Any:
        """A literal; if a float, the shortest decimal that rounds to JAX's number."""
        value = np.asarray(atom.val).astype(atom.aval.dtype)
        plain = is_inexact(value.dtype) and not is_complex(value.dtype)
        with graph.rounded_to(self.finer(value.dtype)):
            return constant(float(str(value))) if plain else self.held(value)

    def finer(self, dtype: Any) -> str:
        """The precision of a value, if it is finer than all inputs'."""
        known = dtype is not None and is_inexact(dtype)
        return finer(float(jnp.finfo(dtype).eps), self.widest) if known else ""

    def equation(self, equation: Any, args: list[Any]) -> Sequence[Any]:
        """The values of one equation's variables."""
        name, params = _name(equation), equation.params
        types = [getattr(v.aval, "dtype", None) for v in equation.outvars]
        floating = any(t is not None and is_inexact(t) for t in types)
        known = not any(map(parts, args))
        if name in ("eigh", "svd") and not known and params.get("compute_uv", True):
            self.vectors.append(equation)
        if name in HIGHER:
            return HIGHER[name](self, equation, *args)
        if name.startswith("custom_") and not known and _is_of_bits(params):
            refuse(equation, "makes numbers of bits, which have no slope", "no rule")
        if name in _CALLS.split() and (floating or not known):
            return self.inside(_jaxprs(params)[0], args)
        if known and (not floating or name in _FILLS):
            return [self.held(v) for v in computed(equation, args)]
        held = name in KEEPS and isinstance(args[0], Node)
        if not (floating or held or name in DECIDED or "callback" in name):
            return computed(equation, args) if types else []
        given = (getattr(v.aval, "dtype", None) for v in equation.invars)
        own, of = self.finer(types[0]), [*map(self.finer, given)]
        if own:  # the cotangent of a coarser operand is rounded to the operand's type
            pairs = zip(args, of, strict=True)
            args = [a if t else narrow(leaf, a, None, self.widest) for a, t in pairs]
        with graph.rounded_to(own):
            made = self.by_table(equation, args)
        made = made if isinstance(made, (tuple, list)) else [made]
        if name in MOVES:
            return made
        if any(of) and not own and floating:
            made = [narrow(rounded, y, None, self.widest) for y in made]
        return [
            narrow(rounded, y, jnp.finfo(t), self.widest) if is_inexact(t) else y
            for y, t in zip(made, types, strict=True)
        ]

    def by_table(self, equation: Any, args: list[Any]) -> Any:
        """The result of an equation's rule for the arguments."""
        name, out = _name(equation), equation.outvars[0].aval.dtype
        if is_complex(out) or any(isinstance(a, Complex) for a in args):
            if name in ON_COMPLEX:
                return ON_COMPLEX[name](equation, *args)
            if name not in PARTWISE and name not in _FACTORISATIONS.split():
                refuse(equation, "has no rule for complex numbers", "complex")
        if name in RULES:
            return both(functools.partial(RULES[name], equation), *args)
        if name in ON_NODES:
            nodes = (a if isinstance(a, Complex) else as_float(a) for a in args)
            return both(ON_NODES[name], *nodes)
        if name in _FACTORISATIONS.split():
            refuse(equation, "factorises a matrix, or solves with one", "factorisation")
        if "callback" in name:
            refuse(equation, "hands numbers over to Python", "callback")
        return refuse(equation, "has no rule in the engine", "no rule")


def computed(equation: Any, args: Sequence[Any], **changed: Any) -> list[Any]:
    """Results that JAX itself computes from nodes' values: an index, an order, ..."""
    pairs = zip(args, equation.invars, strict=True)
    exact = [as_exact(a, v.aval.dtype) for a, v in pairs]
    params = equation.primitive.get_bind_params({**equation.params, **changed})
    made = equation.primitive.bind(*exact, **params)
    return list(made) if equation.primitive.multiple_results else [made]


def as_exact(value: Any, dtype: Any) -> Any:
    """A value as an array of JAX's."""
    if isinstance(value, Complex):
        return as_exact(value.re, float) + 1j * as_exact(value.im, float)
    if isinstance(value, Node):
        return jnp.asarray(value.value, dtype)
    return value if isinstance(value, jax.Array) else jnp.asarray(value, dtype)


# Primitives that call other jaxprs ----------------------------------------------------

_INLINED = ("jaxpr", "call_jaxpr", "fun_jaxpr", "body_jaxpr")
_CALLS = "jit closed_call call remat2 checkpoint custom_jvp_call custom_vjp_call"


def _scan(walk: Walk, equation: Any, *args: Any) -> list[Any]:
    p = equation.params
    fixed, carried = p["num_consts"], p["num_consts"] + p["num_carry"]
    consts, carry, rows = args[:fixed], list(args[fixed:carried]), args[carried:]
    kept: list[list[Any]] = []
    for i in range(p["length"])[:: -1 if p["reverse"] else 1]:
        out = walk.inside(p["jaxpr"], [*consts, *carry, *(row[i] for row in rows)])
        carry = out[: p["num_carry"]]
        kept.append(out[p["num_carry"] :])
    if not kept:
        likes = (variable.aval for variable in equation.outvars[p["num_carry"] :])
        return [*carry, *(walk.held(jnp.zeros(v.shape, v.dtype)) for v in likes)]
    for column in zip(*kept[:: -1 if p["reverse"] else 1], strict=True):
        if any(map(parts, column)):
            carry.append(both(lambda *nodes: graph.stack(nodes), *column))
        else:
            carry.append(jnp.stack(column))
    return carry


def _while(walk: Walk, equation: Any, *args: Any) -> list[Any]:
    """Run a loop as often as its condition says, which no float may decide."""
    p = equation.params
    first, second = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
    asked, consts, carry = args[:first], args[first:second], list(args[second:])
    while True:
        (goes_on,) = walk.inside(p["cond_jaxpr"], [*asked, *carry])
        if isinstance(goes_on, Node):
            why = "runs as often as numbers say that rounding may change"
            refuse(equation, why, "loop")
        if not bool(goes_on):
            return carry
        carry = walk.inside(p["body_jaxpr"], [*consts, *carry])


def _cond(walk: Walk, equation: Any, index: Any, *args: Any) -> list[Any]:
    """Run the branch taken; where a float decides which, run all and select."""
    branches = equation.params["branches"]
    if not isinstance(index, Node):
        return walk.inside(branches[min(max(int(index), 0), len(branches) - 1)], args)
    made = [walk.inside(branch, args) for branch in branches]
    columns = zip(equation.outvars, zip(*made, strict=True), strict=True)
    return [_picked(v.aval.dtype, index, column) for v, column in columns]


def _picked(dtype: Any, which: Any, cases: Sequence[Any]) -> Any:
    """The case that each element of `which`, a number or a boolean, selects."""
    chosen = cases[0]
    for i, case in enumerate(cases[1:], 1):
        here = which
        if isinstance(which, Node) and which.dtype != np.bool_:
            here = graph.greater_equal(as_float(which), float(i))
        elif which.dtype != np.bool_:
            here = which >= i
        if is_inexact(dtype):
            chosen = both(functools.partial(graph.where, as_mask(here)), case, chosen)
        elif dtype == np.bool_:
            a, b = map(as_float, map(as_mask, (case, chosen)))
            chosen = as_mask(graph.where(as_mask(here), a, b))
        else:
            a, b = as_exact(case, dtype), as_exact(chosen, dtype)
            chosen = jnp.where(as_exact(here, bool), a, b)
    return chosen


def _linear_solve(walk: Walk, equation: Any, *args: Any) -> list[Any]:
    """The solution x of A x = b, whose gradient is by A and b, however x is found.

    Each correction by the solver S, x + S (b - A x), makes one order of derivatives
    right: that of a gradient, then that of a double backward.
    """
    p = equation.params
    ends = np.cumsum(p["const_lengths"])
    jaxprs, of_solve = p["jaxprs"], args[ends[1] : ends[2]]
    b = args[ends[-1] :]
    x = walk.inside(jaxprs.solve, [*of_solve, *b])
    for _ in range(2):
        made = walk.inside(jaxprs.matvec, [*args[: ends[0]], *x])
        off = [both(operator.sub, *pair) for pair in zip(b, made, strict=True)]
        more = walk.inside(jaxprs.solve, [*of_solve, *off])
        x = [both(operator.add, *pair) for pair in zip(x, more, strict=True)]
    return x


def _kernel(walk: Walk, equation: Any, *args: Any) -> list[Any]:
    """Run a kernel of Pallas as its interpreter does: by a loop over the grid."""
    from jax._src.pallas import hlo_interpreter  # nothing public makes a jaxpr of it

    params = {k: v for k, v in equation.params.items() if k != "interpret"}
    run = functools.partial(hlo_interpreter.pallas_call_hlo_interpret, **params)
    given = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
    return walk.inside(jax.make_jaxpr(run)(*given), args)


HIGHER: dict[str, Rule] = {
    "custom_linear_solve": _linear_solve,
    "pallas_call": _kernel,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    "debug_callback": lambda *_: [],
    "optimization_barrier": lambda walk, equation, *args: args,
}

# Functions of floats alone ------------------------------------------------------------

#: Names in ATen, where they differ from those in lax.
_RENAMED = {
    "max": "maximum",
    "min": "minimum",
    "rem": "fmod",
    "add_any": "add",
    "logistic": "sigmoid",
    "stop_gradient": "detach",
    "erf_inv": "erfinv",
    "bessel_i0e": "special_i0e",
    "bessel_i1e": "special_i1e",
}
ON_NODES: dict[str, Rule] = {
    **{n: rule for n, rule in elementwise.ON_FLOATS.items() if hasattr(lax, f"{n}_p")},
    **{name: elementwise.ON_FLOATS[theirs] for name, theirs in _RENAMED.items()},
    # At 0 log 0 JAX's slope by x is -inf, and that of a branch 0: it is undefined.
    "xlogy": lambda x, y: times_log(x, y, graph.log(y), graph.sqrt(x * x)),
    "xlog1py": lambda x, y: times_log(x, 1.0 + y, graph.log1p(y), graph.sqrt(x * x)),
    "is_finite": graph.isfinite,
    "square": graph.square,
    "cbrt": lambda x: graph.sign(x) * graph.pow(graph.abs(x), 1 / 3),
    "clamp": lambda low, x, high: graph.minimum(graph.maximum(x, low), high),
    **dict.fromkeys(("copy", "copy_p"), lambda x: x),
}

# Functions that ask for parameters ----------------------------------------------------


def _plain(function: Rule) -> Rule:
    """A rule from a function without an equation's parameters."""
    return lambda equation, *args: function(*args)


def _round(equation: Any, x: Node) -> Node:
    if equation.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN:
        return graph.round(x)
    return graph.sign(x) * graph.floor(graph.abs(x) + 0.5)


def _reduced_precision(equation: Any, x: Node) -> Node:
    p = equation.params
    top, eps = 2 ** (p["exponent_bits"] - 1), 2.0 ** -p["mantissa_bits"]
    most, least = (2 - eps) * 2.0 ** (top - 1), 2.0 ** (2 - top)
    limits = {"eps": eps, "max": most, "smallest_normal": least, "dtype": ""}
    return rounded(x, info=SimpleNamespace(**limits))


def _broadcast(equation: Any, x: Node, *_: Any) -> Node:
    p = equation.params
    lengths = [1] * len(p["shape"])
    for axis, n in zip(p["broadcast_dimensions"], x.shape, strict=True):
        lengths[axis] = n
    return graph.broadcast_to(graph.reshape(x, tuple(lengths)), tuple(p["shape"]))


def _reduced(function: Rule, equation: Any, x: Node) -> Node:
    axes = tuple(equation.params["axes"])
    return function(x, axes) if axes else x


def _cumulated(function: Rule, equation: Any, x: Any) -> Any:
    axis = equation.params["axis"]
    if not equation.params["reverse"]:
        return function(x, axis=axis)
    turned = functools.partial(both, lambda part: graph.flip(part, axis))
    return turned(function(turned(x), axis=axis))


def _product(equation: Any, a: Node, b: Node) -> Node:
    (left, right), (batch_a, batch_b) = equation.params["dimension_numbers"]
    letters = iter("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    in_a, in_b = ([next(letters) for _ in node.shape] for node in (a, b))
    for i, j in zip((*left, *batch_a), (*right, *batch_b), strict=True):
        in_b[j] = in_a[i]
    batch = [in_a[i] for i in batch_a]
    gone = {*batch, *(in_a[i] for i in left)}
    out = "".join([*batch, *(c for c in (*in_a, *in_b) if c not in gone)])
    return graph.einsum(f"{''.join(in_a)},{''.join(in_b)}->{out}", a, b)


def _windowed(function: Rule, neutral: float, equation: Any, x: Node) -> Node:
    p = equation.params
    axes = windows(
        *(x.shape, p["window_dimensions"], p["window_strides"], p["padding"]),
        *(p["window_dilation"], p["base_dilation"]),
    )
    return function(gathered(x, axes, neutral), axis=-1)


def _pow(equation: Any, a: Node, b: Any) -> Node:
    """A power; a literal exponent is a plain number."""
    written = not (isinstance(b, Node) and (b.primitive is not None or b.shape))
    return elementwise.power(a, float(as_float(b).value) if written else b)


def _polygamma(equation: Any, order: Any, x: Node) -> Node:
    orders = np.unique(order.value)
    if orders.size != 1 or orders[0] != int(orders[0]):
        refuse(equation, "has several orders, or a fraction", "no rule")
    return elementwise.ON_FLOATS["polygamma"](int(orders[0]), x)


def _converted(equation: Any, x: Any) -> Any:
    dtype = equation.outvars[0].aval.dtype
    if is_inexact(dtype):
        return as_float(x)
    if dtype == np.bool_:
        return as_mask(x)
    if isinstance(x, Node) and x.dtype.kind in "bi":
        return graph.astype(x, np.int64)
    return computed(equation, [x])[0]


def _moved(equation: Any, *args: Any, **changed: Any) -> list[Node]:
    """A gather whose index is the result of JAX's own function, run on positions.

    A position of -1 marks a place outside, which gets the fill value, by default nan.
    """
    count, sources, given = 0, list[Node](), list[Any]()
    for value in args:
        if isinstance(value, Node) and is_number(value):
            sources.append(value)
            place = np.arange(count, count + value.size, dtype=np.int32)
            given.append(jnp.asarray(place.reshape(value.shape)))
            count += value.size
        else:
            given.append(value)
    made = []
    for place in computed(equation, given, **changed):
        index, held = np.asarray(place, np.intp), sources
        if index.size and index.min() < 0:
            filled = equation.params.get("fill_value")
            held = [*held, constant(math.nan if filled is None else filled)]
            index = np.where(index < 0, count, index)
        made.append(graph.gather(*held, index=index))
    return made


def _scattered(reduce: str, equation: Any, x: Node, index: Any, new: Node) -> Node:
    """x with values combined at their places; those that JAX drops have place -1."""
    p, exact = equation.params, as_exact(index, equation.invars[1].aval.dtype)

    def added(values: Any) -> Any:
        how = p["dimension_numbers"]
        return lax.scatter_add(jnp.zeros(x.shape), exact, values, how, mode=p["mode"])

    with jax.enable_x64(True):  # positions are exact as float64
        back = jax.linear_transpose(added, jnp.zeros(new.shape))
        (held,) = back(jnp.arange(1.0, x.size + 1).reshape(x.shape))
    place = np.asarray(held, np.intp) - 1
    if reduce == "sum":
        return x + graph.scatter_add(new, index=place, shape=x.shape)
    return reduced_into(x, place, new, reduce)


def _keys(value: Any) -> Any:
    return value.value if isinstance(value, Node) else np.asarray(value)


def _sorted(equation: Any, *args: Any) -> list[Any]:
    """Every operand sorted by the keys, stably."""
    axis, count = equation.params["dimension"], equation.params["num_keys"]
    order = np.lexsort([_keys(a) for a in args[:count]][::-1], axis=axis)
    return [_taken(a, order, axis, i == 0 and count == 1) for i, a in enumerate(args)]


def _taken(value: Any, order: Any, axis: int, alone: bool = True) -> Any:
    if not isinstance(value, Node) or value.dtype.kind not in graph.FLOATING:
        return np.take_along_axis(_keys(value), order, axis)
    # Any of equal ones may be taken, and if nothing else is sorted by them, all alike.
    convention = graph.convention(value, axis=axis, indexed=True)
    value = shared(value, axis) if alone and convention == graph.SHARED else value
    place = np.arange(value.size).reshape(value.shape)
    return graph.gather(value, index=np.take_along_axis(place, order, axis))


def _top(equation: Any, x: Any) -> list[Any]:
    """The largest elements, or the smallest; on a CPU approximate ones are exact."""
    p, order = equation.params, np.asarray(computed(equation, [x])[1])
    return [_taken(x, order, p.get("axis", p.get("reduction_dimension", -1))), order]


def _convolved(equation: Any, x: Node, kernel: Node) -> Node:
    p = equation.params
    if p["batch_group_count"] != 1:
        refuse(equation, "has groups of the batch", "no rule")
    numbers = p["dimension_numbers"]
    x = graph.permute_dims(x, numbers.lhs_spec)
    kernel = graph.permute_dims(kernel, numbers.rhs_spec)
    how = "window_strides padding rhs_dilation lhs_dilation feature_group_count"
    y = convolved(x, kernel, *(p[name] for name in how.split()))
    return graph.permute_dims(y, tuple(map(int, np.argsort(numbers.out_spec))))


def _reshaped(equation: Any, x: Node, *_: Any) -> Node:
    turned = equation.primitive.name == "reshape" and equation.params["dimensions"]
    x = graph.permute_dims(x, tuple(turned)) if turned else x
    return graph.reshape(x, equation.outvars[0].aval.shape)


# Matrices -----------------------------------------------------------------------------


def _triangular(equation: Any, a: Any, b: Any) -> Any:
    p = equation.params
    a = a.conj() if p["conjugate_a"] and isinstance(a, Complex) else a
    held = triangle(a, not p["lower"], p["unit_diagonal"])
    return solved(turned(held, p["transpose_a"]), b, p["left_side"])


def _lu(equation: Any, a: Any) -> list[Any]:
    in_one: Rule = complex.lu if isinstance(a, Complex) else matrices.lu_in_one
    order, pivots, packed = in_one(a)
    return [packed, jnp.asarray(pivots, np.int32), jnp.asarray(order, np.int32)]


def _spectrum(equation: Any, a: Node) -> list[Any]:
    """Eigenvectors and eigenvalues if symmetric, or singular values and vectors."""
    p = equation.params
    if p["subset_by_index"]:
        refuse(equation, "asks for some of the values alone", "factorisation")
    if not p.get("compute_uv", True):
        return [matrices.svd(a, False)[1]]
    if "lower" in p:
        return list(matrices.eigh(a, not p["lower"]))[::-1]
    if p["full_matrices"] and a.shape[-1] != a.shape[-2]:
        refuse(equation, matrices.FREE, "factorisation")
    u, w, vh = matrices.svd(a)
    return [w, u, vh]


def _qr(equation: Any, a: Node) -> list[Any]:
    p, (rows, columns) = equation.params, a.shape[-2:]
    if p["pivoting"] or (p["full_matrices"] and rows > columns):
        refuse(equation, matrices.FREE, "factorisation")
    return list(matrices.qr(a))


# Complex numbers ----------------------------------------------------------------------


def _fourier(equation: Any, x: Any) -> Any:
    p, z = equation.params, Complex.of(x)
    kind, dim = p["fft_type"], range(-len(p["fft_lengths"]), 0)
    n = math.prod(p["fft_lengths"])
    if kind == lax.FftType.IRFFT:
        return complex.to_real(z, dim, 1 / max(n, 1), p["fft_lengths"][-1])
    forward, half = kind != lax.FftType.IFFT, kind == lax.FftType.RFFT
    scale = 1.0 if forward else 1 / max(n, 1)
    return complex.transformed(z, dim, scale, forward=forward, half=half)


#: Functions of complex numbers alone.
_NUMBERS: dict[str, Rule] = {
    **complex.FUNCTIONS,
    "logistic": complex.FUNCTIONS["sigmoid"],
    "sign": lambda z: (
        z / Complex.of(graph.where(complex.nowhere(z), 1.0, complex.size(z)))
    ),
    "conj": Complex.conj,
    "real": lambda z: z.re,
    "imag": lambda z: z.im,
    "complex": lambda re, im: Complex(re.re, im.re),
    "square": lambda z: z * z,
    "pow": complex.power,
}
ON_COMPLEX: dict[str, Rule] = {
    **{name: _plain(complex.of_numbers(rule)) for name, rule in _NUMBERS.items()},
    "integer_pow": lambda equation, z: complex.power(z, equation.params["y"]),
    "convert_element_type": lambda equation, x: (
        Complex.of(x) if is_complex(equation.outvars[0].aval.dtype) else x.re
    ),
    "fft": _fourier,
    "reduce_prod": lambda equation, z: functools.reduce(
        complex.product, sorted(equation.params["axes"], reverse=True), z
    ),
    "cumprod": functools.partial(_cumulated, functools.partial(prefixes, operator.mul)),
    "dot_general": lambda equation, a, b: a.product(
        functools.partial(_product, equation), b
    ),
    "conv_general_dilated": lambda equation, a, b: a.product(
        functools.partial(_convolved, equation), b
    ),
    "triangular_solve": _triangular,
    "lu": _lu,
}
_REDUCED: dict[str, Rule] = {
    "reduce_sum": graph.sum,
    "reduce_max": graph.max,
    "reduce_min": graph.min,
    "reduce_prod": graph.prod,
    "reduce_and": lambda x, axes: graph.all(as_mask(x), axes),
    "reduce_or": lambda x, axes: graph.any(as_mask(x), axes),
}
_CUMULATED: dict[str, Rule] = {
    "cumsum": graph.cumulative_sum,
    "cumprod": graph.cumulative_prod,
    "cummax": functools.partial(prefixes, graph.maximum),
    "cummin": functools.partial(prefixes, graph.minimum),
    "cumlogsumexp": functools.partial(
        prefixes, lambda *ends: graph.logsumexp(graph.stack(ends, -1), axis=-1)
    ),
}
#: Primitives for which JAX itself computes the place of each element.
_MOVED = """
    concatenate dynamic_slice dynamic_update_slice pad rev scatter slice split stack
    tile unstack
"""
RULES: dict[str, Rule] = {
    "integer_pow": lambda equation, x: elementwise.power(x, equation.params["y"]),
    "round": _round,
    "broadcast_in_dim": _broadcast,
    "transpose": lambda equation, x: graph.permute_dims(
        x, equation.params["permutation"]
    ),
    **{name: functools.partial(_reduced, rule) for name, rule in _REDUCED.items()},
    **{
        name: _plain(elementwise.logical(f"logical_{name}"))
        for name in ("and", "or", "xor", "not")
    },
    "argmax": lambda equation, x: graph.argmax(x, *equation.params["axes"]),
    "argmin": lambda equation, x: graph.argmin(x, *equation.params["axes"]),
    **{name: functools.partial(_cumulated, rule) for name, rule in _CUMULATED.items()},
    "dot_general": _product,
    "reduce_window_sum": functools.partial(_windowed, graph.sum, 0.0),
    "reduce_window_max": functools.partial(_windowed, graph.max, -math.inf),
    "reduce_window_min": functools.partial(_windowed, graph.min, math.inf),
    **dict.fromkeys(("reshape", "squeeze", "expand_dims"), _reshaped),
    **dict.fromkeys(_MOVED.split(), _moved),
    "pow": _pow,
    "polygamma": _polygamma,
    "convert_element_type": _converted,
    "reduce_precision": _reduced_precision,
    "select_n": lambda equation, which, *cases: _picked(
        equation.outvars[0].aval.dtype, which, cases
    ),
    "gather": functools.partial(_moved, fill_value=-1),
    "scatter-add": functools.partial(_scattered, "sum"),
    "scatter-mul": functools.partial(_scattered, "prod"),
    "scatter-max": functools.partial(_scattered, "max"),
    "scatter-min": functools.partial(_scattered, "min"),
    "sort": _sorted,
    **dict.fromkeys(("top_k", "approx_top_k"), _top),
    "conv_general_dilated": _convolved,
    "cholesky": _plain(functools.partial(matrices.cholesky, halves=False)),
    "lu": _lu,
    "qr": _qr,
    **dict.fromkeys(("eigh", "svd"), _spectrum),
    "householder_product": _plain(matrices.reflected),
    "triangular_solve": _triangular,
}
#: Primitives that keep what floats decide, a mask or an index, as a node.
KEEPS = ("reshape", "squeeze", "expand_dims", "broadcast_in_dim", "transpose")
#: Primitives that round nothing.
MOVES = frozenset((*_MOVED.split(), *KEEPS, "gather", "copy", "copy_p", "select_n"))
_ADD_UP = "add add_any sub neg stop_gradient reduce_sum cumsum scatter-add"
#: Primitives that work on each part of a complex number.
PARTWISE = frozenset((*MOVES, *_ADD_UP.split(), "reduce_precision"))
#: Primitives that make floats from whole numbers, exactly.
_FILLS = ("bitcast_convert_type", "iota")
#: Primitives with rules for results that floats decide: booleans and places.
_DECIDED = """
    approx_top_k argmax argmin convert_element_type select_n sort top_k is_finite eq ne
    lt le gt ge and or xor not reduce_and reduce_or
"""
DECIDED = frozenset(_DECIDED.split())
