"""Forks for code of a page, and the confinement of untrusted processes.

Changes by a page end with its fork. Untrusted code may use the processors, memory up to
a limit, the files that it reads to compute, and one folder to write in.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import pickle
import resource
import struct
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import cache, reduce
from multiprocessing.connection import Connection, Pipe
from multiprocessing.context import ForkProcess
from operator import or_
from pathlib import Path
from typing import TypeVar

from gradwatch.harness.project.paths import ROOT, SOURCE
from gradwatch.harness.workers import lifetime

#: The exit status of a process in which a page has replaced something: the next page
#: gets another process. No other process exits with it, unless a page does so.
CHANGED = 86
_ENDING = 1.0  # seconds for a fork to end by itself, once it has closed its pipe
_PATIENCE = 60.0  # seconds for a function that is `forked`
#: Environment variables of untrusted code; no other one affects a computation.
ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "CUDA_VISIBLE_DEVICES")
#: Paths that Python, PyTorch and a compiler read; in /proc their own process alone.
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
_OF_FILES = 0b111 | _TRUNCATE
_NEW_USER, _NEW_NETWORK, _NEW_IPC = 0x10000000, 0x40000000, 0x08000000

T = TypeVar("T")


class Fork:
    """A fork that answers bytes with bytes within `patience` seconds.

    It begins at the first request. For a page, `forget` closes the connections of this
    process in the fork, which cannot write our files.
    """

    def __init__(
        self,
        answer: Callable[[bytes], bytes],
        forget: Callable[[], object] | None = None,
        patience: float | None = None,
    ) -> None:
        self._answer, self._forget, self._patience = answer, forget, patience
        self._process: ForkProcess | None = None

    def ask(self, content: bytes) -> bytes:
        """The fork's answer to a request.

        Raises:
            Died: It ended without an answer; Late: it took too long, and was killed.
        """
        if self._process is None:
            self._connection, theirs = Pipe()
            call = theirs, os.getpid(), writing_rules() if self._forget else -1
            fork = multiprocessing.get_context("fork")
            self._process = fork.Process(target=self._serve, args=call)
            self._process.start()
            theirs.close()
        with contextlib.suppress(EOFError, OSError):
            self._connection.send_bytes(content)
            if not self._connection.poll(self._patience):
                self.end()
                raise lifetime.Late(f"no answer in {self._patience:g} s")
            return self._connection.recv_bytes()
        code = self.end(_ENDING)
        raise lifetime.Died(lifetime.how_ended(code), code)

    def _serve(self, asking: Connection, parent: int, rules: int) -> None:
        try:
            lifetime.die_with_parent(parent)
            self._connection.close()
            if self._forget:
                restrict(rules)
                self._forget()
            while True:
                asking.send_bytes(self._answer(asking.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)
        finally:  # the fork must not continue as a copy of its caller
            traceback.print_exc()
            os._exit(1)

    def close(self) -> None:
        """Close the pipe to this fork; for other forks, which must not use it."""
        if self._process is not None:
            self._connection.close()

    def end(self, patience: float = 0.0) -> int:
        """End the fork after so many seconds, if it runs; return its exit code."""
        if self._process is None:
            return 0
        ended, self._process = self._process, None
        self._connection.close()
        ended.join(patience)
        ended.kill()
        ended.join()
        return ended.exitcode or 0


def forked(function: Callable[[], T]) -> T:
    """Call a function that may end its process in a fork; return its result.

    Raises:
        Died: It ended without an answer; Late: it took too long, and was killed.
    """

    def answer(content: bytes) -> bytes:
        faulthandler.disable()  # the parent reports how it ends
        try:
            return pickle.dumps((function(), None))
        except Exception as error:  # noqa: BLE001  # the parent raises it again
            return pickle.dumps((None, error))

    fork = Fork(answer, patience=_PATIENCE)
    try:
        found: T
        found, error = pickle.loads(fork.ask(b""))
    finally:
        fork.end()
    if error is not None:
        raise error
    return found


# Confinement ------------------------------------------------------------------------


def bare_environment() -> dict[str, str]:
    """The environment's variables of `ENVIRONMENT`: no secret and no home."""
    return {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}


