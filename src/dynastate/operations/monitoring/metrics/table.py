"""The exported metrics: a table, and their values in a progress report of Spark (docs/metrics.md).

Names are those of Prometheus: base units, and `_total` for what is added up batch by batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
Report = Mapping[str, Any]
#: The value of a metric in a report, or in one operator of it. Returns None if it has no such value.
Read = Callable[[Report], "float | None"]

#: Labels of metrics of a query, and of a stateful operator. An operator's number is its operator id.
QUERY_LABELS: Final = ("query", "query_id")
OPERATOR_LABELS: Final = (*QUERY_LABELS, "operator", "operator_name")
#: Upper bounds of the buckets of durations, in seconds.
BUCKETS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


@dataclass(frozen=True)
class Metric:
    """One exported metric. A counter's value in a report is what the batch adds."""

    name: str
    kind: Kind
    help: str
    read: Read = field(repr=False, compare=False)
    labels: tuple[str, ...] = OPERATOR_LABELS

    @property
    def unit(self) -> str:
        """The unit in its name, or empty."""
        base = self.name.removesuffix("_total")
        return next((unit for unit in ("seconds", "bytes", "dollars") if base.endswith(f"_{unit}")), "")


class Sample(NamedTuple):
    """The value of a metric in one report."""

    metric: Metric
    labels: tuple[str, ...]
    value: float


def samples(report: Report) -> Iterator[Sample]:
    """The values of a batch's report. Empty for a trigger without a batch."""
    if not has_batch(report):
        return
    query = labels_of(report)
    for metric in QUERY_METRICS:
        if (value := metric.read(report)) is not None:
            yield Sample(metric, query, value)
    for number, operator in enumerate(report["stateOperators"]):
        labels = (*query, str(number), str(operator["operatorName"]))
        for metric in OPERATOR_METRICS:
            if (value := metric.read(operator)) is not None:
                yield Sample(metric, labels, value)


def has_batch(report: Report) -> bool:
    return "addBatch" in report["durationMs"]


def labels_of(report: Report) -> tuple[str, ...]:
    """The labels of a query: its name, or else its id, and its id."""
    return str(report.get("name") or report["id"]), str(report["id"])


def batch_time(report: Report) -> datetime:
    """The time at which a batch began."""
    return datetime.fromisoformat(str(report["timestamp"]).replace("Z", "+00:00"))


def _watermark_lag_s(report: Report) -> float | None:
    """Seconds by which the watermark is behind the batch's begin."""
    watermark = (report.get("eventTime") or {}).get("watermark")
    if not watermark or watermark.startswith("1970-01-01T00:00:00"):
        return None  # there is none yet
    return (batch_time(report) - datetime.fromisoformat(watermark.replace("Z", "+00:00"))).total_seconds()


def _offsets_behind(report: Report) -> float | None:
    """Offsets that Kafka's sources have and the batch had not, on average over their partitions, added up."""
    values = [(source.get("metrics") or {}).get("avgOffsetsBehindLatest") for source in report.get("sources", ())]
    numbers = [float(each) for each in values if each is not None]
    return sum(numbers) if numbers else None


def _custom(name: str, scale: float = 1.0) -> Read:
    """A metric of the provider. Returns None if the operator is on another store."""
    read = _field(name, scale)
    return lambda operator: read(operator.get("customMetrics") or {})


def _field(name: str, scale: float = 1.0) -> Read:
    """A field of the report, or of the operator's part of it."""

    def read(report: Report) -> float | None:
        value = report.get(name)
        return None if value is None else value * scale

    return read


def _of_query(name: str, kind: Kind, text: str, read: Read) -> Metric:
    return Metric(f"dynastate_{name}", kind, text, read, labels=QUERY_LABELS)


def _total(name: str, text: str, read: Read) -> Metric:
    return Metric(f"dynastate_{name}_total", "counter", text, read)


def _counted(name: str, text: str, custom: str, scale: float = 1.0) -> Metric:
    return _total(name, text, _custom(custom, scale))


def _gauge(name: str, text: str, read: Read) -> Metric:
    return Metric(f"dynastate_{name}", "gauge", text, read)


