"""The judge on trial: what is planted, who catches it, and that loosening it shows."""

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from gradwatch.harness.__main__ import gradwatch
from gradwatch.harness.commands import selftest
from gradwatch.harness.commands.selftest import QUICK, chosen, summarise
from gradwatch.harness.judging import verdict
from gradwatch.harness.judging.cases import REGIMES, lengths, resized, trial, trials
from gradwatch.harness.judging.rounding import analysis
from gradwatch.harness.selftest import examine as examine_module
from gradwatch.harness.selftest import scoring
from gradwatch.harness.selftest.examine import JUDGE, Run, examine, read
from gradwatch.harness.selftest.mutants import ANYWHERE, edited, planted, read_mistakes
from gradwatch.harness.selftest.scoring import Score, records
from gradwatch.harness.workers.pool import Outcome, Task
from gradwatch.impls import catalogue
from gradwatch.impls.contract import Op
from scripts import evidence
from scripts.studies.detection import chart_detection

OPS = catalogue.op_names()
EDITS = read_mistakes()
NUMPY = ["numpy_graph", "numpy_manual"]
OPTIONS = {"backends": NUMPY, "planted": True, "gradcheck": False}


def tried(ops, regimes, dtypes, cases=None, backend="numpy_manual", **options):
    """A score of some trials, examined here instead of in a worker."""
    score = Score()
    for op in map(catalogue.load_op, ops):
        for one in trials(op, regimes=regimes, dtypes=dtypes):
            if one.case in list(op.cases)[:cases]:
                asked = {**OPTIONS, "edits": EDITS[op.name], **options}
                task = Task(one, backend, options=asked)
                score.add(one, *read(examine(task.payload())))
    return score


# What is planted ----------------------------------------------------------------


def test_there_are_150_planted_errors_of_their_own_and_some_for_every_op():
    assert set(EDITS) == set(OPS)
    assert min(map(len, EDITS.values())) >= 6
    assert sum(map(len, EDITS.values())) >= 150


def test_what_is_rejected_is_diagnosed_where_that_is_asked():
    score = tried(["square"], ["normal"], ["float32"], 1, backends=[], diagnosed=True)
    said = {run.mistake: run.said for _, run in score.runs}
    zero = "every gradient is zero"
    assert "dx is zero everywhere" in said[zero][0]
    assert not said["None for the last gradient"]
    (one,) = (r for r in records(score) if getattr(r, "runs", 0) and r.mistake == zero)
    assert (one.diagnosed, one.named) == (1, 1)


@pytest.mark.parametrize("op", OPS)
def test_each_planted_error_of_an_op_is_wrong_on_some_trial(op, monkeypatch):
    """Trials are examined, and no judge asked, until none is left: mostly a few do."""
    monkeypatch.setattr(
        examine_module,
        "_run",
        lambda bench, mistake, manual, result, measured: Run(
            mistake, *measured, ratio=0.0, limit=0.0, accused_by=(), asked=()
        ),
    )
    left = {mistake for mistake, _, _ in EDITS[op]}
    for regime in ("normal", "ties", "mixed", "shifted"):
        for cases in (1, None):
            if left:
                score = tried([op], [regime], ["float64"], cases, backends=[])
                left -= {run.mistake for _, run in score.counted}
    assert left == set()


def test_each_error_that_any_op_can_suffer_is_wrong_for_some():
    score = tried(["matmul", "mul", "linear"], ["normal", "mixed"], ["float64"])
    assert set(ANYWHERE) - {run.mistake for _, run in score.counted} == set()


def test_an_edit_whose_text_is_not_there_is_refused_and_named():
    with pytest.raises(ValueError, match=r"'dy / b' occurs 0 times in .*mul\.manual"):
        edited(catalogue.load_op("mul").said("manual", "numpy"), "dy / b", "dy")


def test_an_op_of_your_own_is_given_the_errors_that_any_op_can_suffer():
    op = Op("cube", inputs="x", formula=lambda xp, x: x * x * x)
    op.implement("manual")(lambda x: (x**3, lambda dy: (3 * x * x * dy,)))
    assert [mistake for mistake, _ in planted(op)] == list(ANYWHERE)


@pytest.mark.parametrize(
    ("op", "regime", "dtype", "case"),
    [
        ("group_norm", "dy_ones", "float16", "2x4x3-4"),  # a zero, but for rounding
        ("max_with_indices", "constant", "float64", "2x3x4-last"),  # any index is right
    ],
)
def test_what_is_right_as_well_is_no_error(op, regime, dtype, case):
    page = catalogue.load_op(op)
    one = trial(page, page.cases[case], REGIMES[regime], dtype)
    asked = {**OPTIONS, "backends": [], "edits": EDITS[op]}
    task = Task(one, "numpy_manual", options=asked)
    score = Score()
    score.add(one, *read(examine(task.payload())))
    assert len(score.counted) > 5
    assert not score.missed


# What is required of the judge --------------------------------------------------

