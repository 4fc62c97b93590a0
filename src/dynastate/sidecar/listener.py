"""The socket that the JVM connects to, and its protection from other users."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import sys
import threading
from functools import partial
from io import BufferedReader
from pathlib import Path

from dynastate.errors import ConfigurationError
from dynastate.redaction import get_logger
from dynastate.sidecar.connection import READ_BUFFER_BYTES, Connection
from dynastate.sidecar.engines import Engines

log = get_logger("dynastate.sidecar")


def serve(listener: socket.socket, token: bytes) -> None:
    """Accept connections forever, each in its own thread."""
    engines = Engines()
    while True:
        peer, _ = listener.accept()
        if not is_ours(peer):
            log.warning("a connection by another user was refused")
            peer.close()
            continue
        threading.Thread(target=converse, args=(peer, token, engines), name="dynastate-connection", daemon=True).start()


def converse(peer: socket.socket, token: bytes, engines: Engines) -> None:
    with peer, BufferedReader(peer.makefile("rb", buffering=0), READ_BUFFER_BYTES) as stream:
        Connection(stream, peer.sendall, token, engines, is_open=partial(is_open, peer)).serve()


def is_open(peer: socket.socket) -> bool:
    """Whether the other end, which sends nothing while it waits for an answer, has not closed the connection."""
    try:
        return bool(peer.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return True
    except OSError:
        return False


def is_ours(peer: socket.socket) -> bool:
    """Whether the kernel reports that the process at the other end is this user's: a token can leak, a user cannot."""
    if sys.platform != "linux":
        return True  # folder and token are the only protection there
    _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(user == os.getuid())


def check_folder(folder: Path) -> None:
    """Refuse a socket folder that is not this user's alone, or is a link: its owner could replace the folder."""
    status = folder.lstat()
    alone = status.st_uid == os.getuid() and stat.S_IMODE(status.st_mode) == 0o700
    if not (alone and stat.S_ISDIR(status.st_mode)):
        raise ConfigurationError(
            "the socket's folder must be owned by this user with mode 0700",
            folder=folder,
            mode=oct(stat.S_IMODE(status.st_mode)),
            owner=status.st_uid,
        )


def remove_socket(path: Path) -> None:
    """Remove the socket and its folder, if they still exist."""
    for remove in (path.unlink, path.parent.rmdir):
        with contextlib.suppress(OSError):
            remove()
