"""Hundreds of versions of a store on real parts: two executors with a sidecar each, and DynamoDB over HTTP.

A walk, chosen by a seed, has batches of all sizes, maintenance, restarts, moves to the other executor, twins, zombies
and rollbacks. Sidecars die by SIGKILL at some request of a commit, a snapshot or a clean-up. At its end every version
that is to be retained equals a plain model, and the tables hold no item that nothing names.

`DYNASTATE_SEED` and `DYNASTATE_VERSIONS` choose other walks, and longer ones.
"""

from __future__ import annotations

import math
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.embedded import EmbeddedDynamoDB
from dynastate.engine.graphs import read_manifest
from dynastate.format.keys import SPECS
from dynastate.format.keys import Key as ItemKey
from dynastate.format.snapshot import DONE, Snapshot
from tests.contract.provider.conftest import Programs
from tests.contract.provider.server import Change, Key, State, StoreServer, Value, change
from tests.contract.provider.test_random_operations import bits
from tests.support.contents import graph, named_keys
from tests.support.dynoxide import Dynoxide, fast_dynamodb
from tests.support.fault_proxy import CutError, FaultProxy, Forward, Reply, Request
from tests.support.processes import sidecars_of

SEED = int(os.environ.get("DYNASTATE_SEED", "1"))
VERSIONS = int(os.environ.get("DYNASTATE_VERSIONS", "200"))
RETAIN = 6
ROWS_MAX = 4_000
#: So many keys there are, of all families.
KEYS = 9_000
WRITES = ("BatchWriteItem", "DeleteItem", "PutItem", "UpdateItem")
LISTS = ("lists", "times")
Families = dict[str, Callable[[int], Key]]
#: As in StoreServer.scala: how a number becomes a key of each family.
FAMILIES: Families = {
    "hash": lambda number: (f"word-{number % 50}", number),
    "prefix": lambda number: (f"word-{number % 50}", number),
    "range": lambda number: (number % 40 - 20, bits(number / 8), "" if number % 3 else "x"),
    "lists": lambda number: (f"word-{number % 50}", number),
    "times": lambda number: (f"word-{number % 50}", number - 100),
    "index": lambda number: (f"word-{number % 50}", number - 100),
}
ONE_FAMILY = {"default": FAMILIES["hash"]}


class Commit(NamedTuple):
    """A version as the driver knows it, with what is in it, and what was changed to make it."""

    version: int
    id: str | None
    state: State
    changes: list[Change]

    @property
    def ids(self) -> list[str] | None:
        return None if self.id is None else [self.id]


