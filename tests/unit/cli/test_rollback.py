"""The command `rollback`: it shows what would change, and asks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from dynastate.engine.engine import Engine
from dynastate.operations.lifecycle import drop
from tests.support.command_line import refused, run, shown
from tests.support.store_builder import StoreBuilder
from tests.unit.operations.lifecycle.test_rollback import (
    BATCHES,
    NAMESPACE,
    STORES,
    location_in,
    make_checkpoint,
    names,
)


def test_it_shows_what_would_change_and_asks(engine: Engine, tmp_path: Path) -> None:
    for store in STORES:
        StoreBuilder(engine, store, location=location_in(tmp_path)).count_to(BATCHES)
    checkpoint = make_checkpoint(tmp_path)
    words = ("rollback", str(checkpoint), "--to", "2")
    done = run(*words, typed="n\n")
    assert (done.code, names(checkpoint, "commits")) == (1, [str(each) for each in range(BATCHES)])
    assert done.lines[0] == f"namespace {NAMESPACE}, 2 stores: version 3 of each is there"
    assert done.lines[1].startswith("back to batch 2, which began 2026-")
    assert done.lines[2] == '  source 0: {"logOffset":2}'
    assert done.lines[3].startswith("from batch 5")
    assert "Undo 3 batches?" in done.err
    done = run(*words, typed="y\n")
    assert done.code == 0
    assert "the next start continues with batch 3; the copy is in before-rollback-" in " ".join(done.out.split())
    assert names(checkpoint, "commits") == ["0", "1", "2"]
    made = shown("rollback", str(checkpoint), "--to", "1", "--yes")
    assert (made["undone"], made["to"]["batch"], made["namespace"]) == ([2], 1, NAMESPACE)
    assert "it can go back to these: 0 to 1" in refused("rollback", str(checkpoint), "--to", "7", "--yes")
    assert "there is no checkpoint" in refused("rollback", str(tmp_path), "--to", "1")


def test_a_query_that_writes_is_refused(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit between two looks, except with --force; a query that has just ended is taken back."""
    namespace = "writing"
    monkeypatch.setattr(engine.commits, "now_ms", lambda: int(time.time() * 1000))
    made = StoreBuilder(engine, f"{namespace}/0/0/default", location=location_in(tmp_path)).count_to(BATCHES)
    checkpoint = make_checkpoint(tmp_path, partitions=1)
    for file in checkpoint.rglob("dynastate"):
        file.write_text(file.read_text().replace(NAMESPACE, namespace))
    words = ("rollback", str(checkpoint), "--yes", "--to")
    look = drop.look
    looks = 0

    def writes(*given: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            made.count_to(BATCHES + 1)
        return look(*given)

    monkeypatch.setattr(drop, "look", writes)
    done = run(*words, "3")
    assert (done.code, "a query writes to this namespace: stop it, and roll back again" in done.err) == (2, True)
    assert run(*words, "3", "--force").code == 0
    done = run(*words, "2")
    assert (done.code, done.err.endswith(f" s whether a query writes to {namespace}\n")) == (0, True)
    assert names(checkpoint, "offsets")[-1] == "2"
