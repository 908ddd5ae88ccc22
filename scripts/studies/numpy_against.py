"""Hand-written NumPy backwards beside PyTorch's and HIPS/autograd's, on one thread.

    python scripts/studies/numpy_against.py --seconds 2

Each op whose largest size has 1,048,576 elements, in float32. HIPS/autograd
differentiates the formula on the op's page; only its backward sweep is timed, as is
only that of the others. All three are timed in turn in this process, call by call, so
that a busy machine slows them alike. Their gradients are judged first, and what is
wrong is not timed. A ratio below 1 means that NumPy is the faster one.

In turn with them runs what NumPy needs at least for an elementwise backward: one
product into a fresh array for each gradient. Where HIPS/autograd needs hardly more than
that, nothing can be twice as fast.
"""

import math
import os
from collections.abc import Callable, Sequence

os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy's BLAS is loaded

import autograd.numpy as anp
import click
import numpy as np
from autograd.core import VJPNode, add_outgrads
from autograd.scipy.special import expit
from autograd.tracer import getval, new_box, toposort, trace_stack
from rich.table import Table

from gradwatch.harness import assert_agrees
from gradwatch.harness.console.terminal import output
from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.project import documents as recording
from gradwatch.harness.timing.interleave import interleave
from gradwatch.harness.timing.memory import copy_bandwidth, page_aligned
from gradwatch.harness.timing.samples import Samples, paired
from gradwatch.harness.timing.steps import aligned
from gradwatch.harness.timing.work import work
from gradwatch.harness.workers.allocator import pin_malloc
from gradwatch.impls.catalogue import load_backend, load_op, op_names
from gradwatch.impls.contract import Array, Op, Problem, as_tuple

ELEMENTS = 1 << 20
PEERS = ("torch_autograd", "HIPS/autograd")
FLOOR = "one pass each"

#: Issue 6: at most three times PyTorch's time, and at most half of HIPS/autograd's.
TARGETS = {"torch_autograd": 3.0, "HIPS/autograd": 0.5}


