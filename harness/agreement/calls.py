"""Writes the calls of a page as straight-line code in a framework's own names.

The page's function runs once on stand-ins that note each call. It branches on shapes
and attributes alone; the graph engine computes the shapes of a formula's tensors.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from gradwatch.harness.project.traits import traits_of
from gradwatch.impls import graph
from gradwatch.impls.backends._functional import COMPOSED
from gradwatch.impls.backends._torchlike_names import ArrayNames
from gradwatch.impls.contract import Problem, Unsupported, as_tuple

TORCH_LIKE = ("torch", "oneflow")
WIDTH = 88  # characters of a line: up to here a call used once is nested in another


class Unwritten(Exception):
    """The function needs more than shapes: it is no straight line of calls."""


class Tape:
    """The calls so far, each with the name of its result."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}

    def add(self, code: str, value: Any = None) -> Noted:
        """Note a call."""
        name = f"t{len(self.lines) + 1}"
        self.lines[name] = code
        return Noted(self, name, value)

    def written(self, results: Mapping[str, Any]) -> list[str]:
        """The code that assigns the results; a value used once is written in place."""
        lines = dict(self.lines)
        for target, result in results.items():
            lines[target] = _code(result)
        for name in self.lines:
            used = re.compile(rf"\b{name}\b")
            users = [n for n in lines if used.search(lines[n])]
            if len(users) == 1 and len(used.findall(lines[users[0]])) == 1:
                inner = f"({lines[name]})".replace("\\", r"\\")
                whole = used.sub(inner, lines[users[0]])
                whole = ast.unparse(ast.parse(whole))
                if len(f"    {users[0]} = {whole}") <= WIDTH or whole == lines[name]:
                    lines[users[0]] = whole
                    del lines[name]
            elif not users:
                del lines[name]
        return [f"{n} = {ast.unparse(ast.parse(code))}" for n, code in lines.items()]


class Noted:
    """A stand-in for a tensor or a name of the framework: code, and a known value."""

    def __init__(self, tape: Tape, code: str, value: Any = None) -> None:
        self._tape, self._code, self._value = tape, code, value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("shape", "ndim", "size", "numel"):
            if self._value is None:
                raise Unwritten(f"{self._code}.{name}")
            known = getattr(self._value, "size" if name == "numel" else name)
            return (lambda: known) if name == "numel" else known
        value = getattr(self._value, name, None)
        return Noted(self._tape, f"{self._code}.{name}", value)

    def __call__(self, *args: Any, **options: Any) -> Noted:
        """Note the call."""
        given = [*map(_code, args), *(f"{k}={_code(v)}" for k, v in options.items())]
        value = _computed(self._value, args, options) if self._value else None
        return self._tape.add(f"{self._code}({', '.join(given)})", value)

    def __getitem__(self, index: Any) -> Noted:
        shown = ", ".join(map(_code, index if isinstance(index, tuple) else (index,)))
        value = _computed(lambda v, i: v[i], (self, index))
        return self._tape.add(f"{self._code}[{shown}]", value)

    def __iter__(self) -> Iterator[Any]:
        raise Unwritten(f"the parts of {self._code}")

    def __bool__(self) -> bool:
        raise Unwritten(f"whether {self._code}")

    def __len__(self) -> int:
        return int(self.shape[0])

    __hash__ = None  # type: ignore[assignment]  # a comparison is a call, too


def _operator(method: str, form: str) -> Callable[..., Noted]:
    def note(self: Noted, *others: Any) -> Noted:
        code = form.format(f"({self._code})", *(f"({_code(o)})" for o in others))
        value = _computed(lambda v, *o: getattr(v, method)(*o), (self, *others))
        return self._tape.add(code, value)

    return note


_TWO = "add + sub - mul * truediv / pow ** matmul @ floordiv // mod % and & or |"
_COMPARED = "lt < le <= gt > ge >= eq == ne !="
for _signs, _forms in (
    (_TWO, {"__{}__": "{{}} {} {{}}", "__r{}__": "{{1}} {} {{0}}"}),
    (_COMPARED, {"__{}__": "{{}} {} {{}}"}),
    ("neg - invert ~", {"__{}__": "{}{{}}"}),
):
    for _name, _sign in zip(_signs.split()[::2], _signs.split()[1::2], strict=True):
        for _method, _form in _forms.items():
            _named = _method.format(_name)
            setattr(Noted, _named, _operator(_named, _form.format(_sign)))


