"""Identity and offer of a host, and how it differs from this process."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from msgspec import Struct

from gradwatch.harness.project import git
from gradwatch.harness.project.git import NoCommit
from gradwatch.harness.project.machines import machine_name
from gradwatch.harness.project.paths import PROJECT, ROOT, SOURCE
from gradwatch.harness.workers.pythons.interpreters import (
    Facts,
    installed,
    interpreters_of,
)
from gradwatch.harness.workers.worker import probe
from gradwatch.impls.catalogue import backend_names, framework_of

#: The driver's own note of itself: without it no framework is asked for a GPU.
_DRIVER = Path("/proc/driver/nvidia/version")
_CODE = {".py", ".json", ".j2"}


class Identity(Struct):
    """The commit, the hash of each file that judges, and what the judge runs on."""

    commit: str
    files: dict[str, str]
    versions: dict[str, str]


class Offer(Struct):
    """The frameworks of a host: by device, the version of each that is installed.

    absent: why the others are not there.
    """

    identity: Identity
    machine: str
    frameworks: dict[str, dict[str, str]]
    absent: dict[str, str] = {}

    def has(self, device: str, frameworks: set[str]) -> bool:
        """Whether all of these are there on a device."""
        return frameworks <= {*self.frameworks.get(device, ())}


def _files() -> Iterator[Path]:
    """The files of the harness, of the ops and of the backends."""
    own = [*PROJECT.ops, *PROJECT.backends, *(m for m in PROJECT.code if "*" not in m)]
    places = (SOURCE / "harness", SOURCE / "impls", *(ROOT / name for name in own))
    for place in dict.fromkeys(places):
        found = place.rglob("*") if place.is_dir() else (place,)
        yield from (file for file in found if file.suffix in _CODE and file.is_file())


def identity() -> Identity:
    """The identity of this process."""
    try:
        commit = git.commit_of("HEAD", ROOT)
    except NoCommit:
        commit = ""  # an installed copy: its files say what it is
    files = {
        _shown(file): hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        for file in sorted({*_files()})
    }
    versions = {name: version(name) for name in ("numpy", "msgspec")}
    return Identity(commit, files, {"python": platform.python_version(), **versions})


def _shown(file: Path) -> str:
    root = SOURCE if file.is_relative_to(SOURCE) else ROOT
    return file.relative_to(root).as_posix()


def own_offer() -> Offer:
    """The offer of this process; frameworks are started only where a GPU may be."""
    names = sorted({framework_of(backend) for backend in backend_names()})
    found = installed(names)
    have = {n: _version(n, one) for n, one in found.items() if not one.why_missing}
    lacking = interpreters_of([name for name in found if name not in have])
    absent = {name: one.explained for name, one in lacking.items()}
    frameworks = {"cpu": have}
    if _DRIVER.exists():
        frameworks["cuda"] = {name: have[name] for name in _on("cuda", have)}
    return Offer(identity(), machine_name(), frameworks, absent)


def _on(device: str, frameworks: Mapping[str, str]) -> Iterator[str]:
    """The frameworks of which a backend says that it has the device."""
    for name, facts in probe(interpreters_of([*frameworks]).values()).items():
        backends = facts.get("backends", {}).values()
        if any(not b["error"] and b["devices"].get(device) == "" for b in backends):
            yield name


def _version(framework: str, facts: Facts) -> str:
    """That of the distribution called so, or whose name begins so: paddlepaddle."""
    listed = facts.installed
    return next((v for n, v, _ in listed if n.lower().startswith(framework)), "")


def difference(ours: Identity, theirs: Identity) -> str:
    """In what a host differs, in a line; "" where it is the same."""
    if ours.commit != theirs.commit:
        here, there = (one.commit[:9] or "no commit" for one in (ours, theirs))
        return f"it has {there} checked out, and here is {here}"
    for name in ours.versions:
        if theirs.versions.get(name) != ours.versions[name]:
            there = theirs.versions.get(name, "none")
            return f"its {name} is {there}, and here is {ours.versions[name]}"
    odd = sorted(dict(ours.files.items() ^ theirs.files.items()))
    if not odd:
        return ""
    more = f" and {len(odd) - 1} more" if len(odd) > 1 else ""
    return f"{odd[0]}{more} differs from here, at the same commit"


def mixture(offers: Mapping[str, Offer]) -> str:
    """Which framework has other versions on other hosts, in a line; "" for none."""
    first: dict[tuple[str, str], tuple[str, str]] = {}
    for host, offer in offers.items():
        for device, frameworks in offer.frameworks.items():
            for name, number in frameworks.items():
                other, theirs = first.setdefault((device, name), (host, number))
                if theirs != number:
                    return f"{name} is {theirs} on {other} and {number} on {host}"
    return ""
