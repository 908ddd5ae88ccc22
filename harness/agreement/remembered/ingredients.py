"""All that a verdict depends on: where none of it differs, the verdict is the same.

That is the op's page, all other code of ours but that of `SILENT` rooms and of other
pages, what is installed for each framework, the machine, the environment variables that
its libraries read, the seed, the backends that are compared, and the known outcomes of
the op.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gradwatch.harness.judging.defects import known
from gradwatch.harness.project.paths import INSTALLED, PROJECT, SOURCE
from gradwatch.harness.workers.pythons.interpreters import Installed, installed
from gradwatch.impls.catalogue import framework_of, op_names

#: Rooms that have no say in a verdict: they show, compare, time or call the judge. A
#: test holds the files of the others against those that a run has loaded.
SILENT = (
    *("check", "commands", "console", "dashboard", "history", "hosts", "nightly"),
    *("selftest", "timing", "tracing", "watch"),
)

#: What the names of variables begin with that change numbers, beside the frameworks':
#: threads, instruction sets and algorithms of their libraries, the loader, Python, us.
_VARIABLES = (
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "GOTO_", "VECLIB_"),
    *("ATEN_", "PYTORCH_", "DNNL_", "ONEDNN_", "XLA_", "TF_", "FLAGS_", "EIGEN_"),
    *("NPY_", "NUMPY_", "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "ROCR_", "HIP_"),
    *("LD_", "DYLD_", "GLIBC_", "MALLOC_", "PYTHON", "GRADWATCH_"),
)

#: Names the folder of the cache, or is "off"; no verdict depends on it.
FOLDER = "GRADWATCH_CACHE"


class NotRemembered(Exception):
    """Something can change that is not seen; the message names it."""


def keys(
    ops: Iterable[str],
    backends: Sequence[str],
    seed: int,
    *,
    read: Callable[[Path], bytes] = Path.read_bytes,
    have: Callable[[Sequence[str]], Mapping[str, Installed]] = installed,
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
        hashes = files(read)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NotRemembered(f"not to be found out: {error}") from None
    if unlisted := sorted({name for one in present.values() for name in one.unlisted}):
        raise NotRemembered(f"{', '.join(unlisted)}: without a list of files")
    pages = {op: hashes.pop(f"impls/ops/{op}.py", "") for op in op_names()}
    shared = _hash(
        {
            "seed": seed,
            "backends": sorted(backends),
            "installed": {
                name: [one.facts, one.why_missing] for name, one in present.items()
            },
            "machine": machine(),
            "variables": variables(os.environ, frameworks),
            "files": hashes,
        }
    )
    entries = known.load()
    absent = {name for name in backends if present[framework_of(name)].why_missing}
    return {
        op: _hash([shared, op, pages[op], [asdict(e) for e in entries if e.of(op)]])
        for op in ops
    }, frozenset(absent)


def files(read: Callable[[Path], bytes] = Path.read_bytes) -> dict[str, str]:
    """The hash of each file of ours that may have a say in a verdict, by its name.

    Known outcomes are left out: those of an op are an ingredient of that op.
    """
    return {
        name: hashlib.sha256(read(SOURCE / name)).hexdigest()
        for package in ("harness", "impls")
        for file in sorted((SOURCE / package).rglob("*"))
        if file.suffix != ".pyc" and file.name != known.FILE.name and file.is_file()
        if (name := file.relative_to(SOURCE).as_posix()).split("/")[1] not in SILENT
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
        if name.startswith(starts) and name != FOLDER
    }


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
