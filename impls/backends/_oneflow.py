"""Imports OneFlow, and adapts it to the contract of a backend."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gradwatch.impls.backends._torchlike import TorchLike, TorchLikeStep
from gradwatch.impls.contract import Array, Problem, Unsupported

TRAITS = {
    "title": "OneFlow",
    "crashes": True,
    "polls": True,
    "numpy_below": 2,
    "second_order": False,
    "half": False,
}

T = TypeVar("T")

# In the order of their dependencies; the binary links to them even for CPU use.
CUDA_LIBRARIES = (
    "cublas/lib/libcublasLt.so.11",
    "cublas/lib/libcublas.so.11",
    *(
        f"cudnn/lib/libcudnn{part}.so.8"
        for part in ("", "_ops_infer", "_ops_train", "_cnn_infer", "_cnn_train")
    ),
)


def preload_cuda_libraries() -> None:
    """Load the libraries of the wheels, so that OneFlow needs no LD_LIBRARY_PATH.

    Raises:
        OSError: A wheel is installed, but one of its libraries cannot be loaded.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for library in CUDA_LIBRARIES:
            ctypes.CDLL(str(Path(folder, library)), mode=ctypes.RTLD_GLOBAL)


@contextlib.contextmanager
def native_stderr_held_back() -> Iterator[None]:
    """Hide the output of C++ during the import, unless the import fails."""
    sys.stderr.flush()
    kept = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(kept, held.read())
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


with native_stderr_held_back():
    preload_cuda_libraries()
    import oneflow

oneflow.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


# Messages of OneFlow 0.9.0 on a CPU for an op without a half-precision kernel.
LACKING = (
    "Cannot find the kernel matching",
    "Can only calculate the mean of floating types",
    "InferDataType Failed",
)


#: Why no order but the first is tried.
WITHOUT = {
    "jvp": f"OneFlow {oneflow.__version__} has no forward mode",
    "hvp": f"OneFlow {oneflow.__version__} returns a number in place of a second "
    "derivative that is zero, and lacks that of many kernels",
}


def fetched(tensors: Mapping[str, Any]) -> dict[str, Array]:
    """Tensors as NumPy arrays; tensors of one dtype are copied together.

    Each copy costs a round trip between OneFlow's threads, which poll.
    """
    arrays: dict[str, Array] = {}
    by_dtype: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        by_dtype.setdefault(tensor.dtype if tensor.numel() else name, []).append(name)
    for names in by_dtype.values():
        group = [tensors[name] for name in names]
        flat = group[0] if len(group) == 1 else _joined(group)
        parts = np.split(np.array(flat.detach().numpy()).reshape(-1), _ends(group))
        for name, tensor, part in zip(names, group, parts, strict=False):
            arrays[name] = part.reshape(tuple(tensor.shape))
    return arrays


def _joined(tensors: list[Any]) -> Any:
    """Detached last: OneFlow 0.9 reshapes a detached view from its storage's start."""
    with oneflow.no_grad():
        return oneflow.cat([tensor.reshape(-1) for tensor in tensors])


def _ends(tensors: list[Any]) -> list[int]:
    return list(itertools.accumulate(tensor.numel() for tensor in tensors))


def lacking(call: Callable[[], T], dtype: str) -> Callable[[], T]:
    """The same call, but it raises Unsupported if OneFlow has no kernel for it."""

    def called() -> T:
        try:
            return call()
        except Exception as error:
            if not any(told in str(error) for told in LACKING):
                raise
            version = oneflow.__version__
            reason = f"OneFlow {version} has no kernel of it for {dtype}"
            raise Unsupported(reason) from None

    return called


class OneFlow(TorchLike):
    """A torch-like backend that must also wait for the CPU."""

    def __init__(self, dialect: str) -> None:
        super().__init__(oneflow, dialect)

    def prepare(self, problem: Problem) -> TorchLikeStep:
        """Prepare as for torch, with OneFlow's own wait."""
        if problem.order != "vjp":
            raise Unsupported(WITHOUT[problem.order])
        step = super().prepare(problem)
        step.wait = oneflow._oneflow_internal.eager.Sync  # type: ignore[method-assign]  # as meant
        step.fetch = fetched  # type: ignore[method-assign]  # as meant
        if "float16" in problem.dtype:  # other dtypes have all kernels, so add no call
            for name in ("forward", "backward", "wait", "read"):
                setattr(step, name, lacking(getattr(step, name), problem.dtype))
        return step
