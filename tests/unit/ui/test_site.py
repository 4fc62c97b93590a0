"""The log of a query in the site: its errors fail no page, and each look at it reads a bounded number of files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.errors import UnavailableError
from dynastate.format.checkpoint import Checkpoint, file_key
from dynastate.format.items import Item
from dynastate.format.keys import Key, meta_key
from dynastate.format.meta import LOCATIONS
from dynastate.operations.inspection import checkpoints
from dynastate.settings import Settings
from dynastate.storage.meter import Meter
from dynastate.ui import site as site_module
from dynastate.ui.page import Ask
from dynastate.ui.pages import queries
from dynastate.ui.site import LISTS_MAX, LOG_BATCHES, QueryLog, Site
from tests.support.engine_driver import make_engine
from tests.support.faults import FailingTables
from tests.support.memory_tables import MemoryTables
from tests.support.store_builder import StoreBuilder

STORE = "logged/0/0/default"


@pytest.fixture
def memory() -> MemoryTables:
    """A query of two versions with 100 batches in its log: its look lags."""
    memory = MemoryTables()
    with closing(make_engine(memory)) as engine:
        StoreBuilder(engine, STORE, location="dynastate://logged/query/state").count_to(2)
    files = CheckpointFiles(memory, set())
    for batch in range(100):
        files.put(Checkpoint("logged", "query"), f"commits/{batch}", b"v1\n{}", overwrites=False)
    return memory


@pytest.fixture
def tables(memory: MemoryTables) -> FailingTables:
    return FailingTables(memory)


@pytest.fixture
def site(tables: FailingTables, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(Site, "_open", lambda *_: tables)
    monkeypatch.setattr(site_module, "LOG_S", 0.0)
    with closing(Site(Settings(), ["logged"])) as site:
        yield site


def log_of(site: Site) -> QueryLog | None:
    log = queries.view(site, Ask({"namespace": "logged"}, {})).values["log"]
    assert log is None or isinstance(log, QueryLog)
    return log


def test_only_the_batches_of_the_look_are_read(site: Site) -> None:
    log = log_of(site)
    assert log is not None
    assert [each.batch for each in log.batches] == list(range(LOG_BATCHES, -1, -1))


def test_a_log_that_cannot_be_read_is_the_one_before(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise UnavailableError("DynamoDB gave no answer")

    read = checkpoints.read_batches
    monkeypatch.setattr(site_module, "read_batches", fail)
    assert log_of(site) is None
    monkeypatch.setattr(site_module, "read_batches", read)
    log = log_of(site)
    assert log is not None
    monkeypatch.setattr(site_module, "read_batches", fail)
    assert log_of(site) is log


def test_a_corrupt_log_is_a_problem(site: Site, memory: MemoryTables) -> None:
    site.watch("logged").latest()
    key: Key = meta_key(STORE)
    item: Item = memory.items[key]
    memory.items[key] = item | {LOCATIONS: 7}
    log = log_of(site)
    assert log is not None
    assert (log.batches, "item=meta" in log.problem) == ([], True), log.problem
    memory.items[key] = item
    log = log_of(site)
    assert log is not None
    assert (log.checkpoint, log.problem) == ("dynastate://logged/query", "")
    memory.items[file_key(Checkpoint("logged", "query"), "commits/1")]["crc32"] = 1
    log = log_of(site)
    assert log is not None
    assert [each.problem for each in log.batches if each.problem] == [
        "commits/1: a checkpoint file has a wrong checksum: its bytes are corrupt"
    ]


def test_logs_in_memory_are_bounded(site: Site) -> None:
    look = site.watch("logged").latest()
    for number in range(LISTS_MAX + 5):
        site.log(replace(look, namespace=f"logged-{number}"), Meter())
    assert len(site._logs) == LISTS_MAX
