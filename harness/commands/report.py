"""`gradwatch report`: writes the dashboard."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from gradwatch.harness.console import options as options
from gradwatch.harness.console.streams import ticking
from gradwatch.harness.project.paths import ROOT


@click.command()
@options.folder("--results", "The results to show.", ROOT / "results", "results")
@options.folder(
    "--output",
    "Folder for the site; an earlier site there is replaced.",
    ROOT / "html",
    "html",
)
@click.option("--open", "opened", is_flag=True, help="Open the site in the browser.")
def command(results: Path, output: Path, opened: bool) -> int:
    r"""Write the dashboard: is it right, is it fast, since when.

    The site shows results/latest (the last runs of this checkout), results/recorded,
    results/asv (the history) and results/findings. It works when opened as a file and
    loads nothing from the network. Results of different machines are never mixed.

    \b
    Examples:
      gradwatch agree && gradwatch report --open
    """
    if not results.is_dir() and results != ROOT / "results":  # as of a fresh clone
        raise click.UsageError(f"no folder {results}")
    # Importing the charts takes a second, so the options are checked first.
    from gradwatch.harness.dashboard.site import write_site

    index = output.resolve() / "index.html"
    with ticking(lambda: "report: writing the dashboard"):
        troubles = write_site(results.resolve(), index.parent)
    for trouble in troubles:
        click.echo(f"not shown: {trouble.file}: {trouble.why}", err=True)
    pages = [file for file in index.parent.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in pages) / 1e6
    shown = "" if opened else "; --open shows it"
    click.echo(f"The page is {index} ({len(pages)} files, {size:.1f} MB){shown}")
    if opened:
        webbrowser.open(index.as_uri())
    return 0
