"""HIPS/autograd's special functions, imported when one of them is first called.

scipy.special takes a quarter of a second, and few formulas need it. `autograd.scipy`
imports scipy.stats, signal and integrate as well, which take most of a second; no
formula uses them.
"""

from collections.abc import Callable
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any


def alone(package: str, name: str) -> Any:
    """A module of a package that is not imported itself.

    Raises:
        ImportError: There is none, or it cannot be imported.
    """
    found = find_spec(package)
    places = found and found.submodule_search_locations
    spec = PathFinder.find_spec(name, places) if places else None
    if spec is None or spec.loader is None:
        raise ImportError(f"{package} has no module {name}")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_special = cache(lambda: alone("autograd.scipy", "special"))


def special(name: str) -> Callable[..., Any]:
    """The special function of that name."""
    return lambda *args, **options: getattr(_special(), name)(*args, **options)


#: The names in formulas, with the functions of SciPy's that they stand for.
SPECIAL = {
    "sigmoid": special("expit"),
    "erf": special("erf"),
    "logsumexp": special("logsumexp"),
}
