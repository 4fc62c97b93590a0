"""Checks of requests for many items, and of their answers."""

from __future__ import annotations

from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import Any, Final

from dynastate.dynamodb.probe import Probe, Wire
from dynastate.operations.doctor.checks import check, expect, refused, text, write_all
from dynastate.runtime import Limits
from dynastate.storage.limits import KEYS_MAX

#: The largest difference of clocks, in seconds: AWS refuses signatures that are five minutes old.
SKEW_MAX_S: Final = 240


@check("batches of writes", "25 puts are one request, and all are applied")
def _batch(probe: Probe) -> None:
    write_all(probe, [probe.key("delta", f"{number:02d}", "batch") | text("a") for number in range(Limits.writes_max)])
    count = sum(map(len, probe.pages("delta", "batch")))
    expect(count == Limits.writes_max, f"{count} of {Limits.writes_max} items are there")


@check("batches of reads", "100 items are one request; missing ones are left out")
def _batch_get(probe: Probe) -> None:
    keys = [probe.key("delta", f"{number:02d}", "batch") for number in range(KEYS_MAX)]
    items: list[Wire] = []
    unprocessed: Any = {probe.names["delta"]: {"Keys": keys, "ConsistentRead": True}}
    while unprocessed:
        answer = probe.send("batch_get_item", RequestItems=unprocessed)
        items += answer["Responses"].get(probe.names["delta"], [])
        unprocessed = answer.get("UnprocessedKeys")
    expect(len(items) == Limits.writes_max, f"{len(items)} items were found, not {Limits.writes_max}")


@check("batches of more than 25 writes", "dynastate never sends one", is_warning=True)
def _batch_limit(probe: Probe) -> None:
    items = [probe.key("delta", f"{number:02d}", "limit") | text("a") for number in range(Limits.writes_max + 1)]
    refused("ValidationException", lambda: probe.write("delta", items))


@check("batches of more than 100 reads", "dynastate never sends one", is_warning=True)
def _batch_get_limit(probe: Probe) -> None:
    keys = [probe.key("delta", f"{number:03d}", "limit") for number in range(KEYS_MAX + 1)]
    request = {probe.names["delta"]: {"Keys": keys}}
    refused("ValidationException", lambda: probe.send("batch_get_item", RequestItems=request))


@check("one key twice in a batch", "dynastate never sends one", is_warning=True)
def _batch_twice(probe: Probe) -> None:
    item = probe.key("delta", "twice", "limit") | text("a")
    refused("ValidationException", lambda: probe.write("delta", [item, item]))


@check("order of sort keys", "versions and buckets are read in the order of their keys' UTF-8 bytes")
def _order(probe: Probe) -> None:
    sorts = ["10", "9", "A", "B", "a", "a/b", "a0", "~", "é", "鍵", "\U0001f511"]
    for sort in reversed(sorts):
        probe.put("snapshot", sort, text("a"), "order")
    stored_sorts = [each["entry"]["S"] for each in chain.from_iterable(probe.pages("snapshot", "order"))]
    expect(stored_sorts == sorted(sorts, key=str.encode), f"read {stored_sorts}")


@check("ranges of sort keys", "a Query has both ends of its range, and only what lies between")
def _ranges(probe: Probe) -> None:
    sorts = [each["entry"]["S"] for each in probe.page("snapshot", "order", "A", "a/b")["Items"]]
    expect(sorts == ["A", "B", "a", "a/b"], f"read {sorts}")


@check("pages of 1 MB", "a large Query comes in pages, which together have every item once")
def _paging(probe: Probe) -> None:
    sorts = [f"{number:02d}" for number in range(12)]
    for sort in sorts:
        probe.put("delta", sort, {"data": {"B": b"x" * 300_000}}, "pages")
    pages = probe.pages("delta", "pages")
    stored_sorts = [each["part"]["S"] for each in chain.from_iterable(pages)]
    expect(stored_sorts == sorts, f"read {len(stored_sorts)} items, not {len(sorts)}")
    largest = max(map(len, pages))
    expect(largest <= 4, f"a page has {largest} items of 300,000 bytes")


@check("keys without values", "clean-up lists keys alone")
def _projection(probe: Probe) -> None:
    page = probe.page("delta", "pages", ProjectionExpression="#h, #r")
    expect(bool(page["Items"]), "no item was read")
    expect(all(set(each) == {"store_shard", "part"} for each in page["Items"]), "values were read, too")


@check("scans after a key", "'dynastate stores' finds every partition key", is_warning=True)
def _scan(probe: Probe) -> None:
    partition_keys: set[str] = set()
    start: Any = {}
    for _ in range(1_000):
        page = probe.send("scan", TableName=probe.names["snapshot"], Limit=1, **start)
        last = page.get("LastEvaluatedKey")
        if page["Items"]:
            partition_key = page["Items"][0]["store_shard"]["S"]
            expect(partition_key not in partition_keys, "a partition key came twice")
            partition_keys.add(partition_key)
            last = {"store_shard": {"S": partition_key}, "entry": {"S": "\U0010ffff"}}
        if not last:
            break
        start = {"ExclusiveStartKey": last}
    namespace_keys = {each for each in partition_keys if each.startswith(f"{probe.namespace}/")}
    expect(
        len(namespace_keys) == 2 or len(partition_keys) == 1_000,
        f"{len(namespace_keys)} of 2 partition keys were found",
    )


@check("capacity that is reported", "the units that dynastate counts can be compared with it", is_warning=True)
def _capacity(probe: Probe) -> None:
    item = {"data": {"B": b"x" * 3_000}}
    answer = probe.put("delta", "capacity", item, ReturnConsumedCapacity="TOTAL")
    units = answer.get("ConsumedCapacity", {}).get("CapacityUnits")
    expect(units == 3, f"a put of 3 KB took {units} units")


@check("checksums of answers", "a damaged answer is noticed", is_warning=True)
def _crc(probe: Probe) -> None:
    headers = probe.page("snapshot", "order")["ResponseMetadata"]["HTTPHeaders"]
    expect("x-amz-crc32" in headers, "answers have no x-amz-crc32")


@check("clocks", f"signatures are refused where clocks differ by minutes; at most {SKEW_MAX_S} s", is_warning=True)
def _clocks(probe: Probe) -> None:
    headers = probe.page("snapshot", "order")["ResponseMetadata"]["HTTPHeaders"]
    expect("date" in headers, "answers have no date")
    seconds = abs((parsedate_to_datetime(headers["date"]) - datetime.now(timezone.utc)).total_seconds())
    expect(seconds <= SKEW_MAX_S, f"the clocks differ by {seconds:.0f} s")
