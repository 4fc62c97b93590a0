"""Keys that are pressed while a command runs, without Enter."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def pressed() -> Iterator[Callable[[float], str]]:
    """A function that waits for some seconds, and returns the key that ended the wait, or an empty text.

    If standard input is not a terminal, it only waits. Ctrl-C works as ever.
    """
    try:
        terminal = sys.stdin.fileno()
        attributes = termios.tcgetattr(terminal)
    except (OSError, ValueError, termios.error):
        yield _sleep
        return

    def wait(seconds: float) -> str:
        ready, _, _ = select.select([terminal], [], [], seconds)
        # A key such as an arrow is several bytes.
        return os.read(terminal, 16).decode(errors="replace") if ready else ""

    tty.setcbreak(terminal)
    try:
        yield wait
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, attributes)


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""
