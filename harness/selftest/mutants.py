"""Known-wrong backwards: right ones with one mistake planted in each.

The `manual` dialect of an op's page is made wrong in one of two ways: an edit of its
text, listed in mistakes.toml, or a change of its inputs or outputs that any op allows
(`ANYWHERE`). Either makes a function that is called like it and computes in the
precision of its arrays, as a real one would.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.orders import results_of
from gradwatch.harness.project.paths import toml
from gradwatch.impls import graph
from gradwatch.impls.contract import Op, Problem, Shape
from gradwatch.impls.graph import Node

Array = NDArray[Any]
Manual = Callable[..., Any]
Gradients = list[Any]


def planted(
    op: Op, edits: Iterable[Sequence[str]] = ()
) -> Iterator[tuple[str, Manual]]:
    """Yield mistakes and backwards that have them: the op's own, then `ANYWHERE`.

    Raises:
        ValueError: an edit's fragment does not occur exactly once in the page's.
    """
    manual = right(op)
    yield from ((name, edited(manual, *edit)) for name, *edit in edits)
    yield from ((name, change(manual)) for name, change in ANYWHERE.items())


def right(op: Op) -> Manual:
    """Return the right backward, in which errors are planted."""
    manual: Manual = op.said("manual", "numpy")
    return manual


@functools.cache
def read_mistakes() -> Mapping[str, Sequence[tuple[str, str, str]]]:
    """Return the edits of each op: the mistake, a fragment, and its replacement.

    Only the main process calls this: a worker's Python may have no TOML parser.
    """
    table = toml(Path(__file__).with_name("mistakes.toml"))
    return {op: [(a, b, c) for a, b, c in edits] for op, edits in table.items()}


# Edits of the text --------------------------------------------------------------


@functools.cache
def edited(manual: Manual, before: str, after: str) -> Manual:
    """The same function with a fragment of its text replaced.

    Raises:
        ValueError: the fragment does not occur exactly once.
    """
    text = _body(manual)
    if text.count(before) != 1:
        raise ValueError(
            f"{before!r} occurs {text.count(before)} times in {manual.__module__}."
            f"{manual.__name__}: the edit needs another fragment"
        )
    names = {**_AT_HAND, **getattr(manual, "__globals__", {})}
    exec(compile(text.replace(before, after), manual.__module__, "exec"), names)
    wrong: Manual = names[manual.__name__]
    return wrong


def _body(manual: Manual) -> str:
    """The function's text without decorators and docstring."""
    lines = textwrap.dedent(inspect.getsource(manual)).splitlines()
    (function,) = ast.parse("\n".join(lines)).body
    assert isinstance(function, ast.FunctionDef)
    docstring = function.body[0] if ast.get_docstring(function) else None
    if docstring is not None:
        del lines[docstring.lineno - 1 : docstring.end_lineno]
    return "\n".join(lines[function.lineno - 1 :])


def first_to(array: Array, shape: Shape) -> Array:
    """The first of the copies along broadcast axes, where `sum_to` would add them."""
    return np.asarray(array[(0,) * (array.ndim - len(shape)) + (*map(slice, shape),)])


def rounded(dtype: str, array: Array) -> Array:
    """The values rounded to a type."""
    return np.asarray(array).astype(dtype).astype(array.dtype)


single, half = (functools.partial(rounded, d) for d in ("float32", "float16"))
_AT_HAND: dict[str, Any] = {"np": np, "math": math, "first_to": first_to}
_AT_HAND |= {"single": single, "half": half}

# Mistakes of any op -------------------------------------------------------------

Inputs = tuple[Any, ...]
Change = Callable[[Manual], Manual]


def _spoilt(
    *,
    saved: Callable[[Array], Any] | None = None,
    dys: Callable[[Array], Any] = np.asarray,
    gradients: Callable[[Gradients, Inputs], Sequence[Any]] = lambda out, inputs: out,
) -> Change:
    """Change the tensors that a backward saves, its cotangents, or its gradients."""

    def plant(manual: Manual) -> Manual:
        def wrong(*inputs: Any, **attributes: Any) -> Any:
            copies = _mapped(saved or np.asarray, _mapped(np.array, inputs))
            outputs, backward = manual(*inputs, **attributes)
            if saved:
                _, backward = manual(*copies, **attributes)

            def spoilt(*given: Any) -> Sequence[Any]:
                out = backward(*_mapped(dys, given))
                return gradients(_mapped(np.array, out), inputs)

            return outputs, spoilt

        return wrong

    return plant


