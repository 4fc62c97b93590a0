"""The DynamoDB a benchmark of ours talks to: one that is there already, or one that is started for it.

Of those that are started, dynoxide is a native server, and much faster than the embedded moto, which is a Python
process. It is taken where it is found: on PATH, or in build/dynoxide, where README.md says how to put it.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version

from targets import RESULTS, ROOT

REGION = "us-east-1"
DYNOXIDE = "dynoxide"
MOTO = "moto"
#: Which kind of keys does not matter to these engines, but boto3 signs nothing without any.
DUMMY_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark"}
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Database:
    """Where it is, what its users need in their environment, and what it is, with its version."""

    endpoint: str
    environment: Mapping[str, str]
    engine: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two options that say which DynamoDB it is."""
    parser.add_argument("--endpoint", help="a DynamoDB with both tables; default: one that is started for this run")
    parser.add_argument(
        "--engine",
        choices=(DYNOXIDE, MOTO),
        default=DYNOXIDE if dynoxide() else MOTO,
        help="which one to start (default: dynoxide where it is found, else moto; here: %(default)s)",
    )


def numbers(text: str) -> list[int]:
    """Parse numbers with commas between them, for an option."""
    return [int(each) for each in text.split(",")]


def names_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    """Parse known names with commas between them, for an option."""

    def parse(text: str) -> list[str]:
        unknown = set(text.split(",")) - set(names)
        if unknown:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(names)}")
        return text.split(",")

    return parse


@contextmanager
def database(endpoint: str | None, engine: str) -> Iterator[Database]:
    """Yield a DynamoDB with both tables.

    With an endpoint given, that one is used with the credentials of this process's environment, and the tables must
    be there. Without, a fresh engine is started, and ended afterwards.
    """
    if endpoint is not None:
        yield Database(endpoint, DUMMY_CREDENTIALS | dict(os.environ), endpoint)
        return
    environment = dict(os.environ) | DUMMY_CREDENTIALS
    if engine == DYNOXIDE:
        with _dynoxide(environment) as started:
            yield started
        return
    # Only here: the other stores can be measured where our package is not installed.
    from dynastate.dynamodb.embedded import EmbeddedDynamoDB

    with EmbeddedDynamoDB() as embedded:
        yield Database(embedded.endpoint, environment, f"{MOTO} {version(MOTO)}")


def dynoxide() -> str | None:
    """The program, if it is there."""
    installed = ROOT / "build" / DYNOXIDE / "node_modules" / "@dynoxide"
    return shutil.which(DYNOXIDE) or next(map(str, sorted(installed.glob(f"*/{DYNOXIDE}"))), None)


@contextmanager
def _dynoxide(environment: Mapping[str, str]) -> Iterator[Database]:
    """A dynoxide of its own, in memory."""
    program = dynoxide()
    if program is None:
        sys.exit("benchmark: dynoxide is not there; benchmarks/README.md says how to get it, or use --engine moto")
    its_version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    log = RESULTS / "dynoxide.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    with log.open("w") as output:
        process = subprocess.Popen(
            [program, "serve", "--host", "127.0.0.1", "--port", str(port)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=_end_with_parent,  # noqa: PLW1509  # no threads have been started yet
        )
    try:
        # This tries for some seconds to reach it, and says what is wrong if it cannot.
        _create_tables(endpoint, environment)
        yield Database(endpoint, environment, its_version)
    finally:
        process.kill()
        process.wait()


def _end_with_parent() -> None:
    """Have the kernel kill this process when the one that started it dies, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _create_tables(endpoint: str, environment: Mapping[str, str]) -> None:
    command = [sys.executable, "-m", "dynastate.cli", "tables", "create", "--endpoint", endpoint, "--region", REGION]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
