"""Costs of the logs of queries with their checkpoint in DynamoDB, by its files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from dynastate.engine.checkpoint import read_checkpoints
from dynastate.errors import CorruptStateError
from dynastate.format.checkpoint import (
    EVERY_ITEM,
    OBJECTS,
    Checkpoint,
    is_head,
    parse_head,
    path_of,
    writer_of_fragment,
)
from dynastate.format.items import Item, StorageSize, item_bytes
from dynastate.format.keys import store_shard
from dynastate.format.spark_log import COMMITS, OFFSETS, SOURCES, batch_file, batch_of
from dynastate.prices import Prices
from dynastate.storage.meter import units_of_write
from dynastate.storage.tables import Tables

_DAY_S: Final = 86_400
#: The folders of the files that each batch writes.
_OF_BATCH: Final = (OFFSETS, COMMITS, SOURCES)


@dataclass(frozen=True)
class LogUsage:
    """The items of a checkpoint, and the files of the `batches` that its log has, with their write units.

    Each of these files is written once, and deleted once, at the same price. `puts` are those of their objects, which
    are deleted for nothing. `committed_ms` is the time of the newest commit, in milliseconds since 1970, or 0.
    """

    checkpoint: str
    stored: StorageSize
    batches: int
    files: int
    write_units: int
    committed_ms: int = 0
    puts: int = 0

    @property
    def files_a_batch(self) -> float:
        return self.files / max(1, self.batches)

    @property
    def units_a_batch(self) -> float:
        """Write units of the files of an average batch, without their deletes."""
        return self.write_units / max(1, self.batches)

    def as_json(self, prices: Prices, every_s: float | None) -> dict[str, Any]:
        """The figures of an average batch, and of a day with a batch every `every_s` seconds, if that is known."""
        writes, puts = self.units_a_batch, self.puts / max(1, self.batches)
        figures = {
            "checkpoint": self.checkpoint,
            **asdict(self.stored),
            "storage_dollars_a_month": prices.dollars_a_month(self.stored),
            "batches": self.batches,
            "requests_a_batch": round(self.files_a_batch, 1),
            "write_units_a_batch": round(writes, 1),
            "delete_units_a_batch": round(writes, 1),
            "puts_a_batch": round(puts, 1),
        }
        if every_s is None:
            return figures
        daily = _DAY_S / every_s
        dollars = prices.nanodollars(round(2 * writes * daily), 0, round(puts * daily)) / 1e9
        return figures | {"dollars_a_day": dollars}


def usage_of_logs(tables: Tables, namespace: str) -> list[LogUsage]:
    """The usage of each checkpoint of a namespace that has files, by one query each, and one for the namespace."""
    usages = (_usage(tables, checkpoint) for checkpoint in read_checkpoints(tables, namespace))
    return [usage for usage in usages if usage.stored.items]


def log_of_query(usages: Sequence[LogUsage]) -> LogUsage | None:
    """The log of a namespace's query: that with the newest commit. Returns None if no log has a commit."""
    return max((usage for usage in usages if usage.batches), key=lambda usage: usage.committed_ms, default=None)


def read_log(tables: Tables, namespace: str) -> LogUsage | None:
    """The log of a namespace's query, for who watches its stores. Returns None if it is corrupt, too.

    The stores can be watched all the same, and `verify` names what is corrupt.
    """
    try:
        return log_of_query(usage_of_logs(tables, namespace))
    except CorruptStateError:
        return None


def _usage(tables: Tables, checkpoint: Checkpoint) -> LogUsage:
    low, high = EVERY_ITEM
    items = tables.query("snapshot", store_shard(checkpoint.store, 0), low, high)
    fragments: Counter[bytes] = Counter()
    for key, item in items:
        if not is_head(key):
            fragments[bytes(writer_of_fragment(key))] += units_of_write(item_bytes(item))
    heads = {path_of(key): item for key, item in items if is_head(key)}
    in_objects = {path_of(key): parse_head(key, item) for key, item in items if is_head(key) and OBJECTS in item}
    commits = [item for path, item in heads.items() if batch_of(COMMITS, path) is not None]
    # Spark keeps the files of a source for longer than commits.
    times_ms = [*map(_time_ms, commits)]
    oldest_ms = min(times_ms, default=0)
    paths = [path for path, item in heads.items() if _is_of_batch(path) and _time_ms(item) >= oldest_ms]
    of_batches = [heads[path] for path in paths]
    writers = (item.get("writer") for item in of_batches)
    return LogUsage(
        checkpoint=str(checkpoint),
        stored=StorageSize(
            len(items),
            sum(item_bytes(item) for _, item in items),
            sum(head.stored_bytes for head in in_objects.values()),
        ),
        batches=len(commits),
        files=len(of_batches),
        write_units=sum(units_of_write(item_bytes(item)) for item in of_batches)
        + sum(fragments[writer] for writer in writers if isinstance(writer, bytes)),
        committed_ms=max(times_ms, default=0),
        puts=sum(in_objects[path].fragments for path in paths if path in in_objects),
    )


def _is_of_batch(path: str) -> bool:
    file = batch_file(path)
    return file is not None and file.folder in _OF_BATCH


def _time_ms(head: Item) -> int:
    time = head.get("time")
    return time if isinstance(time, int) else 0
