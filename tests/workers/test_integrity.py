"""What a page must leave as it was; each check has a change that it must see."""

import ctypes
import gc
import json
import math
import subprocess
import sys
import threading
import time
from operator import attrgetter
from types import SimpleNamespace

import numpy as np
import pytest

from gradwatch.harness.timing import proof, rotation
from gradwatch.harness.timing.rotation import _watch
from gradwatch.harness.workers import integrity


@pytest.fixture(autouse=True)
def remembered(monkeypatch):
    monkeypatch.setattr(integrity, "_originals", {})
    monkeypatch.setattr(integrity, "_settings", {})
    integrity.remember()


def test_nothing_has_changed_where_nobody_has_changed_it():
    assert integrity.changes() == []


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (time, "perf_counter"),
        (time, "perf_counter_ns"),
        (gc, "collect"),
        (np, "allclose"),
        (proof, "why_unfit"),
        (proof.Judge, "why_any_wrong"),
    ],
)
def test_a_replaced_function_is_named(owner, name, monkeypatch):
    monkeypatch.setattr(owner, name, lambda *_: None)
    (told,) = integrity.changes()
    assert told.endswith(f"{name} has been replaced")


def test_a_function_that_stays_with_other_code_or_defaults_is_named(monkeypatch):
    monkeypatch.setattr(rotation._bytes, "__code__", (lambda *_: b"").__code__)
    monkeypatch.setattr(proof.proven, "__defaults__", (1,))
    assert {line.rpartition(".")[2] for line in integrity.changes()} == {
        "_bytes has been replaced",
        "proven has been replaced",
    }


@pytest.mark.parametrize("function", [time.process_time_ns, np.ndarray.argsort])
def test_a_function_of_c_that_runs_other_code_is_named(function, monkeypatch):
    monkeypatch.setattr(integrity, "CLOCKS", ("ndarray",))
    integrity.remember()
    place = id(function) + object.__basicsize__ + integrity._DEFINED[type(function)]
    words = ctypes.POINTER(ctypes.c_size_t).from_address(place)
    before, words[1] = words[1], words[1] + 16  # nobody calls it meanwhile
    found = integrity.changes()
    words[1] = before
    assert f"{function.__name__} has been replaced" in "".join(found)
    assert integrity.changes() == []


def test_what_a_page_freezes_is_seen_and_what_was_imported_is_frozen():
    assert gc.get_freeze_count() > len(sys.modules)
    kept = [[] for _ in range(10)]
    gc.freeze()
    assert kept
    assert integrity.changes() == ["gc.freeze() since was False and is True"]


def test_what_was_replaced_is_not_remembered_as_the_original(monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    integrity.remember()
    assert integrity.changes() == ["time.monotonic has been replaced"]


def test_a_changed_setting_is_told_with_both_values():
    before = gc.get_threshold()
    gc.set_threshold(1, 2, 3)
    try:
        (told,) = integrity.changes()
    finally:
        gc.set_threshold(*before)
    assert told == f"gc.get_threshold() was {before} and is {gc_text(1, 2, 3)}"


def gc_text(*threshold):
    return str(threshold)


def run_thread():
    thread = threading.Thread(target=bool)
    thread.start()
    thread.join()


FORBIDDEN = {
    "opens a file": lambda: open("/dev/null", "rb").close(),
    "searches all objects in memory": gc.get_objects,
    "looks at its callers": sys._getframe,
    "starts a thread": run_thread,
    "starts a process": lambda: subprocess.run([sys.executable, "-V"], check=True),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_a_call_that_no_computation_makes_is_noted_while_it_watches(what):
    watch = _watch()
    watch.on = True
    try:
        FORBIDDEN[what]()
    finally:
        watch.on = False
    seen, watch.seen = watch.seen, set()
    assert what in seen
    FORBIDDEN[what]()
    assert watch.seen == set()  # it no longer listens


def test_a_computation_makes_none():
    watch, x = _watch(), np.linspace(0, 1, 1000)
    watch.on = True
    try:
        np.exp(x) @ np.add.reduce(np.outer(x, x), axis=0)
        math.fsum(x)
    finally:
        watch.on = False
    assert watch.seen == set()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_process_that_still_runs_is_counted():
    with subprocess.Popen(["sleep", "60"]) as sleeping:
        during = integrity.new_children()
        sleeping.kill()
    assert (during, integrity.new_children()) == (1, 0)


def test_a_worker_remembers_before_it_reads_a_page():
    """Its first answer comes before any page, and has noted what the clock needs."""
    code = (
        "import json; from gradwatch.harness import endpoint; "
        "from gradwatch.harness.workers import integrity; "
        "endpoint.probe({'framework': 'numpy', 'backends': []});"
        "print(json.dumps([':'.join(k) for k in integrity._originals]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "time:perf_counter_ns" in json.loads(done.stdout.splitlines()[-1])


# TF32 on a GPU ------------------------------------------------------------------------


@pytest.fixture
def tf32():
    """PyTorch's switches for it, which are put back."""
    pytest.importorskip("torch")
    from gradwatch.impls.backends._torch import allow_tf32, torch

    yield torch.backends, allow_tf32
    allow_tf32(False)


@pytest.mark.parametrize("allowed", [False, True])
def test_both_interfaces_to_tf32_are_switched_and_none_contradicts(tf32, allowed):
    """PyTorch's getters raise where its old and its new interface differ."""
    backends, allow_tf32 = tf32
    allow_tf32(allowed)
    assert backends.cuda.matmul.allow_tf32 is allowed
    assert backends.cudnn.allow_tf32 is allowed
    new = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    wanted = "tf32" if allowed else "ieee"
    assert {getattr(one, "fp32_precision", wanted) for one in new} == {wanted}


@pytest.mark.parametrize("kind", ["cuda.matmul", "cudnn.conv"])
def test_a_page_that_switches_tf32_on_for_all_is_seen(tf32, kind):
    backends, allow_tf32 = tf32
    allow_tf32(False)
    integrity.remember("torch")
    switch = attrgetter(kind)(backends)
    if not hasattr(switch, "fp32_precision"):
        pytest.skip("this PyTorch has no GPU switch of that name")
    switch.fp32_precision = "tf32"
    name = f"torch.backends.{kind}.fp32_precision"
    assert f"{name} was ieee and is tf32" in integrity.changes("torch")


class OldSwitch:
    """As `torch.backends.cuda.matmul` of PyTorch 1.12, which knows one setting."""

    def __getattr__(self, name):
        raise AssertionError(f"Unknown attribute {name}")


@pytest.mark.parametrize(
    ("made", "has"),
    [
        (OldSwitch, False),
        (lambda: None, False),
        (lambda: SimpleNamespace(fp32_precision="ieee"), True),
    ],
)
def test_the_new_switch_of_tf32_is_only_used_where_it_is(tf32, made, has):
    from gradwatch.impls.backends._torch_products import has_setting

    kind = made()
    assert has_setting(kind, "fp32_precision") is has
    assert (integrity._asked(lambda: kind.fp32_precision) == "ieee") is has
