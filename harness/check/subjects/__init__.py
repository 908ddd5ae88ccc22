"""What is checked against what: functions and modules as functions of tensors alone."""

from __future__ import annotations

from typing import Any

from gradwatch.harness.check.subjects.pages import OpSubject as OpSubject
from gradwatch.impls import catalogue
from gradwatch.impls.contract import Op


def subject_of(given: Any, of_jax: bool = False) -> Any:
    """A reference in any of its forms; a framework is imported where it is needed.

    Raises:
        UnknownName: A name that no op page bears.
        TypeError: Neither a name, an `Op`, nor something that can be called.
    """
    if isinstance(given, (str, Op)):
        return OpSubject(catalogue.load_op(given) if isinstance(given, str) else given)
    if not callable(given):
        raise TypeError(
            f"a reference is a function, a module, an Op or its name, no {given!r}"
        )
    if of_jax:
        from gradwatch.harness.check.subjects.jax import JaxSubject

        return JaxSubject(given)
    from gradwatch.harness.check.subjects.pytorch import TorchSubject

    return TorchSubject(given)
