"""Each mistake that others made with state in DynamoDB, as a test that names it (the engine's; Spark's are elsewhere).

The list: a public DynamoDB store for Spark (2019), stores on Redis and Aerospike, SlateDB, Responsive, onetable,
lakeFS.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest

from dynastate import layout, rows
from dynastate.errors import CorruptStateError, UnavailableError, VersionMissingError
from dynastate.layout import NO_ATTEMPT
from dynastate.settings import Settings
from dynastate.store import Engine
from dynastate.tables import ITEM_BYTES_MAX, BotoTables, Meter
from tests.conftest import REGION
from tests.fakes import Clock, Strike, StruckClient, client_error, lost_answer
from tests.states import (
    EMPTY,
    SCHEMA,
    Engines,
    attempt,
    begin,
    chunk,
    history,
    items_of,
    parts_of,
    read,
    write,
    write_versions,
)

A, B, C = (attempt(number) for number in (0xA, 0xB, 0xC))


@pytest.fixture
def clock() -> Clock:
    """Time that passes by sleeping only."""
    return Clock()


@pytest.fixture
def tables(struck_client: StruckClient, clock: Clock) -> BotoTables:
    """The tables on moto, with requests that can be let fail and are written down."""
    randomness = random.Random(1)  # noqa: S311  # jitter is no secret
    settings = Settings(region=REGION, request_deadline_s=20)
    return BotoTables(settings, client=struck_client, clock=clock, sleep=clock.sleep, randomness=randomness)


def requests(client: StruckClient, operation: str) -> list[dict[str, Any]]:
    """Arguments of all requests of one operation."""
    return [arguments for made, arguments in client.requests if made == operation]


def noise(length: int) -> bytes:
    """Make bytes that do not compress."""
    return hashlib.shake_128(b"seed").digest(length)


def test_keys_without_query_operator_or_partition(at: Engine, store: str) -> None:
    """Keys without query, operator, partition or store name, so that two of them overwrite each other."""
    namespace = store[:8]
    other = layout.namespace_of(f"file:/tmp/{namespace}/state")
    names = [f"{namespace}/0/0/default", f"{namespace}/0/1/default", f"{namespace}/1/0/default", f"{other}/0/0/default"]
    names.append(f"{namespace}/0/0/left-keyToNumValues")
    for name in names:
        write(at, name, A, {b"the same key": name.encode()})
    assert [read(at, name, 1, A) for name in names] == [{b"the same key": name.encode()} for name in names]


def test_key_text_split_on_an_underscore(at: Engine, store: str) -> None:
    """Key text that is split at a separator, so that a key which holds it is read back as another."""
    state = {b"a_b": b"1", b"a": b"_b", b"a#b/c_": b"2", b"_": b"_", b"": b"_"}
    name = f"{store[:8]}_a/0/0/de_fault"
    write(at, name, A, state)
    write(at, f"{store[:8]}/a_0/0/de_fault", A, {b"a": b"other"})
    assert read(at, name, 1) == state


def test_uncommitted_version_visible_on_recovery(engines: Engines, tables: BotoTables, store: str) -> None:
    """A version whose changes were all written, but which was not committed, visible after a crash."""
    base = write(engines(), store, A, {b"k": b"1"})
    crashed = begin(engines(), store, B, base)
    for number in range(25):
        crashed.append(chunk({b"k": b"2", b"%d" % number: b"2"}))
    crashed._ticket.wait(5)
    assert len(parts_of(tables, store)) == 26
    recovered = engines()
    assert read(recovered, store, 1) == {b"k": b"1"}
    with pytest.raises(VersionMissingError, match=r"version=2 versions=1 table=snapshot "):
        recovered.open(store, 2, NO_ATTEMPT)


def test_no_commit_marker_a_partial_flush_counts_as_committed(
    at: Engine, struck_client: StruckClient, store: str
) -> None:
    """A flush of which only some requests succeeded, taken for a commit because nothing marks one."""
    under_way = begin(at, store, A)
    under_way.append(chunk({b"first": b"1"}))
    under_way._hand_on()
    under_way._ticket.wait(5)
    struck_client.strike("batch_write_item", *[Strike(client_error("ThrottlingException"))] * 100)
    under_way.append(chunk({b"second": b"1"}))
    with pytest.raises(UnavailableError, match="throttled"):
        under_way.commit({0: 2}, SCHEMA)
    with pytest.raises(VersionMissingError):
        at.open(store, 1, NO_ATTEMPT)


def test_no_attempt_id(at: Engine, tables: BotoTables, store: str) -> None:
    """Two attempts at one version that write under the same names, so that their changes mix."""
    one, other = begin(at, store, A), begin(at, store, B)
    one.append(chunk({b"k": b"A", b"only A": b"1"}))
    other.append(chunk({b"k": b"B", b"only B": b"1"}))
    other.commit({0: 2}, SCHEMA)
    one.commit({0: 2}, SCHEMA)
    assert read(at, store, 1, A) == {b"k": b"A", b"only A": b"1"}
    assert read(at, store, 1, B) == {b"k": b"B", b"only B": b"1"}
    assert len({key for key, _ in parts_of(tables, store)}) == 2


def test_more_than_25_items_in_a_request(at: Engine, struck_client: StruckClient, store: str) -> None:
    """More than 25 items in one BatchWriteItem, at commit and at abort."""
    committed, aborted = begin(at, store, A), begin(at, store, B)
    for number in range(80):
        committed.append(chunk({b"%d" % number: b"1"}))
        aborted.append(chunk({b"%d" % number: b"1"}))
    committed.commit({0: 80}, SCHEMA)
    aborted._ticket.wait(5)
    aborted.abort()
    sent = [sum(map(len, request["RequestItems"].values())) for request in requests(struck_client, "batch_write_item")]
    assert sum(sent) == 80 + 1 + 75 + 75
    assert max(sent) == 25
    assert len(read(at, store, 1)) == 80


def test_the_same_key_twice_in_a_flush(at: Engine, struck_client: StruckClient, store: str) -> None:
    """One row changed again and again in a batch, so that the request holds one key twice and is refused whole."""
    under_way = begin(at, store, A)
    for number in range(60):
        under_way.append(chunk({b"the same": b"%d" % number}))
    under_way.commit({0: 1}, SCHEMA)
    assert read(at, store, 1) == {b"the same": b"59"}
    for request in requests(struck_client, "batch_write_item"):
        keys = [
            (each["PutRequest"]["Item"]["store_shard"]["S"], each["PutRequest"]["Item"].get("part", {}).get("S"))
            for table in request["RequestItems"].values()
            for each in table
        ]
        assert len(set(keys)) == len(keys)


def test_delete_marker_read_but_never_written(at: Engine, tables: BotoTables, store: str) -> None:
    """A removed key that comes back after a restart, because its delete marker is read but never written."""
    base = write(at, store, A, {b"k": b"1", b"kept": b"1"})
    two = write(at, store, B, {b"k": None}, base=base)
    key, item = parts_of(tables, store)[1]
    run = layout.join_fragments(key, [layout.parse_part(key, item)])
    assert list(rows.decode(run)) == [(rows.PUT, 0, b"k", None)]
    assert read(at, store, 2) == {b"kept": b"1"}
    assert read(at, store, *write(at, store, C, {b"k": b"3"}, base=two)) == {b"k": b"3", b"kept": b"1"}


def test_version_list_without_bound(at: Engine, tables: BotoTables, store: str) -> None:
    """A version list that grows in one item for ever, until each commit pays for all of it, and then for too much."""
    write_versions(at, store, 35)
    groups = [item for sort, item in items_of(tables, store).items() if sort.startswith("group/")]
    assert [len(group["versions"]) for group in groups] == [9, 10, 10, 6]  # type: ignore[arg-type]  # a list
    assert max(layout.item_bytes(group) for group in groups) <= 1024


def test_abort_that_rolls_nothing_back(at: Engine, tables: BotoTables, store: str) -> None:
    """An abort that leaves in the table what the attempt had written."""
    base = write(at, store, A, {b"k": b"1"})
    before = parts_of(tables, store)
    under_way = begin(at, store, B, base)
    for number in range(30):
        under_way.append(chunk({b"k": b"%d" % number}))
    under_way._ticket.wait(5)
    assert len(parts_of(tables, store)) > len(before)
    under_way.abort()
    assert parts_of(tables, store) == before
    assert read(at, store, 1) == {b"k": b"1"}


def test_the_last_query_page_dropped(at: Engine, struck_client: StruckClient, store: str) -> None:
    """A loop over the pages of a Query that ends one page too early: the newest version lists are on the last one."""
    write_versions(at, store, 25)
    real = struck_client.client.query

    def one_item_a_page(**arguments: Any) -> Any:
        return real(**arguments, Limit=1)

    struck_client.client = _Replaced(struck_client.client, query=one_item_a_page)
    struck_client.requests.clear()
    assert read(at, store, 25) == {b"%d" % number: b"%d" % number for number in range(1, 26)}
    assert len(requests(struck_client, "query")) >= 5


def test_retried_answers_lost(at: Engine, struck_client: StruckClient, store: str) -> None:
    """What a retry of unprocessed keys brings thrown away, so that rows are missing after recovery."""
    write(at, store, A, *({b"%d" % number: b"1"} for number in range(60)))
    real = struck_client.client.batch_get_item

    def ten_keys_at_a_time(RequestItems: dict[str, Any]) -> Any:  # noqa: N803  # boto3's own name
        ((table, wanted),) = RequestItems.items()
        answer = real(RequestItems={table: {**wanted, "Keys": wanted["Keys"][:10]}})
        left = wanted["Keys"][10:]
        return answer | {"UnprocessedKeys": {table: {"Keys": left}} if left else {}}

    struck_client.client = _Replaced(struck_client.client, batch_get_item=ten_keys_at_a_time)
    assert len(read(at, store, 1)) == 60


def test_eventually_consistent_reads(engines: Engines, struck_client: StruckClient, store: str) -> None:
    """A read that may miss what was written a moment ago: every read there is asks for strong consistency."""
    base = write(engines(), store, A, {b"k": noise(500_000)})
    struck_client.strike("update_item", None, Strike(lost_answer(), applied=True))
    write(engines(), store, B, {b"k": b"2"}, base=base, run="run-2")
    read(engines(), store, 2)
    gets = [
        table for request in requests(struck_client, "batch_get_item") for table in request["RequestItems"].values()
    ]
    asked = [*requests(struck_client, "query"), *requests(struck_client, "get_item"), *gets]
    assert len(requests(struck_client, "get_item")) == 1
    assert len(asked) >= 6
    assert all(request["ConsistentRead"] is True for request in asked)


def test_unprocessed_items_looped_hot(at: Engine, struck_client: StruckClient, clock: Clock, store: str) -> None:
    """Unprocessed items sent again at once and for ever: here there is a pause between, and an end."""
    write(at, store, A)

    def nothing(RequestItems: dict[str, Any]) -> Any:  # noqa: N803  # boto3's own name
        return {"UnprocessedItems": RequestItems}

    struck_client.client = _Replaced(struck_client.client, batch_write_item=nothing)
    struck_client.requests.clear()
    with pytest.raises(UnavailableError, match="throttled this until the deadline"):
        write(at, store, B, {b"k": b"1"}, base=(1, A))
    assert 3 < len(requests(struck_client, "batch_write_item")) < 40
    assert sum(clock.slept) > 10


def test_dropped_unprocessed_items(at: Engine, tables: BotoTables, struck_client: StruckClient, store: str) -> None:
    """UnprocessedItems never looked at (onetable), so that a commit lacks what was throttled."""
    real = struck_client.client.batch_write_item

    def three_at_a_time(RequestItems: dict[str, list[Any]]) -> Any:  # noqa: N803  # boto3's own name
        done = {table: wanted[:3] for table, wanted in RequestItems.items()}
        left = {table: wanted[3:] for table, wanted in RequestItems.items() if wanted[3:]}
        return real(RequestItems=done) | {"UnprocessedItems": left}

    struck_client.client = _Replaced(struck_client.client, batch_write_item=three_at_a_time)
    write(at, store, A, *({b"%d" % number: b"1"} for number in range(40)))
    assert len(parts_of(tables, store)) == 40
    assert len(read(at, store, 1)) == 40


def test_remove_of_an_unknown_key(at: Engine, store: str) -> None:
    """A remove of a key that is not there that throws, when it is written or when it is read back."""
    base = write(at, store, A, {b"unknown": None})
    write(at, store, B, {b"unknown": None, b"k": b"1"}, base=base)
    assert read(at, store, 1) == {}
    assert read(at, store, 2) == {b"k": b"1"}


def test_a_shared_client_closed_by_one_store(at: Engine, store: str) -> None:
    """The client that all stores share closed when the first of them ends."""
    other = begin(at, f"{store[:8]}/0/1/default", A)
    other.append(chunk({b"k": b"1"}))
    one, aborted = begin(at, store, A), begin(at, store, B)
    one.append(chunk({b"k": b"1"}))
    aborted.append(chunk({b"k": b"1"}))
    one.commit({0: 1}, SCHEMA)
    aborted.abort()
    del one, aborted
    other.commit({0: 1}, SCHEMA)
    assert read(at, f"{store[:8]}/0/1/default", 1) == {b"k": b"1"}


def test_untouched_keys_vanish_between_versions(at: Engine, store: str) -> None:
    """A key that later versions do not touch, gone from them (Redis, Aerospike)."""
    base = write(at, store, A, {b"untouched": b"1"})
    write_versions(at, store, 24, base=base)
    assert read(at, store, 25)[b"untouched"] == b"1"
    assert read(at, store, 2) == {b"untouched": b"1", b"2": b"2"}


def test_metrics_are_zero(at: Engine, tables: BotoTables, store: str) -> None:
    """Metrics that say 0 whatever was done (Redis, Aerospike): commits and openings tell what they cost."""
    under_way = begin(at, store, A)
    under_way.append(chunk({b"k": noise(5000)}))
    spent = under_way.commit({0: 1}, SCHEMA)
    assert {name for name, value in spent.items() if value == 0} == {
        *("retries", "throttles", "bytesRead"),
        *("cacheHits", "cacheMisses"),
    }
    assert spent["writeUnits"] >= 5 + 3
    assert spent["bytesWritten"] > 5000
    opening = at.open(store, 1, NO_ATTEMPT)
    assert sum(records for records, _ in opening.chunks) == 1
    assert opening.meter.requests == 2
    assert opening.meter.bytes_read > 5000
    assert opening.meter.read_units == 1 + 2
    assert (opening.meter.cache_hits, opening.meter.cache_misses) == (0, 1)


def test_fencing_on_the_absence_of_an_item(engines: Engines, tables: BotoTables, store: str) -> None:
    """A name taken for free because its item is absent (SlateDB): a store that lost its meta item is no new store.

    Its epochs would begin at 1 again, and every old version would win over the new one.
    """
    for number in range(1, 4):
        write(engines(), store, attempt(number), {b"life": b"%d" % number}, run=f"run-{number}")
    tables.delete([layout.meta_key(store)], Meter())
    with pytest.raises(CorruptStateError, match="its meta item is lost"):
        write(engines(), store, A, {b"life": b"4"}, run="run-4")


def test_a_zombies_write_brings_a_deleted_row_back(at: Engine, tables: BotoTables, store: str) -> None:
    """A zombie's late write that brings a removed row back (Responsive): no committed state sees its parts."""
    base = write(at, store, A, {b"row": b"1"})
    zombie = begin(at, store, C, base)
    two = write(at, store, B, {b"row": None}, base=base)
    zombie.append(chunk({b"row": b"zombie"}))
    zombie._hand_on()
    zombie._ticket.wait(5)
    assert len(parts_of(tables, store)) == 3
    assert read(at, store, 2) == {}
    zombie.commit({0: 1}, SCHEMA)
    assert read(at, store, *two) == {}
    assert read(at, store, *write(at, store, attempt(0xD), {b"other": b"1"}, base=two)) == {b"other": b"1"}
    assert history(tables, store).find(2, B).attempt == B


