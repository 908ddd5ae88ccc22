"""What benchmarks share: options, one page of memory for all, and who is absent."""

from __future__ import annotations

import ctypes
import os

import pytest

from gradwatch.harness.console.options import DEVICES, sizes_of
from gradwatch.harness.project.requested import by_default
from gradwatch.harness.timing.timers import why_not_timed
from gradwatch.harness.workers.interpreters import interpreter_of
from gradwatch.harness.workers.worker import MALLOC_ENVIRONMENT
from gradwatch.impls.catalogue import backend_names, framework_of, load_op, op_names

#: Parameters of mallopt(3), from malloc.h, of what workers set by their environment.
KNOBS = dict(zip((-3, -1, -8), map(int, MALLOC_ENVIRONMENT.values()), strict=True))

_mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
#: Set before a framework is imported.
PINNED = all(_mallopt(*knob) for knob in KNOBS.items())

#: Seconds for one benchmark, unless --benchmark-max-time says otherwise: with 20 ops,
#: five backends and two phases the whole suite takes about a minute.
SHORT = 0.1

FRAMEWORKS = tuple(dict.fromkeys(map(framework_of, backend_names())))
HERE = tuple(
    name
    for name in FRAMEWORKS
    if interpreter_of(name).python == interpreter_of("numpy").python
)


def pytest_addoption(parser: pytest.Parser) -> None:
    options = parser.getgroup("gradwatch")
    options.addoption("--every-size", action="store_true", help="not the middle alone")
    options.addoption("--device", default="cpu", choices=DEVICES)


def pytest_configure(config: pytest.Config) -> None:
    """Before pytest-benchmark reads its options."""
    if why := why_not_timed(config.getoption("device")):
        raise pytest.UsageError(why)
    given = config.invocation_params.args
    if not any(str(word).startswith("--benchmark-max-time") for word in given):
        config.option.benchmark_max_time = SHORT
    config.option.benchmark_disable_gc = True


def pytest_report_header() -> list[str]:
    threads = os.environ.get("OMP_NUM_THREADS")
    absent = [name for name in FRAMEWORKS if name not in HERE]
    lines = [] if PINNED else ["the allocator is not pinned: times vary by process"]
    if threads != "1":
        lines.append("OMP_NUM_THREADS=1 makes NumPy's BLAS use one thread, as PyTorch")
    if absent:
        told = ", ".join(absent)
        lines.append(f"not in this interpreter: {told}; see `gradwatch time`")
    return lines


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every op at one size, every backend that this interpreter runs."""
    sizes = () if metafunc.config.getoption("every_size") else ("middle",)
    cases = [
        pytest.param(name, case.name, id=f"{name}-{case.name}")
        for name in op_names()
        for case in sizes_of(load_op(name), sizes)
    ]
    backends = [name for name in by_default() if framework_of(name) in HERE]
    metafunc.parametrize(("op", "size"), cases)
    metafunc.parametrize("phase", ("forward", "backward"))
    metafunc.parametrize("backend", backends)
