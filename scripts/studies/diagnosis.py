"""Counts how many planted mistakes the diagnosis names rightly.

An explanation is tried at numbers that it was not found at: it must predict what the
wrong backward returns there, too, element by element within the judge's radius. Run as

    python scripts/studies/diagnosis.py float64 [layer_norm softmax ...]
"""

from __future__ import annotations

import collections
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gradwatch.harness.diagnosis.search import EACH, explanations
from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.judging.verdict import allowed, judge_tensors
from gradwatch.harness.selftest import mutants
from gradwatch.harness.selftest.examine import _result, _tensors
from gradwatch.harness.selftest.mutants import read_mistakes
from gradwatch.impls import catalogue
from gradwatch.impls.contract import Problem


@dataclass(frozen=True)
class Named:
    """The diagnosis of a wrong tensor.

    `place` is the rank of the first explanation that holds elsewhere, from 1; 0 if none
    does. `certain` says whether the first one claimed all elements.
    """

    op: str
    mistake: str
    tensor: str
    place: int
    certain: bool
    said: str
    seconds: float
    common: bool


def named(op_name: str, dtype: str, regime: str = "normal") -> Iterator[Named]:
    """The diagnoses of an op's mistakes that are caught with right shape and type."""
    op = catalogue.load_op(op_name)
    case = max(
        op.cases.values(), key=lambda c: sum(map(math.prod, op.shapes(c).values()))
    )
    here = trial(op, case, REGIMES[regime], dtype).problem
    there = trial(op, case, REGIMES[regime], dtype, seed=1).problem
    inputs = {
        n: there.inputs[n] if n in here.wanted else a for n, a in here.inputs.items()
    }
    there = replace(there, inputs=inputs)
    right, other = reference(here), reference(there)
    rows = read_mistakes().get(op_name, ())
    common = set(mutants.ANYWHERE)
    for mistake, manual in mutants.planted(op, rows):
        try:
            result = _result(here, manual)
            elsewhere = _tensors(_result(there, manual))
        except (TypeError, ValueError, IndexError):
            continue
        got = _tensors(result)
        judged = judge_tensors(right, got, result.dtypes)
        started = time.process_time()
        sweep, found = explanations(right, got, judged, steps=30 * EACH)
        spent = time.process_time() - started
        for tensor, said in found.items():
            yield Named(
                op_name,
                mistake,
                tensor,
                *_place(mistake, said, sweep, there, other, elsewhere, tensor),
                said[0].sentence if said else "",
                spent,
                mistake in common,
            )


def _place(
    mistake: str,
    said: Any,
    sweep: Any,
    there: Problem,
    other: Any,
    elsewhere: Any,
    tensor: str,
) -> tuple[int, bool]:
    leaves = {
        leaf: there.inputs[n].astype(leaf.dtype) for n, leaf in sweep.inputs.items()
    }
    dys = [dy for dy in there.cotangents if dy is not None]
    leaves |= {
        n: dy.astype(n.dtype) for n, dy in zip(sweep.cotangents, dys, strict=False)
    }
    new = {node: partial(lambda a, at: a, array) for node, array in leaves.items()}
    point = sweep.run(sweep.values, new)
    wrong = elsewhere[tensor].astype(other.wide)
    room = allowed(other, "first", tensor)
    last = other.limit * other.arithmetics[-1].step.roundoff
    certain = bool(said and said[0].certain)
    types = [t for t in ("float32", "float16", "bfloat16") if t in mistake]
    for place, one in enumerate(said[:3], 1):
        if "round" in one.words and any(t in one.words for t in types):
            return place, certain  # the roundings themselves need not be the same
        if one.predict is None:
            continue
        with np.errstate(all="ignore"):
            value = np.asarray(one.predict(point)[tensor])
            size = np.where(np.isfinite(value), np.abs(value), 0)
            near = np.abs(value - wrong) <= room + last * size
            near |= (
                (value == wrong) | (np.isnan(value) & np.isnan(wrong)) | np.isinf(room)
            )
        if near.all():
            return place, certain
    return 0, certain


def main() -> None:
    """Print every mistake without a right diagnosis, and the shares."""
    dtype, *ops = [a for a in sys.argv[1:] if a != "-v"] or ["float64"]
    total: collections.Counter[str] = collections.Counter()
    spent = []
    for op in ops or catalogue.op_names():
        mistakes: dict[str, list[Named]] = {}
        for one in named(op, dtype):
            mistakes.setdefault(one.mistake, []).append(one)
        for mistake, tensors in mistakes.items():
            spent.append(tensors[0].seconds)
            group = "common" if tensors[0].common else "own"
            first = all(t.place == 1 for t in tensors)
            if "-v" in sys.argv and first:
                print(f"OK     {op}: {mistake} -> {tensors[0].said}", flush=True)
            three = all(t.place for t in tensors)
            false = any(t.certain and t.place != 1 for t in tensors)
            total.update(
                [group, *[f"{group} first"] * first, *[f"{group} three"] * three]
            )
            total.update([f"{group} false"] * false)
            if not first:
                wrong = next(t for t in tensors if t.place != 1)
                mark = "FALSE" if false else "three" if three else "-"
                print(
                    f"{mark:6} {op}: {mistake} -> {wrong.tensor}: {wrong.said}",
                    flush=True,
                )
    for group in ("own", "common"):
        n = total[group] or 1
        print(
            group,
            n,
            *(
                f"{what} {total[f'{group} {what}'] / n:.1%}"
                for what in ("first", "three", "false")
            ),
        )
    print(f"median {np.median(spent):.3f} s, most {max(spent):.2f} s")


if __name__ == "__main__":
    main()