# Few ops, but one of each kind: a constant, a norm, a selection.
SAMPLE = ("exp2", "layer_norm", "maximum")


def unmet(ops=SAMPLE, dtypes=("float64", "float32", "bfloat16"), **options):
    """What is required and not met; one op is enough for what any op can suffer."""
    options = {"cases": 2, "backends": ["torch_autograd"], **options}
    score = tried(ops, ("normal", "constant"), dtypes, **options)
    found = scoring.requirements(score, (), tensors=20)
    missed = [one.required for one in found if not one.met]
    # float16 is left out here: it takes the same path as bfloat16.
    return [told for told in missed if not told.startswith("float16")]


def test_the_judge_meets_what_is_required_of_it():
    assert unmet() == []


@pytest.mark.parametrize(
    ("planted", "some", "required"),
    [(True, True, False), (True, False, True), (False, True, True)],
)
def test_a_band_without_errors_is_required_but_of_some_ops(planted, some, required):
    """Where none was planted at all, it is required of those, too."""
    score = tried(("add",), ("normal",), ("float64",), planted=planted)
    found = scoring.requirements(score, (), tensors=1, some=some)
    unmet = [r.required for r in found if r.found == "0 of 0" and not r.met]
    assert any("float16" in goal for goal in unmet) == required


@pytest.mark.parametrize(
    ("caught", "of", "some", "met"),
    [
        (14, 17, True, True),
        (14, 17, False, False),
        (9, 17, True, False),  # chance leaves so few once in a thousand times
        (0, 1, True, True),
        (15, 17, False, True),
        (0, 0, True, False),
    ],
)
def test_of_some_ops_no_share_is_required_that_chance_misses(caught, of, some, met):
    runs = [SimpleNamespace(accused_by=[JUDGE] * (i < caught)) for i in range(of)]
    assert scoring._met(runs, "at least 85% caught", 0.85, some).met == met
    all_of_it = scoring._met(runs, "all caught", 1.0, some)
    assert all_of_it.met == (caught == of > 0)


def _sizes(op):
    """The last length just beside a power of two, where a kernel's last block ends."""
    case = max(op.cases.values(), key=lambda case: len(lengths(op, case)))
    (length,) = lengths(op, case)[-1:]
    return [resized(op, case, {length: n}) for n in (129, 257, 1023, 1025)]


def _sparse(dy):
    return np.where(np.random.default_rng(0).random(dy.shape) < 0.1, dy, 0)


OTHERS = {
    "sizes": None,
    "constant": lambda dy: np.full_like(dy, 0.1),  # equal terms round the same way
    "sparse": _sparse,
    "times 1e6": lambda dy: dy * dy.dtype.type(1e6),
    "times 1e-6": lambda dy: dy * dy.dtype.type(1e-6),
}


@pytest.mark.parametrize("other", OTHERS)
def test_under_other_cotangents_and_sizes_the_judge_is_right(other):
    """Of a bias's gradient, which is a sum."""
    score, op = Score(), catalogue.load_op("linear")
    asked, change = {**OPTIONS, "edits": EDITS["linear"]}, OTHERS[other]
    for dtype in ("float64", "float32"):
        for case in [op.cases["4x5-3"]] if change else _sizes(op):
            one = trial(op, case, REGIMES["normal"], dtype)
            if change:
                dys = [change(dy) for dy in one.problem.cotangents]
                one = replace(one, problem=replace(one.problem, cotangents=dys))
            task = Task(one, "numpy_manual", options=asked)
            score.add(one, *read(examine(task.payload())))
    runs = [run for _, run in score.counted if run.effect > 1e-3]
    assert len(runs) >= 40  # as many as there are errors for one case
    assert sum(JUDGE in run.accused_by for run in runs) >= 0.995 * len(runs)
    assert score.false_alarms(()) == []


def test_the_cases_of_an_op_take_turns():
    """linear has four; two regimes in four precisions are judged."""
    cases = [trial.case for trial in chosen(QUICK, ["linear"], 0, ["vjp"])]
    assert set(cases[:4]) == set(cases[4:]) == set(catalogue.load_op("linear").cases)


def test_a_limit_doubled_four_times_is_noticed(monkeypatch):
    limit = analysis.limit_for
    monkeypatch.setattr(analysis, "limit_for", lambda n: 16 * limit(n))
    left = unmet(dtypes=("float32",))
    assert any(told.startswith("float32, effect 1e-06") for told in left)


def test_dropping_second_order_terms_is_noticed(monkeypatch):
    class FirstOrder(analysis.At):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.u *= 1e-9  # what is multiplied by u twice is gone

    monkeypatch.setattr(analysis, "At", FirstOrder)
    monkeypatch.setattr(verdict, "_excused", lambda asked, judgement: judgement)
    assert "no false alarm" in unmet(planted=False)


