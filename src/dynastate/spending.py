"""What a query has stored, read from its tables, and what it has spent, added up from Spark's progress reports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Final

from dynastate import directory, layout
from dynastate.errors import ConfigurationError
from dynastate.layout import History, Item, Key, VersionEntry
from dynastate.prices import Prices
from dynastate.stored import NOTHING, Contents, Stored, of_lists, of_parts, of_snapshots
from dynastate.tables import KEYS_MAX, Meter, Tables, units_of_write

#: The stores that Spark's operators have: a stream-stream join four a partition, every other one.
STORE_NAMES: Final = (
    "default",
    "left-keyToNumValues",
    "left-keyWithIndexToValue",
    "right-keyToNumValues",
    "right-keyWithIndexToValue",
)
#: Metrics that are added up, by what they are of: those of batches, and those of maintenance.
REQUESTS: Final = ("dynastateRequests", "dynastateMaintenanceRequests")
WRITE_UNITS: Final = ("dynastateWriteUnits", "dynastateMaintenanceWriteUnits")
READ_UNITS: Final = ("dynastateReadUnits", "dynastateMaintenanceReadUnits")
DELETE_UNITS: Final = ("dynastateDeleteUnits",)
NANODOLLARS: Final = ("dynastateNanodollars", "dynastateMaintenanceNanodollars")
DAY_S: Final = 86_400

# --------------------------------------------------------------------------------------------------------------- stored


@dataclass(frozen=True)
class Holding:
    """What one store has, or several together.

    `rows` are those of the newest version. `write_units` is what the commits of the versions took that are listed.
    Records are changed rows, of these versions; bytes of records are before compression (`raw`) and after it.
    """

    stores: int = 0
    stored: Stored = NOTHING
    rows: int = 0
    versions: int = 0
    write_units: int = 0
    families: int = 0
    records: int = 0
    raw_bytes: int = 0
    record_bytes: int = 0
    snapshot_rows: int = 0
    snapshot_bytes: int = 0

    def __add__(self, other: Holding) -> Holding:
        added = Holding(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))
        return replace(added, families=max(self.families, other.families))

    def workload(self) -> dict[str, float]:
        """What the formula of docs/operations.md asks of a query, under its names, as far as the tables say it.

        Without a snapshot, rows in one are taken to be as large as changed rows.
        """
        row_bytes = self.record_bytes / max(1, self.records)
        in_snapshots = self.snapshot_bytes / self.snapshot_rows if self.snapshot_rows else row_bytes
        return {
            "stores": self.stores,
            "changed_rows": round(self.records / max(1, self.versions) * self.stores, 1),
            "row_bytes": round(row_bytes, 1),
            "state_rows": self.rows,
            "state_row_bytes": round(in_snapshots, 1),
            "compression": round(self.raw_bytes / max(1, self.record_bytes), 2),
            "families": self.families,
        }


def holdings(tables: Tables, namespace: str, meter: Meter) -> dict[int, Holding]:
    """What the stores of a namespace have, by operator. It takes a Query for each store.

    Raises:
        ConfigurationError: there is no store in this namespace.
        CorruptStateError: an item is broken.
    """
    found: dict[int, Holding] = {}
    for operator, store in find_stores(tables, namespace, meter):
        found[operator] = found.get(operator, Holding()) + holding(tables, store, meter)
    if not found:
        raise ConfigurationError(
            "no store of this namespace is in the tables; its name is the first part of the store's, which stands in "
            "the file state/0/0/dynastate of the query's checkpoint",
            namespace=namespace,
        )
    return found


def find_stores(tables: Tables, namespace: str, meter: Meter) -> Iterator[tuple[int, str]]:
    """The stores of a namespace, with their operators.

    Names of stores cannot be listed without reading the whole table, so meta items are asked for, 100 a request:
    of operators 0, 1, …, then of partitions 0, 1, … of each that is there, until none of a request is there.
    """
    names: dict[int, list[str]] = {}
    window = KEYS_MAX // len(STORE_NAMES)
    first, more = 0, True
    while more:
        there = _there(
            tables, namespace, [(o, 0, name) for o in range(first, first + window) for name in STORE_NAMES], meter
        )
        for operator, _, name in there:
            names.setdefault(operator, []).append(name)
        first, more = first + window, bool(there)
    for operator, known in names.items():
        window = KEYS_MAX // len(known)
        first, more = 0, True
        while more:
            asked = [(operator, p, name) for p in range(first, first + window) for name in known]
            there = _there(tables, namespace, asked, meter)
            yield from ((operator, _store(namespace, *each)) for each in there)
            first, more = first + window, bool(there)


def _store(namespace: str, operator: int, partition: int, name: str) -> str:
    return layout.check_store(f"{namespace}/{operator}/{partition}/{name}")


def _there(
    tables: Tables, namespace: str, asked: Sequence[tuple[int, int, str]], meter: Meter
) -> list[tuple[int, int, str]]:
    """Of these stores, by operator, partition and name, those that have a meta item, in order."""
    keys = {each: layout.meta_key(_store(namespace, *each)) for each in asked}
    found = tables.get(list(keys.values()), meter)
    return [each for each, key in keys.items() if key in found]


def holding(tables: Tables, store: str, meter: Meter) -> Holding:
    """What one store has, by one Query: everything but parts and buckets, which version lists and directories count."""
    found = tables.query("snapshot", layout.store_shard(store, 0), "directory/", "~", meter)
    # A history takes a store's descriptions only; a directory is read with the snapshot that names it.
    history = History(store, [(key, item) for key, item in found if not key.sort.startswith("directory/")])
    snapshots = [each for each in history.snapshots() if each.stage == layout.DONE]
    items = dict(found)
    contents = {}
    for each in snapshots:
        key = layout.directory_key(store, each.version, each.id)
        if key in items:  # clean-up may have come in between
            contents[each.id] = Contents.of(store, directory.parse(store, each, key, items[key]))
    entries = list(history.entries())
    newest = entries[-1] if entries else None
    newest_snapshot = max(snapshots, key=lambda each: each.version, default=None)
    return Holding(
        stores=1,
        stored=of_lists(history) + of_snapshots(store, snapshots, contents),
        rows=sum(newest.keys.values()) if newest else 0,
        versions=len(entries),
        write_units=sum(_part_units(store, entry) for entry in entries) + sum(map(_list_units, _lists(history))),
        families=len(newest.keys) if newest else 0,
        records=sum(entry.records for entry in entries),
        raw_bytes=sum(entry.raw_bytes for entry in entries),
        record_bytes=sum(entry.stored_bytes for entry in entries),
        snapshot_rows=newest_snapshot.records if newest_snapshot else 0,
        snapshot_bytes=newest_snapshot.stored_bytes if newest_snapshot else 0,
    )


def _part_units(store: str, entry: VersionEntry) -> int:
    return entry.parts * units_of_write(of_parts(store, [entry]).bytes // entry.parts) if entry.parts else 0


def _lists(history: History) -> Iterator[tuple[Key, list[bytes]]]:
    return ((key, [raw for raw, _ in group]) for key, group in history.groups.items())


def _list_units(listed: tuple[Key, list[bytes]]) -> int:
    """Write units of the appends that made a version list: each takes those of the whole list."""
    key, entries = listed
    item: Item = layout.item_key(key) | {"format": layout.FORMAT}
    lengths = range(1, len(entries) + 1)
    return sum(units_of_write(layout.item_bytes(item | {"versions": entries[:length]})) for length in lengths)


# ---------------------------------------------------------------------------------------------------------------- spent


@dataclass(frozen=True)
class Spent:
    """What the batches of one query took, maintenance included, and what its state had after the last of them."""

    query: str
    name: str
    batches: int
    requests: int
    write_units: int
    read_units: int
    delete_units: int
    nanodollars: int
    stored: Stored
    interval_s: float | None
    """Seconds from one batch to the next, on average within a run; None: no run has two."""

    @property
    def dollars(self) -> float:
        return self.nanodollars / 1e9

    @property
    def dollars_a_day(self) -> float | None:
        """What a day costs, if all of it is as these batches were."""
        return self.dollars / self.batches / self.interval_s * DAY_S if self.interval_s else None


@dataclass(frozen=True)
class _Batch:
    query: str
    name: str
    run: str
    number: int
    at: datetime
    metrics: dict[str, int]

    def total(self, names: Iterable[str]) -> int:
        return sum(self.metrics[name] for name in names)


def spent(lines: Iterable[str], source: str, prices: Prices | None) -> list[Spent]:
    """Add up progress reports, one JSON object a line, by query, in the order they come.

    Lines may be what `StreamingQueryProgress.json` gives, or an event log of Spark, whose other events are passed over.
    A batch that is there twice counts once, and reports of triggers without a batch count nothing. With `prices` the
    money is that of the units; else it is what the query itself counted at its own.

    Raises:
        ConfigurationError: a line is no JSON or no such report, or no batch is of a query on dynastate.
    """
    batches: dict[tuple[str, str, int], _Batch] = {}
    number = 0
    for number, line in enumerate(lines, 1):
        batch = _batch(line, f"line {number} of {source}") if line.strip() else None
        if batch is not None:
            batches[batch.query, batch.run, batch.number] = batch
    if not batches:
        raise ConfigurationError(
            f"no batch of a query whose state is in DynamoDB is reported in {source}; give it the JSON of "
            "StreamingQueryProgress, one a line, or an event log",
            lines=number,
        )
    queries = dict.fromkeys(batch.query for batch in batches.values())
    return [_sum([batch for batch in batches.values() if batch.query == query], prices) for query in queries]


def _batch(line: str, where: str) -> _Batch | None:
    """The batch that a line reports; None: it is another event, of a trigger without a batch, or of another store."""
    try:
        report = json.loads(line)
    except ValueError:
        raise ConfigurationError(
            f"{where} is no JSON; progress reports are one JSON object a line, and an event log must be unpacked"
        ) from None
    if isinstance(report, dict) and "Event" in report:
        report = report.get("progress") if "QueryProgressEvent" in str(report["Event"]) else {}
    try:
        if not report or "addBatch" not in report["durationMs"]:
            return None
        metrics: dict[str, int] = {}
        for operator in report["stateOperators"]:
            for name, value in operator["customMetrics"].items():
                metrics[name] = metrics.get(name, 0) + int(value)
        if not any(name.startswith("dynastate") for name in metrics):
            return None
        at = datetime.fromisoformat(report["timestamp"].replace("Z", "+00:00"))
        batch = _Batch(report["id"], report.get("name") or "", report["runId"], report["batchId"], at, metrics)
        batch.total((*REQUESTS, *WRITE_UNITS, *READ_UNITS, *DELETE_UNITS, *NANODOLLARS))
    except (KeyError, TypeError, AttributeError, ValueError) as missing:
        raise ConfigurationError(
            f"{where} is no progress report of Spark, or of another dynastate: {missing}"
        ) from None
    return batch


def _sum(batches: list[_Batch], prices: Prices | None) -> Spent:
    def total(names: Iterable[str]) -> int:
        return sum(batch.total(names) for batch in batches)

    last = max(batches, key=lambda batch: batch.at)
    runs: dict[str, list[datetime]] = {}
    for batch in batches:
        runs.setdefault(batch.run, []).append(batch.at)
    seconds = sum((max(times) - min(times)).total_seconds() for times in runs.values())
    intervals = sum(len(times) - 1 for times in runs.values())
    units = total(WRITE_UNITS), total(READ_UNITS), total(DELETE_UNITS)
    return Spent(
        query=last.query,
        name=last.name,
        batches=len(batches),
        requests=total(REQUESTS),
        write_units=units[0],
        read_units=units[1],
        delete_units=units[2],
        nanodollars=prices.nanodollars(units[0] + units[2], units[1]) if prices else total(NANODOLLARS),
        stored=Stored(last.metrics.get("dynastateStoredItems", 0), last.metrics.get("dynastateStoredBytes", 0)),
        interval_s=seconds / intervals if intervals and seconds else None,
    )
