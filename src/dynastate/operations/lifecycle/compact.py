"""A snapshot of a store's newest version, on request.

Snapshots and clean-ups on request follow the rules of executors (docs/decisions/0006), so they are safe beside a query.
They write with the run and the epoch of the newest version: a new run would fence the query off.
If a newer run has begun, or begins meanwhile, both stop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from dynastate.engine.engine import Engine
from dynastate.engine.opening import Opening, retry_routes
from dynastate.errors import ConfigurationError
from dynastate.format import changes
from dynastate.format.changes import Change, RowValue
from dynastate.format.parts import CHUNK_BYTES_MAX, Chunk, StoredChunk
from dynastate.operations.lifecycle.runs import writing_run
from dynastate.progress import ProgressCallback, no_progress
from dynastate.storage.tables import Tables

#: A column family's id and a key.
_RowId = tuple[int, bytes]
_Rows = dict[_RowId, RowValue]
#: The hash of a key, and a record of it.
_Record = tuple[int, bytes]


@dataclass(frozen=True)
class Compacted:
    """A new snapshot, of `rows` rows, and the bytes that were written for it."""

    store: str
    version: int
    rows: int
    bytes_written: int
    write_units: int


def compact_store(
    engine: Engine, tables: Tables, store: str, progress: ProgressCallback = no_progress
) -> Compacted | None:
    """Make a snapshot of the newest version, whether it saves more write units than it costs or not.

    1. Read the whole version. 2. Enter the snapshot as being written, for the run that writes to the store.
    3. Write the buckets that changed since the last snapshot, then enter the snapshot as done. A crash leaves a
    snapshot that no reader uses, and that clean-up deletes.

    Returns None if there is nothing to do: the version has a snapshot, or another executor is making one.
    """
    newest = engine.lineage(store).newest
    run = writing_run(tables, store, newest)
    rows, changed_rows, base = retry_routes(lambda _: _read(engine.open(store, newest.version, newest.attempt)))  # 1
    attempt, _ = engine.maintenance.snapshot(  # 2
        store,
        run,
        version=newest.version,
        attempt=newest.attempt,
        state_bytes=sum(len(key) + len(each) + 10 for (_, key), value in rows.items() for each in _values(value)),
        min_deltas=1,
        is_asked_for=True,
    )
    if attempt is None:
        return None
    shift = 32 - attempt.bits
    # The new snapshot shares the unchanged buckets of the snapshot that was read.
    is_shared = attempt.base and attempt.base == base
    changed_numbers = {changes.key_hash(key) >> shift for _, key in changed_rows}
    numbers = changed_numbers if is_shared else set(range(1 << attempt.bits))
    buckets: dict[int, list[_Record]] = {number: [] for number in numbers}
    for (family, key), value in rows.items():
        digest = changes.key_hash(key)
        if digest >> shift in numbers:
            buckets[digest >> shift] += _records(digest, family, key, _values(value))
    try:
        for written, number in enumerate(sorted(numbers)):
            progress(written, len(numbers))
            attempt.bucket(number)
            for chunk in _chunks(buckets[number]):
                attempt.append(chunk)
    except BaseException:
        attempt.abort()
        raise
    if not attempt.commit():  # 3
        raise ConfigurationError(
            "a clean-up, or a newer run of the query, came in between; no snapshot was made, try again", store=store
        )
    meter = attempt.meter
    return Compacted(
        store, newest.version, rows=len(rows), bytes_written=meter.bytes_written, write_units=meter.write_units
    )


def reason_for_none(engine: Engine, store: str) -> str:
    newest = engine.lineage(store).newest
    if engine.find(store, newest.version, newest.attempt).snapshot == newest.version:
        return f"version {newest.version}, the newest, has a snapshot"
    return (
        f"another executor is making a snapshot of version {newest.version}, a newer run of the query has begun, or "
        "rows are erased"
    )


def _read(opening: Opening) -> tuple[_Rows, set[_RowId], int]:
    """All rows of a version, the keys that changed since its snapshot, and the snapshot's version."""
    rows: _Rows = {}
    _fold(rows, opening.snapshot_chunks)
    return rows, _fold(rows, opening.chunks), opening.snapshot


def _values(value: RowValue) -> list[bytes]:
    return value if isinstance(value, list) else [value]


def _fold(rows: _Rows, chunks: Iterator[StoredChunk]) -> set[_RowId]:
    """Apply changes of all families, and return their keys."""
    changed = set()
    for change in chain.from_iterable(changes.decode_changes(each.changes) for each in chunks):
        row_id = change.family, change.key
        changed.add(row_id)
        changes.apply_change(rows, row_id, change)
    return changed


def _records(digest: int, family: int, key: bytes, values: list[bytes]) -> Iterator[_Record]:
    """Records of a key's values: a put of the first value, and a merge of each other one."""
    for number, value in enumerate(values):
        operation = changes.MERGE if number else changes.PUT
        yield digest, changes.encode_changes([Change(operation, family, key, value)])


def _chunks(records: list[_Record]) -> Iterator[Chunk]:
    """Chunks of records, at most as large as the format allows unless one record is larger."""
    begin = size = 0
    for end, (_, raw) in enumerate(records):
        if end > begin and size + len(raw) > CHUNK_BYTES_MAX:
            yield _chunk(records[begin:end])
            begin, size = end, 0
        size += len(raw)
    if records:
        yield _chunk(records[begin:])


def _chunk(records: list[_Record]) -> Chunk:
    hashes = [digest for digest, _ in records]
    return Chunk(len(records), min(hashes), max(hashes), b"".join(raw for _, raw in records))
