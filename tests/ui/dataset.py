"""State for the page to show: a query with skew, hostile strings, every type, lists, a join, and history."""

from __future__ import annotations

from contextlib import closing
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Final

from dynastate.engine.engine import Engine
from dynastate.storage.tables import Tables
from tests.support.engine_driver import make_engine, save_snapshot
from tests.support.store_builder import StoreBuilder, counted, family, user

#: Texts that would act, or draw over others, where they were not escaped.
HOSTILE: Final = (
    "<script>window.hacked = 1</script>",
    "\"'><img src=x onerror='window.hacked = 2'>",
    "javascript:window.hacked=3",
    "\u202egnp.exe",
    "{{ 7 * 7 }}",
)
PARTITIONS: Final = 8
#: The partition that has most rows.
LARGEST: Final = 3
VERSIONS: Final = 12
BATCH_S: Final = 10
#: Rows of the namespace `many`.
MANY: Final = 20_000

NESTED: Final = {
    "type": "struct",
    "fields": [
        {"name": "city", "type": "string", "nullable": True, "metadata": {}},
        {
            "name": "tags",
            "type": {"type": "array", "elementType": "string", "containsNull": True},
            "nullable": True,
            "metadata": {},
        },
    ],
}
VALUES: Final = (
    ("whole", "long"),
    ("ratio", "double"),
    ("price", "decimal(12,2)"),
    ("day", "date"),
    ("at", "timestamp"),
    ("raw", "binary"),
    ("is_new", "boolean"),
    ("place", NESTED),
    ("large", "string"),
)


class Clock:
    """The time of commits: a batch each 10 s, and the last one now."""

    def __init__(self) -> None:
        self._now = datetime.now(timezone.utc)
        self.version = 1

    def __call__(self) -> datetime:
        return self._now - timedelta(seconds=BATCH_S * (VERSIONS - self.version))


def make_state(tables: Tables) -> None:
    clock = Clock()
    with closing(make_engine(tables, now=clock)) as engine:
        _make_shop(engine, clock)
        _make_types(engine)
        _make_join(engine)
        _make_many(engine)


def _make_shop(engine: Engine, clock: Clock) -> None:
    """`shop`: counts by user; partition 3 has most; user-0 of it changes in every version, and goes in the last."""
    for partition in range(PARTITIONS):
        builder = StoreBuilder(engine, f"shop/0/{partition}/default")
        users = 60 if partition == LARGEST else 4
        rows = [(user(f"user-{partition}-{each}"), counted(1, "first")) for each in range(users)]
        if partition == LARGEST:
            rows += [(user(text), counted(1, text)) for text in HOSTILE]
        clock.version = 1
        builder.commit(*rows)
        for version in range(2, VERSIONS + 1):
            clock.version = version
            last = None if version == VERSIONS else counted(version, f"note {version}")
            builder.commit((user(f"user-{partition}-0"), last), (user(f"user-{partition}-1"), counted(version)))
        if partition == LARGEST:
            state = {key: values[0] for (_, key), values in builder.state.items()}
            save_snapshot(engine, builder.store, builder.version, state)


def _make_types(engine: Engine) -> None:
    """`types`: a value of every kind, and a list of 120 values."""
    every = family(0, "every", value=VALUES)
    lists = family(1, "lists", value=(("event", "string"),), multiple=True)
    builder = StoreBuilder(engine, "types/0/0/default", every, lists)
    builder.commit(
        (
            user("a"),
            {
                "whole": 2**62,
                "ratio": 0.5,
                "price": Decimal("12345.67"),
                "day": date(2026, 11, 24),
                "at": datetime(2026, 11, 24, 12, 30, tzinfo=timezone.utc),
                "raw": b"\x00\xff",
                "is_new": True,
                "place": {"city": "Łódź", "tags": ["x", None]},
                "large": "z" * 50_000,
            },
        )
    )
    for number in range(120):
        builder.commit((user("a"), {"event": f"event {number}"}), of=1)


def _make_join(engine: Engine) -> None:
    for name in ("left-keyToNumValues", "left-keyWithIndexToValue"):
        StoreBuilder(engine, f"join/0/0/{name}").count_to(2)


def _make_many(engine: Engine) -> None:
    """`many`: more rows than a page keeps, and twice as many changed as it shows."""
    builder = StoreBuilder(engine, "many/0/0/default")
    builder.commit(*((user(f"user-{number:06}"), counted(number)) for number in range(MANY)))
    builder.commit(*((user(f"user-{number:06}"), counted(-number)) for number in range(0, MANY, 2)))
