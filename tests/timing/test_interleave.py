"""The clock on a machine that is simulated: nothing here depends on real time."""

import gc
import math
import mmap
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest

from gradwatch.harness.timing import samples as clock
from gradwatch.harness.timing.samples import Estimate, Samples, paired, verdict_on
from gradwatch.harness.timing.timers import (
    SHORTEST,
    Busy,
    EventTimer,
    HostTimer,
    Reading,
)


def interleave(runs, timer=HostTimer(), **options):  # noqa: B008  # it is frozen
    """Runs that the timer times, with the wait of those that have one."""
    timed = {
        name: partial(timer, run, wait=getattr(run, "wait", int))
        for name, run in runs.items()
    }
    more = {"shortest": timer.shortest, "now": timer.now}
    return clock.interleave(timed, **more, **options)


def compare(a, b, **options):
    both = interleave({"a": a, "b": b}, **options)
    return paired(both["a"], both["b"])


@dataclass
class Machine:
    """A computer whose time passes only while it works.

    Work is slowed by skewed noise of relative size `noise`, and by `neighbour` times
    while one is busy: 0.6 s of every 1.6 s.
    """

    seed: int = 0
    noise: float = 0.0
    neighbour: float = 1.0
    seconds: float = 0.0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self):
        self.rng = np.random.default_rng(self.seed)

    @property
    def timer(self):
        return HostTimer(now=lambda: round(self.seconds * 1e9))

    def spend(self, cost):
        busy = self.neighbour if self.seconds % 1.6 < 0.6 else 1.0
        self.seconds += cost * busy * math.exp(self.noise * self.rng.exponential())

    def work(self, cost):
        return partial(self.spend, cost)


class Asynchronous:
    """A run that only queues its work; `drain` is what does it."""

    def __init__(self, machine, cost, launch=5e-6):
        self.machine, self.cost, self.launch, self.queued = machine, cost, launch, 0

    def __call__(self):
        self.machine.spend(self.launch)
        self.queued += 1

    def drain(self):
        self.machine.spend(self.queued * self.cost)
        self.queued = 0


def measure(run, **options):
    return interleave({"run": run}, **options)["run"]


def samples(seconds, **changes):
    fields = {"calls": 1, "faults": 0.0}
    return Samples(seconds=np.asarray(seconds), **fields | changes)


# One run


def test_a_median_is_what_the_work_costs():
    machine = Machine()
    found = measure(machine.work(3e-4), budget=0.5, timer=machine.timer)
    assert found.median == pytest.approx(3e-4, rel=1e-4)
    assert found.calls == 1


def test_every_sample_is_kept_and_cannot_be_changed():
    machine = Machine(noise=0.1)
    ends = []

    def run():
        machine.spend(1e-3)
        ends.append(machine.seconds)

    found = measure(run, budget=0.2, timer=machine.timer)
    last = np.diff(ends)[-found.seconds.size :]  # the calls before them warm up
    assert found.seconds == pytest.approx(last, rel=1e-3)
    with pytest.raises(ValueError, match="read-only"):
        found.seconds[0] = 1.0


@pytest.mark.parametrize(
    ("cost", "calls"), [(1.2e-6, 128), (4.4e-5, 2), (8.4e-5, 1), (1e-2, 1)]
)
def test_the_batch_is_the_smallest_power_of_two_worth_its_timer(cost, calls):
    machine = Machine()
    found = measure(machine.work(cost), budget=0.1, timer=machine.timer)
    assert found.calls == calls
    assert found.seconds.min() * calls >= SHORTEST


@pytest.mark.parametrize(
    ("slow", "calls"),
    [(6e-6, 16), (1e-4, 10), (5e-2, 1)],  # a sample lasts 1 ms, or 16 calls
)
def test_a_slow_run_does_as_many_calls_as_a_quick_one_or_a_millisecond(slow, calls):
    machine = Machine()
    runs = {"quick": machine.work(6e-6), "slow": machine.work(slow)}
    found = interleave(runs, budget=0.4, timer=machine.timer)
    assert found["quick"].calls == 16
    assert found["slow"].calls == pytest.approx(calls, abs=1)
    assert machine.seconds <= 0.4


