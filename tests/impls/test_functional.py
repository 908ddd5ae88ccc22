"""The adapter for frameworks that differentiate functions, with a toy framework."""

import math
import re
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.workers.interpreters import interpreter_of
from gradwatch.impls import graph
from gradwatch.impls.backends._functional import COMPOSED, Functional, Names, own_names
from gradwatch.impls.contract import Case, Op, Problem, Unsupported
from tests.frameworks import usable

BACKENDS = ROOT / "impls" / "backends"
DOORS = sorted(
    file
    for file in BACKENDS.glob("_*.py")
    if "from gradwatch.impls.backends._functional import" in file.read_text()
)

op = Op("product", inputs="a b", cases=[Case("3", a=(3,), b=(3,))])


@op.implement("formula")
def formula(xp, a, b):
    return a * b


@op.implement("autograd")
def autograd(framework, a, b):
    raise AssertionError("this one has the shape of PyTorch's calls")


def problem(dtype="float64", **changes):
    arrays = {"a": np.array([1.0, 2, 3]), "b": np.array([4.0, 5, 6])}
    arrays = {name: array.astype(dtype) for name, array in arrays.items()}
    return replace(Problem(op, arrays, [np.ones(3, dtype)], dtype=dtype), **changes)


class Toy:
    """Multiplies, and takes down what it is asked."""

    def __init__(self, **door):
        self.waited, self.forgot = [], 0
        self.backend = Functional(
            "toy",
            "1",
            "formula",
            Names(np),
            tensor=np.array,
            array=np.array,
            vjp=self.vjp,
            wait=self.waited.append,
            forget=self.forget,
            **door,
        )

    def vjp(self, call, wanted, others):
        _, named = call(wanted, others)
        a, b = wanted
        return named, lambda dys: (dys[0] * b, dys[0] * a)

    def forget(self):
        self.forgot += 1


def ran(step):
    step.forward()
    step.backward()
    return step.read()


@pytest.mark.parametrize("door", DOORS, ids=lambda file: file.stem)
def test_a_door_has_at_most_40_lines(door):
    """Neither blank ones count, which the formatter puts, nor what it declares."""
    text = door.read_text()
    declared = re.sub(r"^TRAITS = \{(.*?\n\}|.*?\}$)", "", text, flags=re.M | re.S)
    assert "TRAITS" in text
    assert "TRAITS = {" not in declared
    assert sum(bool(line.strip()) for line in declared.splitlines()) <= 40


def test_there_are_doors_to_count():
    assert {"_autograd", "_jax"} <= {door.stem for door in DOORS}


def test_outputs_and_gradients_come_back_by_name_with_their_dtypes():
    result = ran(Toy().backend.prepare(problem("float32")))
    assert result.outputs["y"].tolist() == [4, 10, 18]
    assert result.gradients["db"].tolist() == [1, 2, 3]
    assert result.dtypes == dict.fromkeys(("y", "da", "db"), "float32")


def test_the_wait_gets_what_was_computed_last():
    toy = Toy()
    step = toy.backend.prepare(problem())
    step.forward()
    step.wait()
    step.backward()
    step.wait()
    (outputs, pull), (gradients,) = toy.waited
    assert outputs["y"].tolist() == [4, 10, 18]
    assert callable(pull)
    assert gradients[0].tolist() == [4, 5, 6]


def test_what_was_compiled_is_forgotten_before_another_op():
    toy, other = Toy(), Op("other", inputs="a b", formula=formula)
    for each in (op, op, other, other, op):
        toy.backend.prepare(problem(op=each))
    assert toy.forgot in (2, 3)  # the first one may follow another test's


JAX = """
from gradwatch.harness.judging.cases import trials
from gradwatch.impls.backends import _jax
from gradwatch.impls.catalogue import load_backend, load_op
for name in ("square", "tanh"):
    (problem, *_) = (t.problem for t in trials(load_op(name), regimes=["normal"]))
    step = load_backend("jax_jit").prepare(problem)
    sizes = [_jax.forward._cache_size(), _jax.backward._cache_size()]
    step.forward()
    step.backward()
    step.wait()
    ready = all(dx.is_ready() for dx in step.gradients)
    print(*sizes, _jax.forward._cache_size(), _jax.backward._cache_size(), ready)
"""


def test_jax_compiles_once_waits_and_forgets_before_another_op():
    usable("jax")
    python = interpreter_of("jax").python
    done = subprocess.run(
        [python, "-c", JAX], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["0 0 1 1 True"] * 2


@pytest.mark.parametrize(
    ("door", "asked", "why"),
    [
        ({"dtypes": ("float64",)}, {"dtype": "float16"}, "has no float16"),
        ({"shared": False}, {}, "no formula dialect of toy's own"),
    ],
)
def test_what_a_framework_lacks_is_declared(door, asked, why):
    with pytest.raises(Unsupported, match=why):
        Toy(**door).backend.prepare(problem(**asked))


@pytest.mark.parametrize("copies", [True, False])
def test_a_layout_is_declared_where_the_door_copies_it_away(copies):
    inputs = {"a": np.zeros(6)[::2], "b": np.zeros(3)}
    toy = Toy(copies=copies).backend
    if not copies:
        assert ran(toy.prepare(problem(inputs=inputs))).outputs["y"].shape == (3,)
        return
    with pytest.raises(Unsupported, match="C order"):
        toy.prepare(problem(inputs=inputs))


def test_equal_calls_are_those_that_compute_the_same():
    toy = Toy().backend
    first, again = (toy.prepare(problem()).call for _ in range(2))
    assert first == again
    assert hash(first) == hash(again)
    one, true = (toy.prepare(problem(attributes={"k": k})).call for k in (1, True))
    assert one != true  # equal keys of a dict, but other attributes


@pytest.mark.parametrize("steps", [{}, {"stride": 2}, {"padding": 1}, {"dilation": 2}])
def test_the_windows_are_those_of_the_graph_engine(steps):
    """Which `tests/impls` holds against a loop."""
    x = np.arange(2 * 5 * 6.0).reshape(2, 5, 6)
    node = graph.sliding_windows(graph.variable(x), (2, 3), **steps)
    graph.forward([node])
    got = COMPOSED["sliding_windows"](Names(np, *COMPOSED), x, (2, 3), **steps)
    np.testing.assert_array_equal(got, node.value)


def test_names_are_a_door_s_own_then_the_module_s_then_compositions():
    names = Names(np, "take", exp2=str)
    assert names.exp2 is str
    assert names.matmul is np.matmul
    assert names.take(np.arange(4), np.array([1]), axis=0).tolist() == [1]
    assert names.take is not np.take
    with pytest.raises(AttributeError):
        _ = names.nothing_of_the_kind


def test_the_names_that_a_door_declares_are_functions_of_its_modules():
    traits = {"names": {"": "m", "log": "math.log", "sigmoid": "elsewhere.sigmoid"}}
    assert own_names(traits, math=math) == {"log": math.log}
