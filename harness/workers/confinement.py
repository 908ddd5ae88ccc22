"""Takes from a process what code that nobody trusts does not need.

It keeps processors, memory up to a limit, what it reads to compute, and one folder.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

from gradwatch.harness.project.machines import memory

#: Variables of the environment that such code gets; no other holds for a computation.
ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "CUDA_VISIBLE_DEVICES")
#: What Python, PyTorch and a compiler read. Of /proc their own process alone.
READ = (
    *("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/etc", "/sys", "/dev"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm"),
)
WRITTEN = ("/dev/null", "/dev/shm", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")
MOST_PROCESSES = 256  # a compiler of kernels starts as many as there are cores

# linux/landlock.h and linux/sched.h
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_READS, _WRITES = 0b1101, 0b1111111110010  # execute, read; write, remove, make
_REFER, _TRUNCATE, _TCP, _SIGNALS = 1 << 13, 1 << 14, 0b11, 0b10
_NEW_USER, _NEW_NETWORK, _NEW_IPC = 0x10000000, 0x40000000, 0x08000000


def bare_environment() -> dict[str, str]:
    """Return what the environment has of `ENVIRONMENT`: no secret and no home."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}


def confine(scratch: Path, read: Iterable[Path], seconds: float) -> list[str]:
    """Confine this process, which has one thread; return what could not be had.

    It cannot be undone. Files can be written in `scratch` alone. The environment is for
    whoever starts the process to clean: it can be read to its end.
    """
    os.environ |= {"HOME": str(scratch), "TMPDIR": str(scratch)}
    missing = []
    limits = {
        resource.RLIMIT_DATA: memory() // 2,
        resource.RLIMIT_CPU: int(seconds) + 1,
    }
    if _call("unshare", _NEW_USER | _NEW_NETWORK | _NEW_IPC):
        missing.append("a network of its own")
    else:  # or the processes of all that the user runs would count
        limits[resource.RLIMIT_NPROC] = MOST_PROCESSES
    for which, most in limits.items():
        _, hard = resource.getrlimit(which)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(which, (most, most))
    python = sys.prefix, sys.base_prefix, *filter(None, sys.path)
    readable = [*map(Path, (*READ, *python)), *read]
    if not _landlocked(readable, [scratch, *map(Path, WRITTEN)]):
        missing.append("files of its own (Landlock)")
    return missing


def _landlocked(read: Iterable[Path], written: Iterable[Path]) -> bool:
    """Restrict this process by Landlock (Linux 5.13); whether that was possible."""
    version = _call("syscall", _CREATE, None, 0, 1)
    if version < 1:
        return False
    later = ((2, _REFER), (3, _TRUNCATE))
    writes = _WRITES | sum(right for since, right in later if version >= since)
    rules = struct.pack("QQQ", _READS | writes, _TCP, _SIGNALS)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    number = _call("syscall", _CREATE, rules, size, 0)
    for paths, access in ((read, _READS), (written, _READS | writes)):
        for path in paths:
            _allow(number, path, access)
    no_new_privileges = 38
    _call("prctl", no_new_privileges, 1, 0, 0, 0)
    restricted = _call("syscall", _RESTRICT, number, 0) == 0
    os.close(number)
    return restricted


def _allow(rules: int, path: Path, access: int) -> None:
    """Add a path that is there; of a file, what files have."""
    try:
        opened = os.open(path, os.O_PATH)
    except OSError:
        return
    of_files = 0b111 | _TRUNCATE
    rule = struct.pack("=Qi", access if path.is_dir() else access & of_files, opened)
    below = 1
    _call("syscall", _ADD, rules, below, rule, 0)
    os.close(opened)


def _call(name: str, *arguments: object) -> int:
    try:
        return int(getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments))
    except AttributeError:  # no Linux
        return -1
