"""Stores for commands to look at: tables in memory, which `tables` and wrong options do not use, and 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from moto import mock_aws

from dynastate.dynamodb import boto_tables
from dynastate.engine import pace
from dynastate.engine.engine import Engine
from dynastate.format.checkpoint import checkpoint_of_store
from dynastate.operations.lifecycle import drop
from dynastate.reader import state
from tests.support.engine_driver import make_engine
from tests.support.memory_tables import MemoryTables
from tests.support.store_builder import StoreBuilder, counted, user

REGION = "us-east-1"


class NamedTables(MemoryTables):
    """Tables that a command opens by their names."""

    def find_stores(self) -> Iterator[str]:
        shards = {key.store_shard for key in self.items if key.role == "snapshot"}
        stores = (each.removesuffix("#0") for each in shards if each.endswith("#0"))
        return (store for store in stores if checkpoint_of_store(store) is None)

    def __exit__(self, *_: object) -> None:
        """Stay, for the next command."""


@pytest.fixture(scope="package")
def tables() -> NamedTables:
    """The tables of all commands but `tables`, for which there are some on moto."""
    return NamedTables()


@pytest.fixture(autouse=True)
def surroundings(
    tables: NamedTables, dummy_credentials: None, boto_client: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A terminal of 80 columns, those tables, and moto with tables of its own. Snapshots and drops do not wait."""
    for name, value in {"AWS_REGION": REGION, "COLUMNS": "80", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(pace, "PAUSE_MAX_S", 0.0)
    monkeypatch.setattr(drop, "LOOK_MIN_S", 0.0)
    for module in (boto_tables, state):
        monkeypatch.setattr(module, "open_tables", lambda _: tables)
    mock = mock_aws()
    mock.start(reset=False)
    yield
    mock.stop(remove_data=False)


@pytest.fixture(scope="package")
def engine(tables: NamedTables) -> Iterator[Engine]:
    new_engine = make_engine(tables)
    yield new_engine
    new_engine.close()


@pytest.fixture(scope="package")
def store(engine: Engine) -> str:
    """A store of three versions: of a and b, a is changed, c comes, b goes."""
    builder = StoreBuilder(engine, "look/0/0/default")
    builder.commit((user("a"), counted(1, "ä")), (user("b"), counted(1)))
    builder.commit((user("a"), counted(2, "ä")), (user("c"), counted(1)))
    builder.commit((user("b"), None))
    return builder.store
