"""The command `rollback`: it shows what would change, and asks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from dynastate.engine.engine import Engine
from dynastate.format.checkpoint import Checkpoint
from dynastate.operations.lifecycle import drop
from tests.support.command_line import refused, run, shown
from tests.support.store_builder import StoreBuilder
from tests.unit.cli.conftest import NamedTables
from tests.unit.operations.lifecycle.test_rollback import (
    BATCHES,
    NAMESPACE,
    STORES,
    location_in,
    make_checkpoint,
    names,
)
from tests.unit.operations.lifecycle.test_rollback_in_dynamodb import put_files


def test_it_shows_what_would_change_and_asks(engine: Engine, tmp_path: Path) -> None:
    for store in STORES:
        StoreBuilder(engine, store, location=location_in(tmp_path)).count_to(BATCHES)
    checkpoint = make_checkpoint(tmp_path)
    words = ("rollback", str(checkpoint), "--to", "2")
    result = run(*words, typed="n\n")
    assert (result.code, names(checkpoint, "commits")) == (1, [str(each) for each in range(BATCHES)])
    assert result.lines[0] == f"namespace {NAMESPACE}, 2 stores: version 3 of each is there"
    assert result.lines[1].startswith("back to batch 2, which began 2026-")
    assert result.lines[2] == '  source 0: {"logOffset":2}'
    assert result.lines[3].startswith("from batch 5")
    assert "Undo 3 batches?" in result.err
    result = run(*words, typed="y\n")
    assert result.code == 0
    assert "the next start continues with batch 3; the copy is in before-rollback-" in " ".join(result.out.split())
    assert names(checkpoint, "commits") == ["0", "1", "2"]
    report = shown("rollback", str(checkpoint), "--to", "1", "--yes")
    assert (report["undone"], report["to"]["batch"], report["namespace"]) == ([2], 1, NAMESPACE)
    assert "it can go back to these: 0 to 1" in refused("rollback", str(checkpoint), "--to", "7", "--yes")
    assert "there is no checkpoint" in refused("rollback", str(tmp_path), "--to", "1")


def test_a_checkpoint_in_dynamodb(engine: Engine, tables: NamedTables, tmp_path: Path) -> None:
    """It shows the same; the copy is in the checkpoint."""
    location, checkpoint = "dynastate://rolled/query", Checkpoint("rolled", "query")
    for partition in range(2):
        StoreBuilder(engine, f"rolled/0/{partition}/default", location=f"{location}/state").count_to(BATCHES)
    put_files(tables, make_checkpoint(tmp_path), checkpoint)
    assert "it can go back to these: 0 to 5" in refused("rollback", location, "--to", "7", "--yes")
    assert run("rollback", location, "--to", "2", typed="n\n").code == 1
    assert len(engine.checkpoint_files().list(checkpoint, "commits")) == BATCHES
    report = shown("rollback", location, "--to", "2", "--yes")
    assert (report["undone"], report["namespace"], report["stores"]) == ([3, 4, 5], "rolled", 2)
    for folder, last in (("commits", 2), (f"{report['copy']}/offsets", 5)):
        assert engine.checkpoint_files().list(checkpoint, folder)[-1].name == str(last)
    assert "there is no checkpoint" in refused("rollback", "dynastate://rolled/other", "--to", "1")


def test_a_query_that_writes_is_refused(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit between two looks, except with --force; a query that has just ended is taken back."""
    namespace = "writing"
    monkeypatch.setattr(engine.commits, "now_ms", lambda: int(time.time() * 1000))
    builder = StoreBuilder(engine, f"{namespace}/0/0/default", location=location_in(tmp_path)).count_to(BATCHES)
    checkpoint = make_checkpoint(tmp_path, partitions=1)
    for file in checkpoint.rglob("dynastate"):
        file.write_text(file.read_text().replace(NAMESPACE, namespace))
    words = ("rollback", str(checkpoint), "--yes", "--to")
    look = drop.look
    looks = 0

    def writes(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            builder.count_to(BATCHES + 1)
        return look(*arguments)

    monkeypatch.setattr(drop, "look", writes)
    result = run(*words, "3")
    assert (result.code, "a query writes to this namespace: stop it, and roll back again" in result.err) == (2, True)
    assert run(*words, "3", "--force").code == 0
    result = run(*words, "2")
    assert (result.code, result.err.endswith(f" s whether a query writes to {namespace}\n")) == (0, True)
    assert names(checkpoint, "offsets")[-1] == "2"