def test_recovery_without_retries(at: Engine, struck_client: StruckClient, clock: Clock, store: str) -> None:
    """A recovery that fails at the first throttle, and begins anew (lakeFS): here each read is retried by itself."""
    write(at, store, A, *({b"%d" % number: b"1"} for number in range(120)))
    throttled = Strike(client_error("ProvisionedThroughputExceededException"))
    struck_client.strike("query", throttled, throttled, None)
    struck_client.strike("batch_get_item", throttled, None, throttled, None, Strike(lost_answer()))
    struck_client.requests.clear()
    assert len(read(at, store, 1)) == 120
    assert len(requests(struck_client, "query")) == 3
    assert len(requests(struck_client, "batch_get_item")) == 5 + 3
    assert 0 < sum(clock.slept) < 5


def test_400_kb_exceeded_in_production(at: Engine, tables: BotoTables, store: str) -> None:
    """A row, or a batch, that grew larger than an item may be: it is cut, and no item comes near the limit."""
    state = {b"row": noise(1_500_000), b"next": b"1"}
    base = write(at, store, A, {b"row": state[b"row"]}, {b"next": b"1"})
    write(at, store, B, *({b"%d" % number: noise(200_000)} for number in range(4)), base=base)
    assert max(layout.item_bytes(item) for _, item in parts_of(tables, store)) < ITEM_BYTES_MAX - 10_000
    assert read(at, store, 1) == state
    assert set(read(at, store, 2)) == {b"row", b"next", b"0", b"1", b"2", b"3"}


def test_a_new_life_sees_the_old_one(engines: Engines, store: str) -> None:
    """A query begun again at the same checkpoint path that finds the state of the one before it."""
    write_versions(engines(), store, 3)
    assert read(engines(), store, *write(engines(), store, A, base=EMPTY, run="run-2")) == {}


class _Replaced:
    """A client with some operations of the test's own."""

    def __init__(self, client: Any, **operations: Any) -> None:
        self.__dict__.update(operations)
        self._client = client

    def __getattr__(self, operation: str) -> Any:
        return getattr(self._client, operation)
