"""Sidecars and connections for all tests of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dynastate.dynamodb.embedded import EmbeddedDynamoDB
from tests.support.sidecar import Sidecar, Start, Talk, spark_names


@pytest.fixture
def start() -> Iterator[Start]:
    sidecars: list[Sidecar] = []

    def make(**arguments: Any) -> Sidecar:
        sidecars.append(Sidecar(**arguments))
        return sidecars[-1]

    yield make
    for child in sidecars:
        child.close()


@pytest.fixture(scope="module")
def sidecar() -> Iterator[Sidecar]:
    """One sidecar for all tests that leave it alive."""
    server = Sidecar()
    assert server.said == "ready\n", server.log()
    yield server
    server.close()


@pytest.fixture
def settings(embedded: EmbeddedDynamoDB) -> dict[str, str]:
    return spark_names(embedded.settings)


@pytest.fixture
def connect(sidecar: Sidecar) -> Iterator[Callable[[], Talk]]:
    talks: list[Talk] = []

    def make() -> Talk:
        talks.append(sidecar.connect())
        return talks[-1]

    yield make
    for talk in talks:
        talk.close()


@pytest.fixture
def talk(connect: Callable[[], Talk], settings: dict[str, str]) -> Talk:
    return connect().hello(settings)
