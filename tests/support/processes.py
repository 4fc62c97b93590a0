"""Processes of the tests: descendants, arguments, sockets they listen on, memory; and waiting for their end."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

ENDED_WITHIN_S = 60.0
#: States in /proc/net: a listening TCP socket; a UDP socket that is not connected.
_TCP_LISTENS = "0A"
_UDP_BOUND = "07"
#: __SO_ACCEPTCON, a flag in /proc/net/unix: the socket accepts connections.
_UNIX_LISTENS = 0x10000


def children(pid: int) -> list[int]:
    pids: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(FileNotFoundError, ProcessLookupError):  # this thread of it has ended
                pids += map(int, (task / "children").read_text().split())
    return pids


def descendants(pid: int) -> list[int]:
    """Process ids of what a process started, and of what those started."""
    return [each for child in children(pid) for each in (child, *descendants(child))]


def sidecars_of(jvm: int) -> list[int]:
    return [pid for pid in children(jvm) if b"dynastate.sidecar" in arguments(pid)]


def arguments(pid: int) -> bytes:
    """The command line of a process; empty: it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def listening(pid: int) -> set[str]:
    """Sockets that a process takes connections or datagrams on: `unix PATH`, `tcp ADDRESS`, `udp ADDRESS` and so on."""
    files = set(_open_files(pid))
    addresses: set[str] = set()
    for kind in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
            words = line.split()
            listens = words[3] == _TCP_LISTENS if kind.startswith("tcp") else words[3] == _UDP_BOUND
            if listens and f"socket:[{words[9]}]" in files:
                addresses.add(f"{kind} {words[1]}")
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        words = line.split()
        if int(words[3], 16) & _UNIX_LISTENS and f"socket:[{words[6]}]" in files:
            addresses.add(f"unix {words[7]}")
    return addresses


def sockets(pid: int) -> int:
    return sum(link.startswith("socket:") for link in _open_files(pid))


def unix_sockets(pid: int) -> int:
    """How many of them are Unix-domain sockets."""
    lines = Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]
    of_unix = {f"socket:[{line.split()[6]}]" for line in lines}
    return sum(link in of_unix for link in _open_files(pid))


def _open_files(pid: int) -> Iterator[str]:
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            yield str(link.readlink())


def memory_mib(pid: int, what: str = "VmHWM") -> int:
    """Resident memory in MiB: the most it ever was, or with `VmRSS` what it is."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{what}:")]
    return int(line.split()[1]) // 1024


def is_alive(pid: int) -> bool:
    """Whether a process runs: it is there, and no zombie."""
    words = ["ps", "-o", "stat=", "-p", str(pid)]
    state = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    return bool(state) and not state.startswith("Z")


def kill(pids: Iterable[int]) -> None:
    """Kill processes (SIGKILL) that may have ended by themselves."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def press_ctrl_c(stopped: threading.Event) -> bool:
    """Send SIGINT to the main thread until it has stopped something; whether it has.

    A signal that comes just before the main thread begins to wait for a lock does not wake it, so there is another
    after some seconds.
    """
    main = threading.main_thread().ident
    assert main is not None
    for _ in range(5):
        signal.pthread_kill(main, signal.SIGINT)
        if stopped.wait(10):
            return True
    return False


def free_port() -> int:
    """A free port of 127.0.0.1, below those that the kernel chooses from for programs that ask for any."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.SystemRandom().sample(range(first // 2, first), 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def remove_tree(folder: Path) -> None:
    """Remove a folder in which a process that is about to end may still remove files of its own."""
    while folder.exists():
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)


def wait_until(condition: Callable[[], bool], otherwise: str, within_s: float = ENDED_WITHIN_S) -> None:
    """Wait for something that takes a moment. AssertionError: it did not come."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)
