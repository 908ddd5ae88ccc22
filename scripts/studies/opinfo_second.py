"""PyTorch's second derivatives and forward mode on trial: OpInfo once more, in float64.

    python scripts/studies/opinfo_second.py results/opinfo/second.json [--only NAME,...]
    python scripts/studies/opinfo_second.py results/opinfo/second.json --table

Each entry that says it supports gradgrad (and forward AD) is traced, and what PyTorch
computes for its first samples is judged. Where something is wrong, PyTorch's own
checks are asked on the same sample. `--table` prints what is wrong, for
docs/second-order.md; the scripts in results/pytorch say why.
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import json
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gradwatch.harness.check.frameworks.runs import differentiated
from gradwatch.harness.judging.orders import Function
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.judging.reference import Reference, reference_of_graph, wider
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.harness.project import documents
from gradwatch.harness.project.markdown import table
from gradwatch.harness.project.verdicts import PASSING
from gradwatch.harness.tracing import Untraceable, trace
from gradwatch.impls.backends._torchlike import refusals
from gradwatch.impls.contract import Unsupported

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.studies.opinfo import (  # scripts is no installed package
    ELEMENTS,
    FINDINGS,
    ROOT,
    Late,
    NothingToJudge,
    _elements,
    _run_on_copies,
    as_function,
    drawn,
    entries,
    marked,
    numbers,
)

SAMPLES = 2
KEPT = ("tensor", "verdict", "ratio", "got", "expected", "message")
SECONDS = 20  # of processor time for an entry: a night has 550 of them
Record = dict[str, Any]


class Trial:
    """One sample: its function, cotangents and tangents, and the traced graph."""

    def __init__(self, function: Any, tensors: list[Any], wanted: list[bool]) -> None:
        # A view of a larger tensor would be read outside of it by as_strided.
        tensors = [t.clone() for t in tensors]
        self.function, self.tensors, self.wanted = function, tensors, wanted
        pairs = zip(tensors, wanted, strict=True)
        outputs = _run_on_copies(
            function, [t.clone().requires_grad_(w) for t, w in pairs]
        )
        draw = torch.Generator().manual_seed(0)
        self.cotangents = [drawn(y, draw) if y.requires_grad else None for y in outputs]
        if all(dy is None for dy in self.cotangents):
            raise NothingToJudge("no gradient")
        self.tangents = [
            drawn(t, draw) if w else None for t, w in zip(tensors, wanted, strict=True)
        ]
        # Of a function that casts, the narrowest type says how exact it can be.
        kinds = [str(t.real.dtype).removeprefix("torch.") for t in (*tensors, *outputs)]
        known = [name for name in ("float64", *kinds) if name in PRECISIONS]
        self.dtype = max(known, key=lambda name: PRECISIONS[name].roundoff)
        self.traced = trace(function, marked(tensors, wanted))

    def names(self, order: str) -> list[str]:
        """Those of what `differentiated` returns."""
        made = zip(self.traced.results, self.cotangents, strict=False)
        outputs = [n for n, dy in made if dy is not None]
        if order == "jvp":
            return [f"jvp.{n}" for n in outputs]
        wanted = zip(self.traced.names, self.wanted, strict=True)
        names = [n for n, w in wanted if w] + [f"d{n}" for n in outputs]
        return [f"hvp.d{n}" for n in names]

    def reference(self, order: str) -> Reference:
        """What is right."""
        wide = wider(PRECISIONS[self.dtype])
        named = zip(self.traced.results, self.cotangents, strict=False)
        dy = {n: numbers(c) for n, c in named if c is not None}
        pairs = zip(self.traced.names, self.tangents, strict=True)
        along = {n: numbers(v) for n, v in pairs if v is not None}

        def build() -> Mapping[str, Any]:
            made = self.traced.graph(wide)
            outputs = {n: made.outputs[n] for n in dy}
            inputs = {n: made.leaves[n] for n in along}
            return Function(outputs, inputs, dy, along).derivatives(order).nodes

        def outputs() -> Mapping[str, Any]:
            return self.traced.graph(wide).outputs

        return reference_of_graph(build, self.dtype, None, outputs)

    def judged(self, order: str) -> list[Any]:
        """Verdicts on what PyTorch computes."""
        given = (self.tensors, self.wanted, self.cotangents, self.tangents)
        with refusals():
            found = differentiated(order, self.function, *given)
        got = dict(zip(self.names(order), map(numbers, found), strict=True))
        right = self.reference(order)
        dtypes = dict.fromkeys(got, self.dtype)
        return list(judge_tensors(right, got, dtypes, dtype=self.dtype))

    def pytorchs(self, order: str, *, fast: bool) -> str:
        """The words of PyTorch's own check for an order; "" where it passes."""
        pairs = zip(self.tensors, self.wanted, strict=True)
        inputs = [t.clone().requires_grad_(w) for t, w in pairs]
        asked = CHECKS[order]
        try:
            asked(self.function, inputs, fast_mode=fast)
        except Late:
            raise
        except Exception as error:  # noqa: BLE001  # it raises what it likes
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
    """The verdicts on an entry, and why what was not judged was not."""
    orders = ["hvp", *(["jvp"] if entry.supports_forward_ad else [])]
    record: Record = {"name": entry.formatted_name, "orders": orders}
    record |= {"judged": [], "not": [], "checks": {}}
    torch.manual_seed(0)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        made = entry.sample_inputs("cpu", torch.float64, requires_grad=True)
        small = (s for s in made if 0 < _elements(s) <= ELEMENTS)
        for i, sample in enumerate(itertools.islice(small, SAMPLES)):
            _add(record, entry, sample, i)
    except Late:
        record["not"].append(f"over {SECONDS} s of processor")
    except Exception as error:  # noqa: BLE001  # PyTorch's makers of samples fail too
        record["not"].append(f"{type(error).__name__}: {error}"[:160])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return record


