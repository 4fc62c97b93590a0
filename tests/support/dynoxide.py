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
from typing import ClassVar, Final, TypeVar, final

import pytest

from dynastate.dynamodb.admin import create_tables
from dynastate.dynamodb.embedded import EmbeddedDynamoDB, credentials
from dynastate.settings import Settings
from tests.support.jvm import ROOT
from tests.support.processes import free_port

#: Where `make dynoxide` puts it.
BINARY: Final = ROOT / "build" / "dynoxide" / "node_modules" / "@dynoxide" / "linux-x64" / "dynoxide"


def program() -> str | None:
    """The path of the program, if it is installed."""
    return shutil.which("dynoxide") or (str(BINARY) if BINARY.exists() else None)


def find_dynoxide() -> str:
    """The path of the program; without it the test is skipped, and in CI it fails."""
    if (path := program()) is not None:
        return path
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("dynoxide, an engine that keeps its data, is there for Linux on x86-64 only")
    missing = "dynoxide, an engine that keeps its data, is missing: 'make dynoxide' brings it, and needs npm"
    assert not os.environ.get("CI"), missing
    pytest.skip(missing)


Own = TypeVar("Own", bound="DynamoDBProcess")


class DynamoDBProcess:
    """A DynamoDB on one port of 127.0.0.1 for as long as the `with` block runs."""

    START_DEADLINE_S: ClassVar[float]

    def __init__(self, log: Path) -> None:
        self._log = log
        self._port = free_port()
        self.settings = replace(Settings(region="us-east-1"), endpoint=f"http://127.0.0.1:{self._port}")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self: Own) -> Own:  # noqa: PYI019  # Self comes with Python 3.11
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def endpoint(self) -> str:
        """`http://127.0.0.1:PORT`."""
        return self.settings.endpoint

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def command(self) -> list[str]:
        """The command that serves on the port."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it, with what its tables held when it ended, if it keeps that."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + self.START_DEADLINE_S
        while not self._answers():
            assert self._process.poll() is None, f"DynamoDB ended:\n{self._log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, "DynamoDB does not answer"
            time.sleep(0.05)

    def create_tables(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in credentials().items():
                patch.setenv(name, value)
            create_tables(self.settings)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _answers(self) -> bool:
        with socket.socket() as peer:
            return peer.connect_ex(("127.0.0.1", self._port)) == 0


@final
class Dynoxide(DynamoDBProcess):
    """The engine, with its tables in a new folder."""

    START_DEADLINE_S = 20.0

    def __init__(self, folder: Path) -> None:
        self._program = find_dynoxide()
        self._folder = folder
        folder.mkdir()
        super().__init__(folder / "log")

    def command(self) -> list[str]:
        serve = [self._program, "serve", "--host", "127.0.0.1", "--port", str(self._port)]
        return [*serve, "--db-path", str(self._folder / "tables")]


@contextmanager
def fast_dynamodb(folder: Path) -> Iterator[EmbeddedDynamoDB | Dynoxide]:
    """A DynamoDB with both tables: dynoxide, in a new folder, or the embedded one where that is missing."""
    if program() is None:
        with EmbeddedDynamoDB() as embedded:
            yield embedded
        return
    with Dynoxide(folder) as running:
        running.create_tables()
        yield running
