"""`gradwatch check`: a function of the caller's own, judged forward and backward."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from gradwatch.harness.check import child
from gradwatch.harness.check.choice import COMPLEX
from gradwatch.harness.console import options as options
from gradwatch.harness.console.streams import clear
from gradwatch.harness.console.terminal import ending, keep, output
from gradwatch.harness.judging.orders import ORDERS
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.project import documents
from gradwatch.harness.project.records import CHECK, CheckRecord, NoSummary
from gradwatch.harness.workers.fork import bare_environment
from gradwatch.harness.workers.process import Child, Failed
from gradwatch.impls.catalogue import known

#: The default of `--train` for untrusted code.
STEPS = 1000
#: Options that choose the trials, and which of them can fail the check.
_CHOICE = ("only", "skip", "quick", "edges", "strict", "budget", "train")


def _arguments(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    """The keyword arguments of NAME=VALUE; a value is a Python literal, or text."""
    given = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{text!r} is not NAME=VALUE, such as dim=-1")
        try:
            given[name] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            given[name] = value
    return given


@click.command()
@click.argument("reference")
@click.argument("candidate", required=False)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    metavar="SHAPE",
    help="One for each input: 64x1000; the 3 of 64x=3 stays, 64x1000:bool is a mask, "
    "64:10 whole numbers below 10. Repeatable.",
)
@click.option(
    "--arg",
    "kwargs",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_arguments,
    help="A keyword argument of both functions, such as dim=-1. Repeatable.",
)
@options.several(
    "dtype",
    lambda: [*PRECISIONS, *COMPLEX],
    f"{', '.join([*PRECISIONS, *COMPLEX])}; float32 by default.",
)
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--compute", help="Precision of the candidate's intermediate values.")
@click.option(
    "--seed",
    type=int,
    help="Of all numbers; 0, drawn and printed with --kernelbench or --untrusted.",
)
@click.option(
    "--order",
    default=ORDERS[0],
    show_default=True,
    type=click.Choice(ORDERS),
    help="vjp: outputs and gradients; jvp: forward mode; hvp: the double backward.",
)
@options.several(
    *("only", None, "Beside your own shape try these alone: large,tails,sliced."),
    called="only",
)
@options.several("skip", None, "Leave these trials out.", called="skip")
@click.option("--quick", is_flag=True, help="Try your own shape alone.")
@click.option(
    "--edges",
    default="report",
    show_default=True,
    type=click.Choice(("report", "fail", "skip")),
    help="What is wrong for empty, inf, nan, 1e7, shifted, constant, subnormal inputs.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="The edges fail, and what raises for other inputs than your own.",
)
@click.option(
    "--budget",
    type=float,
    help="Seconds of processor time for the trials beside your own shape; 30 if not "
    "said. What does not fit is named.",
)
@click.option("--name", default="", help="Of what is judged, in the report.")
@click.option(
    "--kernelbench",
    is_flag=True,
    help="The two are files in KernelBench's form: a problem with Model, get_inputs "
    "and get_init_inputs, and a solution with ModelNew.",
)
@click.option(
    "--untrusted/--trusted",
    default=None,
    help="Run the candidate apart from the judge, without environment, home, network "
    "or writing; the default with --kernelbench.",
)
@click.option(
    "--train",
    type=click.IntRange(min=0),
    metavar="N",
    help="Train for N steps beside the reference: all are compared, a few are judged; "
    "1000 with --untrusted.",
)
@options.seconds("--timeout", 600.0, "Time for all of it; what hangs is ended.")
@options.json_file
@click.option("--repro", metavar="F", help="Write a script that shows the failure.")
def command(
    reference: str,
    candidate: str | None,
    kernelbench: bool,
    json_file: str | None,
    repro: str | None,
    untrusted: bool | None,
    **given: Any,
) -> int:
    r"""Judge a function of your own, forward and backward.

    REFERENCE is any function of PyTorch's or JAX's, module or op page; CANDIDATE takes
    the same tensors. Left out, REFERENCE's own gradient is judged, or the backward of
    an autograd.Function, whose forward is then the definition. Names are dotted
    (torch.nn.functional.silu), module:name, or file.py:name. No tolerance is given: it
    is derived from the rounding errors of the reference's arithmetic.

    \b
    Examples:
      gradwatch check mykernels:FastSilu --shape 64x1000
      gradwatch check torch.nn.functional.silu mykernels:FastSilu --shape 64x1000
      gradwatch check torch.softmax my.py:softmax --shape 8x100 --arg dim=-1
      gradwatch check torch.nn.functional.silu my.py:Silu --shape 9x5 --order hvp
      gradwatch check --kernelbench problem.py solution.py --dtype bfloat16
    Exit code: 0 all is right, 1 something is not, or nothing could be said of it; 2 the
    call cannot be judged.
    """
    if kernelbench and candidate is None:
        raise click.UsageError("--kernelbench takes a problem and a solution")
    untrusted = kernelbench if untrusted is None else untrusted
    if given["train"] is None:
        given["train"] = STEPS if untrusted else 0
    if untrusted and candidate is None:
        raise click.UsageError("--untrusted takes a reference and a candidate")
    if untrusted and repro and not kernelbench:
        raise click.UsageError("a script is written of --trusted code")
    if not kernelbench and not given["shapes"] and not reference.isidentifier():
        raise click.UsageError("no inputs: give a --shape for each")
    known("device", given["device"].partition(":")[0], options.DEVICES)
    if given["compute"] is not None:
        known("precision", given["compute"], (*PRECISIONS, "tf32"))
    request = {
        "reference": reference,
        "candidate": candidate,
        "kernelbench": [reference, candidate] if kernelbench else [],
        "choice": {part: given.pop(part) for part in _CHOICE},
        "repro": bool(repro),
        "untrusted": untrusted,
        "width": output().width,
        **given,
        "seed": given["seed"] if untrusted or kernelbench else given["seed"] or 0,
    }
    return _show(_asked(request), json_file, repro)


def _asked(request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a child process, or how it ended without one."""
    with Child(
        child.check,
        blamed="the code that was checked",
        variables={},
        environment=bare_environment() if request["untrusted"] else None,
        stdout=sys.stderr,  # the output of the caller's code is no result
        alone=True,  # processes that it starts end with it
        traced=True,
    ) as process:
        process.patience = request["timeout"]
        process.ask(request)
        found = process.answer(dict[str, Any])
    if isinstance(found, Failed):
        return {"ended": f"{found.message}{found.case and f', at {found.case}'}"}
    return found


def _show(answered: Mapping[str, Any], json_file: str | None, repro: str | None) -> int:
    """Print and write the answer; return the exit code."""
    if child.REFUSED in answered:
        click.echo(f"gradwatch: {answered[child.REFUSED]}", err=True)
        return 2
    if "ended" in answered:
        clear()
        click.echo(f"gradwatch: nothing was judged: {answered['ended']}", err=True)
        return 1
    keep(CHECK, documents.document([CheckRecord(**answered["kept"])], NoSummary()))
    if json_file != "-":
        click.echo(answered["text"])
        offered = "" if answered["passes"] or repro else "--repro FILE writes a script"
        style = "green" if answered["passes"] else "red"
        ending(answered["kept"]["told"], style, next_step=offered)
    if repro and answered["script"]:
        documents.replace_file(Path(repro), answered["script"])
    elif repro:
        why = "nothing fails" if answered["passes"] else "no call of it fails alone"
        click.echo(f"gradwatch: {why}, so no script is written", err=True)
    if json_file:
        summary = dict(answered["document"])
        documents.write(documents.document(summary.pop("records"), summary), json_file)
    return 0 if answered["passes"] else 1
