"""Queries whose checkpoint is moved to DynamoDB, and back to a folder: they continue as those that stay."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.format.checkpoint import Checkpoint
from dynastate.operations.checkpoints import checkpoint_at, open_checkpoint
from dynastate.operations.lifecycle.move import move, plan_move
from tests.spark.conftest import Sessions, only
from tests.spark.operators import CASES
from tests.spark.state_reader import read_states
from tests.spark.streams import Outcome, make_sources
from tests.spark.test_checkpoint_in_dynamodb import IN_DYNAMODB, NAMESPACE
from tests.support.jvm import SINCE_40


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("transformWithState in Scala", marks=[pytest.mark.every_spark, pytest.mark.slow, SINCE_40]),
        pytest.param("aggregation in update mode", marks=[pytest.mark.every_spark, SINCE_40]),
        pytest.param("stream-stream join, inner", marks=pytest.mark.slow),
    ],
)
def test_a_checkpoint_that_is_moved(
    name: str, sessions: Sessions, tables: BotoTables, folder: Path, environment: dict[str, str]
) -> None:
    """There and back, each time without the old one: descriptions of operators name no file of it."""
    case, sources = CASES[name], make_sources(folder, seed=2, files=3)
    conf = {**case.conf, **IN_DYNAMODB}
    namespaces = {each: f"{folder.name}-{each}" for each in ("moves", "stays")}
    stored = Checkpoint(namespaces["moves"], "query")
    locations = [str(folder / "moves"), f"dynastate://{stored}", str(folder / "back")]
    outcomes = {each: Outcome() for each in namespaces}
    for number, location in enumerate(locations, 1):
        if number > 1:
            with only(environment):
                old, new = open_checkpoint(tables, locations[number - 2]), checkpoint_at(tables, location)
                assert move(tables, old, new, plan_move(tables, old, new)).refused >= 1
                if number == 2:
                    shutil.rmtree(old.location)
                else:
                    CheckpointFiles(tables, set()).delete(stored, [""])
        sources.release(number)
        for each, checkpoint in (("moves", location), ("stays", str(folder / "stays"))):
            session = sessions({**conf, NAMESPACE: namespaces[each]})
            outcomes[each].add(case.start(session, sources, checkpoint).finish())
    assert outcomes["moves"].rows == outcomes["stays"].rows
    assert len(outcomes["moves"].rows) >= 3
    last = max(outcomes["moves"].rows)
    states = [
        read_states(sessions({**conf, NAMESPACE: namespaces[each]}), checkpoint, range(last, last + 1))
        for each, checkpoint in (("moves", locations[-1]), ("stays", str(folder / "stays")))
    ]
    assert states[0] == states[1]
    assert len(states[0]) > 0
