"""The worker's part of timing on a GPU, on one that is played."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.timing import handlers, timers
from gradwatch.harness.timing.compare import time_trial
from gradwatch.harness.timing.proof import variants
from gradwatch.harness.timing.rotation import Place
from gradwatch.harness.timing.timers import (
    DEBUGGING,
    FLUSHED,
    TIMES_L2,
    HostTimer,
    _busy,
    timer_of,
    why_not_timed,
)
from gradwatch.harness.workers.arrays import encoded
from gradwatch.harness.workers.pool import Task
from gradwatch.impls.catalogue import load_backend, load_op
from tests.command_line import gradwatch

PAGE = str(Path(__file__).parent / "attacks" / "honest.py")
BACKWARD = 3  # kernels: the three products of 3 * x * x * dy
ELEMENTS = 65536


@pytest.fixture
def gpu(monkeypatch):
    """A played one, with the clock of the worker."""
    pytest.importorskip("torch")
    load_backend("torch_custom")
    from tests.cuda_stand_in import Device, installed

    device = Device()
    monkeypatch.setattr(handlers, "time", device.clock)
    monkeypatch.setattr(timers, "time", device.clock)
    _busy.cache_clear()
    with installed(device):
        yield device
    handlers.release({})
    _busy.cache_clear()


def prepared(**options):
    """The reply to the request to prepare an honest page."""
    op = load_op(PAGE)
    one = trial(op, op.sizes[str(ELEMENTS)], REGIMES["normal"], "float32", 0, PAGE)
    payload = Task(one, "torch_custom", "cuda").payload()
    options = {"steps": {"one": "torch_custom"}, **options}
    return handlers.prepare({**payload, "options": options})


def sample(**options):
    return handlers.sample({"step": "one", "phase": "backward", **options})["reading"]


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("launch", [2e-6, 2e-5, 5e-5])  # a kernel takes 1e-4
def test_a_sample_on_a_gpu_is_the_devices_time_of_the_calls_alone(
    gpu, monkeypatch, calls, launch
):
    """However long the host takes to queue them."""
    from tests import cuda_stand_in

    monkeypatch.setattr(cuda_stand_in, "LAUNCH", launch)
    prepared()
    seconds, *_ = sample(calls=calls)
    assert seconds == pytest.approx(BACKWARD * cuda_stand_in.KERNEL)


def test_what_the_host_computes_itself_is_in_the_figure(gpu, monkeypatch):
    """A launch that takes it milliseconds is none."""
    from tests import cuda_stand_in

    prepared()
    monkeypatch.setattr(cuda_stand_in, "LAUNCH", 0.02)
    seconds, *_ = sample(calls=1)
    assert seconds > 2 * cuda_stand_in.LAUNCH


def test_the_calls_of_a_sample_come_in_this_order(gpu):
    """Flush, event, work, event; and the host waits only after the last."""
    prepared()
    sample(calls=1)  # how long a flush takes is measured once
    gpu.log.clear()
    sample(calls=2)
    call = ["flush", "record", *["aten.mul.Tensor"] * BACKWARD, "record"]
    end = gpu.log.index("wait", gpu.log.index("flush"))
    assert gpu.log[end - 2 * len(call) : end] == 2 * call


@pytest.mark.parametrize("mebibytes", [50, 126])  # of an H100, and of a B200
def test_what_flushes_is_five_times_the_devices_own_l2(gpu, mebibytes):
    gpu.l2 = mebibytes << 20
    prepared()
    for _ in range(3):
        sample(calls=2)
    assert len(gpu.flushed) >= 3 * 2
    assert set(gpu.flushed) == {5 * mebibytes << 20}
    assert TIMES_L2 == 5


@pytest.mark.parametrize("about", [SimpleNamespace(), SimpleNamespace(L2_cache_size=0)])
def test_where_the_l2_has_no_size_that_of_triton_is_flushed(gpu, monkeypatch, about):
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: about)
    prepared()
    sample(calls=1)
    assert set(gpu.flushed) == {FLUSHED}


def test_a_device_that_is_not_synchronised_gives_no_time(gpu, monkeypatch):
    """The planted missing wait: events are read before they have happened."""
    prepared()
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    with pytest.raises(RuntimeError, match="must be completed"):
        sample(calls=1)


def test_the_host_sees_that_all_work_is_between_the_events(gpu):
    prepared()
    picks = np.zeros((2, 1), np.int16)
    request = {"step": "one", "phase": "backward", "calls": 2, "picks": picks}
    assert handlers.draw(request)["shown"] == 1.0


@pytest.mark.parametrize("step", ["on the CPU", "without a problem", "without events"])
def test_elsewhere_the_hosts_clock_is_read(step):
    """NumPy's steps have no problem; OneFlow's GPU has no events."""
    framework = SimpleNamespace(cuda=SimpleNamespace())
    device = "cpu" if "CPU" in step else "cuda"
    played = SimpleNamespace(problem=SimpleNamespace(device=device), F=framework)
    assert isinstance(timer_of(object() if "problem" in step else played), HostTimer)


def test_peak_memory_on_a_gpu_is_that_of_a_forward_and_a_backward(gpu):
    """Two products forward and three backward, 4 bytes an element: none is freed here.

    The inputs, and what the first run still holds, do not count.
    """
    peak = prepared(peak=True)["peak"]["one"]
    assert peak == (2 + BACKWARD) * ELEMENTS * 4


def test_a_framework_that_counts_no_memory_has_no_peak(gpu, monkeypatch):
    monkeypatch.delattr("torch.cuda.reset_peak_memory_stats")
    assert prepared(peak=True)["peak"]["one"] is None


class PlayedWorker:
    """A worker whose samples take 1 ms."""

    facts = {"version": "1.0", "threads": 1}  # noqa: RUF012  # nobody writes to it
    framework = "oneflow"  # whose threads poll: its calls are not timed here

    cpu_seconds = staticmethod(float)
    waited_seconds = staticmethod(float)
    rest = staticmethod(int)

    def __init__(self, one):
        self.place = Place([source.problem for source in variants(one)])

    def ask(self, request, **payload):
        if request == "prepare":
            names = payload["options"]["steps"]
            return {"first": dict.fromkeys(names, 1.0)}
        if request == "kept":
            return {"results": {}, "against": []}
        if request == "draw":
            self.place.draw(payload["picks"])
            self.phase = payload["phase"]
            return {"in_place": False, "shown": math.inf}
        if request == "call":
            return {}
        if request == "computed":
            self.place.write_inputs(0)
            self.place.write_cotangents(0)
            x, (dy,) = self.place.problem.inputs["x"], self.place.problem.cotangents
            tensors = {"y": x * x} if self.phase == "forward" else {"dx": 2 * x * dy}
            return {
                "tensors": encoded(tensors),
                "dtypes": dict.fromkeys(tensors, "float32"),
            }
        return {"reading": [1e-3, 0]}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_each_phase_has_a_figure(device):
    op = load_op("square")
    one = trial(op, op.sizes["1024"], REGIMES["normal"], "float32")
    backends, line = ["torch_autograd"], PlayedWorker(one)
    records, untimed = time_trial(
        one, backends, lambda _: line, device=device, budget=0.05
    )
    assert not untimed
    assert [(r.phase, r.seconds) for r in records] == [
        (phase, pytest.approx(1e-3)) for phase in ("forward", "backward")
    ]


@pytest.mark.parametrize("name", DEBUGGING)
@pytest.mark.parametrize("value", ["1", "0", ""])
def test_with_a_variable_that_slows_a_gpu_down_nothing_is_timed_on_it(
    gpu, monkeypatch, name, value
):
    monkeypatch.setenv(name, value)
    assert why_not_timed("cpu") == ""
    if value != "1":
        assert prepared()["first"]
        return
    with pytest.raises(RuntimeError, match=f"{name} slows a GPU down"):
        prepared()


@pytest.mark.parametrize(
    "call", [["time"], ["compare", "torch_custom", "torch_autograd"]]
)
def test_the_commands_refuse_it_before_anything_is_judged(monkeypatch, call):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    refused = gradwatch(*call, "--device", "cuda", "--op", "square")
    assert refused.returncode == 2
    assert "CUDA_LAUNCH_BLOCKING slows a GPU down: unset it to time" in refused.stderr
