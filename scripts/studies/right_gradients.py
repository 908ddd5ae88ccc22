"""Counts how often the judge accuses a right gradient: a random campaign.

    python -m scripts.studies.right_gradients SECONDS [--seed N] [--op OP] [--json FILE]

All ops in turn, four precisions, PyTorch's three dialects and NumPy's two, random axes
up to 1,025, every regime of values and more at the ends of the range, and cotangents
that are random, constant, sparse, and scaled by 1e6 and 1e-6. Beside them the honest
sums: one by one, from the last term, along the first axis, in blocks. Prints counts by
verdict and by op; every tensor that is rejected is listed. Exit code 1 if there is one
that is no known defect. Each problem has a number: with the op and the seed, `tried`
draws it again.

Left out are sums accumulated in 16 bits over more than 1 / u terms (2,048 in float16):
they are wrong, not right (257 * 64 ones sum up to 2,048). NumPy does so, and so does a
convolution that adds up in a loop over the places in its kernel.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

os.environ.setdefault("OMP_NUM_THREADS", "1")

from gradwatch.harness.judging import cases
from gradwatch.harness.judging.cases import REGIMES, Trial, admits, problem_with
from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.precisions import PRECISIONS, Precision
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.harness.workers.arrays import lay_out
from gradwatch.impls import catalogue
from gradwatch.impls.contract import Case, Op, Problem, Unsupported

Array = NDArray[Any]
Generator = np.random.Generator
BACKENDS = (
    *("torch_autograd", "torch_custom", "torch_formula"),
    *("numpy_manual", "numpy_graph"),
)
LENGTHS = (1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 33, 64, 100, 129, 257, 1023, 1025)
MOST, MOST_OUT = 20_000, 1_000_000  # elements of an input, and of an output
DTYPES = ("float64", "float32", "float32", "float16", "bfloat16")
LAYOUTS = ("contiguous", "permuted", "sliced", "negative")


def _finite(values: Array, precision: Precision) -> Array:
    return np.clip(values, -precision.largest, precision.largest)


def _near(power: float, low: float, high: float, end: str) -> Callable[..., Array]:
    """Values within some decades of a power of one end of the range."""

    def draw(rng: Generator, shape: tuple[int, ...], precision: Precision) -> Array:
        edge = getattr(precision, end) ** power
        scale = edge * 10.0 ** rng.uniform(low, high)
        return _finite(rng.standard_normal(shape) * scale, precision)

    return draw


def _binades(rng: Generator, shape: tuple[int, ...], precision: Precision) -> Array:
    powers = 2.0 ** rng.integers(-30, 30, shape)
    return _finite(rng.standard_normal(shape) * powers, precision)


VALUES: dict[str, Callable[..., Array]] = {
    **{name: regime.values for name, regime in REGIMES.items()},
    "near overflow": _near(1.0, -4, 0, "largest"),
    "near the root of overflow": _near(0.5, -1, 1, "largest"),
    "near underflow": _near(1.0, -2, 4, "smallest"),
    "near the root of underflow": _near(0.5, -1, 1, "smallest"),
    "binades": _binades,
}
#: An infinite weight says nothing: w x - w m is nan where w (x - m) is not.
ONLY_FIRST = {name for name, regime in REGIMES.items() if regime.first_only}
COTANGENTS: dict[str, Callable[[Generator, tuple[int, ...]], Array]] = {
    "normal": lambda rng, s: np.asarray(rng.standard_normal(s)),
    "ones": lambda rng, s: np.ones(s),
    "constant": lambda rng, s: np.full(s, 0.1),
    "equal": lambda rng, s: np.full(s, rng.standard_normal()),
    "sparse": lambda rng, s: rng.standard_normal(s) * (rng.random(s) < 0.1),
    "times 1e6": lambda rng, s: 1e6 * rng.standard_normal(s),
    "times 1e-6": lambda rng, s: 1e-6 * rng.standard_normal(s),
    "times 1e30": lambda rng, s: 1e30 * rng.standard_normal(s),
    "times 1e-30": lambda rng, s: 1e-30 * rng.standard_normal(s),
}
#: Known framework defects, and the problems in which they occur.
DEFECTS = known.load(known.DRAWN)
HONEST_SUM = "honest sum"  # in the place of a backend


@dataclass
class Campaign:
    """The counts of verdicts, and the rejected tensors."""

    verdicts: Counter[tuple[str, str]] = field(default_factory=Counter)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    not_run: Counter[tuple[str, str]] = field(default_factory=Counter)
    ops: Counter[str] = field(default_factory=Counter)

    def add(self, judgement: Judgement, **facts: Any) -> None:
        """Count one tensor."""
        self.verdicts[facts["dtype"], judgement.verdict] += 1
        summed = facts["backend"] == HONEST_SUM
        self.ops[HONEST_SUM if summed else facts["op"]] += 1
        self.kinds[judgement.radius_kind] += 1
        if not judgement.passes:
            self.rejected.append({**vars(judgement), **facts})


def drawn(rng: Generator, op: Op) -> tuple[Problem, dict[str, Any]]:
    """A random problem of an op, and a description of its choices."""
    case = list(op.cases.values())[rng.integers(len(op.cases))]
    case = _resized(rng, op, case)
    dtype, values, cotangent = (
        str(rng.choice(list(names))) for names in (DTYPES, VALUES, COTANGENTS)
    )
    precision = PRECISIONS[dtype]
    arrays = {}
    for i, (name, shape) in enumerate(op.shapes(case).items()):
        alike = not i or (rng.random() < 0.6 and values not in ONLY_FIRST)
        kind = values if alike else "normal"
        arrays[name] = VALUES[kind](rng, shape, precision)
    arrays |= op.draw_constants(case, rng)
    dys = [
        None if shape is None else _finite(COTANGENTS[cotangent](rng, shape), precision)
        for shape in cases.output_shapes(op, case)
    ]
    attributes = [f"{name}={value}" for name, value in op.attributes(case).items()]
    facts = {"op": op.name, "case": " ".join([case.name, *attributes]), "dtype": dtype}
    facts |= {"values": values, "cotangent": cotangent}
    return problem_with(op, case, arrays, dys, dtype), facts


def _resized(rng: Generator, op: Op, case: Case) -> Case:
    lengths = cases.lengths(op, case)
    if not lengths or rng.random() < 0.3:
        return case
    other = cases.resized(op, case, {n: int(rng.choice(LENGTHS)) for n in lengths})
    largest = max(int(np.prod(s)) for s in op.shapes(other).values())
    if largest > MOST or not admits(op, other):
        return case
    outputs = cases.output_shapes(op, other)
    return other if max(np.prod(s or ()) for s in outputs) <= MOST_OUT else case


def computed(
    problem: Problem, layout: str, longest: int, not_run: Counter[tuple[str, str]]
) -> Iterator[tuple[str, str, Any]]:
    """The name, version and result of each backend that runs the problem.

    `longest` is the number of terms of its longest sum; `not_run` counts failures.
    """
    lost = longest * PRECISIONS[problem.dtype].roundoff > 1  # in 16 bits alone
    loops = ("torch_custom",) if problem.op.group == "convolution" else ()
    negative = layout == "negative"  # which torch does not have
    for name in BACKENDS:
        if name.startswith("numpy") and problem.dtype == "bfloat16":
            continue
        if lost and (name.startswith("numpy") or name in loops):
            not_run[name, f"{problem.dtype} sum of more than 1 / u terms"] += 1
            continue
        backend = catalogue.load_backend(name)
        strided = "contiguous" if name.startswith("torch") and negative else layout
        try:
            step = backend.prepare(_laid_out(problem, strided))
            step.forward()
            step.backward()
            yield name, backend.version(), step.read()
        except (Unsupported, RuntimeError, TypeError, NotImplementedError) as error:
            not_run[name, f"{problem.op.name}: {str(error)[:60]}"] += 1


def _laid_out(problem: Problem, layout: str) -> Problem:
    cotangents = [None if a is None else lay_out(a, layout) for a in problem.cotangents]
    inputs = {n: lay_out(a, layout) for n, a in problem.inputs.items()}
    return replace(problem, inputs=inputs, cotangents=cotangents)


def honest_sums(rng: Generator) -> Iterator[tuple[Problem, str, Array]]:
    """The gradient of a bias, added up in four honest ways."""
    op = catalogue.load_op("add")
    dtype = str(rng.choice(["float64", "float32", "float16"]))
    n, m = int(rng.choice([129, 257, 1023, 1025, 4096, 65536])), int(rng.integers(1, 4))
    if dtype == "float16":
        n = min(n, 1025)
    kind = str(rng.choice(["normal", "constant", "equal", "ones", "sparse"]))
    dy = np.asarray(COTANGENTS[kind](rng, (n, m))).astype(dtype)
    case = Case("sum", a=(n, m), b=(m,))
    values = {"a": rng.standard_normal((n, m)), "b": rng.standard_normal(m)}
    problem = problem_with(op, case, values, [dy], dtype)
    block = int(rng.choice([4, 8, 16, 32, 128]))
    parts = [np.add.accumulate(dy[i::block])[-1] for i in range(block)]
    ways = {
        "one by one": np.add.accumulate(dy)[-1],
        "from the last": np.add.accumulate(dy[::-1])[-1],
        "sum(0)": dy.sum(0),
        "lanes": np.add.accumulate(np.stack(parts))[-1],
        "blocks": np.add.accumulate(
            [np.add.accumulate(dy[i : i + block])[-1] for i in range(0, n, block)]
        )[-1],
    }
    for way, db in ways.items():
        yield problem, f"{way}, {n} {kind}", np.asarray(db, dtype=dtype)


def tried(campaign: Campaign, op: Op, seed: int, number: int) -> None:
    """Judge all backends' results of the problem of that number."""
    rng = np.random.default_rng([seed, number])
    problem, facts = drawn(rng, op)
    right = reference(problem)
    facts |= {"longest": right.longest, "seed": seed, "number": number, "known": False}
    facts["layout"] = layout = str(rng.choice(LAYOUTS))
    trial = Trial(op.name, facts["case"], facts["values"], problem, layout)
    results = computed(problem, layout, right.longest, campaign.not_run)
    for name, version, result in results:
        for j in judge_tensors(right, result.tensors, result.dtypes):
            facts["known"] = not j.passes and is_known(trial, name, version, j)
            campaign.add(j, backend=name, version=version, **facts)
    if rng.random() < 0.1:
        facts |= {"backend": HONEST_SUM, "known": False}
        for problem, way, db in honest_sums(rng):
            right, dtype = reference(problem), problem.dtype
            facts |= {"case": way, "dtype": dtype, "longest": right.longest}
            (j,) = judge_tensors(right, {"db": db}, {"db": dtype})
            campaign.add(j, **facts)


