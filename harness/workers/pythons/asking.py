"""Asks a Python what it has, without importing any of it.

One process answers for all frameworks that this Python runs: to start one takes longer
than to answer. What is installed is read from the folders that installers leave
(packaging specification "Recording installed projects"): `importlib.metadata` parses
the whole description of each package, which takes ten times as long.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from gradwatch.harness.project.paths import SOURCE

_PATIENCE = 30  # seconds for an interpreter to start: a cold disk is slow

#: `pathlib` and `importlib.metadata` take three times as long to import as this runs.
_QUESTION = """
import importlib.util, json, os, sys
# First of all: what is installed from now on is later than this.
folders = {p: os.stat(p).st_mtime_ns for p in sys.path if os.path.isdir(p)}
def recorded():
    for place in dict.fromkeys(sys.path):
        for one in os.listdir(place) if os.path.isdir(place) else ():
            name, _, kind = one.rpartition(".")
            if kind in ("dist-info", "egg-info"):
                name, _, release = name.partition("-")
                yield name, release, os.path.join(place, one)
found = list(recorded())
def version(name):
    # Of several the first counts: it is the one that is imported.
    return next((release for one, release, _ in found if one.lower() == name), "")
def there(name):
    # What is left of a removed package is a folder without __init__: no loader.
    # One that is installed may be a namespace, too, as MLX is.
    spec = importlib.util.find_spec(name)
    return bool(spec and (spec.loader or version(name)))
facts = {"python": sys.version, "numpy": version("numpy"),
         "frameworks": [name for name in sys.argv[1:] if there(name)]}
"""

#: A distribution lists its files with their hashes in RECORD. One without that list
#: (an .egg-info), in an archive, or that is worked on elsewhere can change unseen.
_CONTENTS = """
import hashlib
def content(folder, name):
    try:
        with open(os.path.join(folder, name), "rb") as file:
            return file.read()
    except OSError:
        return b""
installed, unlisted = [], [os.path.basename(p) for p in sys.path if os.path.isfile(p)]
for name, release, folder in found:
    if name != "gradwatch":
        listed = content(folder, "RECORD")
        origin = json.loads(content(folder, "direct_url.json") or "{}")
        if not listed or origin.get("dir_info", {}).get("editable"):
            unlisted.append(name)
        installed.append([name, release, hashlib.sha256(listed).hexdigest()])
libc = "CS_GNU_LIBC_VERSION"
libc = os.confstr(libc) if libc in getattr(os, "confstr_names", ()) else ""
facts |= {"libc": libc, "installed": sorted(installed), "unlisted": sorted(unlisted)}
facts["folders"] = folders
"""


class Facts(msgspec.Struct):
    """What a Python says of itself.

    python: `sys.version`. numpy: its version, or "". frameworks: those of the ones
    asked for that are installed. The rest is asked for separately: installed: name,
    version and hash of the list of files of each distribution; unlisted: those that can
    change unseen; libc: name and version of GNU's, or ""; folders: where it imports
    from, and when each last changed, in nanoseconds: to install something changes it.
    """

    python: str
    numpy: str
    frameworks: list[str]
    libc: str = ""
    installed: list[tuple[str, str, str]] = []
    unlisted: list[str] = []
    folders: dict[str, int] = {}


def ask(python: Path, frameworks: Sequence[str], *, contents: bool = False) -> Facts:
    """What a Python has of these frameworks, with `contents` all that is installed.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: It does not run.
    """
    code = f"{_QUESTION}{_CONTENTS if contents else ''}print(json.dumps(facts))"
    done = subprocess.run(
        [python, "-c", code, *frameworks],
        cwd=SOURCE,  # nothing in the caller's folder is to be taken for the framework
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
    )
    if done.returncode:
        raise ValueError(done.stderr.strip() or f"exit status {done.returncode}")
    try:  # whatever a site's own start-up files print comes before
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Facts)
    except (ValueError, IndexError):
        raise ValueError(f"it answers {done.stdout[:40]!r}") from None
