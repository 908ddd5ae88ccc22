"""What `gradwatch compare` says where not all can be compared."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

from gradwatch.harness.commands import compare
from gradwatch.harness.project.records import CompareRecord
from gradwatch.harness.timing.compare import Side, WrongGradient
from tests.command_line import gradwatch

_SMALL = ("--size", "small")


def test_a_wrong_gradient_fails_a_comparison_of_which_other_rows_are_right(monkeypatch):
    def compared(a, b, plan, phases):
        if plan.trial.problem.dtype == "float64":
            raise WrongGradient("numpy_manual of HEAD is wrong: disagree")
        asked = {"op": "square", "case": "8", "dtype": "float32", "device": "cpu"}
        shown = {"noise_low": 1.0, "noise_high": 1.0, "verdict": "no difference"}
        size = {"ratio": 1.0, "low": 1.0, "high": 1.0}
        shared = {"a": a.name, "b": b.name, **asked, **shown, **size}
        return [CompareRecord(phase=phase, **shared) for phase in phases]

    monkeypatch.setattr(compare, "compare_phases", compared)
    call = ("compare", *["numpy_manual"] * 2, "--op", "square", *_SMALL)
    done = gradwatch(*call, "--dtype", "float32,float64")
    assert done.returncode == 1
    assert "✗ square[" in done.stderr
    assert "numpy_manual of HEAD is wrong" in done.stderr


def test_a_page_that_cannot_be_run_fails_a_comparison_and_costs_no_other(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(compare, "compare_phases", lambda *given: [])
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    call = ("compare", *["numpy_manual"] * 2, "--op", "square", *_SMALL)
    done = gradwatch(*call, "--ops", str(tmp_path / "broken.py"), "--json", "-")
    assert done.returncode == 1
    (why,) = json.loads(done.stdout)["summary"]["failed"]
    assert why == "broken.py: ModuleNotFoundError: No module named 'no_such_module'"


def test_kernels_are_compared_before_the_formula_that_defines_them(monkeypatch):
    """The limit left the kernel of a first commit untimed, beside two formulas."""
    seen = []
    monkeypatch.setattr(compare, "compare_phases", lambda a, *_: seen.append(a) or [])
    monkeypatch.setattr(compare, "judging", lambda: nullcontext(lambda *asked: None))
    plan = compare.Plan(SimpleNamespace(name="silu[8]"), 1.0)
    names = "numpy_graph", "torch_formula", "torch_autograd", "numpy_manual"
    plans = [(Side(name, name), Side(name, name), plan) for name in names]
    compare._compared(plans, ["forward"], 1000.0)
    assert [side.backend for side in seen] == [*names[2:], *names[:2]]


def test_what_was_not_compared_is_counted_with_the_limit_that_would_do(monkeypatch):
    now = [0.0]

    def compared(a, b, plan, phases):
        now[0] += 30.0
        return []

    monkeypatch.setattr(compare, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(compare, "compare_phases", compared)
    monkeypatch.setattr(compare, "judging", lambda: nullcontext(lambda *asked: None))
    plan = compare.Plan(SimpleNamespace(name="square[8]"), 1.0)
    plans = [(*[Side("numpy_graph", "numpy_graph")] * 2, plan)] * 4
    *_, left = compare._compared(plans, ["forward"], 20.0)
    assert left == "3 only judged: timing takes 90 s; --limit 120"
    assert compare._compared(plans, ["forward"], 1000.0)[-1] == ""
