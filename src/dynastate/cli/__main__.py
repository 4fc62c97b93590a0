"""`python -m dynastate.cli`, and the entry point of `dynastate`: Ctrl-C ends them at any time, with one line."""

from __future__ import annotations

import signal
import sys

from dynastate.cli.exit_codes import INTERRUPTED


def main() -> None:
    """Run the command line. Imports are in here, so that Ctrl-C may interrupt them."""
    try:
        if sys.argv[1:] == ["--version"]:  # without Typer, whose import takes most of the time
            from dynastate.version import __version__

            sys.stdout.write(f"dynastate {__version__}\n")
            return
        from dynastate.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("dynastate: interrupted\n")
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the interpreter's end remains


if __name__ == "__main__":
    main()
