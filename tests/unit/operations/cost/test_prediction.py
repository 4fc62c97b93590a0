"""The formula of docs/costs.md compared with runs of the engine, with snapshots, clean-ups and restarts."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine import commit, snapshot_threshold
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError
from dynastate.format.changes import key_hash
from dynastate.format.items import StorageSize, item_bytes, total
from dynastate.format.keys import EMPTY, VersionId
from dynastate.format.parts import CHUNK_BYTES_MAX
from dynastate.operations.cost import prediction
from dynastate.operations.cost.prediction import DAY_S, PredictedUsage, Workload, predict
from dynastate.operations.cost.usage import usage_of_namespace
from dynastate.prices import DEFAULT_PRICES, Prices
from dynastate.settings import Settings
from dynastate.storage.meter import Meter, units_of_write
from dynastate.storage.tables import Tables
from tests.support.engine_driver import Engines, begin, closing, save_snapshot, write
from tests.support.memory_tables import MemoryTables
from tests.support.samples import SCHEMA, State, attempt, chunk

#: Settings of a run with objects in S3.
S3_URL: dict[str, Any] = {"objects": "s3://my-bucket/prefixes/of"}
ROOT = Path(__file__).parents[4]
#: What the issue asks of the formula.
WITHIN = 0.15


@dataclass
class Counted:
    """Units of operations, and storage after each batch."""

    spent: Meter = field(default_factory=Meter)
    snapshots: int = 0
    stored: list[StorageSize] = field(default_factory=list)


def chunks_of(changes: State) -> Iterator[State]:
    """Cut changes as the provider does: in the order of their hashes, 256 KiB a chunk."""
    cut: State = {}
    size = 0
    for key in sorted(changes, key=key_hash):
        length = 10 + len(key) + len(changes[key])
        if cut and size + length > CHUNK_BYTES_MAX:
            yield cut
            cut, size = {}, 0
        cut[key] = changes[key]
        size += length
    if cut:
        yield cut


class OneStore:
    """A store as the provider has it: its rows, and the times of its maintenance."""

    def __init__(self, name: str, of: Workload, next_tick: float) -> None:
        self.name = name
        self.newest: VersionId = EMPTY
        self._of = of
        self._rows: State = {}
        self._changed: dict[bytes, int] = {}
        self._looked_at = self._cleaned_at = 0
        self._next_tick = next_tick

    def commit(self, engine: Engine, run: str, changes: State, counted: Counted) -> StorageSize:
        by = attempt(self.newest[0] + 1)
        under_way = begin(engine, self.name, by, *chunks_of(changes), base=self.newest, run=run)
        self._rows |= changes
        counted.spent.add(under_way.commit({0: len(self._rows)}, SCHEMA).meter)
        self.newest = VersionId(self.newest[0] + 1, under_way.attempt)
        self._changed |= dict.fromkeys(changes, self.newest[0])
        return engine.known_stores.account(self.name).stored()

    def maintain(self, engine: Engine, run: str, batch: int, counted: Counted) -> None:
        """Run maintenance as Spark does, when it is due."""
        if batch < self._next_tick:
            return
        self._next_tick += max(1, self._of.batches_a_day * self._of.maintenance_s / DAY_S)
        version = self.newest[0]
        if version - self._looked_at >= self._of.min_deltas:
            self._looked_at = version
            self._offer_snapshot(engine, run, counted)
        least = math.floor(self._of.extra * self._of.retain + 0.5)
        if self._cleaned_at == 0 or version - self._cleaned_at >= least:
            self._cleaned_at = version
            counted.spent.add(engine.maintenance.clean_up(self.name, run, *self.newest, self._of.retain, least, 0)[0])

    def _offer_snapshot(self, engine: Engine, run: str, counted: Counted) -> None:
        heap = sum(30 + len(key) + len(value) for key, value in self._rows.items())
        under_way, meter = engine.maintenance.snapshot(self.name, run, *self.newest, heap, self._of.min_deltas)
        if under_way is None:
            counted.spent.add(meter)
            return
        shift = 32 - under_way.bits
        buckets: dict[int, State] = {bucket: {} for bucket in range(1 << under_way.bits)}
        for key, value in self._rows.items():
            buckets[key_hash(key) >> shift][key] = value
        since = under_way.base
        touched = {key_hash(key) >> shift for key, when in self._changed.items() if when > since}
        for bucket, rows in buckets.items():
            if since == 0 or bucket in touched:
                under_way.bucket(bucket)
                for each in chunks_of(rows):
                    under_way.append(chunk(each))
        assert under_way.commit()
        counted.spent.add(under_way.meter)
        counted.snapshots += 1

    def reopen(self, engine: Engine, counted: Counted) -> None:
        """Read the store as an executor without any of it does."""
        opening = engine.open(self.name, *self.newest)
        for each in (opening.snapshot_chunks, opening.chunks):
            list(each)
        counted.spent.add(opening.meter)


class Run:
    """A query of made-up rows on the engine. Each batch changes random rows of all stores."""

    def __init__(self, engines: Engines, tables: Tables, of: Workload, value_bytes: int, seed: int) -> None:
        self.namespace = f"{seed:032x}"
        self._tables = tables
        self._choose = random.Random(f"cost/{seed}")  # noqa: S311  # test data
        self._of = of
        self._value_bytes = value_bytes
        self._engines = engines
        self._runs = 0
        tick = of.batches_a_day * of.maintenance_s / DAY_S
        self._stores = [
            OneStore(f"{self.namespace}/0/{number}/default", of, self._choose.uniform(0, tick))
            for number in range(of.stores)
        ]
        self._keys = [b"%012d" % number for number in range(int(of.state_rows))]
        self._batches = 0
        self._start()
        self._batch(self._keys, Counted())

    def play(self, batches: int, restart_every: int = 0) -> Counted:
        """Run batches, with a restart of all executors every `restart_every`; return the units."""
        counted = Counted()
        for number in range(1, batches + 1):
            if restart_every and number % restart_every == 0:
                self._start()
                for store in self._stores:
                    store.reopen(self._at, counted)
            self._batch(self._choose.sample(self._keys, int(self._of.changed_rows)), counted)
        return counted

    def measured(self) -> Workload:
        """The workload read from the tables, as `dynastate cost NAMESPACE` does."""
        (usage,) = usage_of_namespace(self._tables, self.namespace).values()
        learnt: dict[str, Any] = usage.workload()
        return replace(self._of, **learnt)

    def _start(self) -> None:
        threshold = Decimal(str(self._of.snapshot_threshold))
        # It knows the routes that it has read and written, as in production.
        self._at = self._engines(
            shards=self._of.shards,
            snapshot_threshold=threshold,
            cache_bytes=2**24,
            inline_bytes=commit.INLINE_BYTES_MAX,
            **({} if self._of.objects_threshold_kb is None else S3_URL),
        )
        self._runs += 1

    def _batch(self, keys: list[bytes], counted: Counted) -> None:
        changes: list[State] = [{} for _ in self._stores]
        for key in keys:
            text = b"%d" % self._choose.randrange(10**9)  # a value is half text that compresses, half noise
            value = text.ljust(self._value_bytes // 2) + self._choose.randbytes(self._value_bytes // 2)
            changes[key_hash(b"partition of " + key) % len(changes)][key] = value
        run = f"run-{self._runs}"
        told = [
            store.commit(self._at, run, changed, counted) for store, changed in zip(self._stores, changes, strict=True)
        ]
        for store in self._stores:
            store.maintain(self._at, run, self._batches, counted)
        self._batches += 1
        counted.stored.append(total(told))


WORKLOADS = {
    "a trigger of ten seconds, Spark's defaults": (Workload(3, 8640, 30, 0, 900, 0), 50),
    "a trigger of ten seconds, ten versions retained": (Workload(3, 8640, 60, 0, 900, 0, retain=10), 50),
    "fewer changed rows than stores": (Workload(8, 8640, 5, 0, 600, 0, retain=20, snapshot_threshold=0.85), 50),
    "parts of about 1 KB": (Workload(3, 8640, 50, 0, 600, 0, retain=20), 40),
    "a trigger of fifteen minutes": (Workload(3, 96, 90, 0, 900, 0, retain=20), 50),
    "a trigger of a second": (Workload(2, 86_400, 20, 0, 400, 0, retain=50), 50),
    "parts of 256 KiB, buckets of half a megabyte": (Workload(1, 8640, 2_000, 0, 6_000, 0, retain=5), 400),
    "a threshold of 0.3": (Workload(3, 8640, 40, 0, 900, 0, retain=20, snapshot_threshold=0.3), 50),
    "a threshold of 1.25": (Workload(3, 8640, 60, 0, 900, 0, retain=20, snapshot_threshold=1.25), 50),
    "a threshold of 2.5": (Workload(3, 8640, 60, 0, 900, 0, retain=20, snapshot_threshold=2.5), 50),
    "three rows a store and batch": (Workload(3, 8640, 9, 0, 600, 0, retain=20), 50),
    "changes of about 256 bytes": (Workload(3, 8640, 12, 0, 600, 0), 50),
    "objects in S3 of 15 KB": (Workload(2, 8640, 400, 0, 3_000, 0, retain=20, objects_threshold_kb=4), 100),
    "objects in S3 of snapshots only": (Workload(3, 8640, 60, 0, 900, 0, retain=20, objects_threshold_kb=4), 50),
    "frequent snapshots": (Workload(2, 8640, 40, 0, 200, 0, retain=10, min_deltas=2, extra=0.5, maintenance_s=1), 50),
}


def compare(run: Run, warm: int, batches: int, restart_every: int) -> None:
    run.play(warm)
    measured = run.measured()
    counted = run.play(batches, restart_every)
    days = batches / measured.batches_a_day
    forecast = predict(replace(measured, restarts_a_day=batches // restart_every / days))
    expected = forecast.day * days
    print({"predicted": expected, "counted": replace(counted, stored=[])})  # noqa: T201  # shown when it fails
    assert counted.snapshots >= 3 * measured.stores
    assert counted.spent.delete_units > 0
    for name in ("requests", "write_units", "read_units", "delete_units", "puts", "gets"):
        assert getattr(expected, name) == pytest.approx(getattr(counted.spent, name), rel=WITHIN), name
    for name in ("items", "bytes", "object_bytes"):
        stored = sum(getattr(each, name) for each in counted.stored) / batches
        assert getattr(forecast.stored, name) == pytest.approx(stored, rel=WITHIN), name


@pytest.mark.slow
@pytest.mark.parametrize("tables", ["memory"], indirect=True)
@pytest.mark.parametrize("name", WORKLOADS)
def test_prediction_is_that_of_a_run(name: str, engines: Engines, tables: Tables) -> None:
    """Within 15 %: requests, write, read and delete units, items and bytes stored."""
    of, value_bytes = WORKLOADS[name]
    is_large = of.changed_rows > 1_000
    run = Run(engines, tables, of, value_bytes, seed=1)
    compare(run, *((40, 84, 7) if is_large else (250, 300, 43)))


def test_prediction_is_that_of_a_run_on_dynamodb(moto: BotoTables) -> None:
    """The same through boto3, where requests and units are those of real requests."""
    of, value_bytes = Workload(2, 8640, 50, 0, 400, 0, retain=10), 40
    for engines in closing(moto):
        compare(Run(engines, moto, of, value_bytes, seed=2), 50, 60, 29)


def test_units_of_parts_and_lists() -> None:
    """A store whose every batch changes a hundred rows of 100 bytes: 10 KB of parts, a version list of under 1 KB."""
    of = Workload(1, 100, 100, 100, 10_000, 100, compression=1)
    forecast = predict(of)
    assert forecast.commits.requests == pytest.approx(200)
    # 10,230 bytes with an item's overhead, with a deviation of 1,000: half a unit more on average.
    assert forecast.commits.write_units == pytest.approx(100 * (10.5 + 1), rel=0.02)
    assert forecast.commits.read_units == forecast.commits.delete_units == 0
    # Everything is deleted in the end, and snapshots are written each time changes are 1.25 times the state.
    assert forecast.clean_up.delete_units == pytest.approx(100 * 10.5 * (1 + 1 / 1.25), rel=0.1)


def test_delete_units(memory_engine: Engine, memory: MemoryTables, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts, buckets, manifests of many buckets and lists: within a tenth of what DynamoDB takes for them."""
    monkeypatch.setattr(snapshot_threshold, "threshold_of", lambda *_: 0.0)
    engine, newest = memory_engine, EMPTY
    state: State = {b"%d" % row: bytes(100) for row in range(3_000)}
    for number in range(1, 31):
        part = {key: state[key] for key in list(state)[number * 90 : number * 90 + 90]}
        newest = write(engine, store, attempt(number), part, base=newest)
        if number % 10 == 0:
            save_snapshot(engine, store, newest, state, lambda _: set(state), bits=6)
    items_before = dict(memory.items)
    meter, _ = engine.maintenance.clean_up(store, "run-1", *newest, retain=2, least=1, most=0)
    deletions = [item for key, item in items_before.items() if key not in memory.items]
    assert meter.items_deleted == len(deletions)
    assert meter.delete_units == pytest.approx(sum(units_of_write(item_bytes(item)) for item in deletions), rel=0.1)


