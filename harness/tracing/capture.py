"""The operators that a PyTorch function runs for some tensors.

Its cross-check, torch.export, is a test's (tests/tracing/test_capture.py).
"""

from __future__ import annotations

import contextlib
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator
from torch.autograd.function import _SingleLevelFunction
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from gradwatch.harness.judging.question import OPERATION, Cost
from gradwatch.harness.tracing.aten import matrices
from gradwatch.harness.tracing.calls import set_draws, tensors_in
from gradwatch.harness.tracing.tape import (
    Function,
    Program,
    Tape,
    Tensor,
    name_of,
    replica,
)
from gradwatch.harness.tracing.untraceable import Untraceable, callers_place
from gradwatch.harness.tracing.values import is_inexact

_optimized: Any = torch.jit.optimized_execution  # type: ignore[attr-defined]  # its stub lacks it
#: Methods that give a tensor's numbers to NumPy, to Triton or to another compiler.
_HANDS_OVER = (Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.data_ptr)


def capture(
    function: Function,
    tensors: Sequence[Tensor],
    wanted: Sequence[bool] | None = None,
    shifts: Sequence[float] = (),
    seed: int = 0,
) -> Program:
    """The program of core operators that function(*tensors) runs for these tensors.

    Args:
        function: Returns tensors, or lists of them.
        tensors: Its arguments; it gets copies.
        wanted: Which of them a gradient is taken by; by default those of floats.
        shifts: Added to the floats that the function reads, in their order.
        seed: The seed of PyTorch's generator, whose state is restored.

    Raises:
        Untraceable: storage outside of an input is read, or NumPy gets its floats.
    """
    wanted = [is_inexact(t) for t in tensors] if wanted is None else wanted
    pairs = zip(tensors, wanted, strict=True)
    with plain_autograd():
        leaves = [replica(t, w) for t, w in pairs]
        tape = Tape(leaves, shifts)
    with plainly(), torch.random.fork_rng([]), contextlib.ExitStack() as after:
        torch.default_generator.manual_seed(seed)
        after.callback(set_draws, tape.program.draws)
        with _forwards_alone(tape), tape, _Leaving(tape):
            try:
                returned = function(*leaves)
            except (RuntimeError, ValueError) as error:
                if "is not differentiable with respect to argument" not in str(error):
                    raise
                op, why = "PyTorch's operator", "has no gradient by one of the inputs"
                raise Untraceable(op, why, "frozen", callers_place(error)) from error
    return tape.finished(tensors_in(returned))


@contextlib.contextmanager
def plain_autograd() -> Iterator[None]:
    """Record gradients as PyTorch does by default, whatever the caller has set."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
        # Code that TorchScript optimises hides its gradient from a dispatcher.
        stack.enter_context(_optimized(False))
        flex = sys.modules.get("torch.nn.attention.flex_attention")
        if hasattr(flex, "_validate_device"):  # on a CPU it runs, but slowly
            anywhere = patch.object(flex, "_validate_device", lambda *_: None)
            stack.enter_context(anywhere)
        yield


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Run uncompiled, without fused inference kernels, which are no operators."""
    fast = torch.backends.mha.get_fastpath_enabled()
    # torch.backends.mkldnn.flags sets TF32 as well, and warns of it on a CPU.
    onednn = torch._C._get_mkldnn_enabled()
    # What attention in 16 bits keeps in float32 is its own affair (PyTorch from 2.5).
    of_cuda: Any = torch.backends.cuda
    narrow = getattr(of_cuda, "fp16_bf16_reduction_math_sdp_allowed", bool)()
    allow = getattr(of_cuda, "allow_fp16_bf16_reduction_math_sdp", bool)
    torch.backends.mha.set_fastpath_enabled(False)
    torch._C._set_mkldnn_enabled(False)
    allow(True)
    eager: Any = contextlib.nullcontext()
    if "torch._dynamo" in sys.modules:
        eager = torch.compiler.set_stance("force_eager")
    try:
        with (
            plain_autograd(),
            sdpa_kernel(SDPBackend.MATH),
            eager,
            patch.object(torch, "compile", lambda f=None, **_: f or (lambda f: f)),
            # The caller's own call has validated the arguments: that decides nothing.
            patch.object(torch.distributions.Distribution, "_validate_args", False),
            warnings.catch_warnings(),
        ):
            # PyTorch's decompositions warn of the variance of no numbers; the caller's
            # call of the same operator does not.
            warnings.filterwarnings("ignore", module=r"torch\.")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch._C._set_mkldnn_enabled(onednn)
        allow(narrow)


