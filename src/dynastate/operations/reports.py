"""What a query has stored, read from its tables, and what it has spent, added up from Spark's progress reports."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cached_property
from typing import BinaryIO, Final

from dynastate import layout
from dynastate.errors import ConfigurationError
from dynastate.layout import History, Item, Key, VersionEntry
from dynastate.overview import read_lists
from dynastate.prices import Prices
from dynastate.progress import Progress, unheard
from dynastate.stored import NOTHING, Stored, of_parts, of_store
from dynastate.stores import of_namespace
from dynastate.tables import Meter, Tables, units_of_write

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
    partitions: int = 0
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


def holdings(tables: Tables, namespace: str, meter: Meter, progress: Progress = unheard) -> dict[int, Holding]:
    """What the stores of a namespace have, by operator. It takes a Query for each store, of which `progress` is told.

    Raises:
        ConfigurationError: there is no store in this namespace.
        CorruptStateError: an item is broken.
    """
    found: dict[int, Holding] = {}
    partitions: dict[int, set[str]] = {}
    stores = of_namespace(tables, namespace, meter)
    for done, (operator, store) in enumerate(stores, 1):
        found[operator] = found.get(operator, Holding()) + holding(tables, store, meter)
        partitions.setdefault(operator, set()).add(store.split("/")[2])
        progress(done, len(stores))
    return {operator: replace(each, partitions=len(partitions[operator])) for operator, each in found.items()}


def holding(tables: Tables, store: str, meter: Meter) -> Holding:
    """What one store has, by one Query: everything but parts and buckets, which version lists and directories count."""
    history, items = read_lists(tables, store, meter)
    snapshots = [each for each in history.snapshots() if each.stage == layout.DONE]
    entries = list(history.entries())
    newest = entries[-1] if entries else None
    newest_snapshot = max(snapshots, key=lambda each: each.version, default=None)
    return Holding(
        stores=1,
        stored=of_store(history, items),
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


def commit_units(store: str, entry: VersionEntry) -> int:
    """Write units of the commit of a version, about: of its parts, and one for the version list."""
    return _part_units(store, entry) + 1


def _part_units(store: str, entry: VersionEntry) -> int:
    own = of_parts(store, [entry])
    return own.items * units_of_write(own.bytes // own.items) if own.items else 0


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
    operators: tuple[Mapping[str, int], ...]
    """Metrics by operator id: Spark numbers operators, and reports them, in the order of its plan."""

    @cached_property
    def metrics(self) -> Mapping[str, int]:
        """The same of all operators together."""
        added: dict[str, int] = {}
        for operator in self.operators:
            for name, value in operator.items():
                added[name] = added.get(name, 0) + value
        return added

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


class ReportFile:
    """A file to which Spark's progress reports are appended, one JSON object a line. Each line is read once."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._inode = 0
        self._read_bytes = 0
        self._read_lines = 0
        self._last: dict[str, _Batch] = {}

    def last_batch(self, runs: Collection[str]) -> Sequence[Mapping[str, int]]:
        """Metrics of the last batch that one of these query runs has reported, by operator id; none, if none has.

        A line without its end is still being written, and waits. A file that was replaced or cut is begun anew.

        Raises:
            ConfigurationError: the file cannot be read, or a line is no JSON or no report.
        """
        try:
            with open(self._file, "rb") as file:  # noqa: PTH123  # a name such as /dev/stdin, too
                self._read_on(file)
        except OSError as wrong:
            raise ConfigurationError(f"the progress reports cannot be read: {wrong}") from wrong
        return next((batch.operators for run, batch in reversed(self._last.items()) if run in runs), ())

    def _read_on(self, file: BinaryIO) -> None:
        now = os.fstat(file.fileno())
        if now.st_ino != self._inode or now.st_size < self._read_bytes:
            self._inode, self._read_bytes, self._read_lines = now.st_ino, 0, 0
        if self._read_bytes:
            file.seek(self._read_bytes)
        for line in file:
            if not line.endswith(b"\n"):
                return
            self._read_bytes += len(line)
            self._read_lines += 1
            text = line.decode("utf-8", errors="replace")
            batch = _batch(text, f"line {self._read_lines} of {self._file}") if text.strip() else None
            if batch is not None:
                self._last.pop(batch.run, None)
                self._last[batch.run] = batch


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
        operators = tuple(
            {name: int(value) for name, value in operator["customMetrics"].items()}
            for operator in report["stateOperators"]
        )
        if not any(name.startswith("dynastate") for operator in operators for name in operator):
            return None
        at = datetime.fromisoformat(report["timestamp"].replace("Z", "+00:00"))
        batch = _Batch(report["id"], report.get("name") or "", report["runId"], report["batchId"], at, operators)
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
