"""One schedule of state: one or two stores of a query, restarts and faults; everything random follows from the seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.wire import from_wire, to_wire
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError, VersionMissingError
from dynastate.format.items import item_key
from dynastate.format.keys import EMPTY, META, NO_ATTEMPT, Attempt, Key, Role, VersionId, meta_key, versions_of
from dynastate.format.meta import QueryRun, meta_item, parse_meta
from dynastate.format.namespace import store_key
from dynastate.format.snapshot import DONE
from dynastate.format.version_list import decode_entry
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.adopt import adopt_stores
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.settings import Settings
from dynastate.storage.limits import STORED_BYTES_MAX
from tests.simulation.actors import KEYS, Executor, Reader, read
from tests.simulation.dynamodb import Place, Wire
from tests.simulation.eraser import ERASE_TRIES_MAX, FAULTY_TRIES, Eraser
from tests.simulation.external_clients import Forker, Onlooker, Operator
from tests.simulation.model import Model, short, violation
from tests.simulation.network import LATEST_S, NO_FAULTS, FaultRates, random_faults
from tests.simulation.orphans import check_orphans
from tests.simulation.reach import ADOPT, CLEAN_UP, CLOCK, DROP, ENTRY, ERASE, OPEN, READ, SNAPSHOT, Cell
from tests.simulation.replicas import no_delay, two_regions
from tests.simulation.scheduler import Process
from tests.simulation.threads import NOW
from tests.simulation.world import NAMES, World
from tests.support.contents import named_objects
from tests.support.engine_driver import limit_cache
from tests.support.search import objects_with

TRIES_MAX: Final = 4
#: The part of executors that read rows by bucket.
BY_BUCKETS: Final = 0.25
#: These schedules have forks, and clean-ups that delete much: those whose seed is one of FORKED modulo FORKED_OF.
FORKED, FORKED_OF = (2, 5), 7
#: In these there are a client of `open_state`, and compaction and clean-up by command.
VISITED, VISITED_OF = (5, 9, 10), 11
#: In these the driver kills the other tasks of a batch that is done.
KILLING, KILLING_OF = (5, 10), 13
#: In these the checkpoint is copied and moved between two locations, and the namespace is adopted.
MOVED, MOVED_OF = (7, 8, 12), 13
#: In these the checkpoint is deleted again and again, and the query starts over with one store or two.
FEWER, FEWER_OF = (6, 9, 10), 17
#: In these the namespace is dropped while the query runs, and another query begins in it.
DROPPED, DROPPED_OF = (14, 15, 16), 17
#: In these the changes of some commits are within their version entries: those of at most so many bytes.
INLINED, INLINED_OF, INLINE_BYTES = (1, 4, 9, 12, 15, 17), 19, 60
#: In these most executors write parts and buckets to S3, and what they wrote before is where it was.
STREAMED, STREAMED_OF = (2, 6, 11), 13
#: In these of them S3 does not answer, for seconds up to minutes, again and again.
MUTE, MUTE_OF = (1, 3), 5
#: In these the tables have replicas in two Regions, and the query moves between these, often since one is cut off.
#: Objects of S3 have no replicas here.
REPLICATED, REPLICATED_OF = (6, 15, 22), 23
#: In these a version list takes so few bytes that it fills, and is shortened.
FULL_LISTS, FULL_LISTS_OF, LIST_BYTES = (0, 3, 6), 7, (340, 650)
#: In these the query is stopped now and then, and the rows of some keys are erased. Objects and forks are among them.
ERASED, ERASED_OF = (1, 6, 8), 11
#: How much more often a client from outside dies than an executor.
DIE_OFTEN: Final = 2
S3_URL: Final = {"objects": "s3://bucket/state", "objects_threshold_kb": 0}
LOCATIONS: Final = ("file:/one/state", "file:/two/state")


@dataclass
class Batch:
    """One store's part in a batch: the attempts that were launched, and their reports."""

    model: Model
    until: float = 0.0
    launched: int = 0
    failed: int = 0
    committed: list[VersionId] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)