def test_the_first_call_and_the_warm_up_are_apart():
    """Costs fall from 50 ms by a tenth a call to 1 ms; none of that is in a sample."""
    machine = Machine()
    costs = iter(5e-2 * 0.9**n for n in range(1000))
    found = measure(
        lambda: machine.spend(max(next(costs, 0), 1e-3)),
        budget=20,
        timer=machine.timer,
    )
    assert found.seconds.max() == pytest.approx(1e-3)
    assert not found.short


@pytest.mark.parametrize(
    ("cost", "budget"), [(1e-6, 0.1), (3e-4, 0.5), (3e-4, 2.0), (1e-2, 10.0)]
)
def test_the_budget_is_kept_and_used(cost, budget):
    machine = Machine()
    runs = {"a": machine.work(cost), "b": machine.work(2 * cost)}
    found = interleave(runs, budget=budget, timer=machine.timer)["b"]
    assert 0.95 * budget <= machine.seconds <= budget * (1 + 1e-9)
    assert not found.short


@pytest.mark.parametrize(
    ("cost", "count", "reason"),
    [(0.3, 2, "6 samples"), (5.0, 1, "6 samples")],
)
def test_a_budget_that_was_too_short_says_so(cost, count, reason):
    machine = Machine()
    found = measure(machine.work(cost), budget=1, timer=machine.timer)
    assert found.seconds.size <= count
    assert reason in found.short
    assert reason in " ".join(found.doubts())


@pytest.mark.parametrize("budget", [0, -1.0, math.nan, math.inf])
def test_a_budget_that_is_none_is_refused(budget):
    with pytest.raises(ValueError, match="budget"):
        measure(lambda: None, budget=budget)


def test_timing_nothing_is_refused():
    with pytest.raises(ValueError, match="nothing to time"):
        interleave({}, budget=1)


@pytest.mark.parametrize("step", [0, -5, math.nan])
def test_a_clock_that_does_not_run_forwards_is_refused(step):
    with pytest.raises(ValueError, match="which is impossible"):
        measure(
            lambda: None,
            budget=1,
            timer=EventTimer(partial(Mark, step), synchronize=int),
        )


def test_a_clock_that_is_set_back_is_refused_and_does_not_run_for_ever():
    """By as much as the time before: the deadline would never come."""
    machine = Machine()

    def work():
        machine.spend(1e-3)
        if machine.seconds > 1.2:
            machine.seconds -= 1

    with pytest.raises(ValueError, match=r"runs backwards: by 0\.9"):
        measure(work, budget=1.5, timer=machine.timer)


@dataclass
class Mark:
    """An event whose clock moves by `step` milliseconds."""

    step: float

    def record(self):
        pass

    def elapsed_time(self, end):
        return self.step


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1e-3])
def test_a_sample_that_is_no_time_is_refused(bad):
    with pytest.raises(ValueError, match="sample 1 is"):
        samples([1e-3, bad, 1e-3])


@pytest.mark.parametrize("shape", [(0,), (2, 2)])
def test_samples_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match="1-d"):
        samples(np.ones(shape))


# The process around it


def test_the_collector_is_off_inside_and_back_after():
    seen = set()
    measure(lambda: seen.add(gc.isenabled()), budget=0.01)
    assert seen == {False}
    assert gc.isenabled()


def test_the_collector_is_back_after_an_exception():
    with pytest.raises(ZeroDivisionError):
        measure(lambda: 1 / 0, budget=1)
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        measure(lambda: None, budget=0.01)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_cycles_do_not_pile_up_while_the_collector_is_held():
    class Cycle:
        alive = most = 0

        def __init__(self):
            self.itself = self
            Cycle.alive += 1
            Cycle.most = max(Cycle.most, Cycle.alive)

        def __del__(self):
            Cycle.alive -= 1

    machine = Machine()
    measure(lambda: (Cycle(), machine.spend(1e-4)), budget=1, timer=machine.timer)
    assert Cycle.most < 2000  # of some ten thousand made


