"""Other shapes than those of a page's cases: equal lengths of a case vary together.

In linear's x=(4, 5), weight=(3, 5), bias=(3,), the length 5 occurs twice. Shapes with
other lengths are valid if equal lengths stay equal. A length of 1 is kept, because it
is broadcast. An op with the same shapes in all its cases and sizes (neuron) has no
others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gradwatch.impls.contract import Case, Op, Shape

#: Just above the block sizes of kernels, which are powers of two.
TAILS = (1025, 257, 129)


def lengths(op: Op, case: Case) -> tuple[int, ...]:
    """The lengths of a case that may vary, in the order in which they appear."""
    everywhere = (*op.cases.values(), *op.sizes.values())
    if len({tuple(op.shapes(c).values()) for c in everywhere}) < 2:
        return ()
    varying = (n for shape in op.shapes(case).values() for n in shape if n != 1)
    return tuple(dict.fromkeys(varying))


def resized(op: Op, case: Case, change: Mapping[int, int]) -> Case:
    """The case with some lengths changed, named after its shapes."""
    shapes = {
        name: tuple(change.get(n, n) for n in shape)
        for name, shape in op.shapes(case).items()
    }
    return Case(name_of(shapes.values()), **{**case.fields, **shapes})


def name_of(shapes: Iterable[Shape]) -> str:
    """Such as 4x5-3x5-3; a scalar is called so."""
    return "-".join("x".join(map(str, s)) or "scalar" for s in shapes)


def empty(op: Op) -> Iterator[Case]:
    """The first length is 0, in the case that has most of them."""
    richest = max(op.cases.values(), key=lambda case: len(lengths(op, case)))
    for length in lengths(op, richest)[:1]:
        yield resized(op, richest, {length: 0})


def single(op: Op) -> Iterator[Case]:
    """Every length is 1: one case for each number of axes."""
    ones: dict[str, Case] = {}
    for case in op.cases.values():
        changed = resized(op, case, dict.fromkeys(lengths(op, case), 1))
        if lengths(op, case):
            ones.setdefault(changed.name, changed)
    yield from ones.values()


def tails(op: Op) -> Iterator[Case]:
    """Each length in turn just above a power of two, where a kernel's last block ends.

    Of the case that has most lengths, the last of them longest.
    """
    richest = max(op.cases.values(), key=lambda case: len(lengths(op, case)))
    for length, tail in zip(lengths(op, richest)[::-1], TAILS, strict=False):
        yield resized(op, richest, {length: tail})
