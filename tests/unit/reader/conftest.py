"""Readers of stores in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from dynastate.engine.engine import Engine
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from tests.support.memory_tables import MemoryTables
from tests.support.store_builder import StoreBuilder, counted, user

Open = Callable[..., StateReader]


@pytest.fixture
def tables(memory: MemoryTables) -> MemoryTables:
    """Tables in memory, also where DynamoDB Local is asked for."""
    return memory


@pytest.fixture
def opened(memory: MemoryTables) -> Iterator[Open]:
    """Open stores, and close them all at the end."""
    with ExitStack() as readers:

        def open_one(store: str, family: str = "", **settings: Any) -> StateReader:
            return readers.enter_context(StateReader(memory, Settings(**settings), store, family))

        yield open_one


@pytest.fixture
def written(engine: Engine, store: str) -> StoreBuilder:
    """A store of three versions: two rows, one changed and one added, one removed."""
    builder = StoreBuilder(engine, store)
    builder.commit((user("a"), counted(1)), (user("b"), counted(1)))
    builder.commit((user("a"), counted(2)), (user("c"), counted(1)))
    builder.commit((user("b"), None))
    return builder
