"""Metrics of operations, under the names of docs/metrics.md."""

from __future__ import annotations

from dynastate.engine.commit import Committed
from dynastate.format.items import StorageSize
from dynastate.prices import Prices
from dynastate.storage.meter import Meter


def counters(meter: Meter, prices: Prices) -> dict[str, int]:
    return {
        "requests": meter.requests,
        "retries": meter.retries,
        "throttles": meter.throttles,
        "writeUnits": meter.write_units,
        "readUnits": meter.read_units,
        "itemsWritten": meter.items_written,
        "bytesWritten": meter.bytes_written,
        "bytesRead": meter.bytes_read,
        "cacheHits": meter.cache_hits,
        "cacheMisses": meter.cache_misses,
        "nanodollars": prices.nanodollars(
            meter.write_units + meter.delete_units, meter.read_units, meter.puts, meter.gets
        ),
        "puts": meter.puts,
        "gets": meter.gets,
        "objectBytesWritten": meter.object_bytes_written,
        "objectBytesRead": meter.object_bytes_read,
    }


def maintenance_counters(meter: Meter, prices: Prices) -> dict[str, int]:
    """The cost of a snapshot or a clean-up: deletes are charged, too, and counted apart."""
    return counters(meter, prices) | {"itemsDeleted": meter.items_deleted, "deleteUnits": meter.delete_units}


def commit_counters(committed: Committed, stored: StorageSize, prices: Prices) -> dict[str, int]:
    """The cost and size of a commit, and the size of its store."""
    return counters(committed.meter, prices) | {
        "parts": committed.entry.parts,
        "records": committed.entry.records,
        "rawBytes": committed.entry.raw_bytes,
        "storedItems": stored.items,
        "storedBytes": stored.bytes,
        "storedObjectBytes": stored.object_bytes,
    }
