"""Two Regions: a cut loses no commit that returned, and the simulation finds that asynchronous replicas lose some."""

from __future__ import annotations

import random
from typing import Final

import pytest
from botocore.exceptions import ClientError

from dynastate.dynamodb.wire import to_wire
from tests.simulation.replicas import CONFLICT_S, Replica, no_delay, two_regions
from tests.simulation.runs import failure_in
from tests.simulation.schedule import REPLICATED, REPLICATED_OF, Schedule
from tests.simulation.world import NAMES

TABLE: Final = NAMES["delta"]
#: Schedules with two Regions. The first twelve have many moves and cuts.
SEEDS: Final = [seed for seed in range(600) if seed % REPLICATED_OF in REPLICATED]
LATE: Final = "ReplicatedWriteConflictException"


class Clock:
    """Seconds, as a test sets them."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def put(replica: Replica, value: int) -> None:
    replica.put_item(TableName=TABLE, Item=to_wire({"store_shard": "s", "part": "p", "value": value}))


def value_in(replica: Replica) -> str | None:
    """The value of that item, or None if there is no item."""
    key = to_wire({"store_shard": "s", "part": "p"})
    answer = replica.get_item(TableName=TABLE, Key=key, ConsistentRead=True)
    return str(answer["Item"]["value"]["N"]) if answer else None


def test_a_write_is_in_the_other_region_also_after_a_cut() -> None:
    """It is there at once; a condition sees it, too; and the Region that was cut off has later ones when it is back."""
    clock = Clock()
    one, other = two_regions(NAMES, clock, no_delay)
    put(one, 1)
    one.cut()
    assert value_in(other) == "1"
    clock.now = CONFLICT_S
    with pytest.raises(ClientError, match="ConditionalCheckFailed"):
        other.put_item(
            TableName=TABLE,
            Item=to_wire({"store_shard": "s", "part": "p"}),
            ConditionExpression="attribute_not_exists(part)",
        )
    put(other, 2)
    one.back()
    assert value_in(one) == "2"
    other.delete_item(TableName=TABLE, Key=to_wire({"store_shard": "s", "part": "p"}))
    assert value_in(one) is None


def test_two_regions_that_write_an_item_conflict() -> None:
    """The later one is refused, and may write a little later."""
    clock = Clock()
    one, other = two_regions(NAMES, clock, no_delay)
    put(one, 1)
    put(one, 2)
    with pytest.raises(ClientError, match=LATE):
        put(other, 3)
    assert value_in(other) == "2"
    clock.now = CONFLICT_S
    put(other, 3)
    assert value_in(one) == "3"


def test_asynchronous_replicas() -> None:
    """A write arrives later, unless its Region is cut off before; of two the later one counts in both."""
    clock = Clock()
    one, other = two_regions(NAMES, clock, lambda: 1.0)
    put(one, 1)
    assert value_in(other) is None
    clock.now = 1.0
    assert value_in(other) == "1"
    put(one, 2)
    clock.now = 1.5
    put(other, 3)
    clock.now = 9.0
    assert (value_in(one), value_in(other)) == ("3", "3")
    put(one, 4)
    one.cut()
    clock.now = 19.0
    assert value_in(other) == "3"


def test_schedules_have_moves_cuts_and_conflicts() -> None:
    """The query moves with a cut and without one; late writes in the Region that it moved from are refused."""
    counts: dict[str, int] = {}
    for seed in SEEDS[:12]:
        schedule = Schedule(seed)
        schedule.run()
        for line in schedule.journal():
            for what in ("the query moves from", "which is cut off", LATE):
                counts[what] = counts.get(what, 0) + (what in line)
    assert 0 < counts["which is cut off"] < counts["the query moves from"]
    assert counts[LATE] > 0


@pytest.mark.slow
def test_the_loss_of_asynchronous_replicas_is_found() -> None:
    """Where an item takes up to a second to arrive, a cut loses a commit that returned."""
    chance = random.Random(17)  # noqa: S311  # no secret
    failed = (failure_in(Schedule(seed, chance.random)) for seed in SEEDS)
    failure_found = next((failure for failure in failed if failure and "cut off" in failure), "")
    assert "ViolationError" in failure_found