class Schedule(World):
    """The schedule of a query's state from a seed."""

    def __init__(self, seed: int, replica_delay: Callable[[], float] = no_delay) -> None:
        super().__init__(seed)
        self.batches = self.chance.choice((2, 3, 4, 4, 6, 10))
        self.checkpoint_format = self.chance.choice((1, 2))
        self.retain = self.chance.choice((1, 2, 2, 3, 5))
        self.shards = self.chance.choice((1, 2, 4))
        self.min_deltas = self.chance.choice((1, 1, 2, 4))
        if seed % FORKED_OF in FORKED:
            self.batches, self.retain, self.min_deltas = max(4, self.batches), min(2, self.retain), 1
        self.pause_s = self.chance.choice((0.02, 0.3, 5.0))
        self.settings = Settings(
            region="us-east-1", request_deadline_s=self.chance.choice((2, 30)), snapshot_threshold=Decimal(0)
        )
        self._regions = random.Random(f"{seed}/regions")  # noqa: S311  # no secret
        is_replicated = seed % REPLICATED_OF in REPLICATED and seed % STREAMED_OF not in STREAMED
        self.replicas = two_regions(NAMES, self.scheduler.clock, replica_delay) if is_replicated else []
        self.dynamodb = self.replicas[0] if self.replicas else self.dynamodb
        self._streams = random.Random(f"{seed}/streams")  # noqa: S311  # no secret
        self.location = LOCATIONS[0]
        stores = self.chance.choice((1, 1, 2))
        self._starts_over = seed % FEWER_OF in FEWER
        self.models = [
            Model(f"ns/0/{number}/default", self.scheduler, self.checkpoint_format, self.retain)
            for number in range(2 if self._starts_over else stores)
        ]
        #: Those of the current query, of which the first always is one.
        self.current = self.models
        self._stores = random.Random(f"{seed}/stores")  # noqa: S311  # no secret
        self._erases = random.Random(f"{seed}/erases")  # noqa: S311  # no secret
        self._late = random.Random(f"{seed}/late forks")  # noqa: S311  # no secret
        #: Forks that were made while a clean-up deleted a part of their version, each with that.
        self._late_forks: list[tuple[str, int]] = []
        rooms = random.Random(f"{seed}/room")  # noqa: S311  # no secret
        for replica in (self.dynamodb, *self.replicas):
            if seed % FULL_LISTS_OF in FULL_LISTS:
                replica.append_bytes_max = rooms.randint(*LIST_BYTES)
            replica.on_change = self._on_change
        for model in self.models:
            model.locations = {self.location}
        self.executors: list[Executor] = []
        self.zombies: list[Executor] = []
        #: Attempts of tasks that were killed.
        self.killed: set[Attempt] = set()
        self._runs = self._queries = self._attempts = 0
        self._auditor: Engine | None = None

    def __str__(self) -> str:
        return (
            f"seed={self.seed} batches={self.batches} stores={len(self.models)} "
            f"checkpoint_format={self.checkpoint_format} retain={self.retain} shards={self.shards} "
            f"min_deltas={self.min_deltas} pause_s={self.pause_s} "
            f"deadline_s={self.settings.request_deadline_s} {self._first_faults}"
        )

    def _begin(self) -> None:
        self._auditor = self._engine(self.dynamodb, cache_bytes=0)

    def _drive(self) -> None:
        self._restart(base=0)
        for number in range(self.chance.choice((1, 2))):
            self._spawn_reader(number)
        if self.seed % FORKED_OF in FORKED:
            self._spawn_forker()
        if self.seed % VISITED_OF in VISITED or self._starts_over:
            self._spawn_onlooker()
            self._spawn_operator()
        moves = random.Random(f"{self.seed}/moves")  # noqa: S311  # no secret
        drops = random.Random(f"{self.seed}/drops")  # noqa: S311  # no secret
        mutes = random.Random(f"{self.seed}/mutes")  # noqa: S311  # no secret
        batches = tries = 0
        while batches < self.batches and tries < 3 * self.batches:
            tries += 1
            self._maybe_restart_or_kill()
            self._maybe_erase()
            # A store without any run gets the location of the first one.
            if self.seed % MOVED_OF in MOVED and moves.random() < 0.4 and all(model.runs for model in self.models):
                self._move(moves)
            if self.seed % DROPPED_OF in DROPPED and self.seed % FORKED_OF not in FORKED and drops.random() < 0.2:
                self._drop(drops)
            if self.replicas and self._regions.random() < 0.3:
                self._fail_over()
            if self.seed % STREAMED_OF in STREAMED and self.seed % MUTE_OF in MUTE and mutes.random() < 0.4:
                self._mute_s3(mutes.choice((2.0, 20.0, 120.0)))
            self.scheduler.sleep(self.chance.uniform(0, 2 * self.pause_s))
            if self._batch() and self.chance.random() < 0.95:
                batches += 1
                self.audit()
            else:
                self._restart(self._newest())
        self._end_quietly()

    def _newest(self) -> int:
        return self.models[0].newest

    def _maybe_restart_or_kill(self) -> None:
        kind = self.chance.random()
        if kind < 0.05:
            self._restart(self._newest())
        elif kind < 0.13:
            lowest = max(0, *(model.floor for model in self.current))
            self._restart(self.chance.randint(lowest, self._newest()))
        elif kind < 0.15 or (self._starts_over and self._stores.random() < 0.2):
            self._restart(base=0)
        elif kind < 0.20:
            self.scheduler.kill(self.chance.choice(self.executors).process)

    def _restart(self, base: int) -> None:
        """Resume from a version with another run. Executors of the run before die, or continue as zombies.

        Those of a run that never wrote to a store die: its first write, after a later run's, would make it the newest
        (docs/decisions/0003-version-list.md, "Limit").
        """
        for executor in self.executors:
            has_written = all(executor.run in model.runs for model in self.current)
            if not has_written or self.chance.random() < 0.6:
                self.scheduler.kill(executor.process)
            else:
                self.zombies.append(executor)
        # A run that the meta item has no room for would enter again.
        while len(self.zombies) > 4:
            self.scheduler.kill(self.zombies.pop(0).process)
        self._runs += 1
        self._queries += base == 0
        if base == 0 and self._starts_over:
            self.current = self.models[: self._stores.choice((1, 2))]
        for number, model in enumerate(self.models):
            model.restart(f"run-{self._runs}", base if number < len(self.current) else 0, self.location)
        self.scheduler.note("run-%d begins at version %d", self._runs, base)
        self.executors = [self._executor() for _ in range(1 if self.faults is NO_FAULTS else 2)]

    def _batch(self) -> bool:
        """Run a batch: a task for each store, with twins and retries. Returns whether all stores have committed."""
        waiting = [Batch(model) for model in self.current]
        for each in waiting:
            self._launch(each)
        while any(not each.committed for each in waiting):
            self.scheduler.park(
                "tasks", max(0.0, min(each.until for each in waiting if not each.committed) - self.scheduler.now)
            )
            for each in waiting:
                if not each.committed and (each.failed == each.launched or self.scheduler.now >= each.until):
                    if each.launched == TRIES_MAX:
                        return False
                    self._launch(each)
        for each in waiting:
            each.model.choose(each.committed[0])
            if self.seed % KILLING_OF in KILLING:
                self.killed.update(each.attempts)
        self.scheduler.note("the driver takes %s", " ".join(short(each.committed[0]) for each in waiting))
        return True

    def _launch(self, batch: Batch) -> None:
        self.executors = [each if not each.process.is_dead else self._executor() for each in self.executors]
        model, driver = batch.model, self.scheduler.current
        assert driver is not None
        attempt, base = self._new_attempt(self.chance), self._asked(model.chain[model.newest])
        batch.launched += 1
        batch.attempts.append(attempt)
        patience_s = self.chance.choice((0.1, 1.0, 30.0)) * self.chance.random()
        batch.until = self.scheduler.now + (LATEST_S if self._is_calm() else patience_s)

        def report(*, committed: bool) -> None:
            if committed:
                batch.committed.append(VersionId(base[0] + 1, attempt))
            else:
                batch.failed += 1
            self.scheduler.unpark(driver)

        executor = self.chance.choice(self.executors)
        self._spawn_task(executor, model, base, attempt, report)

    def _new_attempt(self, chance: random.Random) -> Attempt:
        self._attempts += 1
        return Attempt(chance.randbytes(12) + self._attempts.to_bytes(4, "big"))

    def _asked(self, version: VersionId) -> VersionId:
        return VersionId(version[0], NO_ATTEMPT) if self.checkpoint_format == 1 and version != EMPTY else version

    def _spawn_task(
        self, executor: Executor, model: Model, base: VersionId, attempt: Attempt, report: Callable[..., None]
    ) -> None:
        body = partial(executor.task, model, base, attempt, report, lambda: attempt not in self.killed)
        self.scheduler.spawn(f"{executor.process.name}/{attempt.hex()[:8]}", body, executor.process)

    def _mute_s3(self, seconds: float) -> None:
        self.scheduler.note("S3 does not answer for %.0f s", seconds)
        self.s3.is_cut = True
        self.scheduler.after(seconds, partial(setattr, self.s3, "is_cut", False))

    def _fail_over(self) -> None:
        """Continue the query in the other Region. This one may be cut off, or executors may still write to it."""
        replica = self.replicas[0]
        if self._regions.random() < 0.7:
            replica.cut()
        self.replicas.reverse()
        self.dynamodb = self.replicas[0]
        self.replicas[0].back()
        self.scheduler.note("the query moves from %s%s", replica.region, ", which is cut off" if replica.is_cut else "")
        self._auditor = self._engine(self.dynamodb, cache_bytes=0)
        self._restart(self._newest())
        self.audit()

    def _end_quietly(self) -> None:
        """End without faults; then snapshots and clean-up must leave no orphans."""
        self.scheduler.note("calm")
        self.faults = NO_FAULTS
        self.s3.is_cut = False
        for replica in (self.dynamodb, *self.replicas):
            replica.append_bytes_max = STORED_BYTES_MAX
        for replica in self.replicas:
            replica.back()
        self.audit(whole=True)
        self.scheduler.sleep(LATEST_S + 200)
        for executor in (*self.executors, *self.zombies):
            self.scheduler.kill(executor.process)
        if any(self._is_left(model) for model in self.models):
            self._drop_stores()
        self._restart(self._newest())
        by = self.executors[0]
        # Two, since orphans of a snapshot are deleted with a later one; none is made where nothing changed.
        snapshots_at: dict[str, int] = {}
        for model in (*self.current, *self.current):
            self._calm_batches(1)
            while not by.snapshot(model, 1):
                self._calm_batches(1)
            snapshots_at[model.store] = self._newest()
        self._calm_batches(max(2, self.retain))
        for model in self.current:
            for _ in range(2):
                by.clean_up(model, self.retain, most=0)
        self.audit(whole=True)
        for model in self.current:
            check_orphans(model, self.dynamodb, self.s3, self.shards, snapshots_at[model.store])

    def _calm_batches(self, count: int) -> None:
        for executor in self.executors:
            executor.may_fail = False
        for _ in range(count):
            if not self._batch():
                raise violation("a batch fails without any fault", version=self._newest() + 1)

    def _move(self, chance: random.Random) -> None:
        """Copy the checkpoint to the other location, start the query, adopt it; tasks of the other one are refused."""
        base = chance.randint(max(0, *(model.floor for model in self.current)), self._newest())
        self.location = next(each for each in LOCATIONS if each != self.location)
        self.scheduler.note("the checkpoint is copied to %s at version %d", self.location, base)
        self._runs += 1
        for model in self.models:
            model.location_of[f"run-{self._runs}"] = self.location
        copy, model = self._executor(), chance.choice(self.current)
        self._try_task(copy, model, model.chain[base], chance, wait_s=60.0)
        if copy.run in model.runs:
            raise violation("a copy of the checkpoint has entered", store=model.store, run=copy.run)
        self.scheduler.kill(copy.process)
        old, tips = list(self.executors), self._tips()
        self._run_on(old, tips, chance)
        while model.locations != {self.location}:
            process, _, both = self._external_client(f"adopter-{self._processes}")
            self._spawn(process, partial(self._adopt, both, base), ADOPT)
            while model.locations != {self.location} and not process.is_dead:
                self.scheduler.sleep(1.0)
        self._restart(base)
        self._run_on(old, tips, chance)

    def _adopt(self, both: BotoTables, base: int) -> None:
        for model in self.models:
            model.locations.add(self.location)
        while not self._try_adopt(both):
            self.scheduler.sleep(1.0)
        self.scheduler.note("adopted for %s", self.location)
        for model in self.models:
            model.move(self.location, base)

    def _try_adopt(self, both: BotoTables) -> bool:
        try:
            adopt_stores(both, [model.store for model in self.models], self.location)
        except UnavailableError as failed:
            self.scheduler.note("not adopted yet: %s", failed)
            return False
        return True

    def _maybe_erase(self) -> None:
        """Erase rows of the stopped query now and then, some of whose tasks run on; then start it again."""
        chance, is_made = self._erases, all(model.runs for model in self.models)
        has_erases = self.seed % ERASED_OF in ERASED and not (self.replicas or self._starts_over)
        if not (has_erases and is_made and chance.random() < 0.2):
            return
        numbers = chance.sample(range(KEYS), chance.choice((1, 2)))
        eraser = Eraser(self.scheduler, [model.store for model in self.models], numbers)
        self.scheduler.note("the rows of keys %s are erased", numbers)
        for model in self.models:
            model.begin_erase(eraser.keys)
        old, tips = list(self.executors), self._tips()
        self._run_on(old, tips, chance)
        while not eraser.is_done:
            process, _, both = self._external_client(f"eraser-{self._processes}", may_be_late=False)
            most = FAULTY_TRIES
            if eraser.tries >= most:  # at a short deadline many reads may never succeed together
                both, most = self._tables(self.dynamodb, chance), ERASE_TRIES_MAX
            self._spawn(process, partial(eraser.erase, both, most))
            while not (eraser.is_done or process.is_dead or eraser.tries >= most):
                self.scheduler.sleep(1.0)
        for model in self.models:
            model.end_erase()
        self._check_bytes(eraser.keys)
        self.audit(whole=True)
        self._restart(self._newest())
        self._run_on(old, tips, chance)

    def _check_bytes(self, keys: Collection[bytes]) -> None:
        """Check that no object that is named has one of these keys, in whatever part of it."""
        assert self._auditor is not None
        with self.scheduler.aside():
            named = {each.key for model in self.models for each in named_objects(self._auditor._tables, model.store)}
        if objects := objects_with({key: data for key, data in self.s3.objects.items() if key in named}, *keys):
            raise violation("an object has erased rows", count=len(objects), first=sorted(objects)[:3])

    def _drop(self, chance: random.Random) -> None:
        """Drop the namespace while the query runs; then another one begins in it. The first may not commit any more."""
        self.scheduler.note("the namespace is dropped")
        old, tips = list(self.executors), self._tips()
        for model in self.models:
            model.drop()
        self._run_on(old, tips, chance)
        self._drop_stores()
        self._restart(0)
        self._run_on(old, tips, chance)

    def _is_left(self, model: Model) -> bool:
        """Whether a late request of a dropped query, of another location than the current one, has made a store again.

        A run is refused then, with an error, and the user drops the namespace again.
        """
        return model.runs <= model.ended and any(model.location_of.get(run) != self.location for run in model.runs)

    def _drop_stores(self) -> None:
        """Drop all stores, by one client after another until one has done it."""
        ended: list[bool] = []
        while not ended:
            # A delete that came after its retry could take the schema item that the next query has written.
            process, _, both = self._external_client(f"dropper-{self._processes}", may_be_late=False)
            self._spawn(process, partial(self._drop_all, both, ended), DROP)
            while not ended and not process.is_dead:
                self.scheduler.sleep(1.0)

    def _drop_all(self, both: BotoTables, ended: list[bool]) -> None:
        while not self._try_drop(both):
            self.scheduler.sleep(1.0)
        self.scheduler.note("the namespace was dropped")
        ended.append(True)

    def _try_drop(self, both: BotoTables) -> bool:
        metas = [meta_key(model.store) for model in self.models]
        keys = [key for key in metas if self.dynamodb.item(NAMES[key.role], to_wire(item_key(key)))]
        try:
            drop_stores(both, [key.store_shard.removesuffix("#0") for key in keys])
        except (ConfigurationError, UnavailableError) as failed:  # a run has entered, or there is no answer
            self.scheduler.note("not dropped yet: %s", failed)
            return False
        return True

    def _tips(self) -> list[tuple[Model, VersionId]]:
        return [(model, model.chain[model.newest]) for model in self.current]

    def _run_on(self, executors: list[Executor], tips: list[tuple[Model, VersionId]], chance: random.Random) -> None:
        """Launch tasks of a driver that does not know that its query is over."""
        for executor in executors:
            if not executor.process.is_dead:
                self._try_task(executor, *chance.choice(tips), chance)

    def _try_task(
        self, executor: Executor, model: Model, base: VersionId, chance: random.Random, wait_s: float = 0.0
    ) -> None:
        """Launch a task of another driver, and wait for its end, for some time."""
        ended: list[bool] = []
        self._spawn_task(
            executor, model, self._asked(base), self._new_attempt(chance), lambda *, committed: ended.append(committed)
        )
        until = self.scheduler.now + wait_s
        while not ended and self.scheduler.now < until:
            self.scheduler.sleep(0.1)

    def _executor(self) -> Executor:
        run = QueryRun(f"run-{self._runs}", f"query-{self._queries}", self.location)
        process = self._process(f"{run.id}/executor")
        with self.scheduler.within(process):
            engine = self._engine(self._client(process, self.chance))
        by_buckets = random.Random(f"{self.seed}/{process.name}").random() < BY_BUCKETS  # noqa: S311  # no secret
        executor = Executor(self.scheduler, self.chance, engine, process, run, by_buckets)
        if self.faults is not NO_FAULTS:
            snapshots_ = partial(executor.offer_snapshots, self.models, self._is_calm, self.min_deltas)
            self.scheduler.spawn(f"{process.name}/snapshots", snapshots_, process, SNAPSHOT)
            clean_up = partial(executor.clean_up_now_and_then, self.models, self._is_calm, self.retain)
            self.scheduler.spawn(f"{process.name}/clean-up", clean_up, process, CLEAN_UP)
        return executor

    def _spawn_reader(self, number: int) -> None:
        process = self._process(f"reader-{number}")
        with self.scheduler.within(process):
            engine = self._engine(self._client(process, self.chance))
        reader = Reader(self.scheduler, self.chance, engine)
        self._spawn(process, partial(reader.read_now_and_then, self.models, self._is_calm), OPEN)

    def _spawn_forker(self) -> None:
        process, chance = self._process("forker"), random.Random(f"{self.seed}/forks")  # noqa: S311  # no secret
        with self.scheduler.within(process):
            engine = self._engine(self._client(process, chance, self._rates(process)), cache_bytes=0)
        both = engine._tables
        assert isinstance(both, BotoTables)
        both.expect_answers()
        forker = Forker(self.scheduler, chance, engine, both)
        self._spawn(process, partial(forker.fork_now_and_then, self.models, self._is_calm))

    def _spawn_onlooker(self) -> None:
        process, chance, both = self._external_client("onlooker")
        settings = replace(self.settings, parallel_requests=2, cache_mb=chance.choice((0, 1)))
        onlooker = Onlooker(self.scheduler, chance, both, settings)
        self._spawn(process, partial(onlooker.read_now_and_then, self.models, self._is_calm), READ)

    def _spawn_operator(self) -> None:
        process, chance, both = self._external_client("operator")
        operator = Operator(self.scheduler, chance, both, lambda: self._engine_on(both, cache_bytes=0))
        self._spawn(process, partial(operator.run_now_and_then, self.models, self._is_calm, self.retain))

    def _external_client(self, name: str, *, may_be_late: bool = True) -> tuple[Process, random.Random, BotoTables]:
        """A process with tables and random numbers of its own, so that it changes no schedule without it."""
        process, chance = self._process(name), random.Random(f"{self.seed}/{name}")  # noqa: S311  # no secret
        rates = self._rates(process) if may_be_late else replace(self._rates(process), slow=0.0)
        both = self._tables(self._client(process, chance, rates), chance)
        both.expect_answers()
        return process, chance, both

    def _rates(self, process: Process) -> FaultRates:
        """The faults of a client from outside: each has its own, and dies more often, because it sends few requests."""
        rates = random_faults(random.Random(f"{self.seed}/{process.name}/faults"))  # noqa: S311  # no secret
        return replace(rates, die=DIE_OFTEN * rates.die)

    def _engine(self, client: Any, cache_bytes: int | None = None) -> Engine:
        if cache_bytes is None:
            cache_bytes = self.chance.choice((0, 4_000, 1_000_000))
        return self._engine_on(self._tables(client, self.chance), cache_bytes)

    def _engine_on(self, both: BotoTables, cache_bytes: int) -> Engine:
        settings: dict[str, Any] = {"shards": self.shards, "parallel_requests": 2}
        if self.seed % STREAMED_OF in STREAMED and self._streams.random() < 0.7:
            settings |= S3_URL
        engine = Engine(both, replace(self.settings, **settings), self._clock())
        limit_cache(engine, cache_bytes)
        engine.commits.inline_bytes = INLINE_BYTES if self.seed % INLINED_OF in INLINED else 0
        return engine

    def _clock(self) -> Callable[[], datetime]:
        """The clock of one machine: up to more than a year off, and jumping by minutes, backwards too."""
        self._clocks += 1
        chance = random.Random(f"clock {self._clocks} of {self.seed}")  # noqa: S311  # others draw as without clocks
        start = NOW + timedelta(days=chance.choice((-400, -1, 0, 0, 1, 400)))

        def now() -> datetime:
            self.scheduler.struck[Cell(ENTRY, CLOCK)] += 1
            return start + timedelta(seconds=chance.uniform(-600, 600))

        return now

    def audit(self, *, whole: bool = False) -> None:
        """Check that promised versions, the oldest and the newest at least, can be read, with the rows of the model."""
        with self.scheduler.aside():
            for model in self.models:
                promised = model.promised()
                numbers = [number for number, attempt in promised if attempt == NO_ATTEMPT]
                ends = numbers[:1] + numbers[-1:]
                already: set[VersionId] = set()
                for target in promised:
                    if whole or target[0] in ends or target in model.foreign:
                        already.add(self._audit(model, target, already))
                self._verify(model)
            self._audit_late_forks(whole=whole)

    def _verify(self, model: Model) -> None:
        """Check that `verify` takes nothing that was interrupted, aborted or cleaned up for a list or snapshot lost."""
        assert self._auditor is not None
        if model.ended:  # parts that were written after a drop look like those of a version
            return
        try:
            report = verify(self._auditor._tables, model.store)
        except VersionMissingError:  # nothing is stored yet
            return
        falsely = ("the version list of ", "the item of the snapshot of ", "the store's item in the list ")
        lost = [each.why for each in report.findings if each.why.startswith(falsely)]
        if lost:
            raise violation("verify misses a version list or a snapshot", store=model.store, findings=lost)

    def _audit(self, model: Model, target: VersionId, already: set[VersionId]) -> VersionId:
        assert self._auditor is not None
        if target in already:
            return target
        version, _ = read(self.scheduler, self._auditor, model, target, {})
        if target in model.foreign:
            return version
        if version[0] <= model.newest and model.nodes[version].run != model.makers[version[0]]:
            raise violation("a number opens an attempt of a replaced run", found=short(version))
        return version

    def _on_request(self, operation: str, request: dict[str, Any]) -> None:
        """Check that no commit is sent, or sent again, for a task that was killed; and make late forks."""
        has_late_forks = self.seed % FORKED_OF in FORKED and not self.replicas and not self._is_calm()
        if has_late_forks and operation in ("put_item", "delete_item"):
            self._fork_late(request.get("Item") or request["Key"])
        task = self.scheduler.current
        is_erase = task is not None and task.doing == ERASE  # which replaces lists
        if operation == "update_item" and request["Key"]["entry"]["S"].startswith("list/") and not is_erase:
            store = request["Key"]["store_shard"]["S"].removesuffix("#0")
            for value in request["ExpressionAttributeValues"].values():
                for each in value.get("L", ()):
                    entry = decode_entry(store, each["B"])
                    if entry.attempt in self.killed:
                        raise violation("a commit is sent for a task that was killed", version=short(entry.id))

    def _fork_late(self, item: Wire) -> None:
        """Fork a version now and then at the moment at which a clean-up sends a request that deletes a part of it."""
        task, kind = self.scheduler.current, item.get("entry", {}).get("S", "").split("/")[0]
        is_clean_up = task is not None and task.name.endswith("/clean-up")
        if not is_clean_up or kind not in ("list", "snapshot") or self._late.random() < 0.2:
            return
        sort = item["entry"]["S"]
        key = Key("snapshot", item["store_shard"]["S"], sort)
        # Of a list the lowest version, which clean-up deletes first.
        listed = (each for each in versions_of(key) if self._is_listed(each)) if kind == "list" else ()
        version = min(listed, default=0) if kind == "list" else int(sort.split("/")[1])
        name = f"late-{len(self.scheduler.steps)}"
        with self.scheduler.aside():
            if version > 0 and self._late_forker().try_fork(self.models, name, version):
                self._late_forks.append((name, version))
            else:
                self._late_forker().drop(name)

    def _is_listed(self, version: int) -> bool:
        """Whether the first store lists a version now."""
        winners = self.models[0].winners.get(version, [])
        return winners != [] and winners[-1][1] != EMPTY

    def _late_forker(self) -> Forker:
        """A forker without faults, which takes no time: so it cannot retry, as it must beside replicas."""
        assert self._auditor is not None
        both = self._auditor._tables
        assert isinstance(both, BotoTables)
        return Forker(self.scheduler, self._late, self._auditor, both)

    def _audit_late_forks(self, *, whole: bool) -> None:
        for name, version in self._late_forks[:]:
            for model in self.models:
                self._late_forker().read(model, name, version)
            if whole or self._late.random() < 0.3:
                self._late_forker().drop(name)
                self._late_forks.remove((name, version))

    def _on_change(self, role: Role, place: Place, after: Wire | None) -> None:
        """Pass a changed item to the model; without `after` it was deleted. Check the meta items of stores."""
        shard, sort = place
        if sort == META and after is not None:
            store, item = shard.removesuffix("#0"), from_wire(after)
            self._must_be_listed(store)
            if meta_item(store, parse_meta(store, item)) != item:
                raise violation("a meta item has an attribute that is not declared", store=store, names=sorted(item))
        model = next((model for model in self.models if shard.startswith(f"{model.store}#")), None)
        kind, *names = sort.split("/")
        if role == "delta" or model is None:  # a part, or a fork's
            return
        if kind == "list":
            versions = (after or {}).get("versions", {"L": []})["L"]
            for version in model.list_changed(sort, [each["B"] for each in versions]):
                self._must_be_complete(model, version)
        elif kind == "snapshot":
            version = VersionId(int(names[0]), Attempt(bytes.fromhex(names[1])))
            model.snapshot_changed(version, is_done=after is not None and after["stage"]["S"] == DONE)
        elif kind == "meta":
            if after is None:
                model.meta_deleted()
            else:
                queries = after["queries"]["M"]
                model.query = queries[max(queries, key=int)]["S"]
                model.entered({run: int(epoch["N"]) for run, epoch in after["epochs"]["M"].items()})

    def _must_be_listed(self, store: str) -> None:
        key = store_key(store)
        items = [each.items[NAMES[key.role]] for each in (self.dynamodb, *self.replicas)]
        if not any((key.store_shard, key.sort) in each for each in items):
            raise violation("a store is made that its namespace does not list", store=store, missing=key.sort)

    def _must_be_complete(self, model: Model, version: VersionId) -> None:
        """Check that an attempt of the newest run is complete once it is listed; its ancestors may be deleted."""
        assert self._auditor is not None
        if not model.run:  # the store is being dropped
            return
        node = model.nodes[version]
        # `audit` reads its parent.
        states = {} if node.parent == EMPTY else {node.parent: model.nodes[node.parent].state}
        try:
            read(self.scheduler, self._auditor, model, version, states)
        except (VersionMissingError, CorruptStateError) as failed:
            if node.run == model.run and node.parent == model.chain[model.newest]:
                raise violation("a listed version cannot be read", version=short(version), error=failed) from failed
