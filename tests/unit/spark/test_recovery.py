"""The version that `dynastate recover` takes."""

from __future__ import annotations

from dynastate.progress import no_progress
from dynastate.spark.transfer.recovery import _newest
from tests.support.engine_driver import attempt, make_engine, write, write_versions
from tests.support.fakes import MemoryTables


def test_all_stores_are_taken_from_one_run() -> None:
    """A run after a rollback ends in mid-batch: recovery takes the version below, which every store has."""
    tables = MemoryTables()
    described = [{"operator": 0, "partitions": 2, "name": "default", "described": []}]
    stores = ["lost/0/0/default", "lost/0/1/default"]
    first, second = make_engine(tables), make_engine(tables)
    made = {store: write_versions(first, store, 11, run="first") for store in stores}
    assert _newest(tables, "lost", described, no_progress)[0] == 11  # type: ignore[arg-type]
    for number, store in enumerate(stores):
        write(second, store, attempt(200 + number), {b"of": b"the second run"}, base=made[store][6], run="second")
        version, ids = _newest(tables, "lost", described, no_progress)  # type: ignore[arg-type]
        assert version == 6 + number
        assert len(ids) == 2
    first.close()
    second.close()