def is_known(trial: Trial, backend: str, version: str, j: Judgement) -> bool:
    """Whether a rejected tensor is a known defect of drawn problems."""
    return any(
        one.names(trial, backend, version, j.tensor) and j.verdict in one.verdicts
        for one in DEFECTS
    )


def run(seconds: float, seed: int, names: Sequence[str]) -> Campaign:
    """Judge right gradients of these ops in turn, for some seconds."""
    campaign = Campaign()
    end = time.monotonic() + seconds
    for number, name in enumerate(itertools.cycle(names)):
        if time.monotonic() >= end:
            break
        tried(campaign, catalogue.load_op(name), seed, number)
    return campaign


@click.command()
@click.argument("seconds", type=float, default=240.0)
@click.option("--seed", default=0)
@click.option("--op", "ops", multiple=True, help="By default all ops in turn.")
@click.option("--json", "file", type=click.Path(path_type=Path))
def main(
    seconds: float,
    seed: int,
    ops: tuple[str, ...],
    file: Path | None,
) -> None:
    """Print the counts by precision and verdict, and the rejected tensors."""
    warnings.filterwarnings("ignore")
    with np.errstate(all="ignore"):
        campaign = run(seconds, seed, ops or catalogue.op_names())
    counts = campaign.verdicts
    for dtype in PRECISIONS:
        row = {verdict: n for (d, verdict), n in counts.items() if d == dtype}
        shares = ", ".join(f"{v} {n / sum(row.values()):.2%}" for v, n in row.items())
        click.echo(f"{dtype}: {sum(row.values())} tensors, {shares}")
    click.echo(f"radius: {dict(campaign.kinds)}")
    click.echo(f"ops: {dict(campaign.ops)}")
    for (backend, why), n in sorted(campaign.not_run.items()):
        click.echo(f"not run: {backend}, {why} ({n})")
    new = [record for record in campaign.rejected if not record["known"]]
    click.echo(f"{sum(counts.values())} tensors, {len(campaign.rejected)} rejected")
    click.echo(f"{len(new)} of these are no known defect")
    for record in new[:40]:
        names = ("op", "case", "dtype", "backend", "values", "cotangent")
        shown = [record.get(name, "") for name in names]
        click.echo(f"{record['verdict']} {shown} {record['message']}")
    if file:
        lines = [f"{d}|{v}" for d, v in counts]
        document = {"counts": dict(zip(lines, counts.values(), strict=True))}
        document["ops"] = dict(campaign.ops)
        file.write_text(json.dumps({**document, "rejected": campaign.rejected}))
    sys.exit(1 if new else 0)


if __name__ == "__main__":
    main()
