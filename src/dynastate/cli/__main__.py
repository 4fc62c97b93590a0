"""`python -m dynastate.cli`, and the entry point of `dynastate`: Ctrl-C ends them at any time, with one line."""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

from dynastate.cli.exit_codes import INTERRUPTED


def main() -> NoReturn:
    """Run the command line. Imports are in here, so that Ctrl-C may interrupt them."""
    try:
        from dynastate.cli.app import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("dynastate: interrupted\n")
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the interpreter's end remains


if __name__ == "__main__":
    main()
