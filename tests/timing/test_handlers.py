"""The worker's part of timing on a GPU, with a framework that is played."""

from functools import partial
from types import SimpleNamespace

import pytest

from harness.judging.cases import REGIMES, trial
from harness.timing import handlers
from harness.timing.steps import FLUSHED, timer_of
from harness.timing.timers import HostTimer
from harness.timing.trial import time_trial
from impls.catalogue import load_op
from tests.timing.test_interleave import Device, FakeEvent

FLUSH = 1e-3  # seconds that the played device takes to overwrite its L2
WORK = 3e-4  # seconds of a backward on it


class Cuda:
    """The part of torch.cuda that the stopwatch uses, on a device that is played."""

    def __init__(self, device):
        self.device, self.held, self.peak = device, 1000, 1000
        self.synchronize = device.synchronize

    def Event(self, *, enable_timing):  # noqa: N802  # torch's name
        assert enable_timing
        return FakeEvent(self.device)

    def memory_allocated(self):
        return self.held

    def reset_peak_memory_stats(self):
        self.peak = self.held

    def max_memory_allocated(self):
        return self.peak


class Framework:
    """Its only kernel overwrites what `zeros` made."""

    int8 = "int8"

    def __init__(self):
        self.device, self.made = Device(), []
        self.cuda = Cuda(self.device)

    def zeros(self, count, *, dtype, device):
        assert (dtype, device) == ("int8", "cuda")
        self.made.append(count)
        return SimpleNamespace(zero_=self.device.flush)


class Step:
    """Backwards that only queue their work, and hold 4096 bytes meanwhile."""

    def __init__(self, framework, device="cuda"):
        self.F, self.problem = framework, SimpleNamespace(device=device)
        self.wait = framework.device.synchronize

    def forward(self):
        self.F.device.enqueue(2 * WORK)

    def backward(self):
        self.F.device.enqueue(WORK)
        self.F.cuda.peak = max(self.F.cuda.peak, self.F.cuda.held + 4096)


@pytest.fixture
def framework():
    return Framework()


class Still:
    """A rotation that stays where it is: its changes have tests of their own."""

    def __init__(self, step):
        self.steps, self.calls_seen = [step, step], set()
        self.step = lambda phase: step
        self.change = self.refresh = self.note = lambda phase: None
        self.in_place = True
        self.backend = SimpleNamespace(framework="torch")


@pytest.fixture
def ready(framework, monkeypatch):
    monkeypatch.setitem(handlers._ready, "one", Still(Step(framework)))
    return framework


def sample(**options):
    return handlers.sample({"step": "one", "phase": "backward", **options})["reading"]


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("cold", [True, False])
def test_a_sample_on_a_gpu_is_the_devices_time_of_the_calls_alone(ready, cold, calls):
    seconds, *_ = sample(calls=calls, cold=cold)
    assert seconds == pytest.approx(WORK)
    assert ready.device.flushes == (calls if cold else 0)
    before = WORK  # one call that is not timed
    spent = before + calls * (WORK + cold * FLUSH)
    assert ready.device.seconds == pytest.approx(spent)


def test_a_sample_is_cold_unless_told(ready):
    sample(calls=1)
    assert ready.device.flushes == 1


def test_what_flushes_is_five_times_the_l2_and_made_once(ready):
    for _ in range(3):
        sample(calls=2)
    assert ready.made == [FLUSHED]
    assert FLUSHED >= 5 * 50 << 20  # bytes: that of an H100 is 50 MB


def test_a_device_that_is_not_synchronised_gives_no_time(ready, monkeypatch):
    """The planted missing wait: events are read before they have happened."""
    monkeypatch.setattr(ready.cuda, "synchronize", lambda: None)
    with pytest.raises(RuntimeError, match="not happened"):
        sample(calls=1)


@pytest.mark.parametrize(("beside", "shown"), [(0.0, 1.0), (9 * WORK, 0.1)])
def test_work_on_another_stream_is_seen_although_no_event_is_of_it(
    ready, monkeypatch, beside, shown
):
    """The host waits for all streams, and its clock shows that."""
    device = ready.device
    backward = Step.backward

    def on_two_streams(self):
        backward(self)
        device.beside.append(beside)

    monkeypatch.setattr(Step, "backward", on_two_streams)
    monkeypatch.setattr(
        handlers, "time", SimpleNamespace(perf_counter=lambda: device.seconds)
    )
    request = {"step": "one", "phase": "backward", "calls": 2, "seconds": 0.01}
    _, least, share = handlers.spin(request)["spun"]
    assert least == pytest.approx(WORK)
    assert share == pytest.approx(shown)


@pytest.mark.parametrize("step", ["played on the CPU", "without a problem"])
def test_elsewhere_the_hosts_clock_is_read(framework, step):
    played = Step(framework, "cpu") if "CPU" in step else object()
    assert isinstance(timer_of(played), HostTimer)


def test_peak_memory_on_a_gpu_is_what_the_allocator_says_beyond_what_was_held(ready):
    assert handlers._peak(handlers._ready["one"].steps[0], "cuda") == 4096


def test_a_framework_that_counts_no_memory_has_no_peak(framework):
    step = Step(framework)
    framework.cuda = SimpleNamespace(synchronize=framework.device.synchronize)
    assert handlers._peak(step, "cuda") is None


class PlayedLine:
    """A worker whose samples take 1 ms with an empty cache and half of it without."""

    facts = {"version": "1.0", "threads": 1}  # noqa: RUF012  # nobody writes to it

    def ask(self, request, **payload):
        if request == "prepare":
            names = payload["options"]["steps"]
            return {"first": dict.fromkeys(names, 1.0), "peak": dict.fromkeys(names)}
        if request == "kept":
            return {"kept": {"torch_autograd": {"results": {}, "against": []}}}
        if request == "repeats":
            return {"repeats": [[1000, 1000]]}
        if request == "spin":
            return {"spun": [payload["seconds"], 5e-4, 1.0]}
        return {"reading": [1e-3 if payload["cold"] else 5e-4, 0, 0]}

    def begin(self, request, **payload):
        return partial(self.ask, request, **payload)


@pytest.mark.parametrize(("device", "warm"), [("cuda", 5e-4), ("cpu", None)])
def test_on_a_gpu_each_phase_has_a_cold_and_a_warm_figure(device, warm):
    op = load_op("square")
    one = trial(op, op.sizes["1024"], REGIMES["normal"], "float32")
    backends, line = ["torch_autograd"], partial(PlayedLine)
    records, untimed = time_trial(
        one, backends, lambda _: line(), device=device, budget=0.05
    )
    assert not untimed
    assert [(r.phase, r.seconds, r.warm_seconds) for r in records] == [
        (phase, pytest.approx(1e-3), warm and pytest.approx(warm))
        for phase in ("forward", "backward")
    ]
