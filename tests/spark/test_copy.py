"""Copy of a real query's state: it continues from other tables as one on RocksDB that stays."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from dynastate.dynamodb.admin import create_tables
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.operations.regions.copy import copy_stores, plan_copy
from tests.spark.conftest import CONF, ON_ROCKSDB, Database, Sessions, only
from tests.spark.operators import CASES
from tests.spark.streams import make_sources


@pytest.mark.slow
def test_copied_query_continues_in_other_tables(
    sessions: Sessions, folder: Path, tables: BotoTables, database: Database, environment: dict[str, str]
) -> None:
    case, conf = CASES["transformWithState in Scala"], {f"{CONF}.dynastate.namespace": folder.name}
    sources = make_sources(folder, seed=31, files=4)
    sources.release(2)
    case.start(sessions(conf), sources, folder / "ours").finish()
    case.start(sessions(ON_ROCKSDB), sources, folder / "stays").finish()
    other = replace(database.settings, delta_table="copy-delta", snapshot_table="copy-snapshot")
    with only(environment):
        create_tables(other)
        with closing(BotoTables(other)) as target:
            plan = plan_copy(tables, target, folder.name, other)
            result = copy_stores(tables, target, plan, other)
    assert result.stores == 2
    sources.release()
    other_names = {f"{CONF}.dynastate.deltaTable": "copy-delta", f"{CONF}.dynastate.snapshotTable": "copy-snapshot"}
    ours = case.start(sessions(conf | other_names), sources, folder / "ours").finish()
    reference = case.start(sessions(ON_ROCKSDB), sources, folder / "stays").finish()
    assert (ours.rows, ours.state) == (reference.rows, reference.state)
