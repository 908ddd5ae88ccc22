"""The operators that a PyTorch function runs: make_fx behind one function.

make_fx is experimental; if it changes, only this module needs a fix. Its cross-check,
torch.export, is a test's (tests/tracing/test_capture.py).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.function import _SingleLevelFunction
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from gradwatch.harness.tracing.untraceable import Untraceable, callers_line

#: Decomposed too, beyond PyTorch's core table: the engine needs no rule of its own.
_COMPOSITES = """
    native_layer_norm native_batch_norm _native_batch_norm_legit
    _native_batch_norm_legit_functional _batch_norm_with_update_functional
    native_group_norm upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
    upsample_linear1d _upsample_bilinear2d_aa grid_sampler_2d grid_sampler_3d
    var_mean std addbmm dist narrow_copy
    addr silu mish softplus lerp max_pool2d_with_indices_backward
"""
COMPOSITES = frozenset(_COMPOSITES.split())
#: Not decomposed: PyTorch's way asks for the value of an index; a detach that became an
#: alias would let a gradient through; the branch that is not taken would make the slope
#: nan of log_ndtr below -8, and of a softmax whose row is -inf, and zero of x log y by
#: x where x is 0.
_WHOLE = "take detach special_log_ndtr _safe_softmax xlogy special_xlog1py"
WHOLE = frozenset(f"aten::{name}" for name in _WHOLE.split())

Program = fx.GraphModule
Function = Callable[..., Any]


@functools.cache
def decompositions() -> dict[Any, Any]:
    """Core ATen and `COMPOSITES`, from overload to the function that rewrites it."""
    core: dict[Any, Any] = dict(core_aten_decompositions())
    table = {k: v for k, v in core.items() if k._schema.name not in WHOLE}
    for overload, rewrite in decomposition_table.items():
        schema = getattr(overload, "_schema", None)
        if schema is not None and schema.name.removeprefix("aten::") in COMPOSITES:
            table.setdefault(overload, rewrite)
    return table


def capture(function: Function, tensors: Sequence[torch.Tensor]) -> Program:
    """The program of core operators that function(*tensors) runs for such tensors.

    Traced twice where the decompositions of the first pass leave in-place operators
    behind: the second pass replaces them, and changes nothing else.

    Raises:
        Untraceable: a branch depends on a tensor's value; its numbers leave PyTorch;
            storage outside of an input is read.
    """
    with _plain_kernels(), _forwards_alone():
        try:
            program = _traced(_with_stops(function), tensors)
            if any(map(_writes, program.graph.nodes)):
                program = _twice(program, tensors)
        except RuntimeError as error:
            raise _refusal(error) from error
    program.graph.eliminate_dead_code()
    return program


class _Stops(TorchFunctionMode):
    """Where a function disables gradients, its operators get detached tensors.

    `torch.no_grad()` leaves no trace in a program; it calls _set_grad_enabled. In the
    forward of a `torch.autograd.Function` nothing is recorded: detach means nothing.
    """

    stopped = False
    within = 0  # forwards that are running

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = args, kwargs or {}
        if function in _HANDS_OVER and args[0].is_floating_point():
            why = "hands its numbers to what PyTorch does not see"
            name = f"Tensor.{function.__name__.strip('_')}"
            raise Untraceable(name, why, "numpy", callers_line())
        if _Stops.within:
            if function in _CONSTANTS:
                return args[0].view_as(args[0])
        elif function is torch._C._set_grad_enabled:
            self.stopped = not args[0]
        elif self.stopped:
            given = tree_map_only(torch.Tensor, torch.Tensor.detach, given)
        return function(*given[0], **given[1])


_CONSTANTS = (
    torch.Tensor.detach,
    torch.Tensor.data.__get__,  # type: ignore[attr-defined]  # a C descriptor
)
#: What gives away a tensor's numbers: to NumPy, to Triton or to another compiler.
_HANDS_OVER = (
    *(torch.Tensor.numpy, torch.Tensor.__array__, torch.Tensor.__dlpack__),
    torch.Tensor.data_ptr,
)


@contextlib.contextmanager
def _forwards_alone() -> Iterator[None]:
    """A torch.autograd.Function runs its forward, as if it were written out."""

    def apply(cls: Any, *args: Any) -> Any:
        context = _Context([isinstance(a, torch.Tensor) for a in args])
        _Stops.within += 1
        try:
            if cls.setup_context is _SingleLevelFunction.setup_context:
                return cls.forward(context, *args)
            return cls.forward(*args)
        finally:
            _Stops.within -= 1

    with (
        patch.object(_SingleLevelFunction, "apply", classmethod(apply), create=True),
        patch.object(torch._C, "_are_functorch_transforms_active", lambda: False),
    ):
        yield


class _Context:
    """What a forward gets to note things for its backward, which is never run."""

    def __init__(self, needs_input_grad: Sequence[bool]) -> None:
        self.needs_input_grad = tuple(needs_input_grad)

    def _note(self, *_: Any) -> None:
        """Keep nothing."""

    save_for_backward = save_for_forward = mark_dirty = _note
    mark_non_differentiable = set_materialize_grads = _note


def _with_stops(function: Function) -> Function:
    def run(*tensors: torch.Tensor) -> Any:
        with torch.enable_grad(), _Stops():
            return function(*tensors)

    return run


def _writes(node: fx.Node) -> bool:
    """Whether a node is an operator that writes into one of its arguments."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _twice(program: Program, tensors: Sequence[torch.Tensor]) -> Program:
    try:
        return _traced(program, tensors)
    except RuntimeError as error:
        if "custom (non-ATen) operator" not in str(error):  # of prims: nothing in place
            raise
        return program


