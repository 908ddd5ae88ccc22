"""An invented results folder, as large as a year of use makes it.

Ops and backends are the catalogue's; figures are drawn, with steps planted in the
history. Whatever a test says of the page it can hold against what was invented here.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradwatch.harness.judging.cases import REGIMES, case_name
from gradwatch.harness.project import documents
from gradwatch.impls.catalogue import backend_names, framework_of, op_names

MACHINE = "invented-8core"
VERSIONS = {"numpy": "2.4.6", "torch": "2.13.0", "oneflow": "0.9.0"}
SIZES = {"1024": 8 << 10, "65536": 512 << 10, "1048576": 8 << 20}  # bytes moved
STEP = 60  # the commit from which on PLANTED takes 1.4 times as long
PLANTED = ("softmax", "torch_custom")
COMMITS = 90  # of the site that a browser looks at
FEW = ("add", "max_pool2d", "mul", "softmax")  # what most claims need of the ops
BEGAN = 1_760_000_000  # seconds: the first commit's date


def commit(number: int) -> str:
    """The hash of an invented commit."""
    return hashlib.sha1(f"commit {number}".encode()).hexdigest()


def environment(number: int, machine: str = MACHINE) -> dict[str, Any]:
    """Of a run at a commit."""
    day = f"2026-10-{1 + number // 24:02d}T{number % 24:02d}:00:00+00:00"
    return {
        "machine": machine,
        "cpu": "Invented 9000",
        "cores": 8,
        "system": "Linux",
        "python": "3.11.9",
        "commit": commit(number),
        "dirty": False,
        "date": day,
    }


def agree_record(op: str, backend: str, **fields: Any) -> dict[str, Any]:
    """A record of the agreement suite; right unless the fields say otherwise."""
    regime, dtype = fields.get("regime", "normal"), fields.get("dtype", "float32")
    return {
        "op": op,
        "case": case_name(op, regime, "3x8", dtype),
        "regime": regime,
        "backend": backend,
        "framework": framework_of(backend),
        "framework_version": VERSIONS.get(framework_of(backend), "1.0"),
        "device": "cpu",
        "dtype": dtype,
        "tensor": "dx",
        "verdict": "agree",
        "expected_verdict": "agree",
        "ratio": 1.5,
        "limit": 17.0,
        "radius": 1e-8,
        "got": 1.0,
        "expected": 1.0,
        "worst_index": [0],
        "vacuous": 0.0,
        "convention": "",
        "message": "dx[0]: close enough",
        **fields,
    }


def time_record(op: str, backend: str, **fields: Any) -> dict[str, Any]:
    """A record of `gradwatch time`."""
    seconds = fields.get("seconds", 1e-5)
    return {
        "op": op,
        "case": "65536",
        "backend": backend,
        "device": "cpu",
        "framework": framework_of(backend),
        "dtype": "float32",
        "phase": "backward",
        "seconds": seconds,
        "low": 0.99 * seconds,
        "high": 1.02 * seconds,
        "samples": [seconds] * 9,
        "taken": 900,
        "bytes": 512 << 10,
        "flops": 65536,
        "doubts": [],
        **fields,
    }


def write_document(
    file: Path, made: list[dict[str, Any]], about: dict[str, Any], **summary: Any
) -> None:
    """A document as every command writes it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    documents.write(documents.document(made, summary, about), file)


def write_agree(folder: Path, number: int, name: str = "latest/agree.json") -> None:
    """Every op on every backend; one wrong, one not installed nowhere."""
    draw = random.Random(number)
    made = [
        agree_record(op, backend, regime=regime, dtype=dtype, ratio=draw.random() * 9)
        for op in op_names()
        for backend in backend_names()
        for regime in REGIMES
        for dtype in ("float32", "float64")
    ]
    wrong = agree_record("softmax", "oneflow_autograd", verdict="disagree", ratio=4e5)
    wrong["message"] = "dx[0]: got 1.0, expected 2.0 <b>& more</b>"
    made.append(wrong)
    names = backend_names()
    pairs = {a: {b: draw.random() for b in names if b > a} for a in names}
    every = dict.fromkeys(op_names(), pairs)
    write_document(folder / name, made, environment(number), missing={}, pairs=every)


