"""What is checked against what: functions and modules as functions of tensors alone."""

from __future__ import annotations

from typing import Any

from gradwatch.harness.check.subjects.pages import OpSubject as OpSubject
from gradwatch.harness.check.subjects.pytorch import TorchSubject as TorchSubject
from gradwatch.impls import catalogue
from gradwatch.impls.contract import Op

Subject = TorchSubject | OpSubject


def subject_of(given: Any) -> Subject:
    """A reference in any of its forms.

    Raises:
        UnknownName: A name that no op page bears.
        TypeError: Neither a name, an `Op`, nor something that can be called.
    """
    if isinstance(given, str):
        return OpSubject(catalogue.load_op(given))
    if isinstance(given, Op):
        return OpSubject(given)
    if callable(given):
        return TorchSubject(given)
    raise TypeError(
        f"a reference is a function, a module, an Op or its name, no {given!r}"
    )
