"""Loads OneFlow's libraries; its Python part and its threads start at the import alone.

A process that has loaded them can still be copied (fork(2)): a copy imports OneFlow in
a third of the time.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# In the order of their dependencies; the binary links to them even for CPU use.
CUDA_LIBRARIES = (
    "cublas/lib/libcublasLt.so.11",
    "cublas/lib/libcublas.so.11",
    *(
        f"cudnn/lib/libcudnn{part}.so.8"
        for part in ("", "_ops_infer", "_ops_train", "_cnn_infer", "_cnn_train")
    ),
)


def load() -> None:
    """Load those of the CUDA wheels, so that no LD_LIBRARY_PATH is needed, and its own.

    Raises:
        OSError: One that is installed cannot be loaded.
    """
    for folder in _folders("nvidia"):
        for library in CUDA_LIBRARIES:
            ctypes.CDLL(str(folder / library), mode=ctypes.RTLD_GLOBAL)
    for folder in _folders("oneflow"):
        for binary in folder.glob("_oneflow_internal*.so"):
            ctypes.CDLL(str(binary))


def _folders(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(p) for p in (spec.submodule_search_locations or ())] if spec else []


@contextlib.contextmanager
def native_stderr_held_back() -> Iterator[None]:
    """Hide what C++ prints during the import, unless the import fails."""
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
