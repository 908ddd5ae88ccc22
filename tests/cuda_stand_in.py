"""A GPU that is played, under PyTorch's own API: streams, events, a clock, late errors.

`installed(device)` replaces what is used of torch.cuda and lets "cuda" mean this
device. Kernels compute on the CPU at once; the device decides *when* a result is there.
Whoever reads it earlier, from another stream or from the host, reads NaN. Errors of a
kernel arrive at the first call after it has run, and then at every call: the context
is lost.

What it cannot show: how a real device rounds, what a real allocator holds, how long
anything takes, and that PyTorch's own waits are right.
"""

from __future__ import annotations

import contextlib
import math
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter

#: Seconds on the device of a kernel, of an overwritten byte (3 TB/s), and on the host
#: of a call that queues something.
KERNEL, BYTE, LAUNCH = 1e-4, 1 / 3e12, 2e-6


class Stream:
    """Work that is done one after the other; `end` is when all of it is."""

    def __init__(self, device: Device) -> None:
        self.device, self.end = device, 0.0

    def wait_stream(self, other: Stream) -> None:
        self.end = max(self.end, other.end)

    def synchronize(self) -> None:
        self.device.wait_until(self.end)


class Event:
    """A mark in the stream that is current when it is recorded."""

    device: ClassVar[Device]  # the one that is installed

    def __init__(self, *, enable_timing: bool = False) -> None:
        self.timed, self.at = enable_timing, math.inf

    def record(self) -> None:
        self.device.calls("record")
        self.at = max(self.device.host, self.device.current.end)

    def synchronize(self) -> None:
        self.device.wait_until(self.at)

    def elapsed_time(self, end: Event) -> float:
        if not (self.timed and end.timed):
            raise ValueError("Both events must be created with enable_timing")
        if max(self.at, end.at) > self.device.host:
            raise RuntimeError("Both events must be completed before calculating it")
        return (end.at - self.at) * 1e3


class Device:
    """Streams, the host's clock, memory and errors; `log` has the calls, in order."""

    def __init__(self, l2: int = 50 << 20) -> None:
        self.l2, self.host, self.lost = l2, 0.0, ""
        self.end = 0.0  # the last of all streams'
        self.current = Stream(self)
        self.errors: list[tuple[float, str]] = []
        self.ready: dict[int, tuple[Stream, float]] = {}  # by the address of a result
        self.held = self.peak = 0
        self.log: list[str] = []
        self.flushed: list[int] = []

    @property
    def clock(self) -> SimpleNamespace:
        """The host's, in place of the module `time`."""
        return SimpleNamespace(
            perf_counter=lambda: self.host,
            perf_counter_ns=lambda: round(self.host * 1e9),
        )

    def calls(self, name: str) -> None:
        """A call of the host, which hears of every error that has happened by now."""
        self.log.append(name)
        due = [message for at, message in self.errors if at <= self.host]
        self.lost = self.lost or next(iter(due), "")
        if self.lost:
            raise RuntimeError(f"CUDA error: {self.lost}\nCUDA kernel errors might be")
        self.host += LAUNCH

    def wait_until(self, at: float) -> None:
        self.host = max(self.host, at)
        self.calls("wait")

    def synchronize(self) -> None:
        self.wait_until(self.end)

    def launch(self, name: str, seconds: float = KERNEL) -> float:
        """Queue a kernel; returns when it begins."""
        self.calls(name)
        begins = max(self.host, self.current.end)
        self.current.end = begins + seconds
        self.end = max(self.end, self.current.end)
        return begins

    def fail(self, message: str) -> None:
        """The kernel that was queued last fails; the host hears of it later."""
        self.errors.append((self.current.end, message))

    def late(self, tensor: torch.Tensor, by: float, stream: Stream | None) -> bool:
        """Whether a tensor is read before it is there; a stream waits for itself."""
        of, at = self.ready.get(tensor.untyped_storage().data_ptr(), (stream, 0.0))
        return of is not stream and at > by


