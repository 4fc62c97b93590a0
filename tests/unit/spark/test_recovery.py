"""The version that `dynastate recover` takes."""

from __future__ import annotations

from contextlib import closing
from typing import Any, Final

import pytest

from dynastate.errors import ConfigurationError
from dynastate.progress import no_progress
from dynastate.spark.transfer.recovery import _newest
from tests.support.engine_driver import make_engine, write, write_versions
from tests.support.memory_tables import MemoryTables
from tests.support.samples import attempt
from tests.support.store_builder import USER, StoreBuilder, family, struct, user

NEW: Final = (("refunded", "long"), ("spent", "long"))
OLD: Final = struct(NEW[::-1])
OLDER: Final = struct(NEW[:1])


def test_all_stores_are_taken_from_one_run() -> None:
    """A run after a rollback ends in mid-batch: recovery takes the version below, which every store has."""
    tables = MemoryTables()
    described = [{"operator": 0, "partitions": 2, "name": "default", "described": []}]
    stores = ["lost/0/0/default", "lost/0/1/default"]
    first, second = make_engine(tables), make_engine(tables)
    versions = {store: write_versions(first, store, 11, run="first") for store in stores}
    assert _newest(tables, "lost", described, no_progress)[0] == 11  # type: ignore[arg-type]
    for number, store in enumerate(stores):
        write(second, store, attempt(200 + number), {b"of": b"the second run"}, base=versions[store][6], run="second")
        version, ids = _newest(tables, "lost", described, no_progress)  # type: ignore[arg-type]
        assert version == 6 + number
        assert len(ids) == 2
    first.close()
    second.close()


@pytest.mark.parametrize("in_state", [[], [OLD], [OLD, OLDER]])
@pytest.mark.parametrize("in_template", [[], [OLD], [OLDER, OLD]])
def test_a_template_has_the_earlier_schemas_of_the_state(in_state: list[Any], in_template: list[Any]) -> None:
    """The rows name their schema by its place among them: with others they would be read as if written by another."""
    tables = MemoryTables()
    with closing(make_engine(tables)) as engine:
        builder = StoreBuilder(engine, "lost/0/0/default", family(value=NEW, earlier_values=in_state))
        builder.commit((user("a"), {"spent": 100, "refunded": 7}))
    family_of_template = {"name": "default", "key": struct(USER), "value": struct(NEW), "earlier_values": in_template}
    described = [{"operator": 0, "partitions": 1, "name": "default", "described": [family_of_template]}]
    if in_state == in_template:
        assert _newest(tables, "lost", described, no_progress)[0] == 1  # type: ignore[arg-type]
    else:
        with pytest.raises(ConfigurationError, match="have had other schemas than those of the template"):
            _newest(tables, "lost", described, no_progress)  # type: ignore[arg-type]
