"""The command line: `gradwatch COMMAND`. A command is a file in harness/commands.

Exit codes: 0 all as expected, 1 something is not, 2 the call is wrong, 3 a required
backend or device is missing.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from gradwatch._extras import explained
from gradwatch.harness.console.streams import clear, legible_streams, nowhere
from gradwatch.harness.project import git
from gradwatch.harness.project.paths import PROJECT
from gradwatch.impls import catalogue
from gradwatch.impls.catalogue import UnknownName, known, op_names, op_page

if TYPE_CHECKING:
    from gradwatch.harness.workers.process import Link

#: Commands that need no project; others do where only pages outside it are judged.
_ANYWHERE = ("check", "doctor", "init", "list", "selftest")
#: Commands whose own process loads pages or runs their formulas, as a night does where
#: it compares commits; `agree`, `time`, `fuzz` and `check` leave that to a job.
_LOADING = ("compare", "cases", "nightly", "selftest", "watch")
_COMMANDS = Path(__file__).parent / "commands"


class Commands(click.Group):
    """Imports a command's file only when it is called; suggests the nearest name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the files in harness/commands; what most want comes first."""
        stems = {path.stem for path in _COMMANDS.glob("*.py")}
        names = (stem for stem in stems if not stem.startswith("_"))
        return sorted(names, key=lambda name: (name != "check", name))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the file of one command."""
        try:
            known("command", cmd_name, self.list_commands(ctx))
        except UnknownName as error:
            raise click.UsageError(str(error)) from None
        enough = {"--ops", "--help", "-h"} & {*sys.argv}
        if PROJECT.problem and cmd_name not in _ANYWHERE and not enough:
            raise click.UsageError(PROJECT.problem)
        module = importlib.import_module(f"{__package__}.commands.{cmd_name}")
        command: click.Command = module.command
        command.short_help = (command.help or "").partition("\n")[0].rstrip(".")
        command.help = _set(command.help)
        return command


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gradwatch")
def gradwatch() -> None:
    r"""Is the gradient right, is it fast, and since when.

    A gradient is compared with a reference in a wider type; the tolerance is derived
    from the rounding errors. Right gradients are timed, and the history is kept.

    \b
    First steps:
      gradwatch check mykernels:FastSilu --shape 64x1000   one function of yours
      gradwatch init mykernels:FastSilu                    a repository of yours
      gradwatch agree --op layer_norm                      one op on every backend
      gradwatch doctor                                     what is installed here
    """
    # Of a checkout that is not trusted: at the end of a run its records would be lost.
    with contextlib.suppress(git.NoCommit):
        git.git("rev-parse", "--git-dir")


def _set(text: str | None) -> str:
    """The help text for click: a backspace marks what is preformatted, to the gap."""
    marked = (text or "").replace("\\b\n", "\b\n")
    return marked.replace("    Exit code:", "\n    Exit code:")


gradwatch.help = _set(gradwatch.help)


def main() -> None:
    """Run the command line, in a process of its own where pages could end it."""
    legible_streams()
    if {*sys.argv[1:]} & {*_LOADING}:
        sys.exit(apart(sys.argv))
    sys.exit(_exit_code())


def apart(arguments: Sequence[str]) -> int:
    """Run a command in a child that a page may end with any exit code; its own code.

    A Ctrl-C interrupts the child, which says what it has and how it ends.
    """
    from gradwatch.harness.workers.process import Child, Failed

    with Child(command, stdin=None, stdout=None, variables={}) as child:
        child.ask(arguments)
        try:
            ended = child.answer(int)
        except KeyboardInterrupt:
            child.interrupt()
            ended = child.answer(int)
            if isinstance(ended, Failed):  # it was about to start
                _say("interrupted")
                return 130
    if isinstance(ended, int):
        return ended
    late = f"{ended.op}: " if ended.verdict == "timeout" else ""
    _say(f"{late}{ended.message}")
    return 1


def command(content: bytes, link: Link) -> None:
    """The job: run a command line, and hand over its exit code."""
    sys.argv = msgspec.msgpack.decode(content, type=list[str])
    catalogue.guard = partial(link.at, fails=False)
    legible_streams()
    code = _exit_code()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    link.tell(code)


def _exit_code() -> int:
    """Run the command; an error that users can fix becomes one line and a code."""
    called = next((word for word in sys.argv[1:] if word[:1] != "-"), "")
    try:
        with explained(called):
            context = gradwatch.make_context("gradwatch", sys.argv[1:])
            with context:
                code = gradwatch.invoke(context)
    except SystemExit as error:  # of a page
        _say(f"a page or its formula raised SystemExit: {error.code}")
        return 1
    except click.exceptions.Exit as error:
        return int(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted")
        return 130
    except click.ClickException as error:
        _say(error.format_message())
        return 2
    except BrokenPipeError:  # nobody reads any longer, as of `| head`
        nowhere(sys.stdout.fileno())
        return 1
    except OSError as error:
        named = f": {error.filename}" if error.filename else ""
        _say(f"{error.strerror or error}{named}")
        return 1
    except Exception as error:
        if isinstance(code := getattr(error, "exit_code", None), int):
            _say(str(error))
            return code
        if page := _page_of(error):
            from gradwatch.harness.workers.evaluate import in_short

            _say(f"{page} cannot be run: {in_short(error)}")
            return 1
        raise  # the fault is ours
    return code if isinstance(code, int) else 0


def _page_of(error: Exception) -> str:
    """The name of the op page in which an exception was raised, or ""."""
    named = [word for word in sys.argv[1:] if word.endswith(".py")]
    pages = {op_page(name).resolve() for name in (*op_names(), *named)}
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):  # no frame of a page that cannot be compiled
        files.append(error.filename or "")
    found = [Path(file).name for file in files if Path(file).resolve() in pages]
    return found[-1] if found else ""


def _say(message: str) -> None:
    clear()
    click.echo(f"gradwatch: {message}", err=True)


if __name__ == "__main__":
    main()
