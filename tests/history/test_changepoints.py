"""Lasting changes are found where they are, and nothing else is reported."""

import dataclasses
import math
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from gradwatch.harness.history.changepoints import find_changes
from scripts.studies.planted_series import (
    FAMILIES,
    Score,
    collection,
    creeping,
    matches,
    score,
)


def noisy(n, seed=0, sigma=0.01):
    return np.exp(sigma * np.random.default_rng(seed).standard_normal(n))


def stepped(n=100, at=60, factor=1.1, **noise):
    values = noisy(n, **noise)
    values[at:] *= factor
    return values


def reports(values):
    return [(change.index, change.relative_change) for change in find_changes(values)]


@pytest.mark.parametrize("factor", [1.05, 1.1, 1.2, 0.95, 0.9, 0.8, 3.0])
def test_a_clean_step_is_found_at_its_first_run_with_its_size(factor):
    (change,) = find_changes(stepped(factor=factor, sigma=0.002))
    assert change.index == 60
    assert change.relative_change == pytest.approx(factor - 1, abs=0.005)
    assert change.low <= factor - 1 <= change.high
    assert (change.before, change.after) == pytest.approx((1, factor), rel=0.005)
    assert change.kind == "step"
    assert not change.suspected
    assert 0.9 < change.confidence <= 1


def test_a_step_in_exact_values_is_found():
    (change,) = find_changes([4096] * 30 + [8192] * 30)
    assert (change.index, change.relative_change) == (30, pytest.approx(1))


@pytest.mark.parametrize("factor", [1.1, 0.9])
@pytest.mark.parametrize("higher_is_better", [False, True])
def test_worse_is_the_direction_that_is_not_wanted(factor, higher_is_better):
    values = stepped(factor=factor)
    (change,) = find_changes(values, higher_is_better=higher_is_better)
    assert change.worse == ((factor > 1) != higher_is_better)
    assert (change.relative_change > 0) == (factor > 1)


def test_a_regression_and_its_revert_are_both_found():
    values = stepped(at=40)
    values[70:] /= 1.1
    assert [c.index for c in find_changes(values)] == [40, 70]
    assert [c.worse for c in find_changes(values)] == [True, False]


def test_a_step_does_not_hide_itself_in_a_short_series():
    """Half of all contrasts of a plateau in 64 runs have a step inside."""

    def found(seed):
        values = noisy(64, seed, sigma=0.03)
        values[24:40] *= 1.2
        return [index for index, _ in reports(values)]

    near = [
        len(places) == 2 and abs(places[0] - 24) <= 2 and abs(places[1] - 40) <= 2
        for places in map(found, range(60))
    ]
    assert sum(near) >= 54  # nine in ten


@pytest.mark.parametrize("at", [3, 4])
def test_in_a_short_series_the_first_runs_are_no_burst(at):
    found = [reports(stepped(n=12, at=at, factor=1.15, seed=s)) for s in range(20)]
    assert sum(matches([(at, 0.15)], some) == [0] for some in found) >= 16


def test_a_long_history_is_quiet():
    """In 2,000 runs there are many places where chance may look like a step."""
    assert sum(bool(reports(noisy(2000, seed=s))) for s in range(20)) <= 1


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e12])
def test_the_unit_of_the_values_does_not_matter(scale):
    (change,) = find_changes(scale * stepped())
    (same,) = find_changes(stepped())
    assert change.index == same.index
    assert change.relative_change == pytest.approx(same.relative_change)
    assert change.after == pytest.approx(scale * same.after)


def test_a_change_that_only_the_weak_test_found_can_be_stored():
    """NumPy's True is none that a document takes: of a series of cpu-2core, in us."""
    values = [452, 394, 425, 396, 466, 425, 438, 426, 371, 304, 333, 329, 276, 403]
    (change,) = find_changes(values)
    assert change.suspected is True
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(change))["suspected"] is True


@pytest.mark.parametrize("level", [3.0, 0.0, -2.0])
def test_a_constant_series_is_quiet(level):
    assert find_changes([level] * 50) == ()


@pytest.mark.parametrize("at", [0, 1, 30, 58, 59])
def test_one_outlier_is_quiet(at):
    values = noisy(60)
    values[at] *= 3
    assert find_changes(values) == ()


def test_a_burst_that_goes_back_is_quiet():
    values = noisy(80)
    values[40:45] *= 1.3
    assert find_changes(values) == ()


def test_runs_that_alternate_between_two_levels_are_quiet():
    rng = np.random.default_rng(1)
    assert find_changes(noisy(200, sigma=0.002) * rng.choice([1, 1.05], 200)) == ()