def _add(record: Record, entry: Any, sample: Any, i: int) -> None:
    try:
        trial = Trial(*as_function(entry, sample))
    except Untraceable as no:
        record["not"].append(f"{no.op}: {no.why}"[:160])
        return
    except NothingToJudge as no:
        record["not"].append(str(no))
        return
    for order in record["orders"]:
        try:
            judgements = trial.judged(order)
        except Unsupported as words:
            record["not"].append(f"{order}: {words}"[:160])
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


@functools.cache
def causes() -> dict[str, Path]:
    """The script that shows why an entry is wrong; its SECOND lists the entries."""
    return {
        name: script
        for script in sorted(FINDINGS.rglob("*.py"))
        for node in ast.parse(script.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SECOND"
        for name in ast.literal_eval(node.value)
    }


def wrong_rows(records: Sequence[Record]) -> str:
    """A table of the entries that are wrong: the worst of each order."""
    rows = []
    for record in sorted((r for r in records if _wrong(r)), key=lambda r: r["name"]):
        script = causes().get(record["name"])
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
    """What is wrong in words, in radii, and relative to the right value."""
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


def _write(file: Path, records: Sequence[Record]) -> None:
    content = {"summary": summary(records), "records": records}
    documents.replace_file(file, documents.dumps(content))


def _late(*_: object) -> None:
    raise Late


def summary(records: Sequence[Record]) -> Record:
    """Counts of entries and tensors."""
    verdicts = Counter((j["order"], j["verdict"]) for r in records for j in r["judged"])
    wrong = [r for r in records if _wrong(r)]
    return {
        "entries": len(records),
        "judged": sum(_has(r, "hvp") for r in records),
        "forward": sum("jvp" in r["orders"] for r in records),
        "forward_judged": sum(_has(r, "jvp") for r in records),
        "verdicts": {f"{o} {v}": n for (o, v), n in sorted(verdicts.items())},
        "wrong": sorted(r["name"] for r in wrong),
        "without a cause": sorted({r["name"] for r in wrong} - {*causes()}),
        "missed by fast": sum(_passed(r, "fast") for r in wrong),
        "missed by slow": sum(_passed(r, "slow") for r in wrong),
    }


def _has(record: Record, order: str) -> bool:
    return any(j["order"] == order for j in record["judged"])


def _passed(record: Record, mode: str) -> bool:
    return not any(w for n, w in record["checks"].items() if n.endswith(mode))


def _wrong(record: Record) -> bool:
    return any(j["verdict"] not in PASSING for j in record["judged"])


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge, and write the document after each entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--share", default="0/1", help="such as 1/2: every second")
    parser.add_argument("--seconds", type=float, default=1e9, help="to stop after")
    parser.add_argument("--table", action="store_true", help="of what is wrong")
    asked = parser.parse_args(arguments)
    if asked.table:
        print(wrong_rows(json.loads(asked.file.read_text())["records"]))
        return
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGPROF, _late)
    before = (
        json.loads(asked.file.read_text())["records"] if asked.file.exists() else []
    )
    records: list[Record] = list(before)
    done = {r["name"] for r in records}
    only, started = set(filter(None, asked.only.split(","))), time.monotonic()
    chosen: Callable[[Any], bool] = lambda e: (  # noqa: E731  # one condition, named
        e.supports_gradgrad
        and e.formatted_name not in done
        and (not only or e.formatted_name in only)
    )
    turn, shares = map(int, asked.share.split("/"))
    every = list(entries(torch.float64))[turn::shares]
    for entry in filter(chosen, every):
        if time.monotonic() - started > asked.seconds:
            break
        records.append(one_entry(entry))
        if len(records) % 20 == 0:
            _write(asked.file, records)
    _write(asked.file, records)
    print(json.dumps(summary(records), indent=1))


if __name__ == "__main__":
    main()
