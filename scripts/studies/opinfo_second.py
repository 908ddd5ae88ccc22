"""Judges PyTorch's second derivatives and forward mode on OpInfo, in float64.

    python -m scripts.studies.opinfo_second results/opinfo/second.json [--only NAME,...]
    python -m scripts.studies.opinfo_second results/opinfo/second.json --table

Each entry that declares support of gradgrad (and forward AD) is traced, and PyTorch's
results for its first samples are judged. Where one is wrong, PyTorch's own checks run
on the same sample. `--table` prints the wrong ones, for docs/second-order.md; the
scripts in results/pytorch show why.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradwatch.harness.check.frameworks.runs import differentiated
from gradwatch.harness.judging.orders import derivatives
from gradwatch.harness.judging.reference import Asked, Reference
from gradwatch.harness.project.markdown import table
from gradwatch.harness.project.verdicts import PASSING
from gradwatch.impls.backends._torchlike import refusals
from gradwatch.impls.contract import Unsupported
from scripts.studies import opinfo
from scripts.studies.opinfo import (
    ROOT,
    Late,
    as_function,
    drawn,
    judged,
    listed,
    numbers,
    options,
    reason,
    recorded,
    try_samples,
)

SAMPLES = 2
KEPT = ("tensor", "verdict", "ratio", "got", "expected", "message")
SECONDS = 20  # of processor time for an entry: a night has 550 of them
Record = dict[str, Any]


class Trial(opinfo.Trial):
    """One sample, differentiated twice along its tangents."""

    def __init__(self, function: Any, tensors: list[Any], wanted: list[bool]) -> None:
        # as_strided could read outside of a view of a larger tensor: clone it.
        super().__init__(function, [t.clone() for t in tensors], wanted, "float64")
        draw, pairs = (
            torch.Generator().manual_seed(1),
            zip(tensors, wanted, strict=True),
        )
        self.tangents = [drawn(t, draw) if w else None for t, w in pairs]

    def names(self, order: str) -> list[str]:
        """The names of the tensors that `differentiated` returns."""
        if order == "jvp":
            return [f"jvp.{n}" for n in self.cotangents]
        return [
            f"hvp.{n}" for n in (*self.gradients, *(f"dd{n}" for n in self.outputs))
        ]

    def reference_of(self, order: str) -> Reference:
        """The reference of an order."""
        dy = {n: numbers(c) for n, c in self.cotangents.items()}
        tangents = (numbers(v) for v in self.tangents if v is not None)
        names = (name[1:] for name in self.gradients)
        along = dict(zip(names, tangents, strict=True))

        def build(wide: np.dtype[Any]) -> Mapping[str, Any]:
            made = self.traced.graph(wide)
            outputs = {n: made.outputs[n] for n in dy}
            inputs = {n: made.leaves[n] for n in along}
            return derivatives(order, outputs, inputs, dy, along)[0]

        def outputs(wide: np.dtype[Any]) -> Mapping[str, Any]:
            return self.traced.graph(wide).outputs

        return Reference(Asked(build, self.dtype, None, outputs))

    def judged(self, order: str) -> list[Any]:
        """The verdicts on PyTorch's results."""
        dys = [self.cotangents.get(n) for n in self.results]
        given = (self.tensors, self.wanted, dys, self.tangents)
        with refusals():
            found = differentiated(order, self.function, *given)
        got = dict(zip(self.names(order), map(numbers, found), strict=True))
        right = self.reference_of(order)
        return list(judged(self, right, got))

    def pytorchs(self, order: str, *, fast: bool) -> str:
        """The message of PyTorch's own check of an order; "" where it passes."""
        pairs = zip(self.tensors, self.wanted, strict=True)
        inputs = [t.clone().requires_grad_(w) for t, w in pairs]
        asked = CHECKS[order]
        try:
            asked(self.function, inputs, fast_mode=fast)
        except Late:
            raise
        except Exception as error:  # noqa: BLE001  # it may raise anything
            return str(error).strip().partition("\n")[0][:200] or type(error).__name__
        return ""


#: PyTorch's own check of each order.
CHECKS: dict[str, Callable[..., bool]] = {
    "hvp": torch.autograd.gradgradcheck,
    "jvp": functools.partial(
        torch.autograd.gradcheck, check_forward_ad=True, check_backward_ad=False
    ),
}