def _traced(function: Function, tensors: Sequence[torch.Tensor]) -> Program:
    pure = torch.func.functionalize(function)
    # One mode for the shapes that make_fx notes of each tensor: it would make a mode
    # for each, which takes a third of the time.
    shapes = TracingContext(FakeTensorMode(allow_fallback_kernels=True))
    with tracing(shapes):
        return make_fx(pure, decomposition_table=decompositions())(*tensors)


@contextlib.contextmanager
def _plain_kernels() -> Iterator[None]:
    """Without the fused inference kernels, which are operators of no definition."""
    fast = torch.backends.mha.get_fastpath_enabled()
    # torch.backends.mkldnn.flags sets TF32 as well, and warns of it on a CPU.
    onednn = torch._C._get_mkldnn_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    torch._C._set_mkldnn_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch._C._set_mkldnn_enabled(onednn)


# What make_fx says where a tensor's value is asked for while it traces.
_BY_VALUE = ("get value out of a tracing tensor", "data is not allocated yet")


def _refusal(error: RuntimeError) -> BaseException:
    """make_fx's complaint about a value that decides, in our words; else as it was."""
    line = callers_line(error.__traceback__)
    if "setStorage" in str(error):
        why = "reads storage outside of its input"
        return Untraceable("aten.as_strided", why, "no rule", line)
    if not any(part in str(error) for part in _BY_VALUE):
        return error
    why = "makes a value decide the control flow"
    return Untraceable("aten._local_scalar_dense", why, "control", line)


def line_that_calls(
    op: str, function: Function, tensors: Sequence[torch.Tensor]
) -> str:
    """The caller's line that first runs an operator; "" if it is part of another."""

    class Lines(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no hints here
        line = ""

        def __torch_dispatch__(
            self, target: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if not self.line and op in str(target).replace("_.", "."):
                self.line = callers_line()
            return target(*args, **(kwargs or {}))

    lines = Lines()  # type: ignore[no-untyped-call]  # nor here
    with _plain_kernels(), lines:
        function(*tensors)
    return lines.line
