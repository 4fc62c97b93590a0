"""What both suites need: the jar of this folder's Scala, a JVM command for it, and a DynamoDB."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.support.dynoxide import fast_dynamodb
from tests.support.jvm import build_jar, java_command

# Two cores are shared with DynamoDB, the sidecar and pytest: a small collector, and no time for the best code.
OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """The command line of a main class of this folder's Scala: `java(name, *arguments)`. Builds the jars if need be."""
    build_jar()

    def command(name: str, *arguments: str) -> list[str]:
        # RocksDB's working copy goes to the folder for temporary files.
        temporary = tmp_path_factory.mktemp("jvm")
        return java_command(f"io.dynastate.conformance.{name}", temporary, arguments, *OPTIONS)

    return command


@pytest.fixture(scope="session")
def dynamodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The Spark conf of a provider on a DynamoDB."""
    with fast_dynamodb(tmp_path_factory.mktemp("dynamodb") / "dynoxide") as running:
        settings = {"endpoint": running.endpoint, "region": running.settings.region, "python": sys.executable}
        yield {f"spark.sql.streaming.stateStore.dynastate.{name}": str(value) for name, value in settings.items()}
