"""Pages in processes of their own, from which nothing but data comes back.

Whoever judges imports no page: `Pages.load` gives an `Op` without any code of it. Its
formula and the makers of its constants are asked for in the page's process. A formula
is called there with leaves that have a shape and a dtype, but only the integers have
their numbers; what returns is its graph: names of primitives, inputs, attributes and
constants, from which the nodes are built again here.

A process for pages is forked for each of them by one that never imports any.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection, Pipe
from typing import Any

import numpy as np

from gradwatch.harness.workers.arrays import (
    decoded,
    encoded,
    legible,
    pack,
    plain,
    unpack,
)
from gradwatch.harness.workers.lifetime import die_with_parent
from gradwatch.harness.workers.process import Process, how_ended
from gradwatch.impls import catalogue, graph
from gradwatch.impls.contract import Array, Case, Op, Unsupported, as_tuple

#: Nodes of a formula, and bytes of what comes back. Ours have 400 at most.
NODES, BYTES = 100_000, 1 << 30
#: Graphs of a page that are kept: each shape and precision has one.
KEPT = 64
#: Seconds for a page's process to end by itself, once it has closed its pipe.
_ENDING = 1.0

#: What shapes are refused with (judging/cases.py), and what a page declares.
_RAISED = {kind.__name__: kind for kind in (ValueError, IndexError, ZeroDivisionError)}
_LISTS = "cases", "sizes", "odd"
_WORDS = "inputs", "outputs", "state", "integers"


class Ended(BaseException):
    """The process of a page has ended; the message says how."""


class PageError(Exception):
    """What a page raised, under the name of its class."""


class Pages(Process):
    """Loads pages, each in a process of its own; use it in `with`."""

    def __init__(self) -> None:
        super().__init__(__name__, serve.__name__)
        self._loaded: list[Connection] = []

    def __enter__(self) -> Pages:
        return self

    def __exit__(self, *raised: object) -> None:
        for connection in self._loaded:
            connection.close()
        self.close()

    def load(self, source: str) -> Op:
        """The op of a page, by its name or by the path of a page, without its code.

        Raises:
            Ended: The page has ended its process.
            Exception: What the page raised, or it does not define an op.
        """
        ours, theirs = Pipe()
        self._loaded.append(ours)
        with theirs:
            self.connection.send_bytes(b"")
            reduction.send_handle(self.connection, theirs.fileno(), self.process.pid)
        number = self.connection.recv_bytes()

        def ask(what: str, *more: Any) -> Any:
            try:
                ours.send_bytes(encoded((what, *more)))
                kind, answer, refused = decoded(ours.recv_bytes(BYTES))
            except (EOFError, OSError):
                self.connection.send_bytes(number)
                code = int(self.connection.recv_bytes())
                raise Ended(how_ended(code)) from None
            if kind:
                raise _exception(kind, answer, refused)
            return answer

        return _op(ask("load", source), ask)


def _exception(kind: str, message: str, refused: str) -> BaseException:
    """An exception of the page's: of its name, and of the class that refuses shapes."""
    if kind == Unsupported.__name__:
        return Unsupported(message)
    base = _RAISED.get(refused, PageError)
    return base(message) if kind == base.__name__ else type(kind, (base,), {})(message)


def _op(told: Mapping[str, Any], ask: Callable[..., Any]) -> Op:
    """The op that a page has told of, whose code is asked for."""
    fields = {name: " ".join(told[name]) for name in _WORDS}
    cases = {kind: [Case(n, **f) for n, f in told[kind]] for kind in _LISTS}
    drawn, named = told["makers"], told["constants"]
    constants = {n: _Maker(ask, n) for n in named} if drawn else " ".join(named)
    formula = _Formula(ask) if told["formula"] else None
    return Op(
        told["name"],
        group=told["group"],
        domain=told["domain"],
        constants=constants,
        formula=formula,
        **fields,
        **cases,
    )


class _Maker:
    """Draws a constant in the page's process; the generator goes on from there."""

    def __init__(self, ask: Callable[..., Any], name: str) -> None:
        self._ask, self._name = ask, name

    def __call__(self, rng: Any, shape: Any, shapes: Mapping[str, Any]) -> Array:
        state = rng.bit_generator.state
        drawn, rng.bit_generator.state = self._ask(
            "draw", self._name, state, plain(tuple(shape)), plain(dict(shapes))
        )
        return unpack(drawn)