def _api(device: Device) -> dict[str, Any]:
    """What the harness and pages use of torch.cuda; the rest is torch's own."""

    @contextlib.contextmanager
    def on_stream(chosen: Stream) -> Any:
        before, device.current = device.current, chosen
        try:
            yield
        finally:
            device.current = before

    return {
        "played": device,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "current_device": lambda: 0,
        "get_device_properties": lambda _: SimpleNamespace(L2_cache_size=device.l2),
        "synchronize": device.synchronize,
        "Event": Event,
        "Stream": partial(Stream, device),
        "current_stream": lambda: device.current,
        "stream": on_stream,
        "memory_allocated": lambda: device.held,
        "max_memory_allocated": lambda: device.peak,
        "reset_peak_memory_stats": lambda: setattr(device, "peak", device.held),
    }


class _Kernels(TorchDispatchMode):
    """Every operator that makes new memory is a kernel on the current stream."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = [t for t in tree_iter((args, kwargs)) if isinstance(t, torch.Tensor)]
        known = {t.untyped_storage().data_ptr() for t in given}
        result = func(*args, **(kwargs or {}))
        made = [t for t in tree_iter(result) if isinstance(t, torch.Tensor)]
        new = [t for t in made if t.untyped_storage().data_ptr() not in known]
        on_it = any(address in self.device.ready for address in known)
        if on_it and (new or func._schema.is_mutable):
            self._run(func, given, new)
        return result

    def _run(
        self, func: Any, given: list[torch.Tensor], new: list[torch.Tensor]
    ) -> None:
        device = self.device
        begins = device.launch(str(func))
        torn = any(device.late(one, begins, device.current) for one in given)
        for one in new:
            device.ready[one.untyped_storage().data_ptr()] = (
                device.current,
                device.current.end,
            )
            device.peak += one.untyped_storage().nbytes()
            if torn and one.is_floating_point():
                one.fill_(math.nan)


class _Copies(TorchFunctionMode):
    """What moves between host and device, by the names in PyTorch's API."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.to and args[1:] == ("cuda",):
            return self._sent(args[0])
        if func is torch.Tensor.cpu:
            return self._fetched(args[0])
        if func is torch.zeros and kwargs.get("device") == "cuda":
            return self._flusher(int(args[0]))
        return func(*args, **kwargs)

    def _sent(self, tensor: torch.Tensor) -> torch.Tensor:
        self.device.calls("to cuda")
        sent = tensor.clone(memory_format=torch.preserve_format)
        here = sent.untyped_storage()
        self.device.ready[here.data_ptr()] = (self.device.current, self.device.host)
        self.device.held += here.nbytes()
        self.device.peak = max(self.device.peak, self.device.held)
        return sent

    def _fetched(self, tensor: torch.Tensor) -> torch.Tensor:
        """As cudaMemcpy does, this waits for the current stream, and for no other."""
        device = self.device
        device.wait_until(device.current.end)
        late = device.late(tensor, device.host, None)
        with _disable_current_modes():
            fetched = tensor.detach().clone()
            return fetched.fill_(math.nan) if late else fetched

    def _flusher(self, count: int) -> SimpleNamespace:
        """Memory that is only overwritten, so there is none."""

        def zero() -> None:
            self.device.flushed.append(count)
            self.device.launch("flush", count * BYTE)

        return SimpleNamespace(zero_=zero)


@contextlib.contextmanager
def installed(device: Device) -> Any:
    """Let torch.cuda, and the device "cuda", be the played one."""
    Event.device = device
    with contextlib.ExitStack() as stack:
        for name, value in _api(device).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value, create=True))
        # It takes only a real stream; here no memory is used again too early.
        unused = mock.patch.object(torch.Tensor, "record_stream")
        stack.enter_context(unused)
        stack.enter_context(_Kernels(device))
        stack.enter_context(_Copies(device))
        yield
