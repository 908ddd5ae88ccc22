"""The watch finds what is planted in a history, at its commit, and nothing else."""

import datetime
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from gradwatch.harness.commands import watch as watch_command
from gradwatch.harness.history.asv_results import Entry, Series
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.watch.alerts import Rules, read_rules, repro, size
from gradwatch.harness.watch.alerts import record as record_of
from gradwatch.harness.watch.search import SHORT, creep, steps_between, survey
from tests import command_line
from tests.copies import copy_code
from tests.histories import (
    ENVIRONMENT,
    MACHINE,
    SERIES,
    crept,
    git,
    noisy,
    record,
    repository,
    stepped,
)

RUNS, AT = 40, 20


@pytest.fixture
def root(tmp_path):
    return tmp_path / "repository"


def watched(root, values, pages=None, *, metric=SERIES, **more):
    """The commits of a new repository with these values, and its survey."""
    commits = repository(root, pages or ["square"] * len(values))
    record(root, commits, {metric: values})
    return commits, survey(root / "results", root=root, **more)


# Steps --------------------------------------------------------------------------


@pytest.mark.parametrize("by", [0.03, 0.1, 0.2])
def test_a_slowdown_fails_and_its_commit_is_named(root, by):
    commits, found = watched(root, stepped(noisy(RUNS, noise=0.005), AT, by))
    (alert,) = found.alerts
    assert (alert.kind, alert.commit, alert.candidates) == ("step", commits[AT], 1)
    assert alert.low <= by <= alert.high
    assert alert.state == "confirmed"
    assert found.failing == [alert]


GRADIENT = "bench_accuracy.square.track_gradient_ratio"


@pytest.mark.parametrize("runs", [4, RUNS])
def test_a_gradient_that_became_wrong_fails_at_once_at_its_first_commit(root, runs):
    """A verdict is no sample: one run is enough, however short the history is."""
    ratios = [0.4] * (runs - 1) + [1.3e11]
    commits, found = watched(root, ratios, metric=GRADIENT)
    (alert,) = found.failing
    assert (alert.state, alert.kind, alert.candidates) == ("confirmed", "step", 1)
    assert alert.commit == commits[-1]
    assert alert.why.startswith("the gradient is wrong")
    asked = ["watch", "--results", str(root / "results")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_command, "survey", lambda *_, **__: found)
        done = command_line.gradwatch(*asked)
    assert done.returncode == 1
    assert commits[-1][:10] in done.stdout
    assert "the gradient is wrong" in done.stdout


@pytest.mark.parametrize(
    ("backend", "more"), [("numpy_manual", ""), ("numpy_graph", " and 1 more")]
)
def test_a_gradient_that_is_wrong_in_two_precisions_is_counted_once(
    root, backend, more
):
    _, found = watched(root, [0.4] * 3 + [1.3e11], metric=GRADIENT)
    (alert,) = found.failing
    place = {**alert.series.parameters, "dtype": "float64", "backend": backend}
    other = replace(alert, series=replace(alert.series, parameters=place))
    both = replace(found, alerts=[alert, other])
    told = watch_command.headline(both)
    assert told == f"square on numpy_manual: wrong at {alert.commit[:10]}{more}"


@pytest.mark.parametrize("ratios", [[99.0] * 6, [0.4, 99.0, 0.4, 0.4], [0.4, 15.0]])
def test_a_gradient_that_was_always_wrong_is_right_again_or_right_does_not_fail(
    root, ratios
):
    assert not watched(root, ratios, metric=GRADIENT)[1].failing


@pytest.mark.parametrize("seed", range(5))
def test_a_history_without_a_change_is_quiet(root, seed):
    _, found = watched(root, noisy(RUNS, seed=seed))
    assert found.series == 1
    assert not found.alerts


def test_an_improvement_is_reported_and_never_fails(root):
    commits, found = watched(root, stepped(noisy(RUNS), AT, -0.2))
    (alert,) = found.alerts
    assert alert.commit == commits[AT]
    assert not alert.worse
    assert not found.failing


@pytest.mark.parametrize(("runs", "by"), [(RUNS, 0.2), (RUNS, 1.0), (16, 1.0)])
def test_a_new_step_is_suspected_and_does_not_fail_yet(root, runs, by):
    """Nor is it a creep, however large."""
    _, found = watched(root, stepped(noisy(runs), runs - 3, by))
    (alert,) = found.alerts
    assert alert.state == "suspected"
    assert not found.failing


