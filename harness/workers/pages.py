"""Pages in processes of their own, which return nothing but data.

The judging process imports no page: `Pages.load` returns an `Op` without its code. The
formula is called in the page's process, with leaves of which only the integers have
their values; the nodes of the graph that it returns are built again here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from gradwatch.harness.workers.arrays import decoded, encoded, legible
from gradwatch.harness.workers.fork import Fork
from gradwatch.harness.workers.lifetime import Died
from gradwatch.harness.workers.process import PageEnded, Process
from gradwatch.impls import catalogue, graph
from gradwatch.impls.contract import Array, Case, Op, Unsupported, as_tuple

#: Limits on the nodes of a formula (ours have at most 400) and the bytes of a reply.
NODES, BYTES = 100_000, 1 << 30

#: Exceptions that keep their class: a declared lack, or refused shapes (cases.py).
_RAISED = (Unsupported, ValueError, IndexError, ZeroDivisionError)
_LISTS = "cases", "sizes", "odd"
_WORDS = "inputs", "outputs", "state", "integers"


class PageError(Exception):
    """An exception of a page; subclasses have the name of its class."""


class Pages(Process):
    """Loads pages, each in a process of its own; use it in `with`."""

    def __init__(self) -> None:
        super().__init__(__name__, serve.__name__)

    def load(self, source: str) -> Op:
        """The op of a page, by its name or by the path of a page, without its code.

        Raises:
            PageEnded: The page has ended its process.
            Exception: The page has raised, or does not define an op.
        """

        def ask(what: str, *more: Any) -> Any:
            self.connection.send_bytes(encoded((source, encoded((what, *more)))))
            kind, answer = decoded(self.connection.recv_bytes(BYTES))
            if kind == PageEnded.__name__:
                raise PageEnded(answer)
            if kind:
                known = {one.__name__: one for one in _RAISED}
                raise known.get(kind, type(kind, (PageError,), {}))(answer)
            return answer

        return _op(ask("load", source), ask)


def _op(facts: Mapping[str, Any], ask: Callable[..., Any]) -> Op:
    """The op of a page, whose functions are called in its process by `ask`."""
    fields: dict[str, Any] = {name: " ".join(facts[name]) for name in _WORDS}
    fields |= {kind: [Case(n, **f) for n, f in facts[kind]] for kind in _LISTS}
    drawn, named = facts["makers"], facts["constants"]
    constants = {n: partial(_draw, ask, n) for n in named} if drawn else " ".join(named)
    formula = partial(_build, ask) if facts["formula"] else None
    return Op(
        facts["name"],
        group=facts["group"],
        domain=facts["domain"],
        constants=constants,
        formula=formula,
        **fields,
    )


def _draw(
    ask: Callable[..., Any], name: str, rng: Any, shape: Any, shapes: Any
) -> Array:
    """Draw a constant in the page's process; advance the generator accordingly."""
    drawn: Array
    asked = rng.bit_generator.state, tuple(shape), dict(shapes)
    drawn, rng.bit_generator.state = ask("draw", name, *asked)
    return drawn


def _build(
    ask: Callable[..., Any], xp: Any, /, *inputs: Any, **attributes: Any
) -> tuple[Any, ...]:
    """The nodes of a formula's outputs, built from the reply of the page's process."""
    assert xp is graph, "the code of a formula is in another process"
    leaves = list(dict.fromkeys(inputs))
    place = {leaf: i for i, leaf in enumerate(leaves)}
    seen = [  # the formula gets the values of integers; of floats, shape and dtype
        (leaf.dtype, leaf.shape)
        if leaf.dtype.kind in graph.FLOATING
        else np.asarray(leaf.value)
        for leaf in leaves
    ]
    arguments, other = [place[one] for one in inputs], graph.is_other_side()
    parts, outputs = ask("graph", attributes, seen, arguments, other)
    if len(parts) > NODES:
        raise ValueError(f"a formula of {len(parts)} nodes: at most {NODES}")
    nodes: list[graph.Node] = list(leaves)
    for name, sources, given, value in parts:
        if not all(0 <= i < len(nodes) for i in sources):
            raise ValueError(f"{name} comes before what it is computed from")
        step = graph.PRIMITIVES[name] if name else None
        held = None if step else value
        nodes.append(graph.Node(step, tuple(nodes[i] for i in sources), given, held))
    return tuple(nodes[i] for i in outputs)


# In the processes of the pages --------------------------------------------------------


def serve(number: int) -> None:
    """Forward each request to a fork for its page; return the reply, or its death."""
    os.set_inheritable(number, False)
    asking, forks = Connection(number), dict[str, Fork]()

    def forget() -> None:
        asking.close()
        for fork in forks.values():
            fork.close()

    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            source, content = decoded(asking.recv_bytes())
            if source not in forks:
                forks[source] = Fork(Page().answer, forget)
            try:
                answer = forks[source].ask(content)
            except Died as how:
                answer = encoded((PageEnded.__name__, str(how)))
            asking.send_bytes(answer)
    os._exit(0)


class Page:
    """A page in its own process."""

    op: Op

    def answer(self, content: bytes) -> bytes:
        """The reply of the page to a request, or its exception, encoded."""
        what, *more = decoded(content)
        try:
            return encoded(("", getattr(self, what)(*more)))
        except BaseException as error:  # noqa: BLE001  # a page may raise SystemExit
            message = ""
            with contextlib.suppress(Exception):  # it need not have a message
                message = legible(str(error))
            known = (one for one in _RAISED if isinstance(error, one))
            return encoded((next(known, type(error)).__name__, message))

    def load(self, source: str) -> dict[str, Any]:
        """The facts of the op, without its code."""
        op = self.op = catalogue.load_op(source)
        lists = {
            kind: [(c.name, dict(c.fields)) for c in getattr(op, kind).values()]
            for kind in _LISTS
        }
        formula = False
        with contextlib.suppress(Unsupported):
            formula = bool(op.said("formula"))
        return {
            "name": op.name,
            "group": op.group,
            "domain": op.domain,
            "constants": op.constants,
            "makers": bool(op._makers),
            "formula": formula,
            **{name: getattr(op, name) for name in _WORDS},
            **lists,
        }

    def draw(self, name: str, state: Any, shape: Any, shapes: Any) -> tuple[Any, Any]:
        """A constant, drawn by its maker, and the new state of the generator."""
        rng = np.random.default_rng()
        rng.bit_generator.state = state
        drawn = np.asarray(self.op._makers[name](rng, shape, shapes))
        return drawn, rng.bit_generator.state

    def graph(
        self,
        attributes: dict[str, Any],
        described: Sequence[Any],
        arguments: Sequence[int],
        other: bool,
    ) -> tuple[list[Any], list[int]]:
        """The nodes of the formula, inputs before their users, and the outputs."""
        leaves = [  # ones, in place of floating numbers
            graph.variable(
                one
                if isinstance(one, np.ndarray)
                else np.broadcast_to(np.ones((), one[0]), one[1])
            )
            for one in described
        ]
        inputs = [leaves[i] for i in arguments]
        with graph.other_side() if other else contextlib.nullcontext():
            returned = as_tuple(self.op.said("formula")(graph, *inputs, **attributes))
        place = {leaf: i for i, leaf in enumerate(leaves)}
        listed = list[Any]()
        for node in graph.topological_order(returned):
            if node in place:
                continue
            place[node] = len(leaves) + len(listed)
            step = node.primitive.name if node.primitive else ""
            value = None if step else np.asarray(node.value)
            sources = [place[source] for source in node.inputs]
            listed.append((step, sources, dict(node.attributes), value))
        return listed, [place[node] for node in returned]
