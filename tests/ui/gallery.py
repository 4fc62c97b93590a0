"""State that fills the page for its pictures: queries in every state, over hours, with reports and a checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from itertools import chain
from random import Random
from typing import Final, NamedTuple

from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.engine.engine import Engine
from dynastate.format.changes import MERGE, PUT, Change, key_hash
from dynastate.format.checkpoint import Checkpoint
from dynastate.format.keys import version_list_key
from dynastate.operations.monitoring import reports
from dynastate.storage.tables import Tables
from tests.support.engine_driver import make_engine
from tests.support.samples import QUERY, chunk_of
from tests.support.store_builder import Row, StoreBuilder, counted, family, user

#: The query with skew and throttles, its largest partition, and the run that its reports name.
SKEWED: Final = "fraud-features"
LARGEST: Final = 17
RUN: Final = "9f0c7a52-5d1e-4b1a-8f43-6a0d7e3c1b20"
#: The key with the most values.
HEAVY: Final = "card-4929-0017"
CITIES: Final = ("Lagos", "Porto", "Osaka", "Quito", "Turku", "Accra", "Lyon", "Pune")
#: Versions between two snapshots.
SNAPSHOT_VERSIONS: Final = 24

CARD: Final = (("card", "string"),)
FAMILIES: Final = (
    family(1, "spending", key=CARD, value=(("total", "double"), ("payments", "long"), ("last_city", "string"))),
    family(
        2,
        "recentPayments",
        key=CARD,
        value=(("city", "string"), ("amount", "double"), ("memo", "string")),
        multiple=True,
    ),
    family(3, "$count_recentPayments", key=CARD, value=(("count", "long"),), internal=True),
)
SESSION: Final = family(
    key=(("user", "string"), ("sessionStartTime", "timestamp")), value=(("count", "long"), ("last_page", "string"))
)


class Plan(NamedTuple):
    """How a query ran: partitions, versions, seconds from one to the next, and seconds since the last, and its runs."""

    partitions: int
    versions: int
    batch_s: float
    ago_s: float = 5.0
    run: str = "second"


FRAUD: Final = Plan(partitions=32, versions=72, batch_s=50, run=RUN)
ORDERS: Final = Plan(partitions=8, versions=90, batch_s=40, run="ordered")
SESSIONS: Final = Plan(partitions=8, versions=48, batch_s=3_000)
INVENTORY: Final = Plan(partitions=4, versions=30, batch_s=60, ago_s=8_000)
LEDGER: Final = Plan(partitions=2, versions=3, batch_s=60)


class Clock:
    """The time of a version, by `version`; a second run begins after a third of them, and a pause."""

    def __init__(self, now: datetime, plan: Plan) -> None:
        self._now, self._plan = now, plan
        self.version = 1

    def __call__(self) -> datetime:
        plan = self._plan
        ago_s = plan.ago_s + plan.batch_s * (plan.versions - self.version + 0.2 * math.sin(self.version) ** 2)
        return self._now - timedelta(seconds=ago_s + (6 * plan.batch_s if self.is_first_run else 0))

    @property
    def is_first_run(self) -> bool:
        return self.version <= self._plan.versions // 3

    @property
    def run(self) -> str:
        return f"before-{self._plan.run}" if self.is_first_run else self._plan.run


def make_random(seed: int) -> Random:
    return Random(seed)  # noqa: S311  # test data


def make_gallery(tables: Tables) -> list[str]:
    """Make all queries. Returns the lines of their progress reports."""
    now = datetime.now(timezone.utc)
    for plan, make in ((FRAUD, _fraud), (ORDERS, _orders), (SESSIONS, _sessions)):
        clock = Clock(now, plan)
        with closing(make_engine(tables, now=clock)) as engine:
            make(engine, clock)
    for name, plan in (("inventory", INVENTORY), ("ledger", LEDGER)):
        clock = Clock(now, plan)
        with closing(make_engine(tables, now=clock)) as engine:
            _plain(engine, clock, name, plan)
    _checkpoint(tables, now)
    key = version_list_key("ledger/0/1/default", 1)
    item = tables.get([key])[key]
    tables.write([(key, item | {"versions": [b"\x00"]})])
    return list(_reports(now))


def _versions(clock: Clock, plan: Plan) -> Iterator[int]:
    for version in range(1, plan.versions + 1):
        clock.version = version
        yield version


def _fraud(engine: Engine, clock: Clock) -> None:
    """Variables of `transformWithState`: one card of a partition pays in each batch."""
    random = make_random(41)
    for partition in range(FRAUD.partitions):
        builder = StoreBuilder(engine, f"{SKEWED}/0/{partition}/default", *FAMILIES)
        is_large = partition == LARGEST
        number = 220 if is_large else 40 + 3 * (partition % 7)
        cards = [f"card-{5000 + partition}-{each:04}" for each in range(number)]
        totals = dict.fromkeys([*cards, HEAVY], (0.0, 0))
        for version in _versions(clock, FRAUD):
            builder.run = clock.run
            paying = cards if version == 1 else random.sample(cards, 4 + int(3 * math.sin(version / 9)))
            changes: list[tuple[int, Row, Row]] = []
            for card in [*paying, HEAVY] if is_large else paying:
                amount, city = round(random.uniform(3, 400), 2), random.choice(CITIES)
                total, payments = round(totals[card][0] + amount, 2), totals[card][1] + 1
                totals[card] = total, payments
                memo = random.randbytes(700).hex() if card == HEAVY else ""
                payment = {"city": city, "amount": amount, "memo": memo}
                changes += [
                    (1, {"card": card}, {"total": total, "payments": payments, "last_city": city}),
                    (2, {"card": card}, payment),
                    (3, {"card": card}, {"count": payments}),
                ]
            builder.commit_families(*changes)
            if version % SNAPSHOT_VERSIONS == partition % 3:
                _snapshot(engine, builder)


def _snapshot(engine: Engine, builder: StoreBuilder) -> None:
    """Make a snapshot of all families, if one is wanted."""
    of = builder.version
    under_way, _ = engine.maintenance.snapshot(builder.store, builder.run, *of, state_bytes=1, min_deltas=1)
    if under_way is None:
        return
    shift = 32 - under_way.bits
    for bucket in range(1 << under_way.bits):
        under_way.bucket(bucket)
        records = [
            Change(MERGE if number else PUT, family_number, key, value)
            for (family_number, key), values in builder.state.items()
            if key_hash(key) >> shift == bucket
            for number, value in enumerate(values)
        ]
        if records:
            under_way.append(chunk_of(*records))
    assert under_way.commit()


def _orders(engine: Engine, clock: Clock) -> None:
    """A join, whose stores commit together, and `dropDuplicates` after it; its checkpoint is in DynamoDB."""
    random = make_random(17)
    numbers = family(key=(("order", "long"),), value=(("value", "long"),))
    rows = family(key=(("order", "long"), ("index", "long")), value=(("item", "string"), ("price", "double")))
    seen = family(key=(("order", "long"),), value=(("__dummy__", "void"),))
    for partition in range(ORDERS.partitions):
        stores = {
            f"0/{partition}/{side}-{name}": described
            for side in ("left", "right")
            for name, described in (("keyToNumValues", numbers), ("keyWithIndexToValue", rows))
        } | {f"1/{partition}/default": seen}
        builders = {
            store: StoreBuilder(engine, f"orders/{store}", described, location="dynastate://orders/query/state")
            for store, described in stores.items()
        }
        for version in _versions(clock, ORDERS):
            orders = [1000 * version + 8 * each + partition for each in range(random.randint(4, 9))]
            for store, builder in builders.items():
                builder.run = clock.run
                price = {"item": random.choice(CITIES), "price": float(random.randint(1, 90))}
                for_each: dict[str, Row] = {"keyToNumValues": {"value": 1}, "keyWithIndexToValue": price}
                value = for_each.get(store.rpartition("-")[2], {"__dummy__": None})
                index = {"index": 0} if "Index" in store else {}
                builder.commit(*(({"order": order} | index, value) for order in orders))


def _checkpoint(tables: Tables, now: datetime) -> None:
    clock = Clock(now, ORDERS)
    files = CheckpointFiles(tables, set(), clock=clock)
    for version in range(ORDERS.versions - 15, ORDERS.versions + 1):
        clock.version = version
        began_ms = int((clock().timestamp() - 1.5) * 1000)
        log = f'v1\n{{"batchTimestampMs":{began_ms}}}\n{{"orders":{{"0":{version * 640},"1":{version * 655}}}}}'
        files.put(Checkpoint("orders", "query"), f"offsets/{version - 1}", log.encode(), overwrites=False)
        files.put(Checkpoint("orders", "query"), f"commits/{version - 1}", b"v1\n{}", overwrites=False)


def _sessions(engine: Engine, clock: Clock) -> None:
    """Windows of sessions: a batch each 50 minutes, so that its history is longer than a day."""
    random = make_random(5)
    for partition in range(SESSIONS.partitions):
        builder = StoreBuilder(engine, f"sessions/0/{partition}/default", SESSION)
        for version in _versions(clock, SESSIONS):
            builder.run = clock.run
            began = clock().replace(minute=0, second=0, microsecond=0)
            users = random.sample(range(90), 12 + version % 9)
            changes = [
                (
                    {"user": f"user-{partition}-{number:03}", "sessionStartTime": began - timedelta(hours=number % 5)},
                    {"count": version + number, "last_page": f"/{random.choice(CITIES).lower()}"},
                )
                for number in users
            ]
            builder.commit(*changes)


def _plain(engine: Engine, clock: Clock, name: str, plan: Plan) -> None:
    for partition in range(plan.partitions):
        builder = StoreBuilder(engine, f"{name}/0/{partition}/default")
        for version in _versions(clock, plan):
            builder.run = clock.run
            builder.commit(
                *((user(f"item-{version}-{each}"), counted(each * version, "in stock")) for each in range(5))
            )


def _reports(now: datetime) -> Iterator[str]:
    """Progress reports of the query with skew, of which the last batches are throttled."""
    clock, random = Clock(now, FRAUD), make_random(3)
    zeros: dict[str, int] = dict.fromkeys(chain(*reports.METRICS.values()), 0)
    for version in range(1, FRAUD.versions + 1):
        clock.version = version
        units = 160 + int(60 * math.sin(version / 9)) + random.randint(0, 20)
        throttles = random.randint(3, 30) if FRAUD.versions - version < 6 else 0
        metrics = zeros | {
            "dynastateWriteUnits": units,
            "dynastateDeleteUnits": units // 5,
            "dynastateMaintenanceWriteUnits": 5 * units if version % SNAPSHOT_VERSIONS == 0 else 0,
            "dynastateReadUnits": 40 if version % 30 == 0 else 2,
            "dynastateThrottles": throttles,
            "dynastateCommitMs": 32 * (14 + throttles),
        }
        milliseconds = 2_100 + units * 4 + throttles * 90
        yield json.dumps(
            {
                "id": QUERY,
                "runId": clock.run,
                "name": SKEWED,
                "batchId": version - 1,
                "timestamp": clock().isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                "durationMs": {"addBatch": milliseconds - 300, "triggerExecution": milliseconds},
                "stateOperators": [{"operatorName": "transformWithStateExec", "customMetrics": metrics}],
            }
        )
