"""Prints what a Python has as JSON; that Python runs this file, and imports none of it.

    python question.py FRAMEWORK ...

Standard library only, and nothing of ours: the Python may be any.
"""

import ctypes
import importlib.util
import json
import sys
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of


def main() -> None:
    """Answer on standard output; this ends with the process that asks."""
    if sys.platform == "linux":
        to_die_with_parent, kill = 1, 9  # prctl(2), signal(7)
        ctypes.CDLL(None).prctl(to_die_with_parent, kill)
    del sys.path[0]  # the folder of this file, from which nothing else imports
    frameworks = list(filter(has, sys.argv[1:]))
    facts = {"python": sys.version, "numpy": version("numpy"), "frameworks": frameworks}
    sys.stdout.write(json.dumps(facts))


def version(name: str) -> str:
    """The version of a distribution; "" if it is not installed."""
    try:
        return version_of(name)
    except PackageNotFoundError:
        return ""


def has(name: str) -> bool:
    """Whether a package can be imported.

    A removed one may leave a folder without __init__, which has no loader, as an
    installed namespace has none (MLX is one).
    """
    spec = importlib.util.find_spec(name)
    return bool(spec and (spec.loader or version(name)))


main()
