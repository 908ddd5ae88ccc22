"""How a script gets at a function: by importing it, or with its source."""

from __future__ import annotations

import functools
import inspect
import pkgutil
import sys
import textwrap
from pathlib import Path
from typing import Any

MISSING = """\
candidate = None  # its source was not found: put it here
if candidate is None:
    raise SystemExit(2)"""


def origin(function: Any) -> str:
    """Lines that define `candidate`."""
    if isinstance(function, functools.partial):
        head, _, last = origin(function.func).rpartition("candidate = ")
        given = [repr(a) for a in function.args]
        given += [f"{k}={v!r}" for k, v in function.keywords.items()]
        bound = ", ".join([last, *given])
        return f"import functools\n{head}candidate = functools.partial({bound})"
    owner, suffix = _owner(function)
    if suffix == "()" and not _made_of_nothing(owner):
        return MISSING
    return _imported(owner, suffix) or _quoted(owner, suffix) or MISSING


def _owner(function: Any) -> tuple[Any, str]:
    """What has a name in a module, and how the function is got from it."""
    owner = getattr(function, "__self__", None)  # Function.apply is bound to its class
    if inspect.isclass(owner):
        return owner, f".{function.__name__}"
    if hasattr(function, "named_parameters"):
        return type(function), "()"
    return function, ""


def _made_of_nothing(kind: type) -> bool:
    """Whether a module is constructed without arguments."""
    parameters = list(inspect.signature(kind).parameters.values())
    return all(
        p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        for p in parameters
    )


def _imported(owner: Any, suffix: str) -> str:
    """An import, if the module can be imported and the name leads there."""
    module = getattr(owner, "__module__", None) or ""
    name = getattr(owner, "__qualname__", None) or ""
    homes = {"torch._C._nn": "torch.nn.functional", "": "torch"}
    module = homes.get(module, module)
    if module == "__main__" or not name or "<" in name:
        return ""
    try:
        if pkgutil.resolve_name(f"{module}:{name}") is not owner:
            return ""
    except (ImportError, AttributeError, ValueError):
        return ""
    first = name.partition(".")[0]
    lines = [f"from {module} import {first}", f"candidate = {name}{suffix}"]
    file = getattr(sys.modules[module], "__file__", None)
    if file and "site-packages" not in file and module.partition(".")[0] != "torch":
        folder = Path(file).resolve().parents[module.count(".")]
        lines.insert(0, f"sys.path.insert(0, {str(folder)!r})")
    return "\n".join(lines)


def _quoted(owner: Any, suffix: str) -> str:
    """The source itself; it stands alone where it uses nothing but its framework."""
    if not (inspect.isclass(owner) or inspect.isfunction(owner)):
        return ""  # a function with a backward, of JAX's, is more than its source
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except (OSError, TypeError):
        return ""
    if not source.startswith(("class ", "def ", "@")):
        return ""  # a lambda, amid whatever stood around it
    parts = [owner, *vars(owner).values()] if inspect.isclass(owner) else [owner]
    plain = (getattr(part, "__func__", part) for part in parts)  # of a staticmethod
    if any(getattr(part, "__closure__", None) for part in plain):
        return ""
    return f"{source}\n\ncandidate = {owner.__name__}{suffix}"
