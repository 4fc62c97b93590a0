"""Usage of a query, added up from Spark's progress reports."""

from __future__ import annotations

import json
import os
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, BinaryIO, Final

from dynastate.errors import ConfigurationError
from dynastate.format.items import StorageSize
from dynastate.prices import Prices

#: Metrics of batches and of maintenance that are added up, by the attribute of `QueryUsage` that has the sum.
METRICS: Final = {
    "requests": ("dynastateRequests", "dynastateMaintenanceRequests"),
    "write_units": ("dynastateWriteUnits", "dynastateMaintenanceWriteUnits"),
    "read_units": ("dynastateReadUnits", "dynastateMaintenanceReadUnits"),
    "delete_units": ("dynastateDeleteUnits",),
    "puts": ("dynastatePuts", "dynastateMaintenancePuts"),
    "gets": ("dynastateGets", "dynastateMaintenanceGets"),
    "nanodollars": ("dynastateNanodollars", "dynastateMaintenanceNanodollars"),
}
DAY_S: Final = 86_400
#: The reason why the price of a day by reports differs from a prediction.
REPORTED: Final = (
    "a day of these batches has no storage in it, and of a young query few of the snapshots and deletes that follow "
    "from what it writes; predictions have both"
)
#: Batches that a file of reports remembers.
RECENT: Final = 200


@dataclass(frozen=True)
class QueryUsage:
    """Usage of the batches of one query, with maintenance, and its storage after the last batch."""

    query: str
    name: str
    batches: int
    requests: int
    write_units: int
    read_units: int
    delete_units: int
    puts: int
    gets: int
    nanodollars: int
    stored: StorageSize
    interval_s: float | None
    """The average time from one batch to the next within a run, in seconds. Returns None if no run has two batches."""

    @property
    def dollars(self) -> float:
        return self.nanodollars / 1e9

    @property
    def dollars_a_day(self) -> float | None:
        return self.dollars / self.batches / self.interval_s * DAY_S if self.interval_s else None

    def as_json(self, prices: Prices) -> dict[str, Any]:
        fields = asdict(self) | asdict(self.stored)
        del fields["nanodollars"], fields["stored"]
        return fields | {
            "dollars": self.dollars,
            "dollars_a_day": self.dollars_a_day,
            "storage_dollars_a_month": prices.dollars_a_month(self.stored),
        }


@dataclass(frozen=True)
class Batch:
    """One reported batch of a query's run, `at` the begin of its trigger."""

    query: str
    name: str
    run: str
    number: int
    at: datetime
    operators: tuple[Mapping[str, int], ...]
    """Metrics by operator id: Spark numbers operators, and reports them, in the order of its plan."""
    duration_ms: int
    operator_names: tuple[str, ...] = ()
    """Spark's names of the operators, in the same order."""

    @cached_property
    def metrics(self) -> Mapping[str, int]:
        """The metrics of all operators, added up."""
        added = Counter[str]()
        for operator in self.operators:
            added.update(operator)
        return dict(added)

    def spent(self) -> dict[str, int]:
        """The sums of the metrics of batch and maintenance."""
        return {field: sum(self.metrics[name] for name in names) for field, names in METRICS.items()}


def usage_of_queries(lines: Iterable[str], source: str, prices: Prices | None) -> list[QueryUsage]:
    """Add up progress reports, one JSON object a line, by query, in the order of their first batches.

    Lines are from `StreamingQueryProgress.json`, or from an event log of Spark, whose other events are skipped. A batch
    that is reported twice counts once, and a trigger without a batch does not count. The cost is computed with
    `prices`, or without them by the query with its own prices. Refuse reports without a batch of a query on dynastate.
    """
    batches: dict[tuple[str, str, int], Batch] = {}
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
    return [usage_of_batches([each for each in batches.values() if each.query == query], prices) for query in queries]


class ReportFile:
    """A file to which progress reports are appended, one JSON object a line. Each line is read once."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._inode = 0
        self._read_bytes = 0
        self._read_lines = 0
        self._last: dict[str, Batch] = {}
        self._recent: deque[Batch] = deque(maxlen=RECENT)

    def last_batch(self, runs: Collection[str]) -> Batch | None:
        """The last batch that one of these query runs has reported. Returns None without a report.

        A line without its end is still being written, and is read later. A file that was replaced or truncated is read
        from its start again.
        """
        try:
            with open(self._file, "rb") as file:  # noqa: PTH123  # a name such as /dev/stdin, too
                self._read_new(file)
        except OSError as error:
            raise ConfigurationError(f"the progress reports cannot be read: {error}") from error
        return next((batch for run, batch in reversed(self._last.items()) if run in runs), None)

    def recent(self, runs: Collection[str]) -> list[Batch]:
        """The last batches that `last_batch` has read of these query runs, oldest first, `RECENT` at most."""
        return [batch for batch in self._recent if batch.run in runs]

    def _read_new(self, file: BinaryIO) -> None:
        status = os.fstat(file.fileno())
        if status.st_ino != self._inode or status.st_size < self._read_bytes:
            self._inode, self._read_bytes, self._read_lines = status.st_ino, 0, 0
            self._recent.clear()
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
                self._recent.append(batch)


def _batch(line: str, where: str) -> Batch | None:
    """The batch that a line reports. Returns None for another event, a trigger without a batch, or another store."""
    try:
        report = json.loads(line)
    except ValueError:
        raise ConfigurationError(
            f"{where} is not JSON; progress reports are one JSON object a line, and an event log must be unpacked"
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
        time = datetime.fromisoformat(report["timestamp"].replace("Z", "+00:00"))
        durations = report["durationMs"]
        batch = Batch(
            query=report["id"],
            name=report.get("name") or "",
            run=report["runId"],
            number=report["batchId"],
            at=time,
            operators=operators,
            duration_ms=int(durations.get("triggerExecution", durations["addBatch"])),
            operator_names=tuple(str(each.get("operatorName", "")) for each in report["stateOperators"]),
        )
        batch.spent()
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{where} is not a progress report, or is of another dynastate: {error}") from None
    return batch


def usage_of_batches(batches: Sequence[Batch], prices: Prices | None) -> QueryUsage:
    """Usage of batches of one query, at least one; at `prices`, or as the query computed it."""
    last = max(batches, key=lambda batch: batch.at)
    runs: dict[str, list[datetime]] = {}
    for batch in batches:
        runs.setdefault(batch.run, []).append(batch.at)
    seconds = sum((max(times) - min(times)).total_seconds() for times in runs.values())
    intervals = sum(len(times) - 1 for times in runs.values())
    totals = Counter[str]()
    for batch in batches:
        totals.update(batch.spent())
    if prices:
        write_units = totals["write_units"] + totals["delete_units"]
        totals["nanodollars"] = prices.nanodollars(write_units, totals["read_units"], totals["puts"], totals["gets"])
    return QueryUsage(
        query=last.query,
        name=last.name,
        batches=len(batches),
        stored=StorageSize(
            last.metrics.get("dynastateStoredItems", 0),
            last.metrics.get("dynastateStoredBytes", 0),
            last.metrics.get("dynastateStoredObjectBytes", 0),
        ),
        interval_s=seconds / intervals if intervals and seconds else None,
        **totals,
    )
