"""All that a verdict depends on: where none of it differs, the verdict is the same.

That is our code that runs for it (by its imports), what is installed for each
framework, the machine, the environment variables that its libraries read, the seed, the
backends that are compared, and the known outcomes of the op.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from gradwatch.harness.judging import known
from gradwatch.harness.project.closure import Imports, Read, closure, imported
from gradwatch.harness.project.paths import INSTALLED, PROJECT, SOURCE
from gradwatch.harness.workers.pythons.interpreters import Installed, installed
from gradwatch.impls import catalogue
from gradwatch.impls.catalogue import framework_of

#: Of what is remembered: raise it when the same facts are written in another way.
FORMAT = 1

_AGREEMENT = str(__package__).rpartition(".")[0]
_OURS = _AGREEMENT.rpartition(".")[0]

#: Modules that are imported by a name made at run time, beside pages and backends: the
#: job of `gradwatch agree`, its process, and the workers'.
ROOTS = (f"{_AGREEMENT}.remote", f"{_OURS}.workers.isolated", f"{_OURS}.endpoint")

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
    read: Read = Path.read_bytes,
    have: Callable[[Sequence[str]], Mapping[str, Installed]] = installed,
    imports: Imports = imported,
) -> tuple[dict[str, str], frozenset[str]]:
    """A hash of all ingredients of each op, and the backends that are not installed.

    Raises:
        NotRemembered: A verdict may depend on more than is known.
    """
    if PROJECT.table or INSTALLED:
        raise NotRemembered("only the ops of a checkout of gradwatch are remembered")
    frameworks = sorted({framework_of(name) for name in backends})
    with ThreadPoolExecutor(1) as beside:  # interpreters start while files are read
        asked = beside.submit(have, frameworks)
        roots = [*ROOTS, *map(_module("backends"), backends)]
        shared_files = files(roots, read, imports=imports)
    try:
        present = asked.result()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise NotRemembered(
            f"an interpreter does not say what it has: {error}"
        ) from None
    if unlisted := sorted({name for one in present.values() for name in one.unlisted}):
        raise NotRemembered(f"{', '.join(unlisted)}: without a list of files")
    absent = {name for name in backends if present[framework_of(name)].why_missing}
    common = {
        "format": FORMAT,
        "seed": seed,
        "backends": sorted(backends),
        "installed": {
            name: [one.facts, one.why_missing] for name, one in present.items()
        },
        "machine": machine(),
        "variables": variables(os.environ, frameworks),
        "files": shared_files,
    }
    shared, inside = _hash(common), {SOURCE / name for name in shared_files}
    of_page = partial(files, read=read, without=inside, imports=imports)
    entries = [(one, dataclasses.asdict(one)) for one in known.load()]
    of_ops = {op: _hash([shared, *_of_op(op, entries, of_page)]) for op in ops}
    return of_ops, frozenset(absent)


def _module(kind: str) -> Callable[[str], str]:
    return lambda name: f"{catalogue.__package__}.{kind}.{name}"


def _of_op(
    op: str,
    listed: Iterable[tuple[known.Known, Mapping[str, Any]]],
    of_page: Callable[[Sequence[str]], dict[str, str]],
) -> list[Any]:
    """The ingredients of one op beside the shared ones: its page, what is known of it.

    Raises:
        NotRemembered: The page lies elsewhere, and may import anything.
    """
    if op.endswith(".py"):
        raise NotRemembered(
            f"{Path(op).name}: only the catalogue's pages are remembered"
        )
    entries = [facts for one, facts in listed if one.of(op)]
    return [op, of_page([_module("ops")(op)]), entries]


def files(
    modules: Sequence[str],
    read: Read = Path.read_bytes,
    without: Container[Path] = (),
    imports: Imports = imported,
) -> dict[str, str]:
    """The hash of each file that these modules run, and of the data beside them.

    Known outcomes are left out: those of an op are an ingredient of that op. So are the
    files in `without`.

    Raises:
        NotRemembered: A file cannot be read.
    """
    try:
        code = closure(modules, SOURCE, read, without, imports)
        data = {
            file: read(file)
            for folder in {file.parent for file in code}
            for file in folder.iterdir()
            if file.suffix != ".py" and file not in without and file != known.FILE
            if file.is_file()
        }
    except (OSError, SyntaxError, ValueError) as error:
        raise NotRemembered(f"not readable: {error}") from None
    return {
        file.relative_to(SOURCE).as_posix(): hashlib.sha256(content).hexdigest()
        for file, content in sorted({**code, **data}.items())
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
