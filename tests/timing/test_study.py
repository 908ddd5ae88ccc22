"""scripts/studies/clock.py: each command runs, and its verdict can be no."""

from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from gradwatch.harness.timing.samples import LEVEL, Estimate

torch = pytest.importorskip("torch")

from scripts.studies import clock  # noqa: E402  # it needs torch


@pytest.fixture(autouse=True)
def as_before():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def told(*arguments):
    done = CliRunner().invoke(
        clock.main, list(map(str, arguments)), catch_exceptions=False
    )
    assert done.exit_code in (0, 1), done.output
    verdict = done.output.splitlines()[-1]
    assert verdict.startswith(("NO: ", "yes: ")[done.exit_code == 0])
    return verdict


def test_a_run_with_itself(monkeypatch):
    monkeypatch.setattr(clock, "NEAR", 10.0)
    assert told("aa", "--repeats", 2, "--seconds", 0.02).startswith(
        "yes: 100% of forwards, 100% of backwards within"
    )
    monkeypatch.setattr(clock, "NEAR", -1.0)
    assert told("aa", "--repeats", 1, "--seconds", 0.02).startswith("NO: 0% of")


def test_a_planted_slowdown_is_measured():
    assert "of 1 planted 2% are called slower" in told(
        "planted", "--runs", 1, "--seconds", 0.1
    )


@pytest.mark.parametrize(("seen", "verdict"), [(19, "yes"), (18, "NO")])
def test_nineteen_of_twenty_planted_slowdowns_are_to_be_seen(
    monkeypatch, seen, verdict
):
    def planted(runs, seconds, share):
        slower, same = (Estimate(v, v - 1e-3, v + 1e-3, 9, LEVEL) for v in (1.02, 1))
        ratios = [slower] * (seen if share else 0) + [same] * runs
        return [SimpleNamespace(ratio=one, noise=same) for one in ratios[:runs]]

    monkeypatch.setattr(clock, "planted", planted)
    assert told("planted", "--runs", 20).startswith(f"{verdict}: {seen} of 20 planted")
