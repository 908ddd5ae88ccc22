"""Options that several commands share; an unknown name suggests the nearest."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import click

from gradwatch.harness.judging.cases import REGIMES, Trial, trial
from gradwatch.harness.judging.orders import ORDERS
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.project.machines import has_cuda
from gradwatch.harness.project.requested import Required, by_default
from gradwatch.impls.catalogue import backend_names, known, load_op, op_names
from gradwatch.impls.contract import Case, Op

DEVICES = ("cpu", "cuda")
Command = Callable[..., Any]


def several(
    name: str,
    names: Callable[[], Iterable[str]] | None,
    text: str,
    option: str = "",
    **more: Any,
) -> Callable[[Command], Command]:
    """Return an option that is repeated, or with commas; each name counts once.

    For an unknown name the error suggests the nearest; without `names` any is valid.
    """

    def check(
        ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
    ) -> tuple[str, ...]:
        given = dict.fromkeys(one for value in values for one in value.split(","))
        return tuple(n if names is None else known(name, n, names()) for n in given)

    more = {"metavar": name.upper(), "called": f"{name}s", "callback": check, **more}
    more["help"] = f"{text} Repeatable, or with commas."
    place = (option or f"--{name}", more.pop("called"))
    return click.option(*place, multiple=True, **more)


op = several("op", op_names, "Only this op; see `gradwatch list ops`.")
backend = several(
    "backend", backend_names, "Only this backend; `gradwatch list backends`."
)
device = several(
    "device", lambda: DEVICES, "cpu (the default) or cuda.", default=["cpu"]
)
one_device = click.option(
    "--device",
    default="cpu",
    show_default=True,
    callback=lambda ctx, parameter, name: known("device", name, DEVICES),
    help="cpu or cuda.",
)
dtype, timed_dtype = (
    several(
        "dtype", lambda: PRECISIONS, f"{', '.join(PRECISIONS)}; {usual} by default."
    )
    for usual in ("float32 and float64", "float32")
)
regime = several("regime", lambda: REGIMES, f"Only these inputs: {', '.join(REGIMES)}.")
case = click.option(
    "--case",
    "cases",
    multiple=True,
    metavar="CASE",
    help="Only these cases, with * and ?; see `gradwatch list cases`. Repeatable.",
)


def _orders(default: Sequence[str]) -> Callable[[Command], Command]:
    text = "vjp (the gradient), jvp (forward mode), hvp (the double backward: "
    text += "gradients of the sum of dx * v)."
    more: dict[str, Any] = {"default": default, "show_default": ",".join(default)}
    return several("order", lambda: ORDERS, text, metavar="ORDERS", **more)


orders, every_order = _orders(ORDERS[:1]), _orders(ORDERS)
pages = click.option(
    "--ops",
    "pages",
    multiple=True,
    metavar="PAGE.py",
    type=click.Path(exists=True, dir_okay=False, resolve_path=True),
    help="An op page outside the project. Repeatable.",
)
size = several("size", None, "Only this size of an op, or small, middle, large.")
seed = click.option(
    "--seed", default=0, show_default=True, help="Seed of all random numbers."
)
jobs = click.option(
    "--jobs",
    default=os.cpu_count() or 1,
    show_default="number of cores",
    type=click.IntRange(min=1),
    help="Workers that run at the same time.",
)
on = click.option(
    "--on",
    "address",
    default="local",
    show_default=True,
    metavar="HOSTS",
    help="Where to judge: dask:// or tls://HOST:PORT, a Dask cluster.",
)
threads = click.option(
    "--threads", default=1, show_default=True, help="Threads of a framework."
)


def on_this_machine(devices: Iterable[str]) -> None:
    """Raise Required at once where this machine cannot have any of the devices."""
    if {*devices} == {"cuda"} and not has_cuda():
        raise Required("no CUDA device is here (gradwatch doctor): --device cpu")


require = several(
    "backend",
    backend_names,
    "End with exit code 3 if this backend cannot run here.",
    option="--require",
    called="require",
)
_UNITS = {"s": 1, "m": 60, "h": 3600}


def _duration(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> float | None:
    """The seconds of a text such as 90, 90s, 10m or 1h."""
    if value is None:
        return None
    unit = value[-1:] if value[-1:] in _UNITS else "s"
    with suppress(ValueError):
        if (number := float(value.removesuffix(unit))) > 0:
            return number * _UNITS[unit]
    raise click.BadParameter(f"{value!r} is not a time such as 90s, 10m or 1h")


def seconds(
    name: str, default: float | str | None, text: str, shown: bool | str = True
) -> Callable[[Command], Command]:
    """Return an option that takes a time above 0, in seconds or with a unit."""
    more: dict[str, Any] = {"type": str, "callback": _duration, "metavar": "SECONDS"}
    return click.option(name, default=default, show_default=shown, help=text, **more)


def folder(
    name: str, text: str, default: Path | None = None, shown: str = "", **more: Any
) -> Callable[[Command], Command]:
    """Return an option that takes a folder; `shown` is the text of its default."""
    more |= {"type": click.Path(file_okay=False, path_type=Path), "default": default}
    more |= {"show_default": shown or False, "metavar": "FOLDER", "help": text}
    return click.option(*name.split(), **more)


timeout = seconds(
    "--timeout", 60.0, "Time for one case on one backend; a hang ends only that case."
)
json_file = click.option(
    "--json",
    "json_file",
    metavar="F",
    help="Write the whole document to a file, or - (standard output); F.gz compressed.",
)


def framework_backends(chosen: Sequence[str]) -> tuple[str, ...]:
    """The chosen backends, or all but those that run only on request."""
    return tuple(chosen) or by_default()


def sources(names: Sequence[str], pages_given: Sequence[str]) -> tuple[str, ...]:
    """The name or the page from which each op is loaded; all by default."""
    return (*names, *pages_given) or op_names()


def sizes_of(op: Op, wanted: Sequence[str]) -> list[Case]:
    """The chosen sizes of an op: by name, or by rank."""
    all_sizes = list(op.sizes.values())
    if not wanted or not all_sizes:
        return all_sizes
    last = len(all_sizes) - 1
    ranked = {"small": 0, "middle": last // 2 + last % 2, "large": last}
    named = {ranked[name] for name in wanted if name in ranked}
    return [c for i, c in enumerate(all_sizes) if c.name in wanted or i in named]


def sized(
    sources: Iterable[str],
    loading: Callable[[str], AbstractContextManager[object]],
    *,
    sizes: Sequence[str],
    dtypes: Sequence[str],
    seed: int,
) -> list[Trial]:
    """The chosen sizes of ops, each of which is loaded within `loading(source)`.

    Raises:
        click.UsageError: No op has one of the sizes.
    """
    trials, there = list[Trial](), list[str]()
    for source in sources:
        with loading(source):
            op = load_op(source)
            there += op.sizes
            trials += [
                trial(op, case, REGIMES["normal"], dtype, seed, source)
                for case in sizes_of(op, sizes)
                for dtype in dtypes or ("float32",)
            ]
    if there and not trials:
        names = dict.fromkeys(("small", "middle", "large", *there))
        near = [difflib.get_close_matches(one, names, 1, 0.3) for one in sizes]
        hints = [f"; did you mean {name!r}?" for several in near for name in several]
        listed = f"no such size; the sizes are {', '.join(names)}"
        raise click.UsageError(listed + "".join(hints[:1]))
    return trials
