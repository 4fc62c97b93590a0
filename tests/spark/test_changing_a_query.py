"""The commands of docs/changing-a-query.md, as they are written there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import functions as f

from dynastate.spark.transfer import jvm
from tests.spark.conftest import CONF, ON_ROCKSDB, Database, Sessions
from tests.spark.state_reader import read_state
from tests.spark.streams import Source, make_source, run
from tests.support.jvm import ROOT, SPARK

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(SPARK != jvm.SPARK, reason=f"transfers of state need Spark {jvm.SPARK}"),
]
PAGE = ROOT / "docs" / "changing-a-query.md"
#: Takes the place of the page's "orders": all tests of a process share the tables, and others use that one.
NAME = "changing"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def query(sessions: Sessions, conf: Mapping[str, str], source: Source, checkpoint: Path) -> None:
    rows = source.stream(sessions(conf))
    run(rows.groupBy("key").agg(f.count("*"), f.sum("amount")), checkpoint)


def test_the_commands_run(sessions: Sessions, folder: Path, database: Database, environment: dict[str, str]) -> None:
    """Each does what the page says: in the end the query is on RocksDB, with the rows that it began with."""
    source = make_source(folder / "source", seed=21, files=2)
    source.release()
    checkpoints = folder / "checkpoints"
    query(sessions, {f"{CONF}.dynastate.namespace": NAME}, source, checkpoints / NAME)
    query(sessions, {}, source, checkpoints / "template")
    state = read_state(sessions({f"{CONF}.dynastate.namespace": NAME}), checkpoints / NAME)
    rows = state.select("key", "value").collect()
    state.select("key", "value").where("key.key is not null").write.parquet(str(folder / "history.parquet"))
    (function,) = blocks("python")
    (folder / "changes.py").write_text(function)

    outputs = [follow(block.replace("orders", NAME), folder, database, environment) for block in blocks("sh")]
    assert len(outputs) == 5
    for text, phrase in zip(
        outputs,
        ("repartitioned 8 stores", "migrated 2 stores", "bootstrapped 2 stores", "recovered 2 stores", "exported 2"),
        strict=True,
    ):
        assert phrase in text
    assert "before {'count': " in outputs[1]
    # The commands' own session has ids, as dynastate.configure says.
    on_rocksdb = sessions({**ON_ROCKSDB, f"{CONF}.checkpointFormatVersion": "2"})
    last_rows = read_state(on_rocksdb, checkpoints / f"{NAME}-5").select("key", "value").collect()
    assert sorted(last_rows, key=repr) == sorted(rows, key=repr)
    first = read_state(sessions({f"{CONF}.dynastate.namespace": f"{NAME}-3"}), checkpoints / f"{NAME}-3").count()
    assert first == len(rows) - 1


def follow(block: str, folder: Path, database: Database, environment: Mapping[str, str]) -> str:
    paths = os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]])
    variables = {"PATH": paths, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(folder), "NO_COLOR": "1"}
    variables |= {"AWS_ENDPOINT_URL": database.endpoint, "AWS_REGION": database.settings.region}
    words = ["bash", "-eu", "-c", block]
    completed = subprocess.run(
        words, cwd=folder, env={**environment, **variables}, capture_output=True, text=True, check=False, timeout=200
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout
