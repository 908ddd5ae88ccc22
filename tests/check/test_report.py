"""The report: worst first, nothing passes in silence."""

import json
import re
import runpy
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from lxml import html

from gradwatch import Op, judge
from gradwatch.harness.check import Report, Row, check
from gradwatch.harness.check import script as scripting
from gradwatch.harness.check.child import answered
from gradwatch.harness.check.choice import Spec, parsed, smaller, tails
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.project.documents import dumps

NUMBERS = {"ratio": 3.0, "limit": 16.0, "got": 1.0, "expected": 2.0, "radius": 0.1}


def row(tensor, verdict, *, silent=False, ratio=3.0, trial="normal 3x4"):
    numbers = {**NUMBERS, "ratio": ratio}
    judgement = Judgement(tensor, verdict, **numbers, message=f"{tensor}: {verdict}")
    return Row(trial, "float32", judgement, silent=silent, own=True)


def report(*rows):
    return Report("reference", "candidate", "cpu", rows)


def test_worst_tensors_come_first_and_only_failures_tell_their_story():
    found = report(row("y", "agree"), row("dx", "nonfinite"), row("dw", "disagree"))
    lines = str(found).splitlines()
    assert [line.split()[1] for line in lines[3:6]] == ["dx", "dw", "y"]
    assert lines[-2:] == ["dx: nonfinite", "dw: disagree"]
    assert [j.tensor for j in found] == ["dx", "dw", "y"]


@pytest.mark.parametrize(("kind", "allowed"), [("bound", "1.6"), ("least", "over 1.6")])
def test_of_the_least_radius_it_is_said_that_more_is_allowed(kind, allowed):
    one = row("y", "agree")
    one = replace(one, judgement=replace(one.judgement, radius_kind=kind))
    line = str(report(one)).splitlines()[3]
    assert re.split(r" {2,}", line)[7] == allowed


def test_a_tensor_that_zeros_would_pass_fails_and_is_named():
    found = report(row("y", "agree"), row("dx", "vacuous", silent=True))
    assert not found.passes
    assert "nothing could be said of dx in float32" in str(found)
    with pytest.raises(AssertionError, match="nothing could be said of dx"):
        found.assert_ok()


def test_one_trial_that_says_something_is_enough():
    said = row("dx", "agree", trial="tiny 3x4")
    assert report(row("dx", "vacuous", silent=True), said).passes


def test_nothing_judged_is_no_pass():
    assert not report().passes


def test_imprecise_passes_and_is_shown():
    found = report(row("y", "imprecise"))
    assert found.passes
    assert "imprecise" in str(found)


def test_a_verdict_that_is_jargon_is_explained_where_it_is_shown():
    found = report(row("y", "imprecise"), row("dx", "vacuous"), row("dw", "agree"))
    meant = "vacuous: rounding hides it, so nothing can be said"
    assert str(found).splitlines()[-2:] == [
        "imprecise: right, but more is lost than in other algorithms",
        meant,
    ]
    assert meant not in str(report(row("dw", "agree")))


@pytest.mark.parametrize("width", [80, 200])
def test_a_table_fits_the_terminal_and_no_number_is_cut(width):
    long = row("running_mean", "disagree", trial="normal 64x1000")
    wide, told = str(report(long)), report(long).text(width)
    table = told.splitlines()[1:5]
    assert max(map(len, table)) <= width
    assert sorted(told.split()) == sorted(wide.split("\n", 1)[1].split())
    assert (table == wide.splitlines()[2:6]) is (width == 200)


def test_the_plainest_failing_trial_is_shown_with_the_number_of_them():
    rows = [row("dx", "disagree", trial=t, ratio=r) for t, r in (("a", 20), ("b", 99))]
    assert "a; 2 of 2 trials" in str(report(*rows))


def test_the_number_of_trials_in_a_row_is_that_of_the_headline():
    """A row of the one trial that raised said `1 of 1 trials` beside 18 in all."""
    right = [row("dx", "agree", trial=trial) for trial in "abc"]
    edge = replace(row("dx", "agree", trial="empty"), edge=True)
    said = str(report(row("all", "error", trial="a"), *right, edge))
    assert "(3 trials on cpu, " in said
    assert "a; 1 of 3 trials" in said


def test_a_diagnosis_that_several_tensors_share_is_shown_once():
    wrong = [row(tensor, "disagree") for tensor in ("y", "dx")]
    rows = [
        replace(r, judgement=replace(r.judgement, diagnosis="eps is 0.1"))
        for r in wrong
    ]
    assert str(report(*rows)).count("diagnosis: eps is 0.1") == 1


