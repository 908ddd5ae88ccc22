"""`gradwatch list`: the names of ops, backends and cases."""

from __future__ import annotations

import click

from gradwatch.impls.catalogue import backend_names, known, load_op, op_names


def _cases() -> list[str]:
    from gradwatch.harness.judging.cases import REGIMES, case_name  # imports NumPy

    ops = [load_op(name) for name in op_names()]
    return [
        case_name(op.name, name, case.name, dtype)
        for op in ops
        for name, regime in REGIMES.items()
        for case in regime.cases(op)
        for dtype in ("float32", "float64")
        if dtype in regime.dtypes
    ]


def _aten() -> list[str]:
    from gradwatch.harness.tracing.aten.table import covered  # imports PyTorch

    return covered()


_NAMES = {"aten": _aten, "ops": op_names, "backends": backend_names, "cases": _cases}


@click.command()
@click.argument("what", metavar="|".join(sorted(_NAMES)))
def command(what: str) -> None:
    r"""List the names of ops, backends or cases, one per line.

    Other commands take these names. No framework is imported, but for `aten`: the
    PyTorch operators that a checked function may use.

    \b
    Examples:
      gradwatch list ops
      gradwatch list cases | grep layer_norm
    """
    for name in _NAMES[known("list", what, sorted(_NAMES))]():
        click.echo(name)
