"""What a trace of a function would hold, known from a call that writes nothing down."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gradwatch.harness.judging.question import OPERATION, Cost
from gradwatch.harness.tracing.capture import plainly
from gradwatch.harness.tracing.interpret import OF_MATRICES
from gradwatch.harness.tracing.tape import name_of, replica

#: Elements that take as long to judge as one step of the n^3 of a factorisation: in
#: the wide type the singular values of 128 x 128 took 3 s (`cpu-2core`).
STEP = 3


class _Beyond(Exception):
    """There is more than was asked for."""


class _Count(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, most: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no hints here
        self.most, self.cost = most, Cost(0, 0)

    def __torch_dispatch__(
        self, target: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = target(*args, **(kwargs or {}))
        several = made if isinstance(made, (tuple, list)) else [made]
        tensors = [v for v in several if isinstance(v, torch.Tensor)]
        steps = OPERATION
        plain = isinstance(target, torch._ops.OpOverload)
        if plain and tensors and name_of(target) in OF_MATRICES:
            stacks = (v.shape for v in tensors if v.ndim > 1)
            cubes = (math.prod(shape) * min(shape[-2:]) for shape in stacks)
            steps += STEP * max(cubes, default=0)
        elements, operations, _ = self.cost
        elements += sum(v.numel() for v in tensors)
        self.cost = Cost(elements, operations + steps // OPERATION)
        if self.cost.work > self.most:
            self.cost = self.cost._replace(whole=False)
            raise _Beyond
        return made


def cost_of(
    call: Callable[..., Any],
    tensors: Sequence[torch.Tensor],
    wanted: Sequence[bool],
    most: float,
) -> Cost:
    """What a call takes; it ends where that is beyond `most`.

    A function may differentiate on its way, so that those `wanted` need a gradient.

    Raises:
        Exception: Whatever it raises.
    """
    count = _Count(most)
    with plainly():
        given = list(map(replica, tensors, wanted))
        with contextlib.suppress(_Beyond), count:
            call(*given)
    return count.cost
