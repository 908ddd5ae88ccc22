"""Series on pages: digits of values, blocks of commits, and which have a place."""

import numpy as np
import pytest

from gradwatch.harness.dashboard.figures import frames
from gradwatch.harness.dashboard.pages.op import BLOCK, block_data, blocks
from gradwatch.harness.dashboard.series import (
    NEWEST,
    History,
    LevelChange,
    Series,
    brief,
)
from gradwatch.harness.dashboard.site import _BOKEH, _STATIC
from gradwatch.harness.project import documents
from gradwatch.harness.project.git import Commit


def series(values, changes=()):
    low, high = 0.985 * values, 1.0123 * values
    moved = tuple(LevelChange(at, "step", 0.2, 0.1, 0.3, True, "") for at in changes)
    return Series("add", "a", "a", "m", "s", "v", values, low, high, moved, 0)


def history(count, changes=(), tags=()):
    commits = [
        Commit(f"{i:040x}", "2026-01-01", "a change", f"v{i}" if i in tags else "")
        for i in range(count)
    ]
    return History(tuple(commits), (series(np.ones(count), changes),))


@pytest.mark.parametrize("digits", [4, 5])
def test_a_brief_value_is_what_python_prints_with_so_many_digits(digits):
    draw = np.random.default_rng(1)
    values = draw.normal(size=2000) * 10.0 ** draw.integers(-15, 15, 2000)
    expected = [float(f"{value:.{digits}g}") for value in values.tolist()]
    assert brief(values, digits) == expected


def test_a_brief_value_of_nothing_is_null():
    values = np.array([np.nan, 0.0, 1e-310, -1.0])
    assert documents.compact(brief(values, 4)).startswith("[null,0.0,")


@pytest.mark.parametrize("commits", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK])
def test_blocks_hold_each_commit_once(commits):
    every = list(range(commits))
    assert [i for _, where in blocks(commits) for i in every[where]] == every
    assert [number for number, _ in blocks(commits)] == list(
        range(-(-commits // BLOCK))
    )


def test_an_op_page_loads_less_than_two_megabytes():
    """At most one and a half blocks, of as many series as an op of today has."""
    draw = np.random.default_rng(1)
    several = [series(1e-5 * np.exp(draw.normal(size=3 * BLOCK))) for _ in range(65)]
    block = len(documents.compact(block_data(several, slice(0, BLOCK))))
    names = (
        2 * BLOCK * len('["0123456789ab","a subject of a commit of sixty letters"],')
    )
    shared = [_BOKEH, *_STATIC.iterdir()]
    whole = sum(file.stat().st_size for file in shared)
    whole += len(documents.compact(frames(("normal",)))) + names + 1.5 * block
    assert whole < 2_000_000


def test_all_commits_of_a_short_history_have_a_place():
    assert history(NEWEST).featured == tuple(range(NEWEST))


def test_of_a_long_history_the_newest_releases_and_changes_have_a_place():
    featured = history(3 * NEWEST, changes=[7, 300], tags=[0, 20]).featured
    old = [place for place in featured if place < 2 * NEWEST]
    assert old == [0, 6, 7, 20, 299, 300]
    assert featured[len(old) :] == tuple(range(2 * NEWEST, 3 * NEWEST))
