"""AWS's DynamoDB Local, as an engine for the tests of this project."""

from __future__ import annotations

import socket
import subprocess
import time
from dataclasses import replace
from typing import Final, final

import pytest

from dynastate.dynamodb.admin import create_tables
from dynastate.dynamodb.embedded import HOST, REGION, credentials
from dynastate.settings import Settings
from tests.upstream.maven import jars

MAIN: Final = "com.amazonaws.services.dynamodbv2.local.main.ServerRunner"
START_DEADLINE_S: Final = 60.0


@final
class DynamoDBLocal:
    """DynamoDB Local with both tables, in memory, for as long as the `with` block runs."""

    def __init__(self) -> None:
        self._folder = jars("dynamodb-local")
        with socket.socket() as free:
            free.bind((HOST, 0))
            self._port: int = free.getsockname()[1]
        self.endpoint = f"http://{HOST}:{self._port}"
        self.settings = replace(Settings(region=REGION), endpoint=self.endpoint)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id while it runs."""
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> DynamoDBLocal:
        options = ["-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx1g", f"-Djava.library.path={self._folder}"]
        options += ["-Djava.net.preferIPv4Stack=true"]  # tests look for its socket among those of IPv4
        command = ["java", *options, "-cp", f"{self._folder}/*", MAIN]
        command += ["-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(self._port)]
        nothing = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)
        try:
            deadline = time.monotonic() + START_DEADLINE_S
            while not self._answers():
                assert self._process.poll() is None, "DynamoDB Local ended"
                assert time.monotonic() < deadline, "DynamoDB Local does not answer"
                time.sleep(0.05)
            with pytest.MonkeyPatch.context() as environment:
                for name, value in credentials().items():
                    environment.setenv(name, value)
                create_tables(self.settings)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _answers(self) -> bool:
        with socket.socket() as peer:
            return peer.connect_ex((HOST, self._port)) == 0
