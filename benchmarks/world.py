"""An AWS-shaped world for benchmarks: a DynamoDB and an S3 as late as those of AWS, which throttle as they do.

    python benchmarks/world.py                                  starts a world, and prints its endpoints
    python benchmarks/world.py -- -new-table -partitions 1      with options of the program in Go

The DynamoDB is before an engine of `database.py`. The S3 is in memory. Both are one program in Go, in `network/`, which
ends with its standard input.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from database import Database, add_arguments, database
from targets import ROOT

SOURCES = ROOT / "benchmarks" / "network"
PROGRAM = ROOT / "build" / "network" / "world"
GO_MISSING = "Go is missing; install it (Debian: apt-get install golang-go)"
REQUEST_TIMEOUT_S = 10


@dataclass(frozen=True)
class World:
    """The DynamoDB at the world's distance, the endpoint of its S3, and its control port."""

    database: Database
    s3: str
    control: str

    def statistics(self) -> dict[str, Any]:
        """The counts by service and operation since the last reset, the state of tables, and the world's own time."""
        statistics: dict[str, Any] = json.loads(self._request("GET", "/statistics"))
        return statistics

    def trace(self) -> list[dict[str, Any]]:
        """Every request to DynamoDB since the last reset, of a world with `-trace`; see `tracedRequest` in Go."""
        requests: list[dict[str, Any]] = json.loads(self._request("GET", "/trace"))
        return requests

    def reset(self) -> None:
        """Begin statistics and trace again. Tables and objects remain, and so does the capacity that they have left."""
        self._request("POST", "/reset")

    def scale(self, factor: float) -> None:
        """Multiply all latencies from now on by a factor. With 0 it answers at once, as while a benchmark fills it."""
        self._request("POST", f"/scale?factor={factor}")

    def _request(self, method: str, path: str) -> bytes:
        request = urllib.request.Request(self.control + path, method=method)  # noqa: S310  # a port of our own
        with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:  # noqa: S310
            content: bytes = answer.read()
        return content


@contextmanager
def world(endpoint: str | None, engine: str, *arguments: str) -> Iterator[World]:
    """Yield a world before a DynamoDB of `database`; both end with it. `arguments` are options of the program in Go."""
    program = build()
    with database(endpoint, engine) as near, _started(program, near.endpoint, arguments) as ports:
        urls = {service: f"http://127.0.0.1:{port}" for service, port in ports.items()}
        yield World(replace(near, endpoint=urls["dynamodb"]), urls["s3"], urls["control"])


def build() -> Path:
    """Build the program, which takes a moment where nothing has changed."""
    go = shutil.which("go")
    if go is None:
        sys.exit(GO_MISSING)
    environment = dict(os.environ) | {"GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    command = [go, "build", "-trimpath", "-o", str(PROGRAM), "."]
    if subprocess.run(command, cwd=SOURCES, env=environment, check=False).returncode != 0:
        sys.exit("benchmark: the world does not compile; the compiler's messages are above")
    return PROGRAM


@contextmanager
def _started(program: Path, engine: str, arguments: Sequence[str]) -> Iterator[dict[str, int]]:
    """Start the program, and yield its ports. It ends with its input, so with this process, however that dies."""
    command = [str(program), "-dynamodb", urlsplit(engine).netloc, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                sys.exit("benchmark: the world does not start; its message is above")
            yield json.loads(line)
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("options", nargs="*", help="options of the program in Go, after `--`, such as -partitions 1")
    asked = parser.parse_args()
    with world(asked.endpoint, asked.engine, *asked.options) as started:
        print(f"DynamoDB {started.database.endpoint}\nS3 {started.s3}\nstatistics {started.control}/statistics")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
