"""The command `rollback`: it shows what would change, and asks."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

from dynastate.engine.engine import Engine
from tests.support.command_line import refused, run, shown
from tests.support.engine_driver import make_engine
from tests.support.store_builder import StoreBuilder
from tests.unit.cli.conftest import NamedTables
from tests.unit.operations.test_rollback import BATCHES, NAMESPACE, make_checkpoint, names


def test_it_shows_what_would_change_and_asks(engine: Engine, tmp_path: Path) -> None:
    for partition in range(2):
        StoreBuilder(engine, f"{NAMESPACE}/0/{partition}/default").count_to(BATCHES)
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


def test_a_query_that_writes_is_refused(tables: NamedTables, tmp_path: Path) -> None:
    """But for --force."""
    namespace = "writing"
    with closing(make_engine(tables, now=lambda: datetime.now(timezone.utc))) as engine:
        for partition in range(2):
            StoreBuilder(engine, f"{namespace}/0/{partition}/default").count_to(BATCHES)
    checkpoint = make_checkpoint(tmp_path)
    for file in checkpoint.rglob("dynastate"):
        file.write_text(file.read_text().replace(NAMESPACE, namespace))
    words = ("rollback", str(checkpoint), "--to", "2", "--yes")
    assert "a query seems to be writing; stop it first, or give --force" in refused(*words)
    assert run(*words, "--force").code == 0
    assert names(checkpoint, "offsets")[-1] == "2"