class Trap:
    """Kills a sidecar at one of its requests: before that reaches DynamoDB, or when it is done and not yet answered."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.disarm()

    def arm(self, kill: Callable[[], None], number: int, *, applied: bool) -> None:
        """Kill at the request of this number, counted from the next write, which is number 0."""
        self._kill, self._left, self._applied = kill, number, applied

    def disarm(self) -> None:
        self._left = -1
        self._writes = 0
        #: The operation at which the sidecar was killed, if it was, and whether others came before and after it.
        self.struck = ""
        self.was_in_the_middle = False

    def __call__(self, request: Request, forward: Forward) -> Reply:
        is_write = request.operation in WRITES
        with self._lock:
            counts = self._left >= 0 and (is_write or self._writes > 0)
            is_target = counts and self._left == 0
            self._left -= counts
            writes, self._writes = self._writes, self._writes + is_write
        if not is_target:
            return forward(request)
        if self._applied:
            forward(request)
        self.struck = f"{request.operation} {'done' if self._applied else 'not sent'}"
        # After a write, and something was still to come: what was not sent, or what a read was for.
        self.was_in_the_middle = writes > 0 and not (is_write and self._applied)
        self._kill()
        raise CutError


class Executor:
    """A JVM with one provider of the store, and its sidecar."""

    def __init__(self, jvm: StoreServer) -> None:
        self._jvm = jvm
        self.run = ""

    def tell(self, op: str, **order: Any) -> Any:
        return self._jvm.tell(op, **order)["ours"]

    def fails(self, op: str, **order: Any) -> bool:
        return "error" in self._jvm.answers(op, **order)["ours"]

    def start(self, run: str) -> None:
        """A fresh provider of a query run, which has nothing in memory."""
        self.tell("restart", run=run)
        self.run = run

    def change(self, base: Commit, changes: list[Change]) -> None:
        self.tell("open", version=base.version, ids=base.ids)
        self.tell("batch", changes=changes)

    def kill_sidecar(self) -> None:
        for pid in sidecars_of(self._jvm.pid):
            os.kill(pid, signal.SIGKILL)


class Walk:
    """The life cycle of one partition."""

    def __init__(
        self, seed: int, executors: list[Executor], trap: Trap, families: Families, checkpoint_format: int
    ) -> None:
        self.chance = random.Random(seed)  # noqa: S311  # a walk, no secret
        self.executors, self.trap, self.families, self.format = executors, trap, families, checkpoint_format
        self.active = executors[0]
        self.runs = 0
        #: The lineage of the newest version, oldest first.
        self.chain = [Commit(0, None, {family: {} for family in families}, [])]
        #: The oldest version that clean-up has to retain.
        self.oldest = 1
        #: The highest version of which anything was ever written.
        self.highest = 0
        #: The one key, by number, that batches change for a while; -1: they change any.
        self.hot = -1
        self.happened: Counter[str] = Counter()
        self.restart()

    @property
    def newest(self) -> Commit:
        return self.chain[-1]

    @property
    def other(self) -> Executor:
        return next(each for each in self.executors if each is not self.active)

    def retained(self) -> list[Commit]:
        return [each for each in self.chain[-RETAIN:] if each.version >= self.oldest]

    def step(self) -> None:
        steps = {
            self.batch: 56,
            self.batch_beside_maintenance: 3,
            self.batch_that_dies: 2,
            self.snapshot: 14,
            self.clean_up: 14,
            self.check_one: 4,
            self.restart: 2,
            self.move: 3,
            self.twin: 4,
            self.roll_back: 3,
            self.turn_hot_or_cold: 4,
        }
        step = self.chance.choices(list(steps), list(steps.values()))[0]
        self.happened[step.__name__] += 1
        step()

    def batch(self) -> None:
        changes = self.make_changes()
        self.active.change(self.newest, changes)
        self.chain.append(self.commit(self.active, self.newest, changes))

    def batch_beside_maintenance(self) -> None:
        """Both executors maintain the store while it is written."""
        for executor in self.executors:
            executor.tell("maintainBeside")
        self.batch()
        for executor in self.executors:
            executor.tell("await")
            self.expect_clean_up()

    def batch_that_dies(self) -> None:
        """The sidecar dies at some request of a commit; the task is tried again, whether it had committed or not."""
        changes = self.make_changes()
        self.active.change(self.newest, changes)
        self.trap.arm(self.active.kill_sidecar, self.chance.randint(0, 1), applied=self.chance.random() < 0.5)
        self.highest = max(self.highest, self.newest.version + 1)
        has_failed = self.active.fails("commit")
        operation = self.trap.struck
        self.trap.disarm()
        assert has_failed is bool(operation)
        if has_failed:
            self.happened[f"killed at commit: {operation}"] += 1
        # One that did not fail is one whose task failed later.
        self.active.change(self.newest, changes)
        self.chain.append(self.commit(self.active, self.newest, changes))

    def snapshot(self) -> None:
        self.maintain("snapshot")

    def clean_up(self) -> None:
        self.expect_clean_up()
        self.maintain("cleanUp")

    def maintain(self, task: str) -> None:
        """One of the executors is at it, mostly the one that writes; its sidecar may die on the way."""
        executor = self.active if self.chance.random() < 0.8 else self.other
        if self.chance.random() < 0.8:
            self.trap.arm(executor.kill_sidecar, self.chance.randint(0, 6), applied=self.chance.random() < 0.3)
        executor.tell(task)
        if self.trap.struck:
            self.happened[f"killed at {task}: {self.trap.struck}"] += 1
            self.happened[f"killed in mid-{task}"] += self.trap.was_in_the_middle
        self.trap.disarm()
        if self.chance.random() < 0.2:
            self.check_one()

    def restart(self) -> None:
        """Another run resumes from the newest version, on either executor; the other has nothing of it."""
        self.runs += 1
        self.active = self.chance.choice(self.executors)
        self.active.start(f"run-{self.runs}")

    def move(self) -> None:
        """The other executor takes the partition over, in the same run; this one keeps what it has."""
        if self.other.run != self.active.run or self.chance.random() < 0.5:
            self.other.start(self.active.run)
        self.active = self.other

    def twin(self) -> None:
        """The other executor makes the newest version too: of this run, or as a zombie of one before."""
        if len(self.chain) < 2 or not self.other.run:
            return
        base, newest = self.chain[-2:]
        if 0 < base.version < self.oldest:
            return
        changes = self.make_changes(base.state) if self.format == 2 else newest.changes
        self.other.change(base, changes)
        if self.other.run != self.active.run:
            # Refused where it has seen the newer run; else no version depends on its own, and its epoch is lower.
            self.happened["zombie refused" if self.other.fails("commit") else "zombie"] += 1
        else:
            commit = self.commit(self.other, base, changes)
            self.happened["twin"] += 1
            if self.format == 1 or self.chance.random() < 0.5:
                self.chain[-1] = commit
        self.check(self.newest)

    def roll_back(self) -> None:
        """The query restarts from an older version, and commits other versions."""
        if not self.retained():
            return
        base = self.chance.choice(self.retained())
        self.happened["versions gone back"] += self.newest.version - base.version
        self.chain = self.chain[: self.chain.index(base) + 1]
        self.restart()
        self.batch()

    def turn_hot_or_cold(self) -> None:
        """Batches change one key only, for a while, so that most buckets stay as they are in the snapshot before."""
        self.hot = self.chance.randrange(KEYS // len(self.families)) if self.hot < 0 else -1

    def commit(self, executor: Executor, base: Commit, changes: list[Change]) -> Commit:
        version, name, keys = executor.tell("commit")
        state = {family: dict(rows) for family, rows in base.state.items()}
        change(state, changes)
        assert (version, keys) == (base.version + 1, sum(map(len, state.values())))
        assert (name is not None) == (self.format == 2)
        self.highest = max(self.highest, version)
        self.happened["commits"] += 1
        return Commit(version, name, state, changes)

    def make_changes(self, state: State | None = None, rows: int | None = None) -> list[Change]:
        """From none to thousands of changes; now and then all keys of a family, or of the store, are removed."""
        state = self.newest.state if state is None else state
        chance = self.chance.random()
        if rows is None and chance < 0.08:
            return []
        if rows is None and chance < 0.12:
            families = list(self.families) if chance < 0.09 else [self.chance.choice(list(self.families))]
            return [("remove", family, key) for family in families for key in state[family]]
        if self.hot >= 0:
            family = self.chance.choice(list(self.families))
            return [("put", family, self.families[family](self.hot), (-self.chance.randrange(1, 1_000_000), 60_000))]
        count = rows or int(math.exp(self.chance.uniform(0, math.log(ROWS_MAX))))
        return [self.make_change() for _ in range(count)]

    def make_change(self) -> Change:
        family = self.chance.choice(list(self.families))
        key = self.families[family](self.chance.randrange(KEYS // len(self.families)))
        chance = self.chance.random()
        if chance < 0.15:
            return ("remove", family, key)
        if chance < 0.7 and family in LISTS:
            return ("merge", family, key, self.make_value())
        if chance < 0.75 and family in LISTS:
            return ("putList", family, key, [self.make_value() for _ in range(self.chance.randint(1, 4))])
        return ("put", family, key, self.make_value())

    def make_value(self) -> Value:
        if self.chance.random() < 0.0002:  # more than an item holds
            return -self.chance.randrange(1, 1_000_000), 450_000
        return self.chance.randrange(1_000_000), self.chance.choice((0, 8, 40, 300, 1_000))

    def expect_clean_up(self) -> None:
        self.oldest = max(self.oldest, self.newest.version - RETAIN + 1)

    def check_one(self) -> None:
        if self.retained():
            self.check(self.chance.choice(self.retained()))

    def check(self, commit: Commit) -> None:
        """A provider that has nothing in memory finds in a version what is in the model."""
        answer = self.chance.choice(self.executors).tell("readAfresh", version=commit.version, ids=commit.ids)
        rows_by_family: dict[str, dict[Key, tuple[Value, ...]]] = {family: {} for family in answer}
        for family, pairs in answer.items():
            for key, (number, length) in pairs:
                rows_by_family[family][tuple(key)] = (*rows_by_family[family].get(tuple(key), ()), (number, length))
        for family, rows in commit.state.items():
            assert rows_by_family[family] == rows, f"version {commit.version}, family {family}"

    def settle(self, tables: BotoTables, store: str) -> None:
        """A fresh run commits without faults until all that others left is old, and then cleans up."""
        version = self.highest
        self.restart()
        self.hot = -1
        for _ in range(3):  # enough rows for several buckets
            self.chain.append(self.quiet_batch(ROWS_MAX))
        first = self.snapshot_after(version, ROWS_MAX, tables, store)
        self.hot = 0
        second = self.snapshot_after(first.version, 1, tables, store)
        manifest = read_manifest(tables, store, second)
        assert any(bucket.holder == (first.version, first.id) for bucket in manifest.buckets), (
            "no bucket was carried on"
        )
        for _ in range(2 * RETAIN):
            self.chain.append(self.quiet_batch(10))
            self.expect_clean_up()
            self.active.tell("cleanUp")

    def snapshot_after(self, version: int, rows: int, tables: BotoTables, store: str) -> Snapshot:
        """Commit until there is a snapshot of a newer version."""
        while True:
            for snapshot in graph(tables, store).snapshots():
                if snapshot.version > version and snapshot.stage == DONE:
                    return snapshot
            assert self.newest.version < version + 100, "no snapshot was made"
            self.chain.append(self.quiet_batch(rows))
            self.active.tell("snapshot")

    def quiet_batch(self, rows: int) -> Commit:
        changes = self.make_changes(rows=rows)
        self.active.change(self.newest, changes)
        return self.commit(self.active, self.newest, changes)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedDynamoDB | Dynoxide]:
    """A DynamoDB for these tests only, so that all its items can be checked."""
    with fast_dynamodb(tmp_path_factory.mktemp("long-run") / "dynoxide") as dynamodb:
        yield dynamodb


@pytest.fixture(scope="module")
def trapped(engine: EmbeddedDynamoDB | Dynoxide) -> Iterator[tuple[Trap, FaultProxy]]:
    """The proxy between the sidecars and that DynamoDB."""
    trap = Trap()
    with FaultProxy(engine.endpoint, trap) as proxy:
        yield trap, proxy


@pytest.fixture(scope="module")
def executors(
    trapped: tuple[Trap, FaultProxy], programs: Programs, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Executor]]:
    folder = tmp_path_factory.mktemp("long")
    endpoint = {"spark.sql.streaming.stateStore.dynastate.endpoint": trapped[1].endpoint}
    command = replace(programs, conf=programs.conf | endpoint).command("StoreServer")
    with ExitStack() as stack:
        servers = [StoreServer(command, programs.environment, folder / f"log-{number}") for number in range(2)]
        yield [Executor(stack.enter_context(server)) for server in servers]


def all_keys(tables: BotoTables, store: str) -> set[ItemKey]:
    """The keys of all items of a store in both tables, whatever they are."""
    item_keys: set[ItemKey] = set()
    for role, table in tables.names.items():
        names = SPECS[role]
        for page in tables._client._boto_client.get_paginator("scan").paginate(
            TableName=table,
            ProjectionExpression="#h, #r",
            ExpressionAttributeNames={"#h": names.hash_key, "#r": names.range_key},
        ):
            keys = (ItemKey(role, item[names.hash_key]["S"], item[names.range_key]["S"]) for item in page["Items"])
            item_keys |= {key for key in keys if key.store_shard.startswith(f"{store}#")}
    return item_keys


@pytest.mark.slow
@pytest.mark.timeout(1800 * max(1, VERSIONS // 200))
@pytest.mark.parametrize(
    ("checkpoint_format", "families"),
    [(1, ONE_FAMILY), (2, FAMILIES)],
    ids=["format 1, one family", "format 2, families and lists"],
)
def test_long_run(
    checkpoint_format: int,
    families: Families,
    executors: list[Executor],
    trapped: tuple[Trap, FaultProxy],
    engine: EmbeddedDynamoDB | Dynoxide,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Sidecars killed at any request: every retained version equals the model, and no orphan is left."""
    print(f"DYNASTATE_SEED={SEED} DYNASTATE_VERSIONS={VERSIONS}")  # noqa: T201  # shown with a failure
    namespace = f"long-{checkpoint_format}"
    store = f"{namespace}/0/3/default"
    conf = {
        "spark.sql.streaming.stateStore.dynastate.namespace": namespace,
        "spark.sql.streaming.minBatchesToRetain": str(RETAIN),
    }
    for executor in executors:
        executor.run = ""
        order: dict[str, Any] = {"root": tmp_path.as_uri(), "format": checkpoint_format, "retain": 2, "conf": conf}
        executor.tell("begin", only="dynastate", families=families is FAMILIES, **order)
    walk = Walk(SEED, executors, trapped[0], families, checkpoint_format)
    while walk.happened["commits"] < VERSIONS:
        walk.step()
    for commit in walk.retained():
        walk.check(commit)

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, environment[name])
    tables = BotoTables(engine.settings)
    try:
        walk.settle(tables, store)
        assert len(walk.retained()) == RETAIN
        for commit in walk.retained():
            walk.check(commit)
        assert all_keys(tables, store) == named_keys(tables, store)
    finally:
        tables.close()
    print(dict(sorted(walk.happened.items())))  # noqa: T201
    for event in ("killed in mid-snapshot", "killed in mid-cleanUp", "restart", "roll_back", "twin"):
        assert walk.happened[event] >= 2, f"too few of: {event}"