def test_of_commits_between_two_runs_the_one_that_changes_the_page_is_named(root):
    """Only every third commit was measured, and the page changed between two."""
    pages = ["square" if i == 3 * AT - 2 else "" for i in range(3 * RUNS)]
    commits = repository(root, pages)
    record(root, commits[::3], {SERIES: stepped(noisy(RUNS), AT, 0.1)})
    (alert,) = survey(root / "results", root=root).alerts
    assert (alert.commit, alert.candidates) == (commits[3 * AT - 2], 1)


def test_with_several_possible_commits_the_range_is_reported(root):
    commits = repository(root, ["square"] * 2 * RUNS)
    record(root, commits[::2], {SERIES: stepped(noisy(RUNS), AT, 0.1)})
    (alert,) = survey(root / "results", root=root).alerts
    assert alert.candidates == 2
    assert (alert.good, alert.commit) == (commits[2 * AT - 2], commits[2 * AT])


def test_a_commit_to_another_op_s_page_is_not_named(root):
    """The step seems to be one run late: its own page changed a run before."""
    pages = ["" if i else "square" for i in range(RUNS)]
    pages[AT - 1], pages[AT] = "square", "softmax"
    commits, found = watched(root, stepped(noisy(RUNS), AT, 0.1), pages)
    assert found.alerts[0].commit == commits[AT - 1]


# Short histories ------------------------------------------------------------------


@pytest.mark.parametrize("at", [1, 2, 3, 4])
@pytest.mark.parametrize("by", [0.2, 1.0])
def test_of_five_commits_the_slower_one_is_suspected(root, by, at):
    """Also the second and the last, of which no statistics can tell."""
    commits, found = watched(root, stepped(noisy(5, noise=0.002), at, by))
    (alert,) = found.alerts
    assert (alert.commit, alert.candidates, alert.worse) == (commits[at], 1, True)
    assert alert.low <= by * 1.05
    assert alert.high >= by * 0.95
    assert alert.state == "suspected"
    assert not found.failing


def test_of_two_commits_the_slower_one_is_suspected(root):
    commits, found = watched(root, [1.0, 1.2])
    (alert,) = found.alerts
    assert (alert.commit, alert.around) == (commits[1], (commits[0], commits[1]))


def test_a_step_that_is_taken_back_is_compared_at_its_own_commits(root):
    """One run further on, both commits would be alike."""
    commits, found = watched(root, [1.0, 1.0, 1.5, 1.0, 1.0])
    worse = next(alert for alert in found.alerts if alert.worse)
    assert worse.around == (commits[1], commits[2])


@pytest.mark.parametrize(
    ("values", "pages"),
    [
        ([1.0, 1.09, 1.0, 1.09, 1.0], ["square"] * 5),  # within the budget of 10 %
        ([1.0, 1.2, 1.2, 1.2], ["square", "softmax", "softmax", "softmax"]),
        ([0.0, 1.0, 1.0], ["square"] * 3),  # no ratio can be formed
    ],
    ids=["noise", "other_page", "zero"],
)
def test_neighbours_that_differ_little_or_run_the_same_code_are_not_suspected(
    root, values, pages
):
    assert not watched(root, values, pages)[1].alerts


