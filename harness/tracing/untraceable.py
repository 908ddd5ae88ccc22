"""What cannot become a graph, said with the operator, the line and a way round."""

from __future__ import annotations

import traceback
from types import TracebackType

WAYS_ROUND = {
    "random": "make the random mask or noise an input, or call the module's .eval()",
    "control": "choose the branch outside the function, or write it with torch.where",
    "complex": "split it into real and imaginary parts",
    "sparse": "make it dense first, with .to_dense()",
    "factorisation": "judge what comes before and after the factorisation separately",
    "numpy": "write the reference in PyTorch's functions; a candidate may be anything",
    "no rule": "write this part in other operators (`gradwatch list aten` has them)",
}
_BETWEEN = ("/torch/", "/harness/tracing/")  # files between the caller and an operator


class Untraceable(Exception):
    """A function that the engine cannot follow.

    Attributes:
        op: The ATen operator, such as "aten.bernoulli".
        why: What it does that the engine cannot.
        kind: The reason's kind, a key of `WAYS_ROUND`.
        line: Where it is called, "file.py:12: y = F.dropout(x)"; "" if unknown.
        way_round: What the caller can do instead.
    """

    def __init__(self, op: str, why: str, kind: str, line: str = "") -> None:
        self.op, self.why, self.kind, self.line = op, why, kind, line
        self.way_round = WAYS_ROUND[kind]
        place = f" ({line})" if line else ""
        super().__init__(f"{op}{place} {why}; {self.way_round}")


def callers_line(of: TracebackType | None = None) -> str:
    """The innermost line outside PyTorch and this room: of a traceback, or of now."""
    frames = traceback.extract_tb(of) if of else traceback.extract_stack()
    outside = [f for f in frames if not any(part in f.filename for part in _BETWEEN)]
    if not outside:
        return ""
    return f"{outside[-1].filename}:{outside[-1].lineno}: {outside[-1].line}"
