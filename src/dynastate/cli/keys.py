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
    """A function that waits for so many seconds, and returns the key that ended the wait; empty: none did.

    Where standard input is no terminal it only waits. Ctrl-C stays what it is.
    """
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
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
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _sleep(seconds: float) -> str:
    time.sleep(seconds)
    return ""
