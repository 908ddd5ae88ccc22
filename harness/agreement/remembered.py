"""Verdicts of earlier runs, in place of judging the same again (docs/remembered.md).

The verdicts on an op are one file, with the hash of all that they depend on: the op's
page, all other code of ours but other pages, what is installed for each framework, the
machine, the environment variables that its libraries read, the seed and the backends
that are compared. It is signed by a key that only the user can read. What is not as
expected is judged again, and what may be chance or the load's fault: see `is_lasting`.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import json
import os
import platform
import stat
import subprocess
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gradwatch.harness.agreement.sampling import explained
from gradwatch.harness.agreement.suite import Agreement, Asked
from gradwatch.harness.judging.defects import known
from gradwatch.harness.project import documents
from gradwatch.harness.project.paths import CACHE, INSTALLED, PROJECT, ROOT, SOURCE
from gradwatch.harness.workers.pythons.interpreters import Facts, installed
from gradwatch.impls.catalogue import framework_of, op_names

#: What the names of variables begin with that change numbers, beside the frameworks':
#: threads, instruction sets and algorithms of their libraries, the loader, Python, us.
_VARIABLES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "GOTO_", "VECLIB_"),
    *("ATEN_", "PYTORCH_", "DNNL_", "ONEDNN_", "XLA_", "TF_", "FLAGS_", "EIGEN_"),
    *("NPY_", "NUMPY_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "ROCR_", "HIP_"),
    *("LD_", "DYLD_", "GLIBC_", "MALLOC_", "PYTHON", "GRADWATCH_"),
)

SIGNED = 32  # bytes of SHA-256


class NotRemembered(Exception):
    """Something can change that is not seen; the message names it."""


#: Verdicts on a trial, and when they were given, in ISO 8601; by its name.
Kept = dict[str, tuple[str, Agreement]]
#: With the hash of all that they depend on.
_decoder = msgspec.msgpack.Decoder(tuple[str, Kept])


class Remembered:
    """What earlier runs have judged of what is asked, and what this one judges.

    `dates` says of each op of which something was recalled when the oldest of it was
    judged; `why_not`, why nothing is remembered, where that was not wished. Without a
    folder nothing is read or written; `fresh`, nothing is read. Of an op the last run's
    verdicts are kept, whose backends and seed may have been others.
    """

    def __init__(
        self, asked: Asked, place: Path | None = None, *, fresh: bool = False
    ) -> None:
        self.dates, self.why_not = dict[str, str](), ""
        self._asked, self._place = asked, place
        self._keys, self._absent = dict[str, str](), frozenset[str]()
        self._kept: dict[str, Kept] = {}
        self._judged: dict[str, dict[str, Agreement]] = defaultdict(dict)
        if place is None:
            return
        try:
            now, self._key = self._now(), users_key(place)
            self._keys, self._absent = now
            if not fresh:
                self._kept = {op: self._read(op) for op in self._keys}
        except (NotRemembered, OSError) as error:
            self.why_not = str(error)

    def _now(self) -> tuple[dict[str, str], frozenset[str]]:
        asked = self._asked
        if {*asked.devices} != {"cpu"}:
            raise NotRemembered("only outcomes on the CPU are remembered")
        by_op, absent = keys(asked.ops, asked.backends, asked.seed)
        part = "-sampled" if asked.sampled and explained(asked.backends) else ""
        return {op: f"{key}{part}" for op, key in by_op.items()}, absent

    def _file(self, op: str) -> Path:
        assert self._place is not None
        return self._place / "verdicts" / op

    def _read(self, op: str) -> Kept:
        key, kept = read(self._file(op), self._key)
        return kept if key == self._keys[op] else {}

    @property
    def trials(self) -> list[tuple[str, str]]:
        """The name and the device of what is remembered and was not recalled yet."""
        return [(name, "cpu") for kept in self._kept.values() for name in kept]

    def recall(self, op: str, names: Iterable[str]) -> Iterator[Agreement]:
        """The verdicts that are remembered on these trials of an op, each once."""
        kept = self._kept.get(op, {})
        for date, verdicts in [kept.pop(name) for name in names if name in kept]:
            self.dates[op] = min(self.dates.get(op, date), date)
            yield verdicts

    def learn(self, op: str, verdicts: Agreement) -> None:
        """Take in a trial of an op that has been judged."""
        ((name, _),) = verdicts.trials
        self._judged[op][name] = verdicts

    def keep(self, failed: Collection[str]) -> None:
        """Write down what was learnt of the ops that have not failed.

        Nothing, where a file has changed meanwhile: which one was judged is not known.
        """
        if not (self._place and self._keys and self._judged):
            return
        today = datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds")
        try:
            now, _ = self._now()
            for op, judged in self._judged.items():
                if op not in failed and now.get(op) == self._keys[op]:
                    before = self._read(op).items()
                    kept = {name: one for name, one in before if name not in judged}
                    for name, verdicts in judged.items():
                        if is_lasting(verdicts, self._absent):
                            kept[name] = today, verdicts
                    content = msgspec.msgpack.encode((self._keys[op], kept))
                    packed = zlib.compress(content, 1)
                    signed = signature(self._key, self._file(op), packed) + packed
                    documents.replace_file(self._file(op), signed)
        except (NotRemembered, OSError) as error:
            self.why_not = self.why_not or str(error)


def is_lasting(verdicts: Agreement, absent: Collection[str]) -> bool:
    """Whether verdicts are as expected, and another run would give the same.

    `absent` are the backends that are not installed. What may be chance or the load's
    fault: a timeout, a result that a second run did not repeat, a backend that fails to
    start, and whatever is not expected.
    """
    return (
        {*verdicts.missing} <= {*absent}
        and not verdicts.unrepeatable
        and all(map(known.as_expected, verdicts.records))
        and not any(one.verdict == "timeout" for one in verdicts.records)
    )


# Files ----------------------------------------------------------------------------


def users_key(place: Path) -> bytes:
    """The key that signs what is in a folder; made with the folder, for the user alone.

    Raises:
        NotRemembered: Others may know it.
        OSError: It cannot be made or read.
    """
    file = place / "key"
    if not file.exists():
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place)
        os.write(handle, os.urandom(SIGNED))
        os.close(handle)
        with contextlib.suppress(FileExistsError):  # another run was first: its key
            os.link(name, file)
        os.unlink(name)
    about = file.stat()
    if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise NotRemembered(f"{file} is not yours alone: remove it, and verdicts/")
    return file.read_bytes()


def signature(key: bytes, file: Path, content: bytes) -> bytes:
    """What only the user can write of some content in a file of that name."""
    return hmac.digest(key, file.name.encode() + content, "sha256")


def read(file: Path, key: bytes) -> tuple[str, Kept]:
    """What is in a file: the hash, and verdicts; none that the user has not signed.

    Raises:
        OSError: It cannot be read.
    """
    if not file.is_file():  # nor a pipe, which would not answer
        return "", {}
    content = file.read_bytes()
    signed, packed = content[:SIGNED], content[SIGNED:]
    if not hmac.compare_digest(signed, signature(key, file, packed)):
        return "", {}
    return _decoder.decode(zlib.decompress(packed))


# The key --------------------------------------------------------------------------


def keys(
    ops: Iterable[str],
    backends: Sequence[str],
    seed: int,
    *,
    read: Callable[[Path], bytes] = Path.read_bytes,
    have: Callable[[Sequence[str]], Mapping[str, Facts]] = installed,
) -> tuple[dict[str, str], frozenset[str]]:
    """A hash of all ingredients of each op, and the backends that are not installed.

    Raises:
        NotRemembered: A verdict may depend on more than is known.
    """
    if PROJECT.table or INSTALLED:
        raise NotRemembered("only the ops of a checkout of gradwatch are remembered")
    if elsewhere := [Path(op).name for op in ops if op.endswith(".py")]:
        raise NotRemembered(
            f"{elsewhere[0]}: only the catalogue's pages are remembered"
        )
    frameworks = sorted({framework_of(name) for name in backends})
    try:
        present = have(frameworks)
        hashes = files(read=read)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NotRemembered(f"not to be found out: {error}") from None
    if unlisted := sorted({name for one in present.values() for name in one.unlisted}):
        raise NotRemembered(f"{', '.join(unlisted)}: without a list of files")
    pages = {op: hashes.pop(f"impls/ops/{op}.py", "") for op in op_names()}
    shared = {
        "seed": seed,
        "backends": sorted(backends),
        "installed": msgspec.to_builtins(present),
        "machine": machine(),
        "variables": variables(os.environ, frameworks),
        "files": hashes,
    }
    absent = {name for name in backends if present[framework_of(name)].why_missing}
    common = _hash(shared)
    by_op = {op: _hash([common, op, pages[op]]) for op in ops}
    return by_op, frozenset(absent)


def files(
    *places: Path, read: Callable[[Path], bytes] = Path.read_bytes
) -> dict[str, str]:
    """The hash of each file of ours, and of more places, by its name."""
    every = (SOURCE / "harness", SOURCE / "impls", *places)
    found = {file for place in every for file in (place, *place.rglob("*"))}
    return {
        str(file.relative_to(SOURCE if file.is_relative_to(SOURCE) else ROOT)): (
            hashlib.sha256(read(file)).hexdigest()
        )
        for file in sorted(found)
        if file.suffix != ".pyc" and file.is_file()
    }


def machine(cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """The kind of the CPU, with what it can do: libraries choose their code by it."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:  # macOS
        lines = []
    named = sorted(
        {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    )
    system = (platform.system(), platform.machine(), platform.processor())
    return [*system, str(os.cpu_count()), *named]


def variables(
    all_of_them: Mapping[str, str], frameworks: Iterable[str]
) -> dict[str, str]:
    """The environment variables that frameworks and their libraries read."""
    starts = (*_VARIABLES, *(f"{name.upper()}_" for name in frameworks))
    return {
        name: value
        for name, value in sorted(all_of_them.items())
        if name.startswith(starts) and name != CACHE
    }


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
