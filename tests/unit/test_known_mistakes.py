"""Mistakes that others made with state in DynamoDB, and that no other test of the engine excludes.

The list: a public DynamoDB store for Spark (2019), stores on Redis and Aerospike, SlateDB, Responsive, onetable,
lakeFS.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.retries import RetryPolicy
from dynastate.engine.engine import Engine
from dynastate.errors import UnavailableError, VersionMissingError
from dynastate.format.keys import NO_ATTEMPT, namespace_of
from dynastate.settings import Settings
from tests.conftest import REGION
from tests.support.engine_driver import (
    SCHEMA,
    Engines,
    attempt,
    begin,
    chunk,
    commit_attempt,
    parts_of,
    read,
    write,
    write_versions,
)
from tests.support.fakes import Clock, FailingClient, Fault, client_error, lost_answer

A, B, C = (attempt(number) for number in (0xA, 0xB, 0xC))


@pytest.fixture
def clock() -> Clock:
    """Time that only sleep advances."""
    return Clock()


@pytest.fixture
def tables(failing_client: FailingClient, clock: Clock) -> BotoTables:
    """The tables on moto, with requests that can be let fail and are written down."""
    randomness = random.Random(1)  # noqa: S311  # jitter is no secret
    settings = Settings(region=REGION, request_deadline_s=20)
    retries = RetryPolicy(20, clock=clock, sleep=clock.sleep, randomness=randomness)
    return BotoTables(settings, retries=retries, client=failing_client)


def requests(client: FailingClient, operation: str) -> list[dict[str, Any]]:
    """Arguments of all requests of one operation."""
    return [arguments for made, arguments in client.requests if made == operation]


def noise(length: int) -> bytes:
    """Make bytes that do not compress."""
    return hashlib.shake_128(b"seed").digest(length)


def test_keys_without_query_operator_or_partition(engine: Engine, store: str) -> None:
    """Keys without query, operator, partition or store name, so that two of them overwrite each other."""
    namespace = store[:8]
    other = namespace_of(f"file:/tmp/{namespace}/state")
    names = [f"{namespace}/0/0/default", f"{namespace}/0/1/default", f"{namespace}/1/0/default", f"{other}/0/0/default"]
    names.append(f"{namespace}/0/0/left-keyToNumValues")
    for name in names:
        write(engine, name, A, {b"the same key": name.encode()})
    assert [read(engine, name, 1, A) for name in names] == [{b"the same key": name.encode()} for name in names]


def test_uncommitted_version_visible_on_recovery(engines: Engines, tables: BotoTables, store: str) -> None:
    """A version whose changes were all written, but which was not committed, visible after a crash."""
    base = write(engines(), store, A, {b"k": b"1"})
    crashed = begin(engines(), store, B, base)
    for number in range(25):
        crashed.append(chunk({b"k": b"2", b"%d" % number: b"2"}))
    crashed._pending.wait(5)
    assert len(parts_of(tables, store)) == 26
    recovered = engines()
    assert read(recovered, store, 1) == {b"k": b"1"}
    with pytest.raises(VersionMissingError, match=r"version=2 versions=1 table=snapshot "):
        recovered.open(store, 2, NO_ATTEMPT)


def test_no_commit_marker_a_partial_flush_counts_as_committed(
    engine: Engine, failing_client: FailingClient, store: str
) -> None:
    """A flush of which only some requests succeeded, taken for a commit because nothing marks one."""
    under_way = begin(engine, store, A)
    under_way.append(chunk({b"first": b"1"}))
    under_way._hand_on()
    under_way._pending.wait(5)
    failing_client.fail("batch_write_item", *[Fault(client_error("ThrottlingException"))] * 100)
    under_way.append(chunk({b"second": b"1"}))
    with pytest.raises(UnavailableError, match="throttled"):
        under_way.commit({0: 2}, SCHEMA)
    with pytest.raises(VersionMissingError):
        engine.open(store, 1, NO_ATTEMPT)


def test_the_last_query_page_dropped(engine: Engine, failing_client: FailingClient, store: str) -> None:
    """A loop over the pages of a Query that ends one page too early: the newest version lists are on the last one."""
    write_versions(engine, store, 25)
    real = failing_client.client.query

    def one_item_a_page(**arguments: Any) -> Any:
        return real(**arguments, Limit=1)

    failing_client.client = _Replaced(failing_client.client, query=one_item_a_page)
    failing_client.requests.clear()
    assert read(engine, store, 25) == {b"%d" % number: b"%d" % number for number in range(1, 26)}
    assert len(requests(failing_client, "query")) >= 5


def test_eventually_consistent_reads(engines: Engines, failing_client: FailingClient, store: str) -> None:
    """A read that may miss what was written a moment ago: every read there is asks for strong consistency."""
    base = write(engines(), store, A, {b"k": noise(500_000)})
    failing_client.fail("update_item", None, Fault(lost_answer(), applied=True))
    write(engines(), store, B, {b"k": b"2"}, base=base, run="run-2")
    read(engines(), store, 2)
    gets = [
        table for request in requests(failing_client, "batch_get_item") for table in request["RequestItems"].values()
    ]
    asked = [*requests(failing_client, "query"), *requests(failing_client, "get_item"), *gets]
    assert len(requests(failing_client, "get_item")) == 1
    assert len(asked) >= 6
    assert all(request["ConsistentRead"] is True for request in asked)


def test_a_shared_client_closed_by_one_store(engine: Engine, store: str) -> None:
    """The client that all stores share closed when the first of them ends."""
    other = begin(engine, f"{store[:8]}/0/1/default", A)
    other.append(chunk({b"k": b"1"}))
    one, aborted = begin(engine, store, A), begin(engine, store, B)
    one.append(chunk({b"k": b"1"}))
    aborted.append(chunk({b"k": b"1"}))
    one.commit({0: 1}, SCHEMA)
    aborted.abort()
    del one, aborted
    other.commit({0: 1}, SCHEMA)
    assert read(engine, f"{store[:8]}/0/1/default", 1) == {b"k": b"1"}


def test_untouched_keys_vanish_between_versions(engine: Engine, store: str) -> None:
    """A key that later versions do not touch, gone from them (Redis, Aerospike)."""
    base = write(engine, store, A, {b"untouched": b"1"})
    write_versions(engine, store, 24, base=base)
    assert read(engine, store, 25)[b"untouched"] == b"1"
    assert read(engine, store, 2) == {b"untouched": b"1", b"2": b"2"}


def test_metrics_are_zero(engine: Engine, tables: BotoTables, store: str) -> None:
    """Metrics that say 0 whatever was done (Redis, Aerospike): commits and openings tell what they cost."""
    under_way = begin(engine, store, A)
    under_way.append(chunk({b"k": noise(5000)}))
    spent = commit_attempt(engine, under_way, 1)
    assert {name for name, value in spent.items() if value == 0} == {
        *("retries", "throttles", "bytesRead"),
        *("cacheHits", "cacheMisses"),
    }
    assert spent["writeUnits"] >= 5 + 3
    assert spent["bytesWritten"] > 5000
    opening = engine.open(store, 1, NO_ATTEMPT)
    assert sum(records for records, _ in opening.chunks) == 1
    assert opening.meter.requests == 2
    assert opening.meter.bytes_read > 5000
    assert opening.meter.read_units == 1 + 2
    assert (opening.meter.cache_hits, opening.meter.cache_misses) == (0, 1)


def test_recovery_without_retries(engine: Engine, failing_client: FailingClient, clock: Clock, store: str) -> None:
    """A recovery that fails at the first throttle, and starts over (lakeFS): here each read is retried by itself."""
    write(engine, store, A, *({b"%d" % number: b"1"} for number in range(120)))
    throttled = Fault(client_error("ProvisionedThroughputExceededException"))
    failing_client.fail("query", throttled, throttled, None)
    failing_client.fail("batch_get_item", throttled, None, throttled, None, Fault(lost_answer()))
    failing_client.requests.clear()
    assert len(read(engine, store, 1)) == 120
    assert len(requests(failing_client, "query")) == 3
    assert len(requests(failing_client, "batch_get_item")) == 5 + 3
    assert 0 < sum(clock.slept) < 5


class _Replaced:
    """A client with some operations of the test's own."""

    def __init__(self, client: Any, **operations: Any) -> None:
        self.__dict__.update(operations)
        self._client = client

    def __getattr__(self, operation: str) -> Any:
        return getattr(self._client, operation)
