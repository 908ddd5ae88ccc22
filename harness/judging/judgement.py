"""The verdict on one tensor, and the numbers behind it."""

from __future__ import annotations

from dataclasses import dataclass

from gradwatch.harness.project.verdicts import PASSING

#: The convention of a tensor that is right only for inputs flushed to zero.
FLUSHED = "flushed"
EMPTY = "no elements; its shape and dtype are right"  # the message of such a tensor


@dataclass(frozen=True)
class Judgement:
    """The verdict on one tensor.

    Attributes:
        tensor: "dx" for the gradient of input x, or the name of an output or state.
        verdict: One of `gradwatch.harness.project.verdicts.VERDICTS`.
        ratio: Largest error over rounding radius; nan where nothing was compared.
        limit: The ratio up to which an error is rounding.
        vacuous: Share of the elements (0 to 1) of which rounding leaves too little for
            the comparison to say anything.
        worst_index: Where the ratio is largest; () for a scalar or nothing compared.
        got, expected, radius: The values there; for a tensor as a whole its distance
            from the right one, 0, and that of one with one rounding at each step.
        radius_kind: "bound" or "spread": the kind of that radius; "norm" or
            "projection" for a tensor as a whole (spread.py); "least" for a large right
            tensor, whose ratio is then larger than to the other two, and of which less
            than half is vacuous: `vacuous` is 0 (acceptance/large.py).
        compute: The widest precision of intermediate values with which the tensor is
            consistent: "float32" or "mixed" (steps rounded to 16 bits, sums in float32)
            for one of 16 bits; empty where it is consistent with none.
        convention: How ties are broken ("first", "last", "even", "shared", or "mixed"
            where rows differ); of a wrong tensor also whether sums lose small operands
            ("absorbed") or keep them ("kept").
        message: One sentence that says all of this.
        diagnosis: The mistake that gives this tensor; empty where none is known.
    """

    tensor: str
    verdict: str
    ratio: float = float("nan")
    limit: float = float("nan")
    vacuous: float = 0.0
    worst_index: tuple[int, ...] = ()
    got: float = float("nan")
    expected: float = float("nan")
    radius: float = float("nan")
    radius_kind: str = "bound"
    compute: str = ""
    convention: str = ""
    message: str = ""
    diagnosis: str = ""

    @property
    def passes(self) -> bool:
        """Whether a correct implementation may get this verdict."""
        return self.verdict in PASSING

    @property
    def story(self) -> str:
        """The message, then the diagnosis."""
        return "; ".join(filter(None, (self.message, self.diagnosis)))
