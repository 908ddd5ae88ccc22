"""What a check's trials cost is known before they run."""

import gc
import io
import resource
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gradwatch.harness.check import check
from gradwatch.harness.check.choice import Budget
from gradwatch.harness.check.subjects import pytorch
from gradwatch.harness.console import streams
from gradwatch.harness.diagnosis.search import Diagnoses
from gradwatch.harness.judging.question import Cost
from gradwatch.harness.tracing.capture import cost_of

GIB = 1 << 30


class Clock:
    """Seconds that pass where a trial is run."""

    now = 0.0

    def __call__(self):
        return self.now


def trials(*sizes):
    """One of the caller's own, then others; of a size each."""
    made = []
    for i, size in enumerate(sizes):
        name = f"trial {i}"
        made.append(SimpleNamespace(name=name, as_given=i == 0, sizes=[size]))
    return made


def run(seconds, sizes, per_element=1e-6, memory=GIB, slower=1.0):
    """Sizes of those that ran, and the notes; each takes so long an element.

    All but the caller's own take `slower` times as long.
    """
    clock, ran, notes = Clock(), [], []
    asked = Budget(seconds, lambda trial, most: Cost(sum(trial.sizes), 0))
    asked.clock, asked.began, asked.memory = clock, 0.0, memory
    for trial in asked.affordable(trials(*sizes), notes):
        (size,) = trial.sizes
        ran.append(size)
        clock.now += per_element * (size + 1000) * (1 if trial.as_given else slower)
    return ran, notes, clock.now


def test_a_trial_that_does_not_fit_is_left_out_and_a_cheaper_one_is_not():
    ran, notes, spent = run(5.0, [2_000_000, 4_000_000, 1_000_000, 3_000, 3_500_000])
    assert ran == [2_000_000, 1_000_000, 3_000]
    assert spent < 5.0
    assert "the budget being 5 s: trial 1; trial 4; budget=20 has them" in notes[0]


def test_a_trial_of_another_layout_does_not_pass_the_budget():
    """Permuted numbers take up to 1.7 times as long as the caller's own."""
    ran, _, spent = run(5.0, [1_000_000] * 9, slower=1.7)
    assert len(ran) == 3
    assert 4.0 < spent < 5.0


def test_what_the_note_says_is_enough():
    sizes = [2_000_000, 4_000_000, 1_000_000, 3_000, 3_500_000]
    assert sorted(run(14.0, sizes)[0]) == sorted(sizes)
    assert run(14.0, sizes)[1] == []


def test_a_clock_that_has_not_moved_says_nothing_of_the_rate():
    ran, notes, _ = run(5.0, [1000, 3_000_000, 20_000_000], per_element=0.0)
    assert ran == [1000, 3_000_000]
    assert "trial 2" in notes[0]


def test_what_another_process_runs_says_nothing_of_the_rate():
    """A trial of no elements takes no time of this process."""
    clock, ran, notes = Clock(), [], []
    asked = Budget(5.0, lambda trial, most: Cost(sum(trial.sizes), 1))
    asked.clock, asked.began, asked.memory = clock, 0.0, GIB
    for trial in asked.affordable(trials(2_000_000, 0, 4_500_000), notes):
        ran += trial.sizes
        clock.now += 1e-6 * sum(trial.sizes)
    assert ran == [2_000_000, 0]
    assert "trial 2" in notes[0]


@pytest.mark.parametrize(
    "given", [{"inputs": [torch.empty(4, 0)]}, {"shapes": ["4x0"]}]
)
def test_numbers_of_one_s_own_may_be_none(given):
    report = check(torch.softmax, kwargs={"dim": -1}, **given)
    assert report.passes, str(report)
    others = any("tails" in row.trial for row in report.rows)
    assert ("no element was judged" in str(report)) == (not others)


def test_a_large_trial_after_quick_ones_is_not_taken_for_quick():
    ran, notes, _ = run(5.0, [1_000, 1_000, 10_000_000, 1_000])
    assert ran == [1_000, 1_000, 1_000]
    assert "trial 2" in notes[0]


def test_a_trial_far_larger_than_the_caller_s_own_takes_a_budget_of_its_own():
    sizes = [1_000, 20_000_000]
    assert run(None, sizes, per_element=1e-9)[0] == [1_000]
    assert run(60.0, sizes, per_element=1e-9, memory=64 * GIB)[0] == sizes
    own = [20_000_000, 19_000_000]
    assert run(None, own, per_element=1e-9, memory=64 * GIB)[0] == own