def test_a_run_whose_interval_holds_the_value_before_is_not_suspected():
    date = datetime.datetime(2026, 1, 1)
    old, far, near = (
        Entry(name, date, value, value - width, value + width)
        for name, value, width in (("a", 1.0, 0.9), ("b", 1.3, 0.1), ("c", 1.3, 0.3))
    )
    assert len(list(steps_between([old, far], 0.1))) == 1, (
        "a load made the old one wide"
    )
    assert not list(steps_between([old, near], 0.1))
    assert not list(steps_between([old, far] * (SHORT // 2), 0.1))


# Creep --------------------------------------------------------------------------


def test_creep_beyond_the_budget_fails_though_no_step_is_seen(root):
    """Half of it is before the release, so that no drift since then is found."""
    commits = repository(root, ["square"] * RUNS)
    git(root, "tag", "v1.0", commits[5])
    record(root, commits, {SERIES: crept(noisy(RUNS, noise=0.01), 0.2)})
    found = survey(root / "results", root=root)
    (alert,) = found.failing
    assert alert.kind in ("creep", "drift")
    assert 0.1 < alert.relative_change < 0.25


@pytest.mark.parametrize("seed", [0, 4, 17])  # drift; three suspected steps; two kinds
def test_creep_fails_even_if_it_looks_like_a_step(root, seed):
    """Steps that are only suspected, though not new, do not explain it."""
    values = noisy(RUNS, noise=0.02, seed=seed)
    values[10:] = crept(values[10:], 0.25)
    _, found = watched(root, values)
    assert found.failing


@pytest.mark.parametrize(
    ("by", "found"), [(0.0, False), (0.08, False), (0.2, True), (-0.2, False)]
)
def test_creep_is_counted_from_the_reference(by, found):
    values = crept(noisy(RUNS, noise=0.005), by)
    measured = creep(values, 1)
    assert (measured.low > 0.1) is found
    assert measured.low <= measured.relative_change <= measured.high


def test_creep_hidden_by_noise_raises_no_alarm():
    alarms = [creep(noisy(RUNS, noise=0.05, seed=s), 5).low > 0.1 for s in range(200)]
    assert sum(alarms) == 0


@pytest.mark.parametrize("values", [[1.0] * 5, [1.0] * 9 + [0.0], []])
def test_too_few_runs_or_zeros_give_no_creep(values):
    assert creep(values, 0) is None


# Rules --------------------------------------------------------------------------


def configure(root, **content):
    (root / "asv.conf.json").write_text("// asv's\n" + json.dumps(content))


def test_what_a_release_ships_is_accepted(root):
    commits = repository(root, ["square"] * RUNS)
    git(root, "tag", "v1.0", commits[AT + 5])
    record(root, commits, {SERIES: stepped(noisy(RUNS), AT, 0.2)})
    found = survey(root / "results", root=root)
    assert [(a.state, a.why) for a in found.alerts] == [("accepted", "before v1.0")]
    assert not found.failing
    assert survey(root / "results", root=root, since=commits[0]).failing


def test_a_change_accepted_in_asv_s_configuration_is_accepted(root):
    values = stepped(noisy(RUNS), AT, 0.2)
    commits, found = watched(root, values)
    assert found.failing
    configure(root, regressions_first_commits={".*square.*": commits[AT][:10]})
    assert not survey(root / "results", root=root).failing
    configure(root, regressions_first_commits={".*softmax.*": commits[AT][:10]})
    assert survey(root / "results", root=root).failing


def test_a_larger_threshold_lets_a_larger_step_pass(root):
    values = stepped(noisy(RUNS), AT, 0.3)
    assert watched(root, values)[1].failing
    configure(root, regressions_thresholds={".*time_backward.*numpy_manual.*": 0.5})
    found = survey(root / "results", root=root)
    assert len(found.alerts) == 1
    assert not found.failing


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "asv.conf.json"),
        ("[1]", "Expected `object`"),
        ("[" * 100_000, "nested too deeply"),
        ('{"regressions_thresholds": {"(": 1}}', "("),
        ('{"regressions_thresholds": {"a": "much"}}', "Expected `float`"),
        ('{"regressions_thresholds": [1]}', "regressions_thresholds"),
        ('{"regressions_first_commits": {"a": 7}}', "Expected `str | null`"),
    ],
    ids=["cut", "list", "deep", "pattern", "text", "no object", "number"],
)
def test_unreadable_rules_are_named(root, content, told):
    root.mkdir()
    (root / "asv.conf.json").write_text(content)
    with pytest.raises(Unreadable, match="asv") as error:
        read_rules(root / "asv.conf.json")
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_without_rules_the_budget_is_ten_per_cent():
    series = Series(MACHINE, ENVIRONMENT, SERIES, {}, "seconds")
    assert Rules().budget(series) == 0.1
    assert Rules().tolerance(series) == 0.0


# Names --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["creep", "drift"])
def test_drift_and_creep_are_named_by_their_beginning(root, kind):
    """Its newest commit is another every night, and would be news every night."""
    commits, found = watched(root, stepped(noisy(RUNS), AT, 0.1))
    (step,) = found.alerts
    assert step.where == f"at {commits[AT][:10]}"
    assert replace(step, kind=kind).where == f"since {commits[AT - 1][:10]}"


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (0.123, "+12.3%"),
        (-0.05, "-5.0%"),
        (8.5, "+850.0%"),
        (11.3, "×12.3"),
        (2.64e13, "×2.64e+13"),
        (float("inf"), "×inf"),
    ],
)
def test_a_size_is_a_percentage_or_a_factor(change, shown):
    assert size(change) == shown