def test_page_faults_are_counted_per_call():
    """A fresh mapping of 64 pages is fetched page by page."""
    size = 64 * mmap.PAGESIZE

    def run():
        with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE) as fresh:
            fresh.write(b"\1" * size)

    found = measure(run, budget=0.05)
    assert found.faults >= 60
    assert any("page faults" in doubt for doubt in found.doubts())


@pytest.mark.parametrize(
    ("changes", "moved", "doubt"),
    [
        ({"faults": 0.4}, 0, None),
        ({"faults": 3.0}, 0, "3 page faults"),
        ({"faults": 3.0}, 4_000_000, None),
    ],
)
def test_circumstances_that_mislead_are_named(changes, moved, doubt):
    doubts = samples([1e-3] * 9, **changes).doubts(moved)
    assert len(doubts) == (doubt is not None)
    assert doubt is None or doubt in doubts[0]


# Two runs


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("neighbour", [1.0, 2.5])
@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "no difference"), (1.02, "slower"), (0.98, "faster")]
)
def test_two_per_cent_are_found_and_none_are_not(factor, verdict, seed, neighbour):
    machine = Machine(seed, noise=0.03, neighbour=neighbour)
    a, b = machine.work(3e-4), machine.work(3e-4 * factor)
    found = compare(a, b, budget=2, timer=machine.timer, seed=seed)
    assert verdict_on(found.ratio, found.noise) == verdict
    assert found.ratio.value == pytest.approx(factor, abs=0.004)


@pytest.fixture
def garbage_stays(monkeypatch):
    """To collect it sixty times takes seconds."""
    monkeypatch.setattr(gc, "collect", lambda *generation: 0)


@pytest.mark.usefixtures("garbage_stays")
def test_the_interval_of_a_comparison_covers_beside_a_neighbour():
    def covers(seed):
        machine = Machine(seed, noise=0.1, neighbour=3.0)
        a, b = machine.work(1e-3), machine.work(1.05e-3)
        ratio = compare(a, b, budget=0.2, timer=machine.timer, seed=seed).ratio
        return ratio.low <= 1.05 <= ratio.high

    assert 0.88 <= np.mean([covers(seed) for seed in range(60)]) <= 1


def test_the_order_is_drawn_anew_each_round():
    machine, order = Machine(), []

    def named(name):
        return lambda: (order.append(name), machine.spend(1e-3))

    runs = {name: named(name) for name in "abc"}
    found = interleave(runs, budget=2, timer=machine.timer)
    rounds = [
        "".join(order[-3 * n :][:3]) for n in range(1, 1 + found["a"].seconds.size)
    ]
    kinds, counts = np.unique(rounds, return_counts=True)
    assert kinds.tolist() == ["abc", "acb", "bac", "bca", "cab", "cba"]
    assert counts.min() > len(rounds) / 6 * 0.6


def test_the_same_seed_draws_the_same_order():
    def order(seed):
        machine, calls = Machine(), []
        a, b = (lambda: (calls.append(0), machine.spend(1e-3))), machine.work(1e-3)
        compare(
            a,
            lambda: (calls.append(1), b()),
            budget=0.2,
            timer=machine.timer,
            seed=seed,
        )
        return calls

    assert order(1) == order(1) != order(2)


@pytest.mark.usefixtures("garbage_stays")
def test_noise_is_that_of_either_side_against_itself():
    def noise(seed):
        machine = Machine(seed, noise=0.05)
        a, b = machine.work(1e-3), machine.work(2e-3)
        return compare(a, b, budget=0.2, timer=machine.timer, seed=seed).noise

    trials = [noise(seed) for seed in range(60)]
    assert 0.88 <= np.mean([one.low <= 1 <= one.high for one in trials]) <= 1
    assert min(one.high - one.low for one in trials) > 0.005


def test_noise_rests_on_as_many_pairs_as_the_ratio():
    machine = Machine()
    a, b = machine.work(1e-3), machine.work(2e-3)
    found = compare(a, b, budget=0.5, timer=machine.timer)
    assert found.noise.count == found.ratio.count // 2 * 2


def test_a_steady_drift_is_not_noise():
    """Times that double over the run: neighbouring ones differ, but either way."""
    drifting = samples(np.geomspace(1, 2, 101))
    assert paired(drifting, drifting).noise.value == pytest.approx(1, abs=1e-12)


