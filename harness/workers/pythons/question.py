"""Prints what a Python has as JSON; that Python runs this file, and imports none of it.

    python question.py [--contents] FRAMEWORK ...

Standard library only, and nothing of ours: the Python may be any.
"""

import ctypes
import hashlib
import importlib.util
import json
import os
import platform
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distributions
from importlib.metadata import version as version_of


def main() -> None:
    """Answer on standard output; this ends with the process that asks."""
    if sys.platform == "linux":
        to_die_with_parent, kill = 1, 9  # prctl(2), signal(7)
        ctypes.CDLL(None).prctl(to_die_with_parent, kill)
    del sys.path[0]  # the folder of this file, from which nothing else imports
    contents = "--contents" in sys.argv
    frameworks = [name for name in sys.argv[1:] if name != "--contents" and has(name)]
    facts = {"python": sys.version, "numpy": version("numpy"), "frameworks": frameworks}
    sys.stdout.write(json.dumps({**facts, **(installed() if contents else {})}))


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


def installed() -> dict[str, object]:
    """Distributions with the hashes of their lists of files; see `asking.Facts`.

    One without that list (an .egg-info), in an archive, or that is worked on elsewhere
    can change unseen.
    """
    unlisted = [os.path.basename(p) for p in sys.path if os.path.isfile(p)]
    every = reversed([*distributions()])  # of several the first counts
    found = {name: one for one in every if (name := one.metadata["Name"])}
    found.pop("gradwatch", None)
    return {
        "libc": "-".join(platform.libc_ver()),
        "installed": sorted([n, d.version, digest(d)] for n, d in found.items()),
        "unlisted": sorted([*unlisted, *(n for n, d in found.items() if is_open(d))]),
    }


def digest(distribution: Distribution) -> str:
    """The SHA-256 of a distribution's list of files."""
    listed = distribution.read_text("RECORD") or ""
    return hashlib.sha256(listed.encode()).hexdigest()


def is_open(distribution: Distribution) -> bool:
    """Whether a distribution can change without its list of files."""
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    editable = origin.get("dir_info", {}).get("editable")
    return bool(editable) or not distribution.read_text("RECORD")


main()