def write_time(folder: Path, number: int, ops: Sequence[str] = ()) -> None:
    """`ops`, or all, on every backend at three sizes, both passes."""
    draw = random.Random(number)
    made = [
        time_record(
            op,
            backend,
            case=size,
            phase=phase,
            bytes=moved,
            seconds=(2e-6 + moved / 5e9) * (1 + draw.random() * (1 + i)),
        )
        for op in ops or op_names()
        for i, backend in enumerate(backend_names())
        for size, moved in SIZES.items()
        for phase in ("forward", "backward")
    ]
    file = folder / "latest" / "time.json"
    write_document(file, made, environment(number), untimed={})
    ratio = {
        "a": "torch_autograd",
        "b": "torch_custom",
        "op": "softmax",
        "case": "65536",
        "backend": "",
        "device": "cpu",
        "dtype": "float32",
        "phase": "backward",
        "ratio": 1.31,
        "low": 1.28,
        "high": 1.34,
        "verdict": "slower",
        "pairs": 1,
        "a_seconds": 1e-4,
        "b_seconds": 1.31e-4,
    }
    other = {**ratio, "phase": "forward", "ratio": 0.91, "low": 0.9, "high": 0.92}
    ratios = [ratio, {**other, "verdict": "faster"}]
    write_document(folder / "latest" / "compare.json", ratios, environment(number))


def write_history(
    folder: Path, commits: int, machine: str = MACHINE, ops: Sequence[str] = ()
) -> None:
    """As asv keeps it: a file a commit, with times and worst ratios of `ops`, or all.

    The dashboard looks for steps in each series of it, which takes its time.
    """
    place = folder / "asv" / machine
    place.mkdir(parents=True)
    about = {"machine": machine, "arch": "x86_64", "cpu": "Invented", "num_cpu": "8"}
    _dump(place / "machine.json", {**about, "version": 1})
    listed = folder / "asv" / "benchmarks.json"
    benchmarks = _benchmarks(ops or op_names())
    _dump(listed, {**benchmarks, "version": 2})
    for number in range(commits):
        name = f"{commit(number)[:8]}-prebuilt-py3.11.json"
        _dump(place / name, _result(number, machine, benchmarks))


def write_finding(folder: Path, op: str = "softmax") -> None:
    """What the fuzzer leaves behind."""
    place = folder / "findings"
    place.mkdir(parents=True, exist_ok=True)
    name = f"{op}-oneflow-disagree"
    wrong = agree_record(op, "oneflow_autograd", verdict="disagree")
    about = {"op": op, "backend": "oneflow_autograd", "verdict": "disagree"}
    about |= {"id": f"{name}-backward", "place": "backward", "record": wrong}
    about |= {"script": f"{name}.py"}
    listed = place / "index.json"
    content = {"schema": 1, "environment": {}, "summary": {}, "records": []}
    if listed.exists():
        content = json.loads(listed.read_text())
    content["records"].append(about)
    _dump(listed, content)
    script = '"""Wrong. <script>bad()</script>"""\nprint(1)\n'
    (place / f"{name}.py").write_text(script)


def _dump(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")


_METRICS = {
    "bench_speed": {"time_forward": "seconds", "time_backward": "seconds"},
    "bench_accuracy": {"track_gradient_ratio": "radii"},
}


def _benchmarks(ops: Sequence[str]) -> dict[str, Any]:
    return {
        f"{suite}.{op}.{metric}": {
            "name": f"{suite}.{op}.{metric}",
            "unit": unit,
            "params": _params(suite),
            "param_names": ["size", "dtype", "device", "backend"][
                -len(_params(suite)) :
            ],
        }
        for suite, metrics in _METRICS.items()
        for metric, unit in metrics.items()
        for op in ops
    }


def _params(suite: str) -> list[list[str]]:
    sizes = [["'65536'"]] if suite == "bench_speed" else []
    return [*sizes, ["'float32'"], ["'cpu'"], [repr(b) for b in backend_names()]]


def _result(number: int, machine: str, benchmarks: dict[str, Any]) -> dict[str, Any]:
    draw = random.Random(number)
    columns = ["result", "params", "stats_ci_99_a", "stats_ci_99_b", "stats_repeat"]
    results = {}
    for name, about in benchmarks.items():
        op = name.split(".")[1]
        values = [
            _level(name, op, point[-1].strip("'"), number) * draw.gauss(1, 0.01)
            for point in itertools.product(*about["params"])
        ]
        low, high = ([f * v for v in values] for f in (0.985, 1.015))
        results[name] = [values, about["params"], low, high, [200] * len(values)]
    return {
        "commit_hash": commit(number),
        "env_name": "prebuilt-py3.11",
        "date": (BEGAN + 7200 * number) * 1000,
        "params": {"machine": machine},
        "requirements": {"numpy": "2.4.6"},
        "python": "3.11",
        "version": 2,
        "result_columns": columns,
        "results": results,
    }


def _level(name: str, op: str, backend: str, number: int) -> float:
    if "ratio" in name:
        return 0.0 if op == "add" else 1.5  # a sum of two is exact
    grown = (op, backend) == PLANTED and "backward" in name and number >= STEP
    level = 1e-5 * (1 + list(backend_names()).index(backend))
    return level * (1.4 if grown else 1.0)
