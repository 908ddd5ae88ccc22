"""The door through which OneFlow comes in."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from impls.backends._torchlike import TorchLike, TorchLikeStep
from impls.contract import Problem, Unsupported

# In the order in which they need each other; the binary links to them even on a CPU.
CUDA_LIBRARIES = (
    "cublas/lib/libcublasLt.so.11",
    "cublas/lib/libcublas.so.11",
    *(
        f"cudnn/lib/libcudnn{part}.so.8"
        for part in ("", "_ops_infer", "_ops_train", "_cnn_infer", "_cnn_train")
    ),
)


def preload_cuda_libraries() -> None:
    """Load what OneFlow links to from the wheels, so that no LD_LIBRARY_PATH is needed.

    Raises:
        OSError: a wheel is installed, but one of its libraries is not to be loaded.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for library in CUDA_LIBRARIES:
            ctypes.CDLL(str(Path(folder, library)), mode=ctypes.RTLD_GLOBAL)


@contextlib.contextmanager
def native_stderr_held_back() -> Iterator[None]:
    """Show what C++ writes while importing only if the import fails."""
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


# What OneFlow 0.9.0 says on a CPU of an op that it does not have in half precision.
LACKING = (
    "Cannot find the kernel matching",
    "Can only calculate the mean of floating types",
    "InferDataType Failed",
)


def lacking(call: Callable[[], None], dtype: str) -> Callable[[], None]:
    """The same call, which says Unsupported where OneFlow has no kernel for it."""

    def called() -> None:
        try:
            call()
        except Exception as error:
            if not any(told in str(error) for told in LACKING):
                raise
            version = oneflow.__version__
            reason = f"OneFlow {version} has no kernel of it for {dtype}"
            raise Unsupported(reason) from None

    return called


class OneFlow(TorchLike):
    """A torch-like backend whose CPU has to be waited for as well."""

    def __init__(self, dialect: str) -> None:
        super().__init__(oneflow, dialect)

    def prepare(self, problem: Problem) -> TorchLikeStep:
        """As torch's, with OneFlow's own wait."""
        step = super().prepare(problem)
        step.wait = oneflow._oneflow_internal.eager.Sync  # type: ignore[method-assign]  # as meant
        if "float16" in problem.dtype:  # others have all kernels; no call more to time
            for name in ("forward", "backward", "wait"):
                setattr(step, name, lacking(getattr(step, name), problem.dtype))
        return step
