"""Failover of a real query: it continues in the other Region by the steps of the command, with the rows of RocksDB."""

from __future__ import annotations

import re
import shlex
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.client import make_client
from dynastate.settings import PREFIX
from tests.spark.conftest import CONF, ON_ROCKSDB, Database, Sessions, only
from tests.spark.operators import CASES
from tests.spark.streams import make_sources
from tests.support.command_line import run, shown
from tests.support.dynoxide import fast_dynamodb


def replicate(source: Database, target: Database) -> None:
    """Put every item of both tables there, as a replica has them."""
    with closing(make_client(source.settings)) as source_client, closing(make_client(target.settings)) as target_client:
        for table in (source.settings.delta_table, source.settings.snapshot_table):
            for page in source_client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
                for item in page["Items"]:
                    target_client.put_item(TableName=table, Item=item)


@pytest.mark.slow
def test_query_continues_in_the_other_region(
    sessions: Sessions, folder: Path, tables: BotoTables, database: Database, environment: dict[str, str]
) -> None:
    """The other Region lacks the last batch, and the checkpoint is in another place there, with that batch."""
    case, options = CASES["aggregation in update mode"], {f"{CONF}.dynastate.namespace": folder.name}
    sources = make_sources(folder, seed=33, files=4)
    conf = {"here": options, "stays": ON_ROCKSDB}
    with fast_dynamodb(folder / "other-region") as other:
        for files in (1, 2, 3):
            sources.release(files)
            for place, place_conf in conf.items():
                case.start(sessions(place_conf), sources, folder / place).finish()
            if files == 2:
                with only(environment):
                    replicate(database, other)
        shutil.copytree(folder / "here", folder / "there")
        words = [
            *("failover", folder.name, "--endpoint", database.endpoint, "--region", database.settings.region),
            *("--to-endpoint", other.endpoint, "--checkpoint", str(folder / "there")),
        ]
        with only(environment):
            plan = shown(*words)
            lag = plan["source"]["version"] - plan["target"]["version"]
            assert lag == plan["undone"] > 0
            stop, *steps, start = plan["steps"]
            assert stop.startswith("Stop the query")
            for step in steps:
                command = shlex.split(re.search(r"dynastate (.+)", step)[1])  # type: ignore[index]  # fails otherwise
                result = run(*command, "--yes", *(["--force"] if command[0] == "rollback" else []))
                assert result.code == 0, result.err
            rest = shown(*words)
            assert (len(rest["steps"]), rest["undone"], rest["batch"]) == (2, 0, plan["batch"])
        settings = dict(re.findall(rf"({re.escape(PREFIX)}\w+)=([^ ,]+)", start))
        assert settings[f"{CONF}.dynastate.endpoint"] == other.endpoint
        first = case.start(sessions(settings), sources, folder / "there").finish()
        assert list(first.rows) == [plan["batch"]]
        sources.release()
        ours = case.start(sessions(settings), sources, folder / "there").finish()
        reference = case.start(sessions(ON_ROCKSDB), sources, folder / "stays").finish()
    assert (ours.rows, ours.state) == (reference.rows, reference.state)