def become(number: int, pipe: int, script: str, home: str, read: list[str]) -> None:
    """Confine this process, and replace it by a Python that runs a script.

    It cannot find out that it is limited. Files can be written in `home` alone. The
    pipe with this number gets the limits that are not available, and becomes `pipe`.
    """
    parent = os.getppid()
    missing = [] if _apart() else ["a network of its own"]
    python = sys.prefix, sys.base_prefix, *filter(None, sys.path)
    allowed = {_READS: (*READ, *python, *read), _READS | _WRITES: (home, *WRITTEN)}
    if not restrict(_rules(allowed, _TCP, _SIGNALS)):
        missing.append("files of its own (Landlock)")
    lifetime.die_with_parent(parent)
    lifetime.adopt_orphans()  # they end with this process
    with Connection(os.dup2(number, pipe)) as connection:
        connection.send(missing)
        user = {"USER": "user", "LOGNAME": "user", "SHELL": "/bin/sh"}
        found = dict.fromkeys(("HOME", "TMPDIR", "PWD"), home)
        os.chdir(home)
        environment = {**bare_environment(), **user, **found}
        os.execve(sys.executable, [sys.executable, script], environment)


def _apart() -> bool:
    """Give this process namespaces with its own user number; return whether it got any.

    The outer one of two limits the number of processes, by the limit that held when the
    inner one was made. The limit that the process can read is its old one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    user, group = os.getuid(), os.getgid()
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1"}
    maps["gid_map"] = f"{group} {group} 1"
    most = MOST_PROCESSES if hard < 0 else min(MOST_PROCESSES, hard)
    for namespaces in (_NEW_USER | _NEW_NETWORK | _NEW_IPC, _NEW_USER):
        if _call("unshare", namespaces):
            return namespaces == _NEW_USER
        with contextlib.suppress(OSError):
            for name, content in maps.items():
                Path("/proc/self", name).write_text(content)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, hard))
    resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
    return True


@cache
def writing_rules() -> int:
    """The descriptor of Landlock's rules for `restrict`; -1 without Landlock.

    Rules can only list what may be written: all that lies beside our folders and beside
    the folders they are in, and temporary files.
    """
    if _landlock() < 2:  # no file could be moved from folder to folder
        return -1
    kept = {path.resolve() for path in (SOURCE, ROOT / "results")}
    above = {folder for one in kept for folder in one.parents}
    above -= {one for one in above if kept & {one, *one.parents}}  # one in another
    beside = [Path(tempfile.gettempdir())]
    for folder in above:
        with contextlib.suppress(OSError):
            beside += {path for path in folder.iterdir() if not path.is_symlink()}
    return _rules({_WRITES: [path for path in beside if path not in kept | above]})


def _rules(
    allowed: Mapping[int, Iterable[Path | str]], network: int = 0, scope: int = 0
) -> int:
    """The descriptor of rules: the rights below some paths; -1 without Landlock."""
    version = _landlock()
    if version < 1:
        return -1
    later = sum(r for since, r in ((2, _REFER), (3, _TRUNCATE)) if version >= since)
    full = {
        rights | later if rights & _WRITES else rights: allowed[rights]
        for rights in allowed
    }
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = struct.pack("QQQ", reduce(or_, full), network, scope)
    number = _call("syscall", _CREATE, rules, size, 0)
    for rights, paths in full.items():
        for path in paths:
            try:
                opened = os.open(path, os.O_PATH)
            except OSError:  # it is not there
                continue
            allowed_here = rights if os.path.isdir(path) else rights & _OF_FILES
            below, rule = 1, struct.pack("=Qi", allowed_here, opened)
            _call("syscall", _ADD, number, below, rule, 0)
            os.close(opened)
    return number


def _landlock() -> int:
    """The version of Landlock; 1 is that of Linux 5.13, 2 of 5.19."""
    return _call("syscall", _CREATE, None, 0, 1)


def restrict(rules: int) -> bool:
    """Restrict this single-threaded process by rules; return whether that worked."""
    no_new_privileges = 38
    if rules < 0:
        return False
    _call("prctl", no_new_privileges, 1, 0, 0, 0)
    return _call("syscall", _RESTRICT, rules, 0) == 0


def _call(name: str, *arguments: object) -> int:
    try:
        return int(getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments))
    except AttributeError:  # no Linux
        return -1