def one_entry(entry: Any) -> Record:
    """The verdicts on an entry, and the reasons why some samples were not judged."""
    supported = {"hvp": entry.supports_gradgrad, "jvp": entry.supports_forward_ad}
    orders = [order for order in supported if supported["hvp"] and supported[order]]
    record: Record = {"name": entry.formatted_name, "orders": orders}
    record |= {"judged": [], "not": [], "checks": {}}

    def judge(i: int, sample: Any) -> None:
        trial = Trial(*as_function(entry, sample))
        for order in orders:
            try:
                judgements = trial.judged(order)
            except Unsupported as words:
                record["not"].append(reason(i, "no rule", order, str(words)[:160]))
                continue
            kept = [
                {"sample": i, "order": order, **{n: getattr(j, n) for n in KEPT}}
                for j in judgements
            ]
            record["judged"] += kept
            if any(j["verdict"] not in PASSING for j in kept):
                for mode in ("fast", "slow"):
                    words = trial.pytorchs(order, fast=mode == "fast")
                    record["checks"].setdefault(f"{order} {mode}", words)

    count = SAMPLES if orders else 0
    record["not"] += try_samples(entry, "float64", count, SECONDS, judge, least=1)
    return record


def wrong_rows(records: Sequence[Record]) -> str:
    """A table of the entries that are wrong: the worst of each order."""
    rows = []
    for record in sorted((r for r in records if _wrong(r)), key=lambda r: r["name"]):
        script = listed("SECOND").get(record["name"])
        place = script.relative_to(ROOT) if script else ""
        for order in ("hvp", "jvp"):
            bad = [
                j
                for j in record["judged"]
                if j["order"] == order and j["verdict"] not in PASSING
            ]
            if bad:
                says = [
                    "fails" if record["checks"][f"{order} {mode}"] else "passes"
                    for mode in ("fast", "slow")
                ]
                cause = f"[{script.stem}](../{place})" if script else "not traced"
                worst = max(bad, key=_badness)
                rows.append([f"`{record['name']}`", order, *_size(worst), *says, cause])
    head = ["entry", "order", "what is wrong", "radii", "relative error"]
    return table([*head, "PyTorch's check, fast", "slow", "cause"], rows)


def _badness(judgement: Record) -> tuple[bool, float]:
    ratio = judgement["ratio"]  # None in a document where nothing was compared
    return judgement["verdict"] != "disagree", -1.0 if ratio is None else ratio


def _size(judgement: Record) -> list[str]:
    """The error of a tensor in a phrase, in radii, and relative to the right value."""
    name = judgement["tensor"]
    if judgement["verdict"] == "malformed":
        return [f"{name} is None: silently a constant", "", ""]
    got, right, ratio = (
        float("nan" if judgement[n] is None else judgement[n])
        for n in ("got", "expected", "ratio")
    )
    radii = f"{ratio:.3g}" if np.isfinite(ratio) else "no rounding"
    off = f"{abs(got - right) / abs(right):.2g}" if right and np.isfinite(got) else ""
    return [f"{name}: {got:.3g} in place of {right:.3g}", radii, off]


def summary(records: Sequence[Record]) -> Record:
    """The counts of entries and tensors."""
    verdicts = Counter((j["order"], j["verdict"]) for r in records for j in r["judged"])
    wrong = [r for r in records if _wrong(r)]
    records = [r for r in records if r["orders"]]
    return {
        "entries": len(records),
        "judged": sum(_has(r, "hvp") for r in records),
        "forward": sum("jvp" in r["orders"] for r in records),
        "forward_judged": sum(_has(r, "jvp") for r in records),
        "verdicts": {f"{o} {v}": n for (o, v), n in sorted(verdicts.items())},
        "wrong": sorted(r["name"] for r in wrong),
        "without a cause": sorted({r["name"] for r in wrong} - {*listed("SECOND")}),
        "missed by fast": sum(_passed(r, "fast") for r in wrong),
        "missed by slow": sum(_passed(r, "slow") for r in wrong),
    }


def _has(record: Record, order: str) -> bool:
    return any(j["order"] == order for j in record["judged"])


def _passed(record: Record, mode: str) -> bool:
    return not any(w for n, w in record["checks"].items() if n.endswith(mode))


def _wrong(record: Record) -> bool:
    return any(j["verdict"] not in PASSING for j in record["judged"])


def main() -> None:
    """Judge, and write the records after each entry."""
    parser = options(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--table", action="store_true", help="of what is wrong")
    asked = parser.parse_args()
    if asked.table:
        print(wrong_rows(json.loads(asked.file.read_text())))
        return
    records = recorded(asked.file, "float64", asked.share, asked.only, one_entry)
    print(json.dumps(summary(records), indent=1))


if __name__ == "__main__":
    main()
