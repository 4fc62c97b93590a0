"""The sidecar's process: standard input and output, signals, and its end.

The JVM that starts it writes one line of JSON, {"socket": path, "token": hex}, to standard input, and keeps that open.
When it ends, the executor is gone, and the sidecar ends too. Standard output carries its sign of life.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO, TextIO

from dynastate.errors import ConfigurationError
from dynastate.redaction import protect, redact_stderr
from dynastate.sidecar.listener import check_folder, remove_socket, serve

#: Time between two signs of life; the JVM kills a sidecar that gives none for 20 seconds.
ALIVE_EVERY_S = 2.0
#: A thread that computes, as for a load, gives way after so long to one that waits. With Python's own 5 ms, at each
#: step of a commit, commits beside such a thread took half as long again.
SWITCH_INTERVAL_S = 0.0005


def main() -> None:
    """Read where to listen, print `ready`, and serve until standard input ends."""
    redact_stderr()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("botocore").setLevel(logging.WARNING)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for Spark, which still has a batch to finish
    parent = sys.stdin.buffer
    order = json.loads(parent.readline())
    path, token = Path(order["socket"]), bytes.fromhex(order["token"])
    protect(order["token"])
    try:
        check_folder(path.parent)
    except ConfigurationError as wrong:
        sys.exit(f"dynastate.sidecar: {wrong}")
    os.umask(0o077)  # the socket, too, is for this user alone
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(256)
        threading.Thread(target=_exit_with, args=(parent, path), name="dynastate-parent", daemon=True).start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        threading.Thread(target=_show_sign_of_life, args=(sys.stdout,), name="dynastate-life", daemon=True).start()
        serve(listener, token)


def _exit_with(parent: BinaryIO, path: Path) -> None:
    """Wait until standard input ends: the executor is gone. No version list names the parts of unfinished attempts."""
    while parent.read(4096):
        pass
    remove_socket(path)
    os._exit(0)


def _show_sign_of_life(executor: TextIO) -> None:
    """Print `alive` again and again, which a process that is stopped, or hangs as a whole, does not do."""
    with contextlib.suppress(OSError):  # the executor is gone, and so is this process at once
        while True:
            time.sleep(ALIVE_EVERY_S)
            executor.write("alive\n")
            executor.flush()