def _mapped(change: Callable[[Array], Any], arrays: Sequence[Any]) -> Gradients:
    return [None if a is None else change(np.asarray(a)) for a in arrays]


def _through(narrow: type[np.floating[Any]]) -> Change:
    """Compute all of the backward in a narrower type, and widen the gradients."""
    narrowed = functools.partial(np.asarray, dtype=narrow)

    def widened(out: Gradients, inputs: Inputs) -> Gradients:
        return _mapped(lambda g: g.astype(inputs[0].dtype), out)

    return _spoilt(saved=narrowed, dys=narrowed, gradients=widened)


def _first(change: Callable[[Array], Any]) -> Change:
    return _spoilt(gradients=lambda out, inputs: [change(out[0]), *out[1:]])


def _each(change: Callable[[Array], Any]) -> Change:
    return _spoilt(gradients=lambda out, inputs: [change(g) for g in out])


def _put(values: Array, place: int, value: Callable[[Any], Any]) -> Array:
    """Replace one element, counted along the memory."""
    if values.size:
        values.reshape(-1)[place] = value(values.reshape(-1)[place])
    return values


def _overwritten(gradients: Gradients, inputs: Inputs) -> Gradients:
    """Zero the gradients of all but the last use of a tensor that is passed twice."""
    later = [any(a is b for b in inputs[i + 1 :]) for i, a in enumerate(inputs)]
    return [g * 0 if again else g for g, again in zip(gradients, later, strict=False)]


