"""Import, repartition, migrate, bootstrap, recover and export of queries whose checkpoints are in DynamoDB."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from dynastate import bootstrap, import_checkpoint, migrate, recover_checkpoint
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.errors import ConfigurationError
from dynastate.operations.lifecycle.verify_checkpoint import verify_checkpoints
from dynastate.spark.transfer import jvm
from dynastate.spark.transfer.export import export_checkpoint
from dynastate.spark.transfer.repartition import repartition
from tests.spark.conftest import ON_ROCKSDB, Sessions
from tests.spark.operators import expected_sums, sums
from tests.spark.state_reader import read_state, read_states
from tests.spark.streams import make_source, run
from tests.spark.test_checkpoint_in_dynamodb import IN_DYNAMODB
from tests.support.command_line import moved
from tests.support.jvm import SPARK

pytestmark = [
    pytest.mark.skipif(SPARK != jvm.SPARK, reason=f"transfers need Spark {jvm.SPARK}"),
    pytest.mark.usefixtures("clean_environment"),
]
SCHEMA = "count long, sum long, max string"


def unchanged(key: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    return value


def test_transfers(sessions: Sessions, tables: BotoTables, folder: Path) -> None:
    """One query goes through all of them, and equals its input after each; no namespace is given."""
    source, session = make_source(folder / "files", seed=9, files=6), sessions(IN_DYNAMODB)

    def at(name: str) -> str:
        return f"dynastate://{folder.name}-{name}/query"

    def batch(session: SparkSession, checkpoint: Path | str, files: int) -> None:
        source.release(files)
        rows = run(sums(source.stream(session), "key"), checkpoint, "complete").rows
        assert rows == {files - 1: expected_sums(session, source)}

    rocksdb = folder / "rocksdb"
    batch(sessions(ON_ROCKSDB), rocksdb, 1)
    imported = moved("import", import_checkpoint(session, str(rocksdb), at("imported")))
    assert imported.namespace == f"{folder.name}-imported"
    batch(session, at("imported"), 2)
    assert moved("repartition", repartition(session, at("imported"), at("three"), 3)).stores == 3
    batch(session, at("three"), 3)
    assert moved("migrate", migrate(session, at("three"), at("migrated"), unchanged, SCHEMA)).rows > 0
    batch(session, at("migrated"), 4)
    exported = export_checkpoint(session, at("migrated"), str(folder / "exported"), "rocksdb")
    assert moved("export-checkpoint", exported).namespace == ""
    batch(sessions(exported.confs), folder / "exported", 5)

    for template in (at("template"), folder / "template"):
        run(sums(source.stream(session), "key"), template, "complete")
    reader = sessions(IN_DYNAMODB)  # by number a session that has run another query reads the state of that one only
    expected = [row[1:] for row in read_states(reader, at("imported"), range(1, 2))]
    frame = read_state(reader, at("imported")).select("key", "value")
    transfers = {
        "recovered": recover_checkpoint(session, f"{folder.name}-imported", str(folder / "template"), at("recovered")),
        "bootstrapped": bootstrap(session, at("template"), at("bootstrapped"), frame),
    }
    for (name, result), command in zip(transfers.items(), ("recover", "bootstrap"), strict=True):
        batch_number = moved(command, result).batch
        states = read_states(reader, at(name), range(batch_number, batch_number + 1))
        assert [row[1:] for row in states] == expected
    for name in ("imported", "three", "migrated", "template", *transfers):
        (report,) = verify_checkpoints(tables, f"{folder.name}-{name}")
        assert report.batches
        assert report.findings == ()

    refusals: dict[str, Callable[[], object]] = {
        "Spark's own stores keep their files in the checkpoint": lambda: export_checkpoint(
            session, at("three"), at("other"), "rocksdb"
        ),
        "keeps its state in DynamoDB already": lambda: import_checkpoint(session, at("three"), at("other")),
        "leave the namespace out": lambda: import_checkpoint(session, str(rocksdb), at("other"), "orders"),
        "the new state needs a namespace of its own": lambda: repartition(session, at("three"), at("three") + "2", 2),
        "run the template with a checkpoint in a folder": lambda: recover_checkpoint(
            session, f"{folder.name}-imported", at("template"), at("other")
        ),
        "this session has no checkpoints in DynamoDB": lambda: repartition(sessions({}), at("three"), at("other"), 2),
        "there is no checkpoint in this folder": lambda: repartition(session, at("missing"), at("other"), 2),
        "the folder of the new checkpoint is not empty": lambda: repartition(session, at("three"), at("template"), 2),
        "is named dynastate://NAMESPACE/NAME": lambda: repartition(session, at("three"), "dynastate://other", 2),
    }
    for message, transfer in refusals.items():
        with pytest.raises(ConfigurationError, match=message):
            transfer()
    assert verify_checkpoints(tables, f"{folder.name}-other") == []
