"""What all suites need: the jar of this folder's Scala, its programs, and a DynamoDB."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, CompletedProcess, run

import pytest

from tests.support.dynoxide import fast_dynamodb
from tests.support.jvm import build_jar, java_command

# Two cores are shared with DynamoDB, the sidecar and pytest: a small collector, and no time for the best code.
OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(frozen=True)
class Programs:
    """Programs of this folder's Scala, which get the Spark conf of a provider on a DynamoDB."""

    conf: dict[str, str]
    environment: dict[str, str]
    _make_folder: Callable[[str], Path]

    def command(self, name: str, *arguments: str) -> list[str]:
        words = [*arguments, *(f"{key}={value}" for key, value in self.conf.items())]
        # RocksDB's working copy goes to the folder for temporary files.
        return java_command(f"io.dynastate.conformance.{name}", self._make_folder("jvm"), words, *OPTIONS)

    def run(self, command: list[str], log: Path, most_s: float) -> CompletedProcess[str]:
        """Run a command to its end, whatever that is; its log goes to a file."""
        with log.open("w") as file:
            return run(command, env=self.environment, stdout=PIPE, stderr=file, text=True, timeout=most_s, check=False)


@pytest.fixture(scope="session")
def programs(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    build_jar()
    with fast_dynamodb(tmp_path_factory.mktemp("dynamodb") / "dynoxide") as dynamodb:
        settings = {"endpoint": dynamodb.endpoint, "region": dynamodb.settings.region, "python": sys.executable}
        conf = {f"spark.sql.streaming.stateStore.dynastate.{name}": str(value) for name, value in settings.items()}
        yield Programs(conf, environment, tmp_path_factory.mktemp)
