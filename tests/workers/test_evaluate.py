"""A run tells what it computed, and what it touched that was not its own."""

from types import SimpleNamespace

import numpy as np
import pytest

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.workers.arrays import LAYOUTS
from gradwatch.harness.workers.evaluate import stressed
from gradwatch.harness.workers.pool import Outcome, Task
from gradwatch.impls.contract import Op, Problem, Result
from tests.asked import answer
from tests.square import DX, DY, X, page, task

BACKENDS = ["numpy_manual", "torch_custom"]
WRITES_X = "x[0] = 7"
WRITES_DY = "dy[0] = 7"
WRITES_SAVED = "saved[...] = 2 * saved"


def evaluated(path, backend="numpy_manual", **fields):
    """What a worker would answer, without one."""
    asked = task(path, backend, **fields)
    return Outcome.of(asked, answer({"request": "evaluate", **asked.payload()}), "1")


@pytest.mark.parametrize("backend", [*BACKENDS, "numpy_graph", "torch_formula"])
def test_a_clean_page_is_found_clean(tmp_path, backend):
    outcome = evaluated(page(tmp_path), backend)
    assert outcome.kind == "result"
    assert outcome.result.gradients["dx"].tolist() == DX.tolist()
    assert outcome.result.dtypes == {"y": "float64", "dx": "float64"}
    assert not outcome.faults
    assert outcome.repeatable


@pytest.mark.parametrize("backend", ["numpy_manual", "numpy_graph"])
def test_numpy_has_no_bfloat16_and_says_so(tmp_path, backend):
    asked = task(page(tmp_path), backend, dtype="bfloat16")
    told = answer({"request": "evaluate", **asked.payload()})
    assert (told["kind"], told["message"]) == ("unsupported", "NumPy has no bfloat16")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("planted", "mutated"),
    [
        ({"forward": WRITES_X}, ("x",)),
        ({"backward": WRITES_DY}, ("dy",)),
        ({"forward": WRITES_X, "backward": WRITES_DY}, ("x", "dy")),
    ],
    ids=["input", "cotangent", "both"],
)
def test_what_was_written_to_is_named(tmp_path, backend, planted, mutated):
    outcome = evaluated(page(tmp_path, **planted), backend)
    assert tuple(name for name, _ in outcome.faults) == mutated


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backward_that_writes_to_a_saved_tensor_is_told(tmp_path, backend):
    outcome = evaluated(page(tmp_path, backward=WRITES_SAVED), backend)
    assert [name for name, _ in outcome.faults] == ["saved"]
    assert outcome.repeatable


def test_a_buffer_that_is_returned_again_and_again_hides_nothing(tmp_path):
    planted = WRITES_SAVED + "; x[...] = 2 * saved * dy; return (x,)"
    outcome = evaluated(page(tmp_path, backward=planted))
    assert "saved" in [name for name, _ in outcome.faults]


ONCE = """
if getattr(manual, "swept", None) is saved:
    raise RuntimeError("the graph is freed")
manual.swept = saved
"""


def test_a_graph_that_cannot_be_swept_twice_is_no_error(tmp_path):
    outcome = evaluated(page(tmp_path, backward=ONCE))
    assert outcome.kind == "result"
    assert not outcome.faults


def test_a_backward_that_is_never_twice_the_same_is_not_taken_for_one_that_writes(
    tmp_path,
):
    planted = "manual.n = getattr(manual, 'n', 0) + 1; return (manual.n * dy,)"
    outcome = evaluated(page(tmp_path, backward=planted))
    assert not outcome.repeatable
    assert not outcome.faults


@pytest.mark.parametrize(
    ("first", "then", "repeatable"),
    [
        ("dy", "np.nextafter(dy, 9)", False),
        ("0.0 * abs(dy)", "-0.0 * abs(dy)", False),
        ("dy", "dy.astype('float32')", False),
        ("dy", "None", False),
        ("np.nan * dy", "np.nan * dy", True),
        ("dy * float('nan')", "-np.abs(dy * float('nan'))", True),
    ],
    ids=["last bit", "sign of zero", "dtype", "none", "nan", "nan of another sign"],
)
def test_repeatable_means_every_bit_but_those_of_nan(tmp_path, first, then, repeatable):
    """A fresh run is the third backward: the first two are of one graph."""
    planted = "manual.n = getattr(manual, 'n', 0) + 1\n"
    planted += f"return ({first} if manual.n < 3 else {then},)"
    assert evaluated(page(tmp_path, backward=planted)).repeatable is repeatable


def test_a_gradient_of_none_stays_none(tmp_path):
    outcome = evaluated(page(tmp_path, backward="return (None,)"))
    assert outcome.result.gradients == {"dx": None}


