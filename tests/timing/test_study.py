"""scripts/studies/clock.py: each command runs, and its verdict can be no."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

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
        verdicts = ["slower"] * (seen if share else 0) + ["no difference"] * runs
        one = SimpleNamespace(value=1.0)
        return [SimpleNamespace(verdict=v, ratio=one) for v in verdicts[:runs]]

    monkeypatch.setattr(clock, "planted", planted)
    assert told("planted", "--runs", 20).startswith(f"{verdict}: {seen} of 20 planted")


HALVED = """
import time

_ready = {}


def sample(request):
    step = _ready[request["step"]]
    begun = time.perf_counter()
    getattr(step, request["phase"])()
    return {"reading": [(time.perf_counter() - begun) / 2]}
"""


def test_a_clock_that_shows_half_is_told_from_ours(monkeypatch, tmp_path):
    """It is a checkout's own, although its modules have the names of ours."""
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").touch()
    (tmp_path / "harness" / "stopwatch.py").write_text(HALVED)
    monkeypatch.setattr(clock, "checked_out", lambda _: nullcontext(tmp_path))
    verdict = told("against", "x", "--op", "square", "--repeats", 1, "--seconds", 0.2)
    assert verdict.startswith("NO: 0 of 2 figures are within 2%")
    monkeypatch.setattr(clock, "SAME", 1e3)
    verdict = told("against", "x", "--op", "square", "--repeats", 1, "--seconds", 0.02)
    assert verdict.startswith("yes: 2 of 2 figures are within")