@pytest.mark.parametrize("kind", ["None", "shape", "dtype"])
def test_switching_a_structural_check_off_is_noticed(monkeypatch, kind):
    judged = verdict._judgement

    def lenient(*asked):
        j = judged(*asked)
        found = j.verdict == "malformed" and f": {kind}" in j.message
        return replace(j, verdict="agree", ratio=0.0) if found else j

    monkeypatch.setattr(verdict, "_judgement", lenient)
    assert any(told.startswith("None, shape") for told in unmet(SAMPLE[:1]))


def test_taking_nan_for_a_number_is_noticed(monkeypatch):
    judged = verdict.judge_numbers

    def blind(truth, got, *more, **named):
        numbers = np.where(np.isfinite(got), got, truth.value)
        return judged(truth, numbers, *more, **named)

    monkeypatch.setattr(verdict, "judge_numbers", blind)
    assert any(told.startswith("None, shape") for told in unmet(SAMPLE[:1]))


def test_a_right_gradient_that_is_rejected_is_noticed(monkeypatch):
    monkeypatch.setattr(analysis, "limit_for", lambda n: 0.01)
    assert "no false alarm" in unmet(SAMPLE[:1], planted=False)


# The other judges ---------------------------------------------------------------


@pytest.fixture(scope="module")
def checked():
    return tried(
        ["softmax", "mul", "max_with_indices"],
        ["normal"],
        ["float64"],
        cases=2,
        backend="torch_autograd",
        gradcheck=True,
    )


def test_every_judge_accepts_right_gradients_of_ordinary_numbers(checked):
    asked = Counter(judge for _, alarm in checked.alarms for judge in alarm.asked)
    assert min(asked[judge] for judge in scoring.JUDGES) > 0
    assert [a for _, a in checked.alarms if a.accused_by] == []


@pytest.mark.parametrize("judge", scoring.JUDGES)
def test_every_judge_rejects_a_gradient_of_the_wrong_sign(checked, judge):
    mistake = "the first gradient has the wrong sign"
    runs = [run for _, run in checked.counted if run.mistake == mistake]
    assert runs
    assert all(judge in run.accused_by for run in runs)


def test_allclose_broadcasts_a_wrong_shape_and_the_judge_does_not(checked):
    mistake = "an axis too many is kept"
    runs = [run for _, run in checked.counted if run.mistake == mistake]
    assert all("gradwatch" in run.accused_by for run in runs)
    assert not any("numpy.allclose" in run.accused_by for run in runs)


def test_without_pytorch_its_judges_are_not_asked():
    score = tried(["mul"], ["normal"], ["float64"], cases=1, gradcheck=True)
    asked = {judge for _, run in score.runs for judge in run.asked}
    assert asked.isdisjoint(examine_module.OF_TORCH)


# Calibration --------------------------------------------------------------------


def test_at_the_shipped_constant_the_curves_are_what_the_judge_said(checked):
    found = evidence.excess(checked, ())
    caught = (found.wrong[0] > evidence.SHIPPED).mean()
    wanted = evidence.CURVES[0]
    said = [JUDGE in r.accused_by for _, r in checked.counted if wanted.speaks_of(r)]
    assert caught == np.mean(said)
    assert found.largest_right <= evidence.SHIPPED


# The command --------------------------------------------------------------------


def test_the_quick_form_passes_and_writes_its_document():
    called = CliRunner().invoke(
        gradwatch, ["selftest", "--quick", "--op=square", "--op=dot", "--json=-"]
    )
    content = json.loads(called.stdout)
    unmet = [r for r in content["summary"]["requirements"] if not r["met"]]
    assert unmet == []
    assert {r["op"] for r in content["records"]} == {"square", "dot"}


def test_a_backend_that_raises_in_its_backward_is_left_to_agree():
    """HIPS/autograd's where cannot add up the gradients of what is broadcast."""
    options = {"backends": ["autograd_formula", "numpy_graph"], "planted": False}
    score = tried(["where"], ["normal"], ["float64"], **options)
    heard = Counter((alarm.backend, trial.case) for trial, alarm in score.alarms)
    cases = [*catalogue.load_op("where").cases]
    assert {case for backend, case in heard if backend == "numpy_graph"} == {*cases}
    assert {case for backend, case in heard if backend == "autograd_formula"} == {"7"}


def test_all_trials_that_a_backend_lost_are_counted(monkeypatch):
    monkeypatch.setattr(
        selftest.Fleet,
        "run",
        lambda self, tasks, **_: (
            Outcome(task, "crash", message="signal 9") for task in tasks
        ),
    )
    score = selftest.try_judges(selftest.QUICK, ops=["square"], orders=["vjp"])
    assert score.missing["torch_autograd"] == "crash: signal 9; and 7 more trials"


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_chart_is_drawn_and_names_the_judges(tmp_path, checked, suffix):
    target = tmp_path / f"detection.{suffix}"
    chart_detection(summarise(checked), target)
    assert target.stat().st_size > 10_000
    if suffix == "svg":
        assert all(judge in target.read_text() for judge in scoring.JUDGES)