def test_inputs_of_a_function_have_the_names_of_its_forward():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, signal, gain):
            ctx.save_for_backward(signal, gain)
            return signal * gain

        @staticmethod
        def backward(ctx, dy):
            signal, gain = ctx.saved_tensors
            return dy * gain, dy * signal

    found = check(Scaled.apply, shapes=[(3, 4), (3, 4)], quick=True)
    assert {j.tensor for j in found} == {"y", "dsignal", "dgain"}
    assert found.passes


def test_a_notebook_gets_a_table_without_markup_of_the_candidate_s():
    found = Report("<b>", "candidate", "cpu", (row("dx", "disagree"),))
    assert "&lt;b&gt;" in found._repr_html_()
    assert found._repr_html_().count("<tr>") == 2


def test_a_report_and_a_judgement_show_themselves_as_their_tables():
    found = report(row("y", "agree"), row("dx", "disagree"))
    assert repr(found) == str(found)
    x = np.array([1.0, 2.0])
    op = Op("square", inputs="x", formula=lambda xp, x: x * x)
    right, wrong = (judge(op, [x], np.ones(2), [k * x]) for k in (2, 3))
    (only,) = right
    assert only == right[0] == (*right,)[0]
    assert repr(right).splitlines()[1].split()[:5] == ["✓", "dx", "agree", "2", "2"]
    assert repr(wrong).splitlines()[1].split()[:3] == ["✗", "dx", "disagree"]


@pytest.mark.parametrize(
    ("verdict", "colour"),
    [("agree", "#2e8b57"), ("disagree", "#d4351c"), ("vacuous", "#a8730e")],
)
def test_in_a_notebook_the_colour_is_the_verdict(verdict, colour):
    shown = html.fromstring(report(row("dx", verdict))._repr_html_())
    sign, tensor, _, said = shown.xpath("//tbody/tr/td")[:4]
    assert colour in sign.get("style")
    assert colour in said.get("style")
    assert tensor.get("style") is None


def test_a_notebook_folds_the_script_that_shows_a_failure():
    failing = Report(
        "r", "c", "cpu", (row("dx", "disagree"),), script=lambda _: "a < b"
    )
    (folded,) = html.fromstring(failing._repr_html_()).xpath("//details/pre/text()")
    assert folded == "a < b"
    passing = replace(failing, rows=(row("dx", "agree"),))
    assert "details" not in passing._repr_html_()


def test_the_document_is_strict_json():
    nan = Row("a", "float32", Judgement("y", "error", message="raised"))
    assert json.loads(dumps(report(nan).document()))["records"][0]["ratio"] is None


def wrong_cube(x):
    return Cube.apply(x)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x.abs() * dy


def cube(x):
    return x * x * x


def test_the_script_shows_the_failure_at_the_smallest_input(tmp_path):
    found = check(cube, wrong_cube, shapes=[(6, 40)])
    script = tmp_path / "repro.py"
    script.write_text(found.repro())
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100
    )
    assert run.returncode == 1, run.stderr
    assert "dx: element 0" in run.stdout
    assert re.search(r"torch\.tensor\(\[\[[^],]+\]\],", script.read_text())


class Overwriting(torch.autograd.Function):
    """The gradient of x * x, in the memory of its cotangent."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy.mul_(2 * x)


class Counting(torch.autograd.Function):
    """The gradient of x * x, as often as the backward was run."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.runs = 0
        return x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        ctx.runs += 1
        return ctx.runs * 2 * x * dy


class Partial(torch.autograd.Function):
    """The gradient of a * b, wrong by b where a needs none."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        return dy * b, dy * a * (1 if ctx.needs_input_grad[0] else 2)


class Nothing(torch.autograd.Function):
    """No gradient of x * x."""

    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, dy):
        return None


def twice(x, runs=[]):  # noqa: B006  # of all calls
    """Raise in every second call."""
    runs.append(0)
    if len(runs) % 2 == 0:
        raise RuntimeError("called again")
    return x * x


def to_both(a, b):
    """The maximum with the gradient of a tie to both: each is right by one reading."""
    more = (a - a.detach() + b - b.detach()) / 2  # autograd gives each a half
    return torch.maximum(a, b) + (a == b) * more


@pytest.mark.parametrize(
    ("reference", "candidate", "words"),
    [
        (torch.square, Overwriting.apply, "cotangent 0: overwrites its cotangent"),
        (torch.square, Counting.apply, "(second backward)"),
        (torch.mul, Partial.apply, "(frozen: x0)"),
        (torch.square, Nothing.apply, "dx: is None"),
        (torch.maximum, to_both, ", expected 0, allowed error"),
        (torch.square, twice, "raised RuntimeError: called again"),
    ],
    ids=["overwriting", "counting", "partial", "nothing", "both", "twice"],
)
def test_the_script_shows_each_kind_of_failure(
    reference, candidate, words, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(scripting, "SECONDS", 1.0)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the script has folders of its own
    shapes = [(2, 3)] * (2 if reference in (torch.mul, torch.maximum) else 1)
    script = tmp_path / "repro.py"
    script.write_text(check(reference, candidate, shapes=shapes).repro())
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script))
    assert ended.value.code == 1
    assert words in capsys.readouterr().out


def test_the_script_exits_0_with_a_right_candidate(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    script = tmp_path / "repro.py"
    text = check(cube, wrong_cube, shapes=[(2, 3)]).repro()
    right = "candidate = lambda x: x * x * x"
    mended = re.sub(r"(?m)^candidate = .*$", lambda _: right, text)
    assert mended != text
    script.write_text(mended)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script))
    assert (ended.value.code, capsys.readouterr().out) == (0, "right\n")


class Normed(torch.autograd.Function):
    """x over its root mean square, whose root is constant in the backward."""

    @staticmethod
    def forward(ctx, x):
        root = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(root)
        return x * root

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.saved_tensors[0]


class Larger(torch.autograd.Function):
    """exp with a gradient 2 % too large: of bfloat16 no element shows that."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(y := x.exp())
        return y

    @staticmethod
    def backward(ctx, dy):
        return 1.02 * dy * ctx.saved_tensors[0]


