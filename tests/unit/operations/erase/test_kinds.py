"""Erasing rows of imported versions, and of values with earlier schemas, as Avro's evolution leaves them."""

from __future__ import annotations

import json

from dynastate.engine.engine import Engine
from dynastate.engine.imported import ImportedVersion
from dynastate.format.changes import PUT, Change, key_hash
from dynastate.format.keys import VersionId
from dynastate.operations.inspection.verify import verify
from dynastate.storage.tables import Tables
from dynastate.unsaferow.schema import parse_schema
from tests.support.contents import entry
from tests.support.engine_driver import Engines
from tests.support.samples import attempt, chunk_of, query_run
from tests.support.search import places_with
from tests.support.store_builder import COUNTS, USER, StoreBuilder, counted, family, struct, user
from tests.unit.operations.erase.test_erase import MARKS, PERSON, SECRET, erase, others, rows_at_each

IMPORTED = 43


def import_rows(engine: Engine, store: str) -> None:
    """Import a version with rows of three users and the person."""
    keys, values = parse_schema(struct(USER)), parse_schema(struct(COUNTS))
    names = {"a": "", "b": "", "c": "", PERSON: SECRET}
    rows = [Change(PUT, 0, keys.encode(user(name)), values.encode(counted(1, note))) for name, note in names.items()]
    version = ImportedVersion(IMPORTED, attempt(IMPORTED), {0: len(rows)}, json.dumps({"families": [family()]}))
    under_way = engine.begin_import(store, query_run("run-1"), version, (512 * 1024) << 2)
    for number in range(1 << under_way.bits):
        under_way.bucket(number)
        if in_bucket := [row for row in rows if key_hash(row.key) >> 32 - under_way.bits == number]:
            under_way.append(chunk_of(*in_bucket))
    assert under_way.commit()


def test_an_imported_version(engine: Engine, tables: Tables, store: str) -> None:
    """It has no changes, only a snapshot, in which the rows of the others stay; the query continues from it."""
    import_rows(engine, store)
    builder = StoreBuilder(engine, store)
    builder.version = VersionId(IMPORTED, attempt(IMPORTED))
    builder.state = {(0, bytes([number])): [b""] for number in range(3)}  # all but user a's
    builder.commit((user("a"), counted(2)))
    before = rows_at_each(tables, store)
    assert places_with(tables, [store], *MARKS)
    _, (erased,) = erase(tables, store)
    assert erased.rows == 1
    assert not places_with(tables, [store], *MARKS)
    assert rows_at_each(tables, store) == others(before)
    assert entry(tables, store, IMPORTED).is_imported
    assert not verify(tables, store, with_record=False).findings


def test_values_with_an_earlier_schema(engines: Engines, tables: Tables, store: str) -> None:
    """Each value that stays keeps the id of the schema that it was written with."""
    earlier, later = struct(COUNTS[:1]), struct((*COUNTS, ("more", "long")))
    builder = StoreBuilder(engines(), store, family(value=COUNTS[:1]))
    builder.commit((user("a"), {"count": 1}), (user(PERSON), {"count": 1}))
    builder.families = [family() | {"value": later, "earlier_values": [earlier]}]
    builder.commit((user("b"), {**counted(2), "more": 3}), (user(PERSON), {**counted(2, SECRET), "more": 3}))
    before = rows_at_each(tables, store)
    assert places_with(tables, [store], *MARKS)
    _, (erased,) = erase(tables, store)
    assert erased.rows == 1
    assert not places_with(tables, [store], *MARKS)
    assert rows_at_each(tables, store) == others(before)
    assert [row["more"] for row in rows_at_each(tables, store)[2]] == [None, 3]