def test_an_idle_query_pays_for_its_appends() -> None:
    forecast = predict(Workload(200, 8640, 0, 0, 0, 0))
    assert forecast.commits == PredictedUsage(200 * 8640, 200 * 8640)
    assert forecast.snapshots.write_units < 0.01 * forecast.commits.write_units


def test_the_log_of_a_query() -> None:
    """Its files are put one by one, and deleted several at a time; a restart reads those that are retained."""
    of = Workload(10, 8640, 1_000, 100, 100_000, 100, retain=100)
    state, files = predict(of), 3 * 8640
    forecast = predict(replace(of, log_files=3, log_file_units=1.5))
    assert forecast.log == PredictedUsage(
        requests=files * (1 + 2 / 24), write_units=1.5 * files, read_units=files, delete_units=1.5 * files
    )
    assert forecast.day == state.day + forecast.log
    assert (forecast.stored.items - state.stored.items, state.log) == (300, PredictedUsage())
    restarts = predict(replace(of, log_files=3, log_file_units=1.5, restarts_a_day=2)).log
    assert (restarts.requests - forecast.log.requests, restarts.read_units - forecast.log.read_units) == (2, 2 * 113)


def test_larger_workloads_cost_more() -> None:
    of = Workload(10, 8640, 1_000, 100, 100_000, 100, restarts_a_day=2)
    cost_of = {
        name: predict(replace(of, **{name: 2 * getattr(of, name)})).day.dollars(DEFAULT_PRICES)
        for name in ("stores", "batches_a_day", "changed_rows", "row_bytes", "restarts_a_day")
    }
    assert min(cost_of.values()) > predict(of).day.dollars(DEFAULT_PRICES)
    assert predict(replace(of, retain=200)).stored.bytes > predict(of).stored.bytes
    assert predict(replace(of, families=12)).day.write_units > predict(of).day.write_units


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stores", 0),
        ("batches_a_day", 0),
        ("changed_rows", -1),
        ("compression", 0),
        ("row_bytes", math.inf),
        ("retain", -1),
        ("state_rows", math.nan),
        ("families", 0),
        ("shards", 0),
        ("restarts_a_day", -0.5),
        ("maintenance_s", -1),
    ],
)
def test_a_wrong_workload_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"a workload's {name} must be .* or more got={value}"):
        replace(Workload(1, 1, 1, 1, 1, 1), **{name: value})  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize(
    ("mean", "spread", "expected"),
    [(0, 0, 1), (1, 0, 1), (1.001, 0, 2), (380, 0, 380), (0.5, 0.01, 1), (1, 0.1, 1.5), (10, 1, 10.5), (1.2, 0.01, 2)],
)
def test_means_of_what_is_rounded_up(mean: float, spread: float, expected: float) -> None:
    """Rounding up adds half a unit on average, unless sizes hardly differ; and nothing takes less than one unit."""
    assert prediction.rounded_up(mean, spread) == pytest.approx(expected, abs=0.01)


