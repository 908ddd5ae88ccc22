"""The command line, as `gradwatch` and as `python -m gradwatch`."""

from __future__ import annotations

import sys

from gradwatch._extras import Missing, explained


def main() -> None:
    """Run a command; 3 is the exit code where a package that it needs is missing.

    Ctrl-C while modules are imported is a line, and ends this as later ones do.
    """
    try:
        with explained("the command line"):
            from gradwatch.harness.__main__ import main as command_line
        with explained("this command"):
            command_line()
    except Missing as error:
        sys.stderr.write(f"gradwatch: {error}\n")
        sys.exit(3)
    except KeyboardInterrupt:
        sys.stderr.write("gradwatch: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
