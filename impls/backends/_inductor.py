"""PyTorch's compiler: dynamo traces a page's call, inductor writes C++ of it.

One graph for the whole call, or none: a call that dynamo cannot trace is `Unsupported`,
in its words. Otherwise it would run a part of the page, or all of it, uncompiled.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from gradwatch.impls.backends._torchlike import TorchLike, TorchLikeStep
from gradwatch.impls.contract import Problem, Unsupported

#: Limit of recompilations, above all shapes and dtypes of an op. Dynamo's own is 8.
SHAPES = 10_000


class Compiled(TorchLike):
    """A backend of PyTorch whose calls are compiled, once for each shape and layout.

    Code compiled for an op is dropped before another op, so that the process does not
    grow.
    """

    _op = ""
    _calls: dict[str, Any]

    def missing(self, device: str) -> str:
        """Why a device cannot be used; "" if it can."""
        wanted = os.environ.get("CXX", "g++")  # as torch._inductor.config.cpp.cxx
        there = shutil.which(wanted)
        why = f"inductor needs a C++ compiler, and there is no {wanted}"
        return super().missing(device) or ("" if there else why)

    def prepare(self, problem: Problem) -> TorchLikeStep:
        """Make tensors, and find the compiled call of the op with its attributes."""
        if problem.order != "vjp":
            raise Unsupported("torch.compile compiles first derivatives only")
        if problem.op.name != self._op:
            self._op, self._calls = problem.op.name, {}
            self._forget()
        return CompiledStep(self, problem, self._call(problem))

    def _call(self, problem: Problem) -> Any:
        said = problem.op.said(self.dialect, self.framework)
        framework, attributes = self.F, dict(problem.attributes)
        key = f"{id(said)} {sorted(attributes.items())!r}"  # as text: 1 equals True
        if key not in self._calls:

            def call(*tensors: Any) -> Any:
                return said(framework, *tensors, **attributes)

            self._calls[key] = framework.compile(call, fullgraph=True, dynamic=False)
        return self._calls[key]

    def _forget(self) -> None:
        """Drop all that was compiled. Set the compiler up; its import takes seconds."""
        import torch._dynamo.config
        import torch._functorch.config
        import torch._inductor.config

        # No pool of processes that compile ahead: it would run beside the clock.
        torch._inductor.config.compile_threads = 1
        # Trust the processor's flags: trying its instructions takes 9 s of CPU time,
        # again in each new cache folder.
        torch._inductor.config.cpp.vec_isa_ok = True
        torch._dynamo.config.recompile_limit = SHAPES
        torch._dynamo.config.accumulated_recompile_limit = SHAPES
        # A backward may run twice on one graph, so it may not overwrite saved tensors.
        torch._functorch.config.donated_buffer = False
        torch.compiler.reset()


class CompiledStep(TorchLikeStep):
    """A problem whose call is compiled when it first runs."""

    def forward(self) -> None:
        """Run the forward pass, compiled."""
        from torch._dynamo.exc import Unsupported as Untraceable

        try:
            super().forward()
        except Untraceable as words:
            first = str(words).strip().partition("\n")[0]
            raise Unsupported(f"torch.compile: {first}") from None