QUERY_METRICS: Final = (
    _of_query("batches_total", "counter", "Batches that were committed.", lambda _: 1.0),
    _of_query(
        "batch_duration_seconds",
        "histogram",
        "Time from a batch's trigger to its end.",
        lambda report: report["durationMs"].get("triggerExecution", 0) / 1000,
    ),
    _of_query("input_rows_total", "counter", "Rows that the sources gave.", _field("numInputRows")),
    _of_query("batch_id", "gauge", "Id of the last batch.", _field("batchId")),
    _of_query(
        "last_batch_timestamp_seconds",
        "gauge",
        "Time at which the last batch began, since 1970.",
        lambda report: batch_time(report).timestamp(),
    ),
    _of_query(
        "watermark_lag_seconds",
        "gauge",
        "Time by which the watermark was behind the last batch's begin.",
        _watermark_lag_s,
    ),
    _of_query(
        "source_offsets_behind",
        "gauge",
        "Offsets that Kafka's sources are ahead of the last batch, on average over their partitions.",
        _offsets_behind,
    ),
)
OPERATOR_METRICS: Final = (
    _gauge("state_rows", "Keys in state.", _field("numRowsTotal")),
    _gauge("state_memory_bytes", "Heap of the rows in memory.", _field("memoryUsedBytes")),
    _gauge("partitions", "Shuffle partitions.", _field("numShufflePartitions")),
    _total("rows_updated", "Rows of state that were put.", _field("numRowsUpdated")),
    _total("rows_removed", "Rows of state that were removed.", _field("numRowsRemoved")),
    _total("rows_dropped_by_watermark", "Rows that came too late.", _field("numRowsDroppedByWatermark")),
    _total("commits", "Versions of stores that were committed.", _field("numStateStoreInstances")),
    _counted("commit_seconds", "Time that tasks spent in commit, summed.", "dynastateCommitMs", 1e-3),
    _counted("load_seconds", "Time to load versions, summed.", "dynastateLoadMs", 1e-3),
    _counted("requests", "Requests of batches, of DynamoDB and S3, repeated ones included.", "dynastateRequests"),
    _counted("retries", "Of these, those sent again.", "dynastateRetries"),
    _counted("throttles", "Of these, those throttled in whole or in part.", "dynastateThrottles"),
    _counted("write_units", "Write units of batches.", "dynastateWriteUnits"),
    _counted("read_units", "Read units of batches.", "dynastateReadUnits"),
    _counted("cost_dollars", "Price of batches.", "dynastateNanodollars", 1e-9),
    _counted("items_written", "Items written.", "dynastateItemsWritten"),
    _counted("written_bytes", "Bytes of the items written.", "dynastateBytesWritten"),
    _counted("read_bytes", "Bytes of the items read.", "dynastateBytesRead"),
    _counted("parts", "Parts written.", "dynastateParts"),
    _counted("puts", "Requests of S3 that it charges as PUTs.", "dynastatePuts"),
    _counted("gets", "Requests of S3 that it charges as GETs.", "dynastateGets"),
    _counted("object_written_bytes", "Bytes of the objects written.", "dynastateObjectBytesWritten"),
    _counted("object_read_bytes", "Bytes of the objects read.", "dynastateObjectBytesRead"),
    _counted("item_cache_hits", "Items found in a sidecar's memory.", "dynastateItemCacheHits"),
    _counted("item_cache_misses", "Items read from DynamoDB.", "dynastateItemCacheMisses"),
    _counted("buckets_read", "Buckets read for requested rows.", "dynastateBucketsRead"),
    _counted("cache_hits", "Versions found in an executor's memory.", "dynastateCacheHits"),
    _counted("cache_misses", "Versions that were read.", "dynastateCacheMisses"),
    _counted("disk_reads", "Reads of local disk.", "dynastateDiskReads"),
    _counted("pages_spilled", "Pages moved from the heap to local disk.", "dynastatePagesSpilled"),
    _counted("maintenance_requests", "Requests of snapshots and clean-up.", "dynastateMaintenanceRequests"),
    _counted(
        "maintenance_write_units", "Write units of snapshots and version lists.", "dynastateMaintenanceWriteUnits"
    ),
    _counted("maintenance_read_units", "Read units of maintenance.", "dynastateMaintenanceReadUnits"),
    _counted("delete_units", "Write units of clean-up's deletes.", "dynastateDeleteUnits"),
    _counted("items_deleted", "Items deleted by clean-up.", "dynastateItemsDeleted"),
    _counted("maintenance_puts", "PUTs of S3 of maintenance.", "dynastateMaintenancePuts"),
    _counted("maintenance_gets", "GETs of S3 of maintenance.", "dynastateMaintenanceGets"),
    _counted("maintenance_cost_dollars", "Price of maintenance.", "dynastateMaintenanceNanodollars", 1e-9),
    _counted("forced_snapshots", "Snapshots that Spark forced.", "forceSnapshotCount"),
    _gauge("stored_items", "Items in both tables.", _custom("dynastateStoredItems")),
    _gauge("stored_bytes", "Bytes of these items.", _custom("dynastateStoredBytes")),
    _gauge("stored_object_bytes", "Bytes in objects of S3.", _custom("dynastateStoredObjectBytes")),
    _gauge("disk_bytes", "Rows in the disk tier.", _custom("dynastateDiskBytes")),
    _gauge("internal_keys", "Keys of column families that Spark keeps for itself.", _custom("dynastateInternalKeys")),
)
#: Whether a query runs, and how often one failed: these are in no report.
ACTIVE: Final = _of_query("query_active", "gauge", "1 while the query runs, 0 when it has ended.", lambda _: None)
FAILURES: Final = _of_query("query_failures_total", "counter", "Runs that ended with an error.", lambda _: None)
METRICS: Final = (ACTIVE, FAILURES, *QUERY_METRICS, *OPERATOR_METRICS)