def test_a_creep_is_drift_that_begins_where_it_begins():
    rng = np.random.default_rng(2)
    (change,) = find_changes(creeping("lognormal", 120, 40, 50, 0.25, rng))
    assert change.kind == "drift"
    assert change.relative_change == pytest.approx(0.25, abs=0.08)
    assert abs(change.index - 40) <= 15


@pytest.mark.parametrize("n", range(5))
def test_fewer_than_five_values_tell_nothing(n):
    assert find_changes([1.0, 1.0, 9.0, 9.0][:n]) == ()


def test_five_values_are_enough_to_suspect_a_large_step():
    (change,) = find_changes([100.0, 100.2, 99.9, 130.0, 130.3])
    assert (change.index, change.suspected) == (3, True)


def test_a_new_step_is_suspected_and_later_confirmed():
    values = stepped(n=80, at=60)
    (young,), (old,) = find_changes(values[:63]), find_changes(values)
    assert (young.index, young.suspected) == (60, True)
    assert (old.index, old.suspected) == (60, False)


def test_missing_values_are_skipped_and_keep_their_place():
    values = list(stepped())
    values[10], values[59], values[80] = None, math.nan, None
    (change,) = find_changes(values)
    assert change.index == 60


def test_values_that_are_all_missing_tell_nothing():
    assert find_changes([None, math.nan] * 10) == ()


@pytest.mark.parametrize("level", [0.0, -1.0, 1e-3])
def test_series_with_zeros_and_negatives_are_compared_by_differences(level):
    values = 0.01 * np.random.default_rng(3).standard_normal(100) + level
    values[50:] += 1
    (change,) = find_changes(values)
    assert change.index == 50
    assert change.relative_change > 0
    assert change.after - change.before == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones((5, 2)), "one-dimensional"),
        (3.0, "one-dimensional"),
        (["1", "2", "3", "4", "5"], "numbers"),
        ([1.0, "2", None, 4.0, 5.0], "numbers"),
        ([1j] * 5, "numbers"),
        ([1.0, {}, None, 4.0, 5.0], "numbers"),
        ([1.0, 2.0, math.inf, 4.0, 5.0], "value 2 is infinite"),
    ],
)
def test_wrong_input_is_refused_with_the_reason(values, message):
    with pytest.raises(ValueError, match=message):
        find_changes(values)


def test_the_values_given_are_not_changed():
    values = stepped()
    kept = values.copy()
    find_changes(values)
    assert np.array_equal(values, kept)


def test_the_result_is_plain_numbers():
    (change,) = find_changes(stepped())
    kinds = {type(value) for value in dataclasses.asdict(change).values()}
    assert kinds == {int, float, str, bool}


def test_it_needs_numpy_only():
    code = (
        "import sys, gradwatch.harness.history.changepoints;"
        "sys.exit(bool({'scipy', 'ruptures', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(scope="module")
def planted():
    return collection(seed=11, repeats=2, nulls=25)


def test_few_stable_series_alarm_and_most_steps_are_found(planted):
    """Far from the figures in docs/changes.md, so that it holds for any seed."""
    result = score(reports, planted)
    assert result.alarmed <= 0.10
    assert result.precision >= 0.80
    assert result.recall[0.05] >= 0.60
    assert result.recall[0.10] >= 0.80
    assert result.recall[0.20] >= 0.90
    assert result.place_error <= 0.6


def nothing(values):
    return []


def everywhere(values):
    return [(i, side) for i in range(1, len(values)) for side in (0.1, -0.1)]


def wrong_way(values):
    return [(index, -change) for index, change in reports(values)]


def displaced(values):
    return [(index + 6, change) for index, change in reports(values)]


@pytest.mark.parametrize("detector", [nothing, everywhere, wrong_way, displaced])
def test_the_score_rejects_a_wrong_detector(detector, planted):
    assert score(detector, planted).shortfalls


def test_the_score_passes_a_perfect_detector(planted):
    truth = {id(p.values): p.steps for p in planted}
    result = score(lambda values: truth[id(values)], planted)
    assert result.shortfalls == ()
    assert result.precision == 1
    assert isinstance(result, Score)


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ([(20, 0.1)], [0]),
        ([(25, 0.1)], [5]),
        ([(26, 0.1)], [None]),
        ([(20, -0.1)], [None]),
        ([(19, 0.1), (22, 0.1)], [1]),
        ([], [None]),
    ],
)
def test_a_hit_is_near_and_in_the_same_direction(reported, expected):
    assert matches([(20, 0.1)], reported) == expected


def test_a_report_counts_for_one_step_only():
    assert matches([(20, 0.1), (24, 0.1)], [(21, 0.1)]) == [1, None]


@pytest.mark.parametrize("family", FAMILIES)
def test_planted_series_follow_from_their_seed(family):
    first, second = (FAMILIES[family](50, np.random.default_rng(4)) for _ in "12")
    assert np.array_equal(first, second)
    assert (first > 0).all()
