"""The command `checkpoint`: it shows what it will copy, and asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dynastate.engine.engine import Engine
from dynastate.format.checkpoint import Checkpoint
from dynastate.operations.lifecycle import drop
from dynastate.operations.lifecycle.adopt import locations_of
from tests.support.command_line import refused, run, shown
from tests.support.store_builder import StoreBuilder
from tests.unit.cli.conftest import NamedTables
from tests.unit.operations.lifecycle.test_rollback import BATCHES, NAMESPACE, location_in, make_checkpoint


def stopped(engine: Engine, folder: Path, namespace: str) -> Path:
    """The checkpoint of a query with one partition."""
    StoreBuilder(engine, f"{namespace}/0/0/default", location=location_in(folder)).count_to(BATCHES)
    checkpoint = make_checkpoint(folder, partitions=1)
    for file in checkpoint.rglob("dynastate"):
        file.write_text(file.read_text().replace(NAMESPACE, namespace))
    return checkpoint


def test_it_shows_what_it_copies_and_asks(engine: Engine, tables: NamedTables, tmp_path: Path) -> None:
    old, store = stopped(engine, tmp_path, "log-moved"), "log-moved/0/0/default"
    words = ("checkpoint", str(old), "dynastate://log-moved/query")
    result = run(*words, typed="n\n")
    assert (result.code, engine.checkpoint_files().list(Checkpoint("log-moved", "query"), "")) == (1, [])
    assert result.out.startswith("namespace log-moved, 1 store: 13 files, ")
    assert f"to copy from {old} to dynastate://log-moved/query" in " ".join(result.out.split())
    assert "Move the checkpoint to dynastate://log-moved/query?" in result.err
    result = run(*words, typed="y\n")
    text = " ".join(result.out.split())
    assert (result.code, "13 files copied, " in text, "requests; log-moved, 1 store, belongs to" in text) == (
        0,
        True,
        True,
    )
    assert "start the query with" not in text
    assert locations_of(tables, [store]) == ("dynastate://log-moved/query/state",)
    assert "0 files, 0 bytes to copy" in run(*words, "--yes").out
    back = tmp_path / "back"
    report = shown("checkpoint", "dynastate://log-moved/query", str(back), "--yes")
    assert (report["files"], report["new"], report["stores"]) == (13, str(back), 1)
    assert report["requests"] > 13
    result = run("checkpoint", "dynastate://log-moved/query", str(back), "--yes")
    assert result.lines[-1].endswith("spark.sql.streaming.stateStore.dynastate.namespace=log-moved")


def test_what_it_refuses(engine: Engine, tmp_path: Path) -> None:
    old = stopped(engine, tmp_path, "log-stays")
    assert "there is no checkpoint" in refused("checkpoint", str(tmp_path), "dynastate://log-stays/query", "--yes")
    assert "there is no checkpoint" in refused("checkpoint", "dynastate://log-stays/query", str(old), "--yes")
    assert "in the namespace log-stays: give" in refused("checkpoint", str(old), "dynastate://other/query", "--yes")


def test_a_query_that_writes_is_refused(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit between two looks, except with --force."""
    old = stopped(engine, tmp_path, "log-written")
    look = drop.look
    looks = 0

    def writes(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            builder = StoreBuilder(engine, "log-written/0/0/default", location=location_in(tmp_path))
            builder.take_back(BATCHES, "run").count_to(BATCHES + 1)
        return look(*arguments)

    monkeypatch.setattr(drop, "look", writes)
    words = ("checkpoint", str(old), "dynastate://log-written/query", "--yes")
    result = run(*words)
    assert (result.code, "a query writes to this namespace: stop it, and move its" in result.err) == (2, True)
    assert engine.checkpoint_files().list(Checkpoint("log-written", "query"), "") == []
    assert run(*words, "--force").code == 0


def test_transfers_look_for_the_old_one_before_spark_starts() -> None:
    old, new = "dynastate://log-none/query", "dynastate://log-new/query"
    error = refused("export-checkpoint", old, new, "--store", "rocksdb")
    assert error.startswith("dynastate: Spark's own stores keep their files in the checkpoint, so that cannot be in")
    for words in (("import",), ("repartition", "--partitions", "2")):
        command, *options = words
        error = refused(command, old, new, *options)
        assert error.startswith(f"dynastate: there is no checkpoint in this folder checkpoint={old}")