def test_the_caller_s_own_runs_whatever_it_takes():
    ran, notes, _ = run(0.0, [9_000_000, 10])
    assert ran == [9_000_000]
    assert "trial 1" in notes[0]


def test_of_the_caller_s_own_it_is_one_line_and_not_the_end_of_the_process():
    with pytest.raises(
        ValueError, match=r"needs some 2.24 GiB.* has 1 GiB: give small"
    ):
        run(1e9, [300_000_000])


def test_numbers_beyond_the_memory_are_not_even_made(monkeypatch):
    monkeypatch.setattr("gradwatch.harness.check.choice.memory", lambda: 1 << 20)
    with pytest.raises(ValueError, match=r"^4x50000 needs some .*: give smaller"):
        check(torch.sigmoid, shapes=[(4, 50_000)])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux alone")
def test_memory_that_a_large_check_took_is_given_back():
    def resident():
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 2**20

    check(torch.sigmoid, shapes=[(4, 8)], quick=True)
    before = resident()
    check(torch.sigmoid, shapes=[(1000, 1000)], quick=True)
    assert resident() < before + 40  # MiB; 108 without


def test_what_was_left_out_is_not_counted_as_judged():
    report = check(torch.sigmoid, shapes=[(4, 8)], budget=0.0)
    assert {row.trial for row in report.rows} == {"normal 4x8"}
    assert "(1 trial on" in report.headline
    assert report.document()["records"][-1]["trial"] == "normal 4x8"
    assert any("left out, the budget being 0 s" in note for note in report.notes)


def test_a_small_function_has_everything_within_the_default():
    report = check(torch.sigmoid, shapes=[(4, 8)])
    assert report.notes == ()


def looped(x):
    """As many operations as the first input is long."""
    total = torch.zeros(x.shape[1:])
    for row in x:
        total = (total + row).tanh()
    return total


@pytest.fixture
def traced(monkeypatch):
    """Shapes of what is traced."""
    shapes, trace = [], pytorch.trace

    def noted(function, args, *more):
        shapes.append(tuple(args[0].shape))
        return trace(function, args, *more)

    monkeypatch.setattr(pytorch, "trace", noted)
    return shapes


def test_what_cannot_fit_is_counted_and_never_traced(traced):
    report = check(looped, shapes=[(5, 3)], budget=0.2, only="tails")
    assert (1025, 3) not in traced
    (note,) = (n for n in report.notes if n.startswith("left out, the budget"))
    assert "tails 1025x3" in note


def test_a_trial_is_traced_once(traced):
    report = check(torch.sigmoid, shapes=[(40, 50)], skip="empty")
    assert len(traced) == len({row.trial for row in report.rows})


def test_a_count_is_that_of_what_runs_and_ends_beyond_what_was_asked():
    x = torch.randn(1000, 4)
    whole = cost_of(lambda x: (looped(x),), [x], [True], 1e9)
    assert whole.operations >= 2000
    assert whole.elements >= 8000
    assert whole.whole
    part = cost_of(lambda x: (looped(x),), [x], [True], 1e5)
    assert not part.whole
    assert 1e5 < part.work < 1.1e5


def test_a_factorisation_counts_its_steps():
    small, large = (
        cost_of(lambda a: (torch.linalg.svdvals(a),), [torch.eye(n)], [True], 1e12).work
        for n in (100, 200)
    )
    assert 7 < large / small < 9


class Terminal(io.StringIO):
    """A standard error that says that it is one."""

    def isatty(self):
        return True


def test_what_is_soon_done_or_no_terminal_has_no_progress(monkeypatch):
    monkeypatch.setattr(streams, "SILENT", 600.0)
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stderr", stream)
        check(torch.sigmoid, shapes=[(2, 2)], quick=True)
        assert "trials" not in stream.getvalue()


def test_naming_a_mistake_takes_no_time_from_the_trials(monkeypatch):
    """What is judged does not depend on how long the explanation takes."""
    real, late = time.process_time, [0.0]

    def slowly(*args):
        late[0] += 1000.0
        return {}

    def wrong(x):
        return x.sin() + 0.1 * (x - x.detach())

    def names(found):
        return {row.trial for row in found.rows}

    monkeypatch.setattr(time, "process_time", lambda: real() + late[0])
    quickly = check(torch.sin, wrong, shapes=["4x5"])
    monkeypatch.setattr(Diagnoses, "sentences", slowly)
    found = check(torch.sin, wrong, shapes=["4x5"])
    assert late[0] > 0
    assert found.failures
    assert names(found) == names(quickly)
    assert not [note for note in found.notes if "budget" in note]