def test_state_may_be_written_to(tmp_path):
    path = tmp_path / "running.py"
    path.write_text(RUNNING)
    problem = Problem(
        Op("running", inputs="x total", state="total"),
        {"x": X, "total": np.zeros(3)},
        [DY],
    )
    asked = Task(Trial(str(path), "", "", problem), "numpy_manual")
    reply = answer({"request": "evaluate", **asked.payload()})
    outcome = Outcome.of(asked, reply, "1")
    assert not outcome.faults
    assert outcome.result.state["total"].tolist() == X.tolist()
    assert outcome.repeatable


RUNNING = """
from gradwatch.impls.contract import Op
op = Op("running", inputs="x total", state="total")

@op.implement("manual")
def manual(x, total):
    total += x
    return 2 * x, lambda dy: (2 * dy,)
"""


@pytest.mark.parametrize(
    ("planted", "kind", "message"),
    [
        ("raise Unsupported('too hard')", "unsupported", "too hard"),
        ("raise ValueError('no\\nway')", "error", "ValueError: no"),
        ("raise SystemExit(3)", "error", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "error", "KeyboardInterrupt"),
        ("return [[1]]", "error", "ValueError"),
        ("return 'y', None", "error", "TypeError"),
    ],
)
def test_what_is_raised_is_told_in_one_line(tmp_path, planted, kind, message):
    outcome = evaluated(page(tmp_path, forward=planted))
    assert outcome.kind == kind
    assert outcome.message.startswith(message)
    assert "\n" not in outcome.message


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_op_sees_the_layout(tmp_path, layout, backend):
    """In elements: a row of X twice, 6 elements apart when sliced."""
    strides = "x.strides" if backend == "numpy_manual" else "tuple(x.stride())"
    path = page(tmp_path, forward=f"raise ValueError({strides})")
    asked = task(path, backend, layout=layout, **TWO_ROWS)
    outcome = Outcome.of(asked, answer({"request": "evaluate", **asked.payload()}), "1")
    if backend == "torch_custom":
        expected = {**STRIDES, "negative": "torch has no negative strides"}[layout]
    else:
        expected = tuple(8 * n for n in STRIDES[layout])
    assert outcome.message.removeprefix("ValueError: ") == str(expected)
    assert outcome.kind == (
        "unsupported" if "no negative" in str(expected) else "error"
    )


STRIDES = {
    "contiguous": (3, 1),
    "permuted": (1, 2),
    "sliced": (6, 2),
    "expanded": (0, 1),
    "negative": (-3, -1),
}
TWO_ROWS = {"inputs": {"x": np.stack([X, X])}, "cotangents": [np.stack([DY] * 2)]}


def test_a_layout_that_an_array_cannot_have_is_an_error_of_its_own(tmp_path):
    outcome = evaluated(page(tmp_path), layout="expanded")
    assert (outcome.kind, outcome.result) == ("error", None)
    assert "changes along every axis" in outcome.message


def test_a_device_that_is_not_there_is_missing(tmp_path):
    asked = task(page(tmp_path), device="cuda")
    reply = answer({"request": "evaluate", **asked.payload()})
    assert (reply["kind"], reply["message"]) == (
        "missing",
        "NumPy runs only on the CPU",
    )


def test_bfloat16_is_computed_in_and_comes_back_wider(tmp_path):
    asked = task(
        page(tmp_path),
        "torch_custom",
        dtype="bfloat16",
        inputs={"x": X.astype("float32")},
        cotangents=[DY.astype("float32")],
    )
    outcome = Outcome.of(asked, answer({"request": "evaluate", **asked.payload()}), "1")
    assert outcome.result.dtypes["dx"] == "bfloat16"
    assert outcome.result.gradients["dx"].dtype == "float32"


@pytest.mark.parametrize("request_name", ["evaluat", "probes"])
def test_an_unknown_request_names_the_nearest(request_name):
    reply = answer({"request": request_name})
    assert reply["kind"] == "error"
    assert "did you mean" in reply["message"]


def test_a_missing_page_is_named(tmp_path):
    outcome = evaluated(str(tmp_path / "nowhere.py"))
    assert outcome.kind == "error"
    assert "nowhere.py" in outcome.message


@pytest.mark.parametrize(
    ("framework", "frozen"),
    [("torch", {("b",), ("a",)}), ("jax", set()), ("numpy", set())],
)
def test_inputs_are_frozen_where_a_backward_can_learn_of_it(framework, frozen):
    """JAX and NumPy tell no backward which gradients are wanted."""
    prepared = []

    def prepare(problem):
        prepared.append(problem.wanted)
        step = SimpleNamespace(forward=int, backward=int)
        step.read = lambda: Result(outputs={}, gradients={}, state={}, dtypes={})
        return step

    backend = SimpleNamespace(framework=framework, prepare=prepare)
    two = {"a": np.ones(2), "b": np.ones(2)}
    problem = Problem(Op("mul", inputs="a b"), two, [np.ones(2)])
    asked = Task(Trial("mul", "", "", problem), "numpy_manual")
    stressed(backend, asked.payload())
    assert {*prepared} - {("a", "b")} == frozen
