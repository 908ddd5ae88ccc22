"""Backends that compile what they are given, for each shape and precision.

It takes them seconds, so that `agree` judges a sample of them unless more is named, and
the self-test leaves them out (harness/agreement/sampling.py tells what it costs).
"""

from __future__ import annotations

from gradwatch.impls.catalogue import framework_of

#: Frameworks all of whose backends compile, and single backends.
COMPILING = frozenset({"jax", "torch_compile"})


def compiles(backend: str) -> bool:
    """Whether a backend compiles each shape."""
    return not COMPILING.isdisjoint((backend, framework_of(backend)))