class _Formula:
    """Builds the graph of a formula from what the page's process says of it."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self._kept: dict[bytes, tuple[list[Any], list[int]]] = {}

    def __call__(self, xp: Any, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        """The nodes of its outputs.

        Raises:
            ValueError: What came back is no graph, or too large a one.
        """
        assert xp is graph, "the code of a formula is in another process"
        leaves = list(dict.fromkeys(inputs))
        place = {leaf: i for i, leaf in enumerate(leaves)}
        asked = (
            plain(attributes),
            [_described(leaf) for leaf in leaves],
            [place[one] for one in inputs],
            graph.is_other_side(),
        )
        key = encoded(asked)
        if key not in self._kept:
            if len(self._kept) >= KEPT:
                del self._kept[next(iter(self._kept))]
            told, outputs = self._ask("graph", *asked)
            if len(told) > NODES:
                raise ValueError(f"a formula of {len(told)} nodes: at most {NODES}")
            parts = [(n, i, _values(a, unpack), v and unpack(v)) for n, i, a, v in told]
            self._kept[key] = parts, outputs
        parts, outputs = self._kept[key]
        nodes: list[graph.Node] = list(leaves)
        for name, sources, given, value in parts:
            if not all(0 <= i < len(nodes) for i in sources):
                raise ValueError(f"{name} comes before what it is computed from")
            step = graph.PRIMITIVES[name] if name else None
            held = None if step else value
            nodes.append(graph.Node(step, tuple(nodes[i] for i in sources), given, held))
        return tuple(nodes[i] for i in outputs)


def _described(leaf: graph.Node) -> Any:
    """A leaf, as the formula may see it: of floating numbers, shape and dtype."""
    if leaf.dtype.kind in graph.FLOATING:
        return leaf.dtype.str, leaf.shape, None
    return pack(leaf.value)


def _values(attributes: Mapping[str, Any], of: Callable[[Any], Any]) -> dict[str, Any]:
    """Attributes whose arrays and dtypes travel, as `("array", packed)` and likewise."""
    marked = {"array": of, "dtype": np.dtype}
    return {
        name: marked[value[0]](value[1])
        if isinstance(value, tuple) and value and value[0] in ("array", "dtype")
        else value
        for name, value in attributes.items()
    }


# In the processes of the pages --------------------------------------------------------


def serve(number: int) -> None:
    """Fork a process for each page that is asked for, and say how one has ended."""
    os.set_inheritable(number, False)
    control = Connection(number)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            ended = control.recv_bytes()
            if ended:
                control.send_bytes(str(_code(int(ended))).encode())
                continue
            handle, parent = reduction.recv_handle(control), os.getpid()
            page = os.fork()
            if not page:
                control.close()
                die_with_parent(parent)
                _answer(Connection(handle))
                os._exit(0)
            os.close(handle)
            control.send_bytes(str(page).encode())
    os._exit(0)


def _code(page: int) -> int:
    """The exit code of a page's process, which is killed if it does not end."""
    end = time.monotonic() + _ENDING
    while time.monotonic() < end:
        ended, status = os.waitpid(page, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(page, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(page, 0)[1])


def _answer(connection: Connection) -> None:
    """Answer what is asked of one page, until nobody asks any more."""
    ops: list[Op] = []

    def load(source: str) -> dict[str, Any]:
        ops.append(catalogue.load_op(source))
        return _told(ops[0])

    asked = {
        "load": load,
        "graph": lambda *a: _graph(ops[0], *a),
        "draw": lambda *a: _drawn(ops[0], *a),
    }
    with contextlib.suppress(EOFError, OSError):
        while True:
            what, *more = decoded(connection.recv_bytes())
            try:
                reply = encoded(("", asked[what](*more), ""))
            except BaseException as error:  # noqa: BLE001  # a page may raise SystemExit
                reply = encoded(_failure(error))
            connection.send_bytes(reply)


def _failure(error: BaseException) -> tuple[str, str, str]:
    """The name of an exception, its message, and the class by which shapes go."""
    message = ""
    with contextlib.suppress(Exception):  # it need not have a message
        message = legible(str(error))
    refused = [name for name, kind in _RAISED.items() if isinstance(error, kind)]
    kind = Unsupported if isinstance(error, Unsupported) else type(error)
    return kind.__name__, message, refused[0] if refused else ""


def _told(op: Op) -> dict[str, Any]:
    """What there is to know of an op, but for its code."""
    lists = {
        kind: [(c.name, plain(c.fields)) for c in getattr(op, kind).values()]
        for kind in _LISTS
    }
    try:
        formula = bool(op.said("formula"))
    except Unsupported:
        formula = False
    return {
        "name": op.name,
        "group": op.group,
        "domain": plain(op.domain),
        "constants": op.constants,
        "makers": bool(op._makers),
        "formula": formula,
        **{name: getattr(op, name) for name in _WORDS},
        **lists,
    }


def _drawn(op: Op, name: str, state: Any, shape: Any, shapes: Any) -> tuple[Any, Any]:
    rng = np.random.default_rng()
    rng.bit_generator.state = state
    drawn = np.asarray(op._makers[name](rng, shape, shapes))
    return pack(drawn), rng.bit_generator.state


def _graph(
    op: Op,
    attributes: dict[str, Any],
    described: Sequence[Any],
    arguments: Sequence[int],
    other: bool,
) -> tuple[list[Any], list[int]]:
    """The nodes of a formula, inputs before their users, and which are its outputs."""
    leaves = [graph.variable(_seen(*one)) for one in described]
    inputs = [leaves[i] for i in arguments]
    with graph.other_side() if other else contextlib.nullcontext():
        returned = as_tuple(op.said("formula")(graph, *inputs, **attributes))
    place = {leaf: i for i, leaf in enumerate(leaves)}
    told = []
    for node in graph.topological_order(returned):
        if node in place:
            continue
        place[node] = len(leaves) + len(told)
        step = node.primitive.name if node.primitive else ""
        value = None if step else pack(node.value)
        sources = [place[source] for source in node.inputs]
        told.append((step, sources, _travelling(node.attributes), value))
    return told, [place[node] for node in returned]


def _seen(dtype: str, shape: tuple[int, ...], *more: Any) -> Array:
    """An input as a formula sees it: ones, in place of floating numbers."""
    if more[-1] is None:
        return np.broadcast_to(np.ones((), dtype), shape)
    return unpack((dtype, shape, *more))


def _travelling(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as builtin types; see `_values`."""

    def one(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return "array", pack(value)
        if isinstance(value, (np.dtype, type)):
            return "dtype", np.dtype(value).str
        return plain(value)

    return {name: one(value) for name, value in attributes.items()}
