"""How a run is split into names, and put together whoever answers first."""

from itertools import permutations, product

import pytest

from gradwatch.harness.agreement.remote import unjudged
from gradwatch.harness.agreement.suite import Agreement, Asked
from gradwatch.harness.hosts.batches import lacking, merged, split
from gradwatch.harness.hosts.identity import Identity, Offer, difference, mixture
from gradwatch.harness.project import documents
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.workers.child import Failed

SAME = Identity("a" * 40, {"harness/x.py": "1"}, {"python": "3.11.7"})


def offer(**devices):
    frameworks = {
        device: dict.fromkeys(names, "1.0") for device, names in devices.items()
    }
    return Offer(SAME, "cpu-2core", frameworks)


def asked(*backends, **more):
    names = {"ops": ["square", "mul"], "dtypes": ["float32", "float64"], **more}
    return Asked(backends=backends, **names)


def record(op, case, backend="numpy_manual", tensor="dx"):
    return AgreeRecord(
        op=op,
        case=f"{op}[{case}]",
        regime="normal",
        backend=backend,
        framework="numpy",
        framework_version="2",
        device="cpu",
        dtype="float32",
        tensor=tensor,
        verdict="agree",
    )


def test_a_run_is_split_once_by_op_device_precision_and_order():
    run = asked("numpy_manual", "torch_custom", orders=["vjp", "jvp"])
    batches = list(split(run, [offer(cpu=["numpy", "torch"])]))
    parts = [(*b.ops, *b.devices, *b.dtypes, *b.orders) for b in batches]
    assert parts == [*product(run.ops, ["cpu"], run.dtypes, run.orders)]
    assert {tuple(b.backends) for b in batches} == {tuple(run.backends)}


def test_backends_are_divided_only_where_no_host_has_them_all():
    run = asked("numpy_manual", "torch_custom", "jax_formula", ops=["mul"])
    hosts = [offer(cpu=["torch"]), offer(cpu=["numpy", "torch"]), offer(cpu=["jax"])]
    batches = list(split(run, hosts))
    assert [b.backends for b in batches[::2]] == [
        ["numpy_manual", "torch_custom"],
        ["jax_formula"],
    ]


def test_a_device_goes_to_whoever_has_it_and_numpy_has_no_gpu():
    run = asked("numpy_manual", "torch_custom", devices=["cuda"], ops=["mul"])
    hosts = [offer(cpu=["numpy", "torch"]), offer(cpu=["torch"], cuda=["torch"])]
    assert {*split(run, hosts).__next__().backends} == {"torch_custom"}
    assert lacking(run, hosts) == {}
    assert lacking(run, hosts[:1]) == {
        "torch_custom": "no host offers torch on cuda",
    }


def answers():
    """Three batches of one run: pairs overlap, and a page fails in two of them."""
    crash = unjudged(Failed("mul", "", "crash", "exit code 3"))
    return [
        Agreement(
            [record("square", "4-float64"), record("square", "4-float64", tensor="a")],
            {"square": {"numpy_manual": {"torch_custom": 1.0, "jax_jit": 3.0}}},
            {"mlx_formula": "not there"},
            ["square[4] x"],
        ),
        Agreement(
            [record("square", "4-float32"), record("square", "4-float32", "a_first")],
            {"square": {"numpy_manual": {"jax_jit": 0.5, "torch_custom": 2.0}}},
            {"a_first": "not there"},
            ["square[3] x"],
        ),
        Agreement([record("mul", "2"), crash]),
        Agreement([crash]),
    ]


def test_the_document_does_not_depend_on_who_answers_first():
    def written(given):
        agreed = merged(asked("numpy_manual"), given)
        return documents.compact([agreed.records, agreed.summary()])

    assert len({written(given) for given in permutations(answers())}) == 1


def test_answers_are_merged_as_one_run():
    agreed = merged(asked("numpy_manual"), answers())
    pairs = {"jax_jit": 3.0, "torch_custom": 2.0}
    assert agreed.pairs["square"]["numpy_manual"] == pairs
    assert [(r.case, r.backend, r.tensor) for r in agreed.records] == [
        ("square[4-float32]", "a_first", "dx"),
        ("square[4-float32]", "numpy_manual", "dx"),
        ("square[4-float64]", "numpy_manual", "dx"),
        ("square[4-float64]", "numpy_manual", "a"),
        ("mul[2]", "numpy_manual", "dx"),
        ("mul[page]", "reference", "all"),
    ]


@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        (Identity("b" * 40, SAME.files, SAME.versions), "has bbbbbbbbb checked out"),
        (Identity(SAME.commit, SAME.files, {"python": "3.10.1"}), "python is 3.10.1"),
        (
            Identity(SAME.commit, {"harness/x.py": "2"}, SAME.versions),
            "harness/x.py differs",
        ),
        (Identity(SAME.commit, {}, SAME.versions), "harness/x.py differs"),
        (Identity(SAME.commit, SAME.files, SAME.versions), ""),
    ],
)
def test_a_host_that_differs_is_told_by_what_differs(theirs, why):
    assert why in (said := difference(SAME, theirs))
    assert bool(said) == bool(why) == (theirs != SAME)


def test_two_versions_of_a_framework_are_not_mixed():
    old = offer(cpu=["torch"])
    new = offer(cpu=["torch"])
    assert mixture({"a": old, "b": new}) == ""
    new.frameworks["cpu"]["torch"] = "2.0"
    assert mixture({"a": old, "b": new}) == "torch is 1.0 on a and 2.0 on b"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (["no wheel", "no wheel"], "no wheel"),
        (["no wheel", "too old"], "no host offers torch on cpu"),
        (["no wheel", ""], "no host offers torch on cpu"),
        (["", ""], "no host offers torch on cpu"),
    ],
)
def test_what_all_hosts_say_of_a_missing_framework_is_the_reason(said, why):
    offers = [offer(cpu=["numpy"]) for _ in said]
    for one, reason in zip(offers, said, strict=True):
        one.absent = {"torch": reason}
    assert lacking(asked("torch_custom"), offers) == {"torch_custom": why}
