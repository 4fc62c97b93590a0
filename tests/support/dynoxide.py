"""dynoxide: a DynamoDB that is faster than the embedded one, and keeps its tables in a file when it dies."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, final

import pytest

from dynastate.dynamodb.admin import create_tables
from dynastate.dynamodb.embedded import EmbeddedDynamoDB, credentials
from dynastate.settings import Settings
from tests.support.jvm import ROOT

#: Where `make dynoxide` puts it.
BINARY: Final = ROOT / "build" / "dynoxide" / "node_modules" / "@dynoxide" / "linux-x64" / "dynoxide"
START_DEADLINE_S: Final = 20.0


def program() -> str | None:
    """The path of the program, if it is installed."""
    return shutil.which("dynoxide") or (str(BINARY) if BINARY.exists() else None)


def find_dynoxide() -> str:
    """The path of the program; without it the test is skipped, and in CI it fails."""
    if (found := program()) is not None:
        return found
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("dynoxide, an engine that keeps its data, is there for Linux on x86-64 only")
    missing = "dynoxide, an engine that keeps its data, is missing: 'make dynoxide' brings it, and needs npm"
    assert not os.environ.get("CI"), missing
    pytest.skip(missing)


@final
class Dynoxide:
    """The engine on one port of 127.0.0.1 for as long as the `with` block runs."""

    def __init__(self, folder: Path) -> None:
        self._program = find_dynoxide()
        self._folder = folder
        folder.mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port: int = free.getsockname()[1]
        self.settings = replace(Settings(region="us-east-1"), endpoint=f"http://127.0.0.1:{self._port}")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Dynoxide:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def endpoint(self) -> str:
        """`http://127.0.0.1:PORT`."""
        return self.settings.endpoint

    def start(self) -> None:
        """Start it, with what its tables held when it ended."""
        command = [self._program, "serve", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--db-path", str(self._folder / "tables")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_DEADLINE_S
        while not self._answers():
            assert self._process.poll() is None, f"dynoxide ended:\n{(self._folder / 'log').read_text()[-2000:]}"
            assert time.monotonic() < deadline, "dynoxide does not answer"
            time.sleep(0.05)

    def kill(self) -> None:
        """End it by SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _answers(self) -> bool:
        with socket.socket() as peer:
            return peer.connect_ex(("127.0.0.1", self._port)) == 0


@contextmanager
def fast_dynamodb(folder: Path) -> Iterator[EmbeddedDynamoDB | Dynoxide]:
    """A DynamoDB with both tables: dynoxide, in a new folder, or the embedded one where that is missing."""
    if program() is None:
        with EmbeddedDynamoDB() as embedded:
            yield embedded
        return
    with Dynoxide(folder) as running:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in credentials().items():
                patch.setenv(name, value)
            create_tables(running.settings)
        yield running