class ArrayNames:
    """The array API's names over autograd.numpy, as far as formulas use them.

    Two of them go by Python's numbers: HIPS/autograd's own rules multiply by NumPy's,
    which makes float64 of a float32 cotangent and would cost it twice the memory. Its
    rule for max does so too, and is left as it is.
    """

    sigmoid = staticmethod(expit)
    stop_gradient = staticmethod(getval)

    def __getattr__(self, name: str) -> object:
        return getattr(anp, name)

    def exp2(self, x: Array) -> Array:
        """By the exponential function."""
        return anp.exp(x * math.log(2))

    def mean(self, x: Array, *, axis: int | tuple[int, ...], keepdims: bool = False):
        """The sum over the number of elements in it."""
        total = anp.sum(x, axis=axis, keepdims=keepdims)
        return total / (x.size // total.size)


class Ends:
    """The outputs together, as the one node at which a sweep begins."""

    def __init__(self, nodes: Sequence[VJPNode]) -> None:
        self.parents = nodes


def hips(problem: Problem) -> Callable[[], list[Array]]:
    """Trace the formula with HIPS/autograd; returns the sweep back from its outputs.

    `autograd.make_vjp` takes one argument. Several in a tuple would cost a sum of
    zeros for each, so the sweep here is its loop with several leaves.
    """
    roots = {name: VJPNode.new_root() for name in problem.wanted}
    with trace_stack.new_trace() as trace:
        boxes = {
            name: new_box(array, trace, roots[name]) if name in roots else array
            for name, array in problem.inputs.items()
        }
        said = problem.op.said("formula")
        arguments = problem.arguments(boxes)
        results = as_tuple(said(ArrayNames(), *arguments, **problem.attributes))
    begins = [
        (result._node, dy)
        for result, dy in zip(results, problem.cotangents, strict=False)
        if dy is not None
    ]
    _, *order = toposort(Ends([node for node, _ in begins]))

    def backward() -> list[Array]:
        reached = {node: (dy, False) for node, dy in begins}
        for node in order:
            parts = node.vjp(reached[node][0])
            for parent, part in zip(node.parents, parts, strict=True):
                reached[parent] = add_outgrads(reached.get(parent), part)
        return [reached[root][0] for root in roots.values()]

    return backward


def largest(op: Op) -> Problem | None:
    """Its largest size in float32, on pages, where that has the elements."""
    case = list(op.sizes.values())[-1]
    if max(int(np.prod(shape)) for shape in op.shapes(case).values()) != ELEMENTS:
        return None
    return aligned(trial(op, case, REGIMES["normal"], "float32").problem)


def backwards(problem: Problem) -> dict[str, Callable[[], object]]:
    """The backward of each, after a forward; all of them have been judged."""
    runs: dict[str, Callable[[], object]] = {}
    for name in ("numpy_manual", "torch_autograd"):
        step = load_backend(name).prepare(problem)
        step.forward()
        step.backward()
        gradients = step.read().gradients
        check(problem, [gradients[f"d{n}"] for n in problem.wanted])
        runs[name] = step.backward
    traced = hips(problem)
    check(problem, [g.astype(problem.dtype) for g in traced()])
    return {**runs, "HIPS/autograd": Kept(traced), FLOOR: Kept(one_pass_each(problem))}


def one_pass_each(problem: Problem) -> Callable[[], object]:
    """A product of two arrays for each gradient of full size."""
    arrays = [problem.inputs[name] for name in problem.wanted]
    full = [array for array in arrays if array.size == ELEMENTS]
    other = page_aligned(np.ones_like(full[0]))
    return lambda: [np.multiply(array, other) for array in full]


class Kept:
    """Keeps the gradients until it has the next, as a step does.

    Else memory just freed, and still in the cache, would be written again.
    """

    def __init__(self, run: Callable[[], object]) -> None:
        self.run = run

    def __call__(self) -> None:
        self.gradients = self.run()


def check(problem: Problem, gradients: Sequence[Array | None]) -> None:
    """Raise AssertionError unless the gradients are right."""
    inputs = list(problem.arguments(problem.inputs))
    dy = problem.cotangents if len(problem.cotangents) > 1 else problem.cotangents[0]
    attributes = dict(problem.attributes)
    assert_agrees(problem.op, inputs, dy, gradients, attributes=attributes)


def record(problem: Problem, taken: dict[str, Samples], bandwidth: float) -> dict:
    """Medians in microseconds, paired ratios, and the share of copy bandwidth."""
    manual = taken["numpy_manual"]
    others = (*PEERS, FLOOR)
    ratios = {other: paired(taken[other], manual).ratio for other in others}
    moved = work(problem)["backward"].bytes
    return {
        "op": problem.op.name,
        "microseconds": {n: found.median * 1e6 for n, found in taken.items()},
        "ratios": {n: [r.value, r.low, r.high] for n, r in ratios.items()},
        "met": {n: ratios[n].value <= target for n, target in TARGETS.items()},
        "bytes": moved,
        "copy_share": moved / manual.median / bandwidth,
    }


def shown(rows: Sequence[dict], bandwidth: float) -> Table:
    """One line for each op; a ratio that misses its target is red."""
    table = Table(title=f"backward, 1 thread, {bandwidth / 1e9:.1f} GB/s copied")
    table.add_column("op")
    for name in ("numpy_manual", *PEERS, FLOOR):
        table.add_column(f"{name}\nµs", justify="right")
    for name in PEERS:
        table.add_column(f"to {name}\n{TARGETS[name]:g} at most", justify="right")
    table.add_column(f"to {FLOOR}", justify="right")
    table.add_column("of copy\nbandwidth", justify="right")
    for row in rows:
        times = [f"{us:,.4g}" for us in row["microseconds"].values()]
        ratios = [ratio_cell(row, name) for name in (*PEERS, FLOOR)]
        table.add_row(row["op"], *times, *ratios, f"{row['copy_share']:.0%}")
    return table


def ratio_cell(row: dict, name: str) -> str:
    """A ratio; red where it misses its target."""
    told = f"{row['ratios'][name][0]:.3f}"
    return told if row["met"].get(name, True) else f"[red]{told}[/]"


@click.command(help=__doc__)
@click.option("--seconds", default=2.0, show_default=True, help="For each op.")
@click.option("--op", "names", multiple=True, type=click.Choice(op_names()))
@click.option(
    "--json", "json_file", metavar="F", help="Write a document; - for stdout."
)
def main(seconds: float, names: tuple[str, ...], json_file: str | None) -> None:
    """Measure, and print the table."""
    if not pin_malloc():
        click.echo("the allocator is not pinned: page faults will tell", err=True)
    problems = [p for n in names or op_names() if (p := largest(load_op(n)))]
    bandwidth, rows = copy_bandwidth(), []
    for problem in problems:
        taken = interleave(backwards(problem), budget=seconds)
        rows.append(record(problem, taken, bandwidth))
    summary = {"copy_bandwidth": bandwidth, "load": os.getloadavg()[0]}
    if json_file:
        recording.write(recording.document(rows, summary), json_file)
    if json_file != "-":
        output().print(shown(rows, bandwidth))


if __name__ == "__main__":
    main()