def test_means_of_what_is_rounded_up_are_means() -> None:
    choose = random.Random("rounded up")  # noqa: S311  # test data
    for mean, spread in ((0.7, 0.3), (1.1, 0.2), (3.4, 1.5)):
        drawn = [max(1, math.ceil(choose.gauss(mean, spread))) for _ in range(50_000)]
        assert prediction.rounded_up(mean, spread) == pytest.approx(sum(drawn) / len(drawn), rel=0.01)


def test_prices() -> None:
    """Billionths of a dollar, to the nearest; storage with 100 bytes an item that DynamoDB adds."""
    settings = Settings.from_spark({"writePrice": "0.0007", "readPrice": "0.0003", "storagePrice": "0.5"})
    prices = Prices.of(settings)
    assert [prices.nanodollars(units, 0) for units in range(4)] == [0, 1, 1, 2]
    assert prices.nanodollars(1, 3) == 2
    assert DEFAULT_PRICES.nanodollars(1_000_000, 1_000_000) == 750_000_000
    assert prices.dollars_a_month(StorageSize(10, 2**30 - 1_000)) == 0.5


def test_example_of_the_documentation() -> None:
    text = "".join((ROOT / "docs" / page).read_text() for page in ("costs.md", "objects-in-s3.md", "scale.md"))
    programs = re.findall(r"```python\n((?:(?!```).)*)```\n\n```\n(.*?)```", text, re.DOTALL)
    assert programs
    for program, shown in programs:
        lines: list[str] = []
        exec(program, {"print": lambda *words, to=lines: to.append(" ".join(map(str, words)))})  # noqa: S102  # our own documentation
        assert lines == shown.splitlines()


def test_thresholds_of_the_documentation() -> None:
    text = (ROOT / "docs" / "costs.md").read_text()
    table = (
        text.partition("### Snapshot threshold")[2].partition("|---:|---:|")[2].partition("\n\n")[0].splitlines()[1:]
    )
    assert len(table) == 6
    of = Workload(50, 2880, 20_000, 60, 2_000_000, 50, restarts_a_day=1)
    for line in table:
        threshold, lz4, zstd, mean, most, times = (float(cell) for cell in line.strip("| ").split(" | "))
        forecast = predict(replace(of, snapshot_threshold=threshold))
        dense = predict(
            replace(of, snapshot_threshold=threshold, row_bytes=42.6, state_row_bytes=35.5, compression=2 / 0.71)
        )
        read = forecast.restart_bytes
        assert (lz4, zstd) == tuple(round(30 * each.day.dollars(DEFAULT_PRICES)) for each in (forecast, dense))
        assert (mean, most) == (round(read.mean / 1e6), round(read.most / 1e6))
        assert times == round(read.most / read.snapshots, 2)
