"""`gradwatch list`: the names of ops, backends and cases."""

from __future__ import annotations

import importlib.util

import click

from gradwatch.impls.catalogue import backend_names, known, load_op, op_names


def _cases() -> list[str]:
    from gradwatch.harness.judging.cases import REGIMES, case_name  # imports NumPy

    return [
        case_name(op.name, name, case.name, dtype)
        for op in map(load_op, op_names())
        for name, regime in REGIMES.items()
        for case in regime.cases(op)
        for dtype in ("float32", "float64")
        if dtype in regime.dtypes
    ]


def _covered() -> list[str]:
    found: set[str] = set()  # nothing of a framework that is not installed
    if importlib.util.find_spec("torch"):
        from gradwatch.harness.tracing.traced import COVERED

        found |= {f"aten.{name}" for name in COVERED}
    if importlib.util.find_spec("jax"):
        from gradwatch.harness.tracing import lax

        tables = lax.HIGHER, lax.ON_COMPLEX, lax.ON_NODES, lax.RULES
        found |= {f"lax.{name}" for table in tables for name in table}
    return sorted(found)


_NAMES = {"backends": backend_names, "cases": _cases}
_NAMES |= {"covered": _covered, "ops": op_names}


@click.command()
@click.argument("what", metavar="|".join(_NAMES))
def command(what: str) -> None:
    r"""List the names of ops, backends or cases, one per line.

    Other commands take these names. No framework is imported, but for `covered`: the
    operators of PyTorch and JAX that a checked function may use.

    \b
    Examples:
      gradwatch list ops
      gradwatch list cases | grep layer_norm
    """
    for name in _NAMES[known("list", what, list(_NAMES))]():
        click.echo(name)