@pytest.mark.parametrize(
    ("candidate", "code", "words"),
    [
        (Normed.apply, 1, "dx: element 0: got "),
        (Larger.apply, 2, "no element alone is wrong"),
    ],
)
def test_a_script_in_16_bits_shows_an_element_or_says_that_none_is_wrong(
    candidate, code, words, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(sys, "path", [*sys.path])
    script = tmp_path / "repro.py"
    found = check(candidate, shapes=[(16, 64)], dtypes=["bfloat16"])
    assert not found.passes
    script.write_text(found.repro())
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script))
    assert ended.value.code == code
    assert words in capsys.readouterr().out


# The lambda stands in the line of a function: its source is none of a function.
def in_a_line(): return check(torch.sin, lambda x: x * 2, shapes=[(3,)])  # fmt: skip


def test_the_script_of_a_lambda_asks_for_its_source(tmp_path, capsys):
    script = tmp_path / "repro.py"
    script.write_text(in_a_line().repro())
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script))
    assert ended.value.code == 2
    assert "put the source of the candidate" in capsys.readouterr().out


IN_A_FILE = """
import torch.nn.functional as F
from torch.autograd import Function
from gradwatch import check

SCALE, BEYOND = 2.0, float("inf")

def scaled(x):
    return x * SCALE

class Base(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return F.softplus(scaled(x))

class Halved(Base):
    @staticmethod
    def backward(ctx, dy):
        return 0.5 * scaled(dy * F.sigmoid(scaled(ctx.saved_tensors[0])))

script = check(lambda x: F.softplus(2 * x), Halved.apply, shapes=[(3,)]).repro()
"""


def test_a_script_has_what_the_candidate_uses_of_its_file(tmp_path, capsys):
    """A file that is run, or a notebook, cannot be imported."""
    file, script = tmp_path / "kernel.py", tmp_path / "repro.py"
    file.write_text(IN_A_FILE)
    text = runpy.run_path(str(file), run_name="__main__")["script"]
    for source, ending in (
        (text, (1, "wrong\n")),
        (text.replace("0.5 *", ""), (0, "right\n")),
    ):
        script.write_text(source)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(script))
        said = capsys.readouterr().out
        assert (ended.value.code, said.splitlines(keepends=True)[-1]) == ending, said


def test_nothing_fails_and_there_is_no_script():
    assert check(cube, shapes=[(3, 4)]).repro() == ""


def test_shapes_are_read_and_varied():
    assert parsed("64x10:bool") == Spec((64, 10), "bool")
    assert parsed("64:10") == Spec((64,), "int", 10)
    assert parsed((3,)) == Spec((3,))
    specs = (Spec((64, 1000)), Spec((1000,)))
    assert smaller(specs) == (Spec((7, 33)), Spec((33,)))
    assert [s[0].shape for s in tails(specs)] == [(5, 1025), (257, 7)]
    assert [s[0].shape for s in tails(specs, pinned=[1000])] == [
        (1025, 1000),
        (129, 1000),
    ]
    (first, *_) = tails([Spec((2, 3, 40, 40))])
    assert first[0].shape == (2, 3, 65, 65)


def test_a_request_without_candidate_is_pytorch_s_own_gradient():
    asked = {
        "reference": "torch.nn.functional.relu", "candidate": None, "shapes": ["3x4"],
        "kernelbench": [], "kwargs": {}, "dtypes": [], "device": "cpu",
        "compute": None, "seed": 0, "repro": False,
    }  # fmt: skip
    assert answered(asked)["passes"]