QUIET, LOUD = Estimate(1, 0.999, 1.001, 500, 0.95), Estimate(1, 0.97, 1.03, 500, 0.95)


@pytest.mark.parametrize(
    ("low", "value", "high", "noise", "verdict"),
    [
        (1.018, 1.020, 1.022, QUIET, "slower"),
        (0.978, 0.980, 0.982, QUIET, "faster"),
        (0.998, 1.000, 1.002, QUIET, "no difference"),
        (1.001, 1.002, 1.003, QUIET, "no difference"),  # excludes 1 but is too small
        (0.990, 1.000, 1.010, QUIET, "not resolved"),
        (1.018, 1.020, 1.022, LOUD, "not resolved"),  # no more than from itself
        (0.978, 0.980, 0.982, LOUD, "not resolved"),
        (1.018, 1.020, 1.022, None, "slower"),
    ],
)
def test_a_verdict_follows_its_rule(low, value, high, noise, verdict):
    assert verdict_on(Estimate(value, low, high, 1000, 0.95), noise) == verdict


def test_too_few_pairs_resolve_nothing():
    assert verdict_on(Estimate(2, 1.9, 2.1, 5, 0.9375), QUIET) == "not resolved"


# The device


@pytest.mark.parametrize(
    ("waits", "seconds"), [(True, 3.1e-4), (False, 1e-5)], ids=["waits", "forgets to"]
)
def test_a_run_is_timed_whole_if_it_waits(waits, seconds):
    """One that forgets to is timed only until it returns."""
    machine = Machine()
    run = Asynchronous(machine, 3e-4, launch=1e-5)
    if waits:
        run.wait = run.drain
    found = measure(run, budget=0.2, timer=machine.timer)
    assert found.median == pytest.approx(seconds)


class Device:
    """A GPU with a queue and a clock of its own: work runs when it is synchronised."""

    def __init__(self):
        self.queue, self.seconds, self.flushes = [], 0.0, 0
        self.beside = []  # of other streams, which no event is of

    def enqueue(self, cost):
        self.queue.append(cost)

    def event(self):
        return FakeEvent(self)

    def flush(self):
        self.flushes += 1
        self.enqueue(1e-3)

    def synchronize(self):
        for item in self.queue:
            if isinstance(item, FakeEvent):
                item.seconds = self.seconds
            else:
                self.seconds += item
        self.seconds += sum(self.beside)
        self.queue.clear()
        self.beside.clear()


@dataclass(eq=False)
class FakeEvent:
    device: Device
    seconds: float | None = None

    def record(self):
        self.device.enqueue(self)

    def elapsed_time(self, end):
        if self.seconds is None or end.seconds is None:
            raise RuntimeError("the event has not happened yet")
        return (end.seconds - self.seconds) * 1e3


@pytest.mark.parametrize("calls", [1, 3])
def test_events_time_the_calls_alone_and_the_device_is_busy_before_each(calls):
    device = Device()
    timer = EventTimer(device.event, device.synchronize, Busy(device.flush, 1e-3))
    reading = timer(partial(device.enqueue, 3e-4), calls)
    assert reading.seconds == pytest.approx(3e-4)
    assert device.flushes >= calls
    work = 3e-4 * (1 + calls)  # one to learn what the host needs
    assert device.seconds == pytest.approx(1e-3 * device.flushes + work)


def test_events_read_without_synchronising_raise():
    device = Device()
    timer = EventTimer(device.event, synchronize=lambda: None)
    with pytest.raises(RuntimeError, match="not happened"):
        timer(partial(device.enqueue, 3e-4), 1)


def test_a_run_may_report_what_another_process_measured():
    """In turn over the workers."""
    machine = Machine()

    def reported(seconds, faults, calls):
        machine.spend(seconds * calls)
        return Reading(seconds, faults * calls)

    runs = {"a": partial(reported, 4.1e-5, 2), "b": partial(reported, 4.51e-5, 0)}
    found = clock.interleave(runs, budget=0.1, now=machine.timer.now)
    assert found["a"].calls == 2
    assert paired(found["a"], found["b"]).ratio.value == pytest.approx(1.1)
    assert found["a"].faults == 2