@contextlib.contextmanager
def _forwards_alone(tape: Tape) -> Iterator[None]:
    """Follow the forward of a torch.autograd.Function as if it were written inline.

    Autograd records nothing inside it, so that no_grad and detach have no effect there.
    """

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        plain = super(_SingleLevelFunction, cls).apply
        if tape.within or not torch.is_grad_enabled():
            return plain(*args, **kwargs)
        args = tree_map_only(Tensor, cut, args)
        tape.within += 1
        try:
            return plain(*args, **kwargs)
        finally:
            tape.within -= 1

    def cut(tensor: Tensor) -> Tensor:
        return tensor.detach().clone() if tape.stops(tensor) else tensor

    # Found by Function.apply's super(), also where an apply was bound before.
    with patch.object(_SingleLevelFunction, "apply", classmethod(apply)):
        yield


class _Leaving(TorchFunctionMode):
    """Sees what a dispatcher cannot: reads by NumPy, operators of higher order."""

    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(function, HigherOrderOperator):
            return self._higher(function, args, kwargs)
        if function is Tensor.tolist and self.tape.depends(args[0]):
            with self:
                return _listed(args[0])
        if function is Tensor.detach_:  # no operator
            self.tape.resolved = []
        if function in _HANDS_OVER and self.tape.depends(args[0]):
            if is_inexact(args[0]):
                name = function.__name__.strip("_")
                why = "hands numbers that depend on an input to what PyTorch cannot see"
                raise Untraceable(f"Tensor.{name}", why, "numpy", callers_place())
            self.tape.decide(args[0], None)
        return function(*args, **kwargs)

    def _higher(self, operator: Any, args: Any, kwargs: Any) -> Any:
        """Run a higher-order operator's own code, such as the branch of torch.cond."""
        whole = operator.py_kernels.get(DispatchKey.CompositeExplicitAutograd)
        # Some refuse to run under a mode, since what they run would then be compiled.
        home = sys.modules.get(whole.__module__) if whole else None
        asked = "_get_current_dispatch_mode"
        unseen = patch.object(home, asked, lambda: None, create=True)
        try:
            if home is None:  # such as a torch.autograd.Function under torch.vmap
                return operator(*args, **kwargs)
            with self, unseen:
                return whole(*args, **kwargs)
        except (AssertionError, NotImplementedError) as error:
            why = "is an operator of higher order without a rule"
            at = callers_place()
            raise Untraceable(operator.name(), why, "no rule", at) from error


def _listed(tensor: Tensor) -> Any:
    return [_listed(part) for part in tensor] if tensor.ndim else tensor.item()


# The size of a trace, counted in a call that records nothing -------------------------

#: Elements that take as long to judge as one step of the n^3 of a factorisation: in
#: the wide type the singular values of 128 x 128 took 3 s (`cpu-2core`).
STEP = 3


class _Beyond(Exception):
    """The cost exceeds the limit."""


class _Count(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, most: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no hints here
        self.most, self.cost = most, Cost(0, 0)

    def __torch_dispatch__(
        self, target: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = target(*args, **(kwargs or {}))
        tensors, steps = tensors_in(made), OPERATION
        plain = isinstance(target, torch._ops.OpOverload)
        if plain and name_of(target) in matrices.ON_FLOATS:
            shapes = (v.shape for v in tensors if v.ndim > 1)
            cubes = (math.prod(shape) * min(shape[-2:]) for shape in shapes)
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
    """The cost of a call, which is stopped where that exceeds `most`.

    A function may differentiate on its way, so tensors in `wanted` need a gradient.

    Raises:
        Exception: Any exception of the function's.
    """
    count = _Count(most)
    with plainly():
        given = list(map(replica, tensors, wanted))
        with contextlib.suppress(_Beyond), count:
            call(*given)
    return count.cost
