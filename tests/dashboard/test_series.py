"""The history on pages: the sizes of files, and what charts show."""

import dataclasses
import json

import numpy as np

from gradwatch.harness.dashboard import charts
from gradwatch.harness.dashboard.charts import History, LevelChange, Series, commit_rows
from gradwatch.harness.dashboard.matrix import BAD, styles
from gradwatch.harness.project import documents
from gradwatch.harness.project.git import Commit

BACKENDS = 20


def series(values, changes=(), unit="seconds", line="a"):
    low, high = 0.985 * values, 1.0123 * values
    moved = tuple(LevelChange(at, "step", 0.2, 0.1, 0.3, True, "") for at in changes)
    return Series("add", line, line, "m", unit, "v", values, low, high, moved)


def commits(count):
    subject = "A subject of a commit of some sixty letters, as they are written"
    return tuple(Commit(f"{i:040x}", "2026-01-01", subject, "") for i in range(count))


def sources(chart):
    """The columns of each source of a chart, by its name."""
    found = {}

    def visit(node):
        if isinstance(node, dict):
            if node.get("name") == "ColumnDataSource" and "attributes" in node:
                own = node["attributes"]
                found[own["name"]] = dict(own["data"]["entries"])
            node = list(node.values())
        if isinstance(node, list):
            for child in node:
                visit(child)

    visit(chart)
    return found


def test_a_chart_of_a_hundred_commits_has_less_than_half_a_megabyte():
    """An op has some eight of them, in one file."""
    draw = np.random.default_rng(1)
    several = [
        series(1e-5 * np.exp(draw.normal(size=100)), line=f"backend_{i}")
        for i in range(BACKENDS)
    ]
    looks = styles([one.line for one in several])
    chart = charts.history(several, commits(100), looks)
    assert len(documents.compact(chart)) < 500_000


def test_the_axis_of_a_history_names_commits_and_dates():
    shown = commits(100)
    one = series(np.linspace(1.0, 2.0, 100))
    text = json.dumps(charts.history([one], shown, styles(["a"])))
    newest = shown[-1]
    assert f"{newest.hash[:7]} {newest.date[5:10]}" in text
    assert text.count(f" {newest.date[5:10]}") <= charts.TICKS


def test_charts_ring_what_changed():
    one = series(np.linspace(1e-6, 2e-6, 9), changes=[3, 7])
    columns = sources(charts.history([one], commits(9), styles(["a"])))
    assert columns["points"]["x"] == list(range(9))
    heights = [columns["points"]["y"][place] for place in (3, 7)]
    rings = {"runner": ["a"] * 2, "colour": [BAD] * 2, "x": [3, 7], "y": heights}
    assert columns["rings"] == rings


def test_values_have_four_digits_in_a_chart():
    one = series(np.array([1.23456789e-6, np.nan]))
    columns = sources(charts.history([one], commits(2), styles(["a"])))["points"]
    assert (columns["y"], columns["low"]) == ([1.235], [1.216])
    assert columns["detail"] == ["1.23 µs"]


def test_a_value_of_zero_is_drawn_below_all_others():
    one = series(np.array([0.0, 4.0, 2.0]), unit="radii")
    columns = sources(charts.history([one], commits(3), styles(["a"])))["points"]
    assert columns["y"] == [1.0, 4.0, 2.0]
    assert columns["detail"][0] == "0 radii"


def test_an_interval_that_reaches_below_zero_is_drawn_on_a_logarithmic_axis():
    """asv's interval of a few samples does, though no time is negative."""
    one = dataclasses.replace(
        series(np.array([3.0, 4.0]), unit="radii"), low=np.array([-1.0, 3.5])
    )
    columns = sources(charts.history([one], commits(2), styles(["a"])))["points"]
    assert min(columns["low"]) > 0


def test_an_op_that_is_wrong_in_two_precisions_is_named_once_at_a_commit() -> None:
    nothing = np.full(2, np.nan)
    about = ("add", "torch_custom", "torch_custom", "worst ratio of a gradient")
    both = [
        Series(*about, "radii", dtype, np.array([0.5, 99.0]), nothing, nothing, (), at)
        for dtype in ("float32", "float64")
        for at in [frozenset({1})]
    ]
    commits = (Commit("a" * 40, ""), Commit("b" * 40, ""))
    newest, oldest = commit_rows(History(commits, tuple(both)))
    assert (newest.wrong, oldest.wrong) == ([("add", "torch_custom")], [])
    assert newest.judged
