"""torch_compile: what is compiled, and when; what is refused; what is forgotten."""

from functools import partial

import numpy as np
import pytest

from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.impls.backends._inductor import Compiled
from gradwatch.impls.catalogue import load_backend, load_op
from gradwatch.impls.contract import Op, Problem, Unsupported
from tests.agreed import agree

torch = pytest.importorskip("torch")


def op_of(call, name="planted"):
    op = Op(name, inputs="x")
    op.implement("autograd")(call)
    return op


def square(framework, x, *, power=2):
    return x**power


def broken(framework, x):
    """What dynamo cannot trace: without `fullgraph` it would run uncompiled."""
    return x * x if x.sum() > 0 else x


def problem(op, shape=(3,), **more):
    x = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    return Problem(op, {"x": x}, [np.ones_like(x)], dtype="float32", **more)


def ran(step):
    step.forward()
    step.backward()
    return step.read()


@pytest.fixture
def traced(monkeypatch):
    """A backend whose graphs dynamo traces and no compiler sees; with their number."""
    graphs = []

    def counted(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counted))
    return Compiled(torch, "autograd"), graphs


def test_a_call_is_compiled_once_for_a_shape_and_once_for_its_attributes(traced):
    backend, graphs = traced
    op, number = op_of(square), []
    for shape in ((3,), (3,), (2, 2), (3,)):
        result = ran(backend.prepare(problem(op, shape)))
        number.append(len(graphs))
    assert result.gradients["dx"].tolist() == [2, 4, 6]
    assert number == [1, 1, 2, 2]
    cubed = ran(backend.prepare(problem(op, attributes={"power": 3})))
    assert cubed.gradients["dx"].tolist() == [3, 12, 27]
    assert len(graphs) == 3


def test_more_shapes_are_compiled_than_dynamo_allows_by_default(traced):
    backend, graphs = traced
    op = op_of(square)
    for n in range(1, 12):
        ran(backend.prepare(problem(op, (n,))))
    assert len(graphs) == 11


def test_what_was_compiled_is_forgotten_before_another_op(traced):
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list as entries

    backend, _ = traced
    step = backend.prepare(problem(op_of(square)))
    ran(step)
    compiled = step.call._torchdynamo_orig_callable.__code__
    assert len(entries(compiled)) == 1
    backend.prepare(problem(op_of(broken, "another")))
    assert entries(compiled) == []


def test_what_cannot_be_traced_is_unsupported_and_never_run_uncompiled(traced):
    backend, _ = traced
    step = backend.prepare(problem(op_of(broken)))
    with pytest.raises(Unsupported, match=r"^torch\.compile: \S"):
        step.forward()


def test_a_second_order_is_unsupported(traced):
    backend, _ = traced
    with pytest.raises(Unsupported, match="first derivatives only"):
        backend.prepare(problem(op_of(square), order="hvp"))


@pytest.mark.slow  # inductor's import, and g++
def test_what_inductor_compiles_agrees(fleet):
    missing = load_backend("torch_compile").missing("cpu")
    if missing:
        pytest.skip(missing)
    op = load_op("softmax")
    asked = trial(op, op.cases["4x5"], REGIMES["mixed"], "float32")
    found = agree([asked], ["torch_compile"], fleet=fleet, timeout=250)
    assert {record.verdict for record in found.records} == {"agree"}, found.records


def test_without_a_compiler_it_is_missing_and_says_what_to_install(monkeypatch):
    backend = load_backend("torch_compile")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no no-such-compiler" in backend.missing("cpu")
    monkeypatch.setenv("CXX", "sh")  # any program: it is not run
    assert backend.missing("cpu") == ""
