"""Detects changes by a page to the process that judges or times it.

`remember` notes the functions that the judge and the clock depend on, and the settings
that all share; `changes` lists those that differ; `Watch` notes calls that no honest
backward makes. docs/timing.md lists the attacks. Every worker imports this.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from ctypes import POINTER, c_size_t, c_void_p, sizeof
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from gradwatch.harness.project.traits import traits_of

#: Modules of the standard library and of NumPy whose functions must stay their own.
TRUSTED = ("time", "gc", "numpy", "numpy.testing", "threading", "resource")
#: Modules of a framework, likewise: they compute gradients and wait for a device.
FRAMEWORK_PARTS = ("", ".autograd", ".cuda")
#: Classes of a framework whose methods are its clock, and read its results.
CLOCKS = ("Event", "Stream", "Tensor")
#: Settings of a framework that change what others compute, or how many cores they use.
SETTINGS = (
    "get_default_dtype",
    "get_num_threads",
    "get_float32_matmul_precision",
    "are_deterministic_algorithms_enabled",
    "is_grad_enabled",
)
#: Audit events (docs.python.org, "Audit events table") that no computation raises.
WATCHED = {
    "gc.get_objects": "searches all objects in memory",
    "gc.get_referrers": "searches all objects in memory",
    "gc.get_referents": "searches all objects in memory",
    "sys._getframe": "looks at its callers",
    "sys._current_frames": "looks at its callers",
    "open": "opens a file",
    "subprocess.Popen": "starts a process",
    "os.fork": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
    "_thread.start_new_thread": "starts a thread",  # from Python 3.12 on
    "_thread.start_joinable_thread": "starts a thread",  # from 3.13 on
    "socket.connect": "opens a connection",
}

#: The objects by module and name, each with the parts that can be replaced in it.
Originals = dict[tuple[str, str], tuple[Any, ...]]

_CHILDREN, _FROZEN = "child processes", "frozen objects"

_originals: Originals = {}
_settings: dict[str, Any] = {}


def remember(framework: str = "numpy") -> None:
    """Note objects that must not change, before a page is read, for each framework.

    An object is noted only once, so that no change of a page becomes the original. The
    objects imported by then are frozen: garbage collection skips them (0.1 s).
    """
    if _FROZEN not in _settings:
        gc.freeze()
        _settings[_FROZEN] = gc.get_freeze_count()
    parts = [framework + part for part in FRAMEWORK_PARTS]
    ours = [name for name in list(sys.modules) if _is_ours(name)]
    own = {(framework, name) for name in traits_of(framework).replaces}
    for name in (*TRUSTED, *parts, *ours):
        for attribute, value in _noted(sys.modules.get(name)):
            if (name, attribute) not in own:
                _originals.setdefault((name, attribute), _parts(value))
    for setting, value in _current_settings(framework).items():
        _settings.setdefault(setting, value)
    _settings.setdefault(_CHILDREN, children())


def changes(framework: str = "numpy") -> list[str]:
    """A line for each object or setting that has changed since `remember`."""
    found = list[str]()
    for (module, name), original in _originals.items():
        now = _parts(_now(module, name))
        same = len(now) == len(original) and all(
            a is b or (type(a) is type(b) in _PLAIN and a == b)
            for a, b in zip(now, original, strict=True)
        )
        if not same:
            found.append(f"{module}.{name} has been replaced")
    for setting, value in _current_settings(framework).items():
        if _settings.get(setting, value) != value:
            found.append(f"{setting} was {_settings[setting]} and is {value}")
    return found


#: Our own packages, but for the pages.
_OURS = __name__.rpartition(".harness.")[0]


def _is_ours(module: str) -> bool:
    page = module.startswith(f"{_OURS}.impls.ops.")
    return module.startswith((f"{_OURS}.harness.", f"{_OURS}.impls.")) and not page


#: Types of constants; two of them are the same if they are equal.
_PLAIN = (int, float, str, bytes)


def _noted(module: types.ModuleType | None) -> Iterator[tuple[str, Any]]:
    """Functions and classes of a module; of our own also constants and methods.

    For `CLOCKS`, the methods they inherit, too.
    """
    name_of = getattr(module, "__name__", "")
    for name, value in list(vars(module).items()) if module else ():
        if name.startswith("__"):
            continue
        if callable(value) or (_is_ours(name_of) and type(value) in _PLAIN):
            yield name, value
        if not isinstance(value, type):
            continue
        own = value.__module__ == name_of and _is_ours(name_of)
        for method in dir(value) if name in CLOCKS else vars(value) if own else ():
            if callable(function := _of_class(value, method)):
                yield f"{name}.{method}", function


def _of_class(owner: type, name: str) -> Any:
    """An attribute of a class or of its first base that has it, without binding it."""
    return next((vars(one)[name] for one in owner.__mro__ if name in vars(one)), None)


#: The offset of a C function's definition, whose second word is the address of its
#: code (CPython's methodobject.h and descrobject.h).
_DEFINED = {
    types.BuiltinFunctionType: 0,
    types.MethodDescriptorType: 3 * sizeof(c_void_p),
}


def _parts(value: Any) -> tuple[Any, ...]:
    """A function and its parts that can be replaced: its code and its defaults."""
    if isinstance(value, types.FunctionType):
        return value, value.__code__, value.__defaults__, value.__kwdefaults__
    if type(value) not in _DEFINED:
        return (value,)
    place = id(value) + object.__basicsize__ + _DEFINED[type(value)]
    return value, POINTER(c_size_t).from_address(place)[1]


def _now(module: str, name: str) -> Any:
    owner: Any = sys.modules.get(module)
    first, _, rest = name.partition(".")
    value = vars(owner).get(first) if owner else None
    return _of_class(value, rest) if rest and isinstance(value, type) else value


def _current_settings(framework: str) -> Mapping[str, Any]:
    module, own = sys.modules.get(framework), dict[str, str]()
    for name in SETTINGS:
        if hasattr(module, name):
            own[f"{framework}.{name}()"] = _asked(getattr(module, name))
    for path in traits_of(framework).settings if module else ():
        own[f"{framework}.{path}"] = _asked(partial(attrgetter(path), module))
    smallest = np.float32(np.finfo(np.float32).tiny)
    frozen = gc.get_freeze_count()
    return {
        **own,
        "flushing of subnormal numbers": bool(smallest / np.float32(2) == 0),
        "gc.get_threshold()": gc.get_threshold(),
        "gc.freeze() since": frozen > _settings.get(_FROZEN, frozen),
        "the cores it may use": len(os.sched_getaffinity(0)),
        "its priority": (os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)),
        "the interval timers": any(signal.getitimer(which)[0] for which in range(3)),
        "tracing": sys.gettrace() is not None or sys.getprofile() is not None,
    }


def _asked(setting: Callable[[], object]) -> str:
    """The value of a setting, as text."""
    try:
        value = setting()
        return str(value() if callable(value) else value)
    except (AttributeError, AssertionError):  # PyTorch 1.12 raises the second
        return "unknown to this version"
    except RuntimeError:  # PyTorch's old and new interface to TF32 contradict
        return "contradictory"


class Watch:
    """A watch that notes forbidden calls in `seen` while it is `on`.

    An audit hook cannot be removed (PEP 578), so there is one for the process. Before
    Python 3.12 the start of a thread is no audit event, but `threading` calls its
    profile function in each thread, where it is removed at once.
    """

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.on = False
        sys.addaudithook(self._hear)
        if threading.getprofile() is None:  # a profiler of the user's goes first
            threading.setprofile(self._begin_thread)

    def _hear(self, event: str, arguments: object) -> None:
        if self.on and event in WATCHED:
            self.seen.add(WATCHED[event])

    def _begin_thread(self, frame: types.FrameType, event: str, value: object) -> None:
        sys.setprofile(None)
        if self.on:
            self.seen.add("starts a thread")


def new_children() -> int:
    """The number of processes started since `remember` that still run."""
    now = children()
    return max(0, now - int(_settings.get(_CHILDREN, now)))


def children() -> int:
    """The number of child processes that still run; 0 where unknown."""
    running = 0
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for process in file.read_text().split():
                with contextlib.suppress(OSError):  # it has ended
                    about = Path("/proc", process, "stat").read_text()
                    # An ended orphan stays a zombie until we end: proc_pid_stat(5).
                    running += about.rpartition(")")[2].split()[0] != "Z"
    return running
