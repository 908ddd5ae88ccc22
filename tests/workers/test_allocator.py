"""The allocator's pin holds, by call and by environment, and half a pin does not."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gradwatch.harness.timing.samples import Samples
from gradwatch.harness.workers.worker import (
    HUGE_PAGES_ENVIRONMENT,
    MALLOC_ENVIRONMENT,
)

needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="mallopt's knobs are glibc's"
)


def on_request():
    """Whether the kernel gives huge pages to who asks, and glibc knows how to."""
    libc, version = platform.libc_ver()
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return (
        libc == "glibc"
        and tuple(map(int, version.split("."))) >= (2, 35)
        and setting.exists()
        and "[madvise]" in setting.read_text(encoding="ascii")
    )


# Page faults per call of taking, touching and freeing three buffers, after a warm-up.
PROBE = """
import ctypes, resource, sys, threading
how, size = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
if how == "trim only":
    assert libc.mallopt(-1, 1 << 30) == 1
def call():
    if how == "toggled":  # what a page may do after its own calls
        assert libc.mallopt(-3, 4096) == 1
    buffers = [libc.malloc(ctypes.c_size_t(size)) for _ in range(3)]
    for buffer in buffers:
        ctypes.memset(ctypes.c_void_p(buffer), 1, size)
    for buffer in buffers:
        libc.free(buffer)
def probe():
    for _ in range(3):
        call()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        call()
    print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 10)
if "thread" in sys.argv:
    thread = threading.Thread(target=probe)
    thread.start(), thread.join()
else:
    probe()
"""


def faults_per_call(*arguments, **environment):
    plain = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    command = [sys.executable, "-c", PROBE, *map(str, arguments)]
    done = subprocess.run(
        command,
        env=plain | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


@needs_glibc
@pytest.mark.parametrize("mebibytes", [1, 8])
@pytest.mark.parametrize("where", ["main", "thread"])
def test_a_pinned_process_fetches_no_page_twice(mebibytes, where):
    assert faults_per_call("", mebibytes << 20, where, **MALLOC_ENVIRONMENT) < 1


@needs_glibc
def test_fresh_pages_that_a_page_has_given_to_its_rival_are_a_doubt():
    faults = faults_per_call("toggled", 1 << 20, **MALLOC_ENVIRONMENT)
    samples = Samples(np.ones(8), 1, faults)
    assert faults > 256
    assert samples.doubts(moved=3 << 20) == (f"{faults:.0f} page faults per call",)


@needs_glibc
def test_half_a_pin_fetches_every_page_anew():
    assert faults_per_call("trim only", 1 << 20) > 256


#: The heap, and what the kernel gives to who asks for it without glibc.
HEAP = "kept = bytearray(32 << 20)"
ASKED = """
import mmap
kept = mmap.mmap(-1, 32 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
kept.madvise(mmap.MADV_HUGEPAGE)
kept.write(bytes(32 << 20))
"""
HUGE = """
import re
from pathlib import Path
told = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
print(re.search(r"AnonHugePages: +([0-9]+) kB", told)[1])
"""


def huge_kibibytes(environment, taken=HEAP):
    done = subprocess.run(
        [sys.executable, "-c", f"{taken}\n{HUGE}"],
        env=MALLOC_ENVIRONMENT | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(not on_request(), reason="no huge pages on request: kernel or libc")
def test_a_heap_lies_on_huge_pages_where_it_is_asked_to():
    if huge_kibibytes({}, ASKED) < 24 << 10:
        pytest.skip("the kernel has no huge pages left")
    assert huge_kibibytes({}) < 16 << 10  # half of what it holds
    assert huge_kibibytes(HUGE_PAGES_ENVIRONMENT) >= 16 << 10