def _code(value: Any) -> str:
    """An argument as an expression."""
    if isinstance(value, Noted):
        return value._code
    if isinstance(value, (tuple, list)):
        inner = "".join(f"{_code(item)}, " for item in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if isinstance(value, slice):
        ends = ("" if e is None else _code(e) for e in (value.start, value.stop))
        return ":".join(ends) + (f":{value.step}" if value.step else "")
    if isinstance(value, np.ndarray):
        return f"np.array({value.tolist()})"
    if isinstance(value, np.generic):
        value = value.item()
    return "..." if value is Ellipsis else repr(value)


def _computed(function: Any, args: Any, options: Any = None) -> Any:
    """The value of a call by the graph engine; None where it cannot compute one."""
    try:
        return function(*_plain(args), **_plain(options or {}))
    except (Unwritten, AttributeError, TypeError, NotImplementedError):
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, Noted):
        if value._value is None:
            raise Unwritten(value._code)
        return value._value
    if isinstance(value, (tuple, list)):
        return type(value)(map(_plain, value))
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


class Names:
    """The functions of a formula: noted in a framework's names, computed by graph's."""

    def __init__(self, tape: Tape, framework: str) -> None:
        self._tape, self._framework = tape, framework
        if framework in TORCH_LIKE:
            self._torch = ArrayNames(Noted(tape, framework))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            noted = self._noted(name, args, options)
            if isinstance(noted, Noted) and noted._value is None:
                if name == "pad":  # NumPy's name for the graph's "value"
                    options = {"value": options.get("constant_values", 0.0)}
                noted._value = _computed(getattr(graph, name, None), args, options)
            return noted

        return call

    def _noted(self, name: str, args: Any, options: Any) -> Any:
        if self._framework in TORCH_LIKE:
            if name == "where" and self._framework == "torch":
                return self._torch.F.where(*args)
            return getattr(self._torch, name)(*args, **options)
        names = traits_of(self._framework).names
        if name in COMPOSED and name not in names:
            return COMPOSED[name](self, *args, **options)
        if self._framework == "paddle":
            args, options = _for_paddle(self._tape, name, args, options)
            if name == "stop_gradient":
                return args[0].detach()
            if name == "pad":
                name = "nn.functional.pad"
        full = names.get(name, f"{names['']}.{name}")
        return Noted(self._tape, full)(*args, **options)


def _for_paddle(tape: Tape, name: str, args: Any, options: Any) -> Any:
    """The arguments of the array API as Paddle takes them."""
    if "keepdims" in options:
        options = dict(options)
        options["keepdim"] = options.pop("keepdims")
    if isinstance(options.get("axis"), tuple):
        options = {**options, "axis": list(options["axis"])}
    if name in ("maximum", "where"):
        *condition, a, b = args
        like = next(x for x in (a, b) if isinstance(x, Noted))
        full = Noted(tape, "paddle.to_tensor")
        a, b = (x if isinstance(x, Noted) else full(x, like.dtype) for x in (a, b))
        args = (*condition, a, b)
    if name == "pad":
        x, widths, how = args
        return (x, list(sum(widths, ())), how, options["constant_values"]), {}
    return args, options


def calls(problem: Problem, framework: str, dialect: str) -> list[str]:
    """The lines of code that compute the outputs of a problem.

    For the dialect "custom", the gradients as well.

    Raises:
        Unwritten: The page needs more than shapes, or is no call of the framework's.
    """
    op, tape = problem.op, Tape()
    formula = dialect == "formula"
    known = {n: graph.variable(a) if formula else a for n, a in problem.inputs.items()}
    tensors = {name: Noted(tape, name, value) for name, value in known.items()}
    arguments = problem.arguments(tensors)
    try:
        said = op.said(dialect, framework)
        if dialect not in ("formula", "autograd") and framework not in TORCH_LIKE:
            raise Unwritten(f"{dialect} of {framework} is the project's own code")
        if dialect == "custom":
            context = SimpleNamespace(saved_tensors=())
            context.mark_non_differentiable = lambda *tensors: None
            context.save_for_backward = lambda *tensors: setattr(
                context, "saved_tensors", tensors
            )
            y = as_tuple(said.forward(context, *arguments, **problem.attributes))
            dys = (
                None if dy is None else Noted(tape, f"d{name}", dy)
                for name, dy in zip(op.outputs, problem.cotangents, strict=True)
            )
            dx = as_tuple(said.backward(context, *dys, **problem.attributes))
            gradients = zip((f"d{name}" for name in op.inputs), dx, strict=False)
            named = dict(zip(op.outputs, y, strict=False))
            named |= {name: g for name, g in gradients if g is not None}
            return tape.written(named)
        module = Noted(tape, {"tensorflow": "tf"}.get(framework, framework))
        first = Names(tape, framework) if formula else module
        result = said(first, *arguments, **problem.attributes)
    except (TypeError, ValueError, LookupError, AttributeError, Unsupported) as error:
        raise Unwritten(str(error)) from error
    names = (*op.outputs, *op.state) if formula else op.outputs
    if isinstance(result, Noted):
        result = {", ".join(names): result}
    else:
        result = dict(zip(names, result, strict=False))
    lines = tape.written(result)
    if framework == "mlx":  # it takes no indices of NumPy's
        lines = [line.replace("np.array(", "mx.array(") for line in lines]
    return lines