ANYWHERE: dict[str, Change] = {
    "every gradient is zero": _each(np.zeros_like),
    "the first gradient has the wrong sign": _first(np.negative),
    "the first gradient is accumulated twice": _first(lambda g: g + g),
    "all gradients are too large by 5 in 10,000": _each(lambda g: g * (1 + 5e-4)),
    "all gradients are too large by 2 in 100,000": _each(lambda g: g * (1 + 2e-5)),
    "all gradients are too large by 3 in 100 million": _each(lambda g: g * (1 + 3e-8)),
    "all gradients are too large by 5 in 10**11": _each(lambda g: g * (1 + 5e-11)),
    "one element is too large by a tenth": _first(
        lambda g: _put(g, g.size // 2, lambda v: v * 1.1)
    ),
    "the last element is not written": _first(lambda g: _put(g, -1, lambda v: 0)),
    "elements are off by one index": _first(lambda g: np.roll(g, 1)),
    "read in column order": _first(lambda g: g.reshape(g.shape[::-1]).transpose()),
    "small elements are flushed to zero": _each(lambda g: g * (np.abs(g) > 1e-5)),
    "clipped to [-1, 1]": _each(lambda g: np.clip(g, -1, 1)),
    "counted twice where an axis has length 1": _first(
        lambda g: g * 2 if 1 in g.shape else g
    ),
    "the first two gradients are swapped": _spoilt(
        gradients=lambda out, inputs: [*out[1::-1], *out[2:]]
    ),
    "of a tensor used twice, the last use overwrites": _spoilt(gradients=_overwritten),
    "the cotangent is taken to be ones": _spoilt(dys=np.ones_like),
    "the cotangent is reversed": _spoilt(dys=np.flip),
    "the saved tensors are those of an earlier call": _spoilt(
        saved=lambda a: np.flip(a) * a.dtype.type(0.5)
    ),
    "the saved tensors went through float32": _spoilt(saved=single),
    "the saved tensors went through float16": _spoilt(saved=half),
    "computed in float32": _through(np.float32),
    "computed in float16": _through(np.float16),
    "one element is not a number": _first(lambda g: _put(g, -1, lambda v: np.nan)),
    "one element is infinite": _first(lambda g: _put(g, 0, lambda v: np.inf)),
    "None for the last gradient": _spoilt(
        gradients=lambda out, inputs: [*out[:-1], None]
    ),
    "an axis too many is kept": _first(lambda g: g[None]),
    "axes of length 1 are dropped": _each(np.squeeze),
    "another dtype comes back": _each(
        lambda g: g.astype(np.float64 if g.dtype == np.float32 else np.float32)
    ),
}


# Double backwards -------------------------------------------------------------------

# Mistakes in double backwards are made in the engine's second sweep over a gradient. An
# edge, a node and the index of one of its inputs, passes on one term of the chain rule.
# Only our judge is run on them: the rivals take no second order.

EACH = 4  # mistakes of a kind in one trial; most ops have fewer than thirty edges
#: The precision and the regimes in which mistakes are planted.
PLANTED = ("float64", ("normal", "mixed", "dy_zeros"))

Edge = tuple[Node, int]
Tensors = Mapping[str, Array | None]
Spoil = Callable[[Node], Node | None]
EDGES: dict[str, Spoil] = {
    "a term lost": lambda term: None,
    "a term 1e-5 off": lambda term: term * (1 + 1e-5),
    "a term doubled": lambda term: term * 2.0,
    "a term of the wrong sign": lambda term: -term,
}
#: A backward that saves a value of the forward without its history, or all of them.
DETACHED = ("a saved tensor detached", "silently constant")


class Sweep:
    """The second sweep over a problem's gradient, in which mistakes are planted."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.leaves, outputs = results_of(problem, np.dtype(problem.dtype))
        pairs = zip(problem.op.outputs, problem.cotangents, strict=True)
        given = {n: dy for n, dy in pairs if n in problem.differentiated}
        self.dys = {n: graph.variable(dy) for n, dy in given.items()}
        asked = [outputs[n] for n in self.dys]
        wanted = [self.leaves[n] for n in problem.wanted]
        first = graph.gradient(asked, list(self.dys.values()), wanted)
        along = zip(first, [problem.tangents[n] for n in problem.wanted], strict=True)
        self.first = [(dx, v) for dx, v in along if dx is not None]
        self.forward = set(graph.topological_order(asked))
        self.order = graph.topological_order([dx for dx, _ in self.first])

    def run(self, passed_on: Callable[[Edge, Node], Node | None]) -> Tensors:
        """The tensors of a sweep with each edge's term changed by `passed_on`.

        It returns None for a lost term; a tensor that no term reaches is None.
        """
        reached: dict[Node, Node] = {}
        for dx, v in self.first:
            _add(reached, dx, graph.variable(v))
        for node in reversed(self.order):
            if node.primitive is None or node not in reached:
                continue
            terms = node.primitive.gradient(
                reached[node], node, *node.inputs, **node.attributes
            )
            for i, (source, term) in enumerate(zip(node.inputs, terms, strict=True)):
                if term is not None and source.dtype.kind in "fO":
                    left = passed_on((node, i), term)
                    if left is not None:
                        _add(reached, source, left)
        sources = {**self.leaves, **{f"d{n}": dy for n, dy in self.dys.items()}}
        named = {n: n.removeprefix("hvp.d") for n in self.problem.derivatives}
        nodes = {n: reached.get(sources[short]) for n, short in named.items()}
        graph.forward([node for node in nodes.values() if node is not None])
        return {n: None if node is None else node.value for n, node in nodes.items()}


def _add(reached: dict[Node, Node], node: Node, term: Node) -> None:
    reached[node] = reached[node] + term if node in reached else term


def mistakes(sweep: Sweep, rng: np.random.Generator) -> Iterator[tuple[str, Tensors]]:
    """The right tensors, named "", then those of each mistake that is planted."""
    flowing: dict[Edge, Node] = {}
    yield "", sweep.run(flowing.setdefault)
    edges, forward = [*flowing], sweep.forward
    # At these edges the backward reads a value of the forward.
    saved = [(n, i) for n, i in edges if n not in forward and n.inputs[i] in forward]

    def spoiled(among: list[Edge], how: Spoil) -> Tensors:
        places = set(among)
        return sweep.run(lambda edge, term: how(term) if edge in places else term)

    for kind, how in EDGES.items():
        for i in rng.permutation(len(edges))[:EACH]:
            yield kind, spoiled([edges[i]], how)
    for i in rng.permutation(len(saved))[:EACH]:
        yield DETACHED[0], spoiled([saved[i]], EDGES["a term lost"])
    if saved:
        yield DETACHED[1], spoiled(saved, EDGES["a term lost"])