def test_a_record_has_all_documented_fields(root):
    commits, found = watched(root, stepped(noisy(RUNS), AT, 0.1))
    told = record_of(found.alerts[0], found.order)
    assert told.commit == commits[AT]
    assert told.subject == f"commit {AT}"
    assert told.range == f"{commits[AT - 1]}..{commits[AT]}"
    assert (told.op, told.backend) == ("square", "numpy_manual")
    assert "--op square --backend numpy_manual --size 8" in told.repro
    assert told.repro.startswith(f"gradwatch compare {commits[AT - 2][:10]} ")


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ("bench_accuracy.square.track_gradient_ratio", "gradwatch agree --op square"),
        ("bench_speed.square.track_peak_memory", "asv continuous --bench '^bench_"),
    ],
)
def test_the_command_that_reproduces_an_alert_fits_its_metric(root, metric, told):
    values = stepped(noisy(RUNS), AT, 0.2)
    commits, found = watched(root, values, metric=metric)
    command = repro(found.alerts[0])
    assert command.startswith(told)
    if "asv" in command:
        assert command.endswith(f" {commits[AT - 2][:10]} {commits[AT + 1][:10]}")


# What can go wrong ------------------------------------------------------------------


def test_commits_of_a_rewritten_branch_are_reported_and_kept(root):
    values = noisy(RUNS)
    commits = repository(root, ["square"] * RUNS)
    record(root, commits, {SERIES: values})
    before = {f: f.read_bytes() for f in (root / "results").rglob("*.json")}
    git(root, "reset", "-q", "--hard", commits[RUNS // 2])
    found = survey(root / "results", root=root)
    (warning,) = found.warnings
    assert f"results of {RUNS // 2 - 1} commits that are not on this branch" in warning
    assert {f: f.read_bytes() for f in (root / "results").rglob("*.json")} == before


def test_steps_among_commits_of_another_branch_are_not_watched(root):
    """Their order is not known."""
    commits = repository(root, ["square"] * RUNS)
    record(root, commits, {SERIES: stepped(noisy(RUNS), AT + 5, 0.2)})
    git(root, "reset", "-q", "--hard", commits[AT])
    assert not survey(root / "results", root=root).alerts


def test_in_a_shallow_clone_nothing_is_called_quiet(root, tmp_path):
    commits = repository(root, ["square"] * RUNS)
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "3", root.as_uri(), str(clone))
    record(clone, commits, {SERIES: stepped(noisy(RUNS), AT, 0.2)})
    with pytest.raises(Unreadable, match="git fetch --unshallow"):
        survey(clone / "results", root=clone)
    git(clone, "fetch", "-q", "--unshallow")
    assert survey(clone / "results", root=clone).failing


def test_a_result_file_that_is_cut_short_is_named_and_the_rest_watched(root):
    commits, _ = watched(root, noisy(RUNS))
    file = root / "results" / "asv" / MACHINE / f"{commits[3][:8]}-{ENVIRONMENT}.json"
    file.write_text(file.read_text()[:100])
    surveyed = survey(root / "results", root=root)
    (warning,) = surveyed.warnings
    assert file.name in warning
    assert surveyed.series == 1


# The command ----------------------------------------------------------------------


@pytest.fixture
def checkout(root):
    """A repository with this project's own code, so that the command runs there."""

    def made(values):
        commits = repository(root, ["square"] * len(values))
        record(root, commits, {SERIES: values})
        copy_code(root)
        return commits

    return made


def gradwatch(root, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "gradwatch", *arguments],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_command_fails_on_a_slowdown_and_names_commit_and_size(root, checkout):
    commits = checkout(stepped(noisy(RUNS), AT, 0.2))
    done = gradwatch(root, "watch", "--json", "out.json")
    assert done.returncode == 1, done.stderr
    assert commits[AT][:10] in done.stdout
    assert "gradwatch compare" in done.stdout
    document = json.loads((root / "out.json").read_text())
    assert document["summary"]["failing"] == 1
    assert document["records"][0]["commit"] == commits[AT]


def test_what_is_only_suspected_is_counted_and_shown_where_all_is_asked_for(
    root, checkout
):
    checkout([1.0, 1.2])
    done = gradwatch(root, "watch")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "✓ 1 series watched, nothing confirmed is worse, 1 suspected of it",
        "not run: 1 suspected change: --all shows, --confirm measures again",
    ]
    assert "+20.0%" in gradwatch(root, "watch", "--all").stdout


def test_the_command_passes_a_history_without_change(root, checkout):
    checkout(noisy(RUNS))
    done = gradwatch(root, "watch")
    assert done.returncode == 0, done.stderr
    assert "nothing confirmed is worse" in done.stdout


def test_a_reference_that_is_no_commit_is_a_wrong_call(root, checkout):
    checkout([1.0])
    done = gradwatch(root, "watch", "--since", "nowhere")
    assert done.returncode == 2
    assert "'nowhere' is not a commit" in done.stderr
    assert "Traceback" not in done.stderr


def test_rules_in_a_pipe_are_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "asv.conf.json")
    with pytest.raises(Unreadable, match="not a regular file"):
        read_rules(tmp_path / "asv.conf.json")
