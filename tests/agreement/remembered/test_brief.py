"""A few records of an op decide the same as all of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from gradwatch.harness.agreement.overall import overall
from gradwatch.harness.agreement.remembered.brief import brief
from gradwatch.harness.agreement.suite import Agreement, Settled, gone
from gradwatch.harness.judging.known import Known
from gradwatch.harness.judging.platforms import FLUSHED, FLUSHING
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.impls.catalogue import op_names

OPS = op_names()
BACKENDS = {
    "numpy_manual": "numpy",
    "torch_custom": "torch",
    "jax_autograd": "jax",
}
VERDICTS = ("agree",) * 6 + ("convention", "vacuous", "unsupported", "imprecise")
FAILING = ("disagree", "nonfinite", "crash")

#: Of one op, of all, of a case, of a tensor; some are shown below, and some are not.
ENTRIES = [
    Known(op, backend, case, tensor, verdict, f"{op} {case} {tensor}", ("1",))
    for op, backend, case, tensor, verdict in (
        (OPS[0], "torch_custom", "*", "*", "disagree"),
        (OPS[0], "torch_custom", f"{OPS[0]}[ties-*]", "dx", "crash"),
        (OPS[1], "jax_*", "*", "db", "nonfinite"),
        ("*", "numpy_manual", "*[subnormal-*]", "dx", "crash"),
        ("*", "numpy_manual", "*", "none", "disagree"),
    )
]


def made(op: str, chance: random.Random) -> list[AgreeRecord]:
    """The records of an op, many of which are right."""
    return [
        AgreeRecord(
            op=op,
            case=f"{op}[{regime}-1-{dtype}]",
            regime=regime,
            backend=backend,
            framework=framework,
            framework_version="1",
            device="cpu",
            dtype=dtype,
            tensor=tensor,
            **_fields(chance),
        )
        for (backend, framework), regime, dtype, tensor in product(
            BACKENDS.items(),
            ("normal", "ties", "subnormal"),
            ("float16", "float32"),
            ("dx", "db"),
        )
    ]


def _fields(chance: random.Random) -> dict[str, Any]:
    """Most are right; what is flushed is rare."""
    verdict = chance.choice(FAILING if chance.random() < 0.02 else VERDICTS)
    flushed = verdict == "convention" and chance.random() < 0.02
    expected = ["agree", verdict] if verdict in FAILING else ["agree"]
    return {
        "verdict": verdict,
        "expected_verdict": chance.choice(expected),
        "ratio": chance.choice([None, 0.0, chance.random()]),
        "convention": FLUSHED if flushed else "",
    }


def shown(agreement: Agreement) -> object:
    """All that a screen shows of a run, and its exit code."""
    cells = {}
    for op, backend in product(OPS, BACKENDS):
        of_it = [r for r in agreement.records if (r.op, r.backend) == (op, backend)]
        whole = overall(of_it)
        number = (whole.worst.distance, whole.worst.verdict)
        cells[op, backend] = (whole.verdict, number, whole.unexpected, whole.listed)
    failed = sorted(map(repr, agreement.unexpected))
    known = sum(record.listed for record in agreement.records)
    counts = Counter(agreement.summary().verdicts), agreement.tensors, known
    return cells, failed, counts, agreement.gone, agreement.exit_code


def run(settled: Sequence[Settled]) -> Agreement:
    agreement = Agreement()
    for one in settled:
        agreement.add(one)
    agreement.gone = gone(agreement.records, ENTRIES)
    return agreement


@pytest.mark.parametrize("seed", range(20))
def test_the_screen_is_the_same(seed: int) -> None:
    chance = random.Random(seed)
    records = {op: made(op, chance) for op in OPS}
    whole = run([Settled(op, "", "cpu", of_op) for op, of_op in records.items()])
    few = run([brief(op, of_op, _of(op), {}, {}) for op, of_op in records.items()])
    assert shown(few) == shown(whole)
    assert len(few.records) < len(whole.records) == whole.tensors


def _of(op: str) -> list[Known]:
    return [entry for entry in ENTRIES if entry.of(op)]


def test_the_invented_records_test_what_is_expected() -> None:
    found = []
    for seed in range(20):
        chance = random.Random(seed)
        found.append({*run([Settled(op, "", "", made(op, chance)) for op in OPS]).gone})
    times = [sum(entry in gone for gone in found) for entry in (*ENTRIES, *FLUSHING)]
    assert all(times[:4])
    assert min(times[:4]) < 20, "some entries are seen, too"
    assert 0 < times[5] < 20, "what is declared of a platform is seen, or not"
    assert not times[4], "it is never tested"


def test_pairs_and_what_is_missing_come_along() -> None:
    pairs = {"numpy_manual": {"torch_custom": 0.5}}
    one = brief("add", [], [], pairs, {"jax_jit": "no JAX"})
    assert (one.op, one.pairs, one.missing) == ("add", pairs, {"jax_jit": "no JAX"})
