"""Storage usage of a namespace, and query usage added up from progress reports."""

from __future__ import annotations

import json
import random
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from dynastate.engine import catalog
from dynastate.engine.engine import Engine
from dynastate.engine.namespaces import STORE_NAMES
from dynastate.errors import ConfigurationError
from dynastate.format.items import FORMAT, StorageSize, item_bytes, item_key
from dynastate.format.keys import EMPTY, VersionId, manifest_key, meta_key
from dynastate.format.namespace import store_item
from dynastate.operations.cost.prediction import Workload, predict
from dynastate.operations.cost.usage import commit_units, usage_of_namespace, usage_of_store
from dynastate.operations.inspection.inspect import inspect_store
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.operations.monitoring.monitor import Monitor
from dynastate.operations.monitoring.reports import QueryUsage, ReportFile, usage_of_queries
from dynastate.operations.monitoring.skew import read_loads
from dynastate.prices import Prices
from dynastate.settings import Settings
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables
from tests.support.contents import everything_of, graph
from tests.support.engine_driver import Engines, begin, commit, save_snapshot, take_snapshot, write
from tests.support.memory_tables import MemoryTables
from tests.support.samples import SCHEMA, attempt
from tests.support.store_builder import StoreBuilder, counted, family, user

pytestmark = pytest.mark.usefixtures("always_worth_it")

START = datetime(2025, 1, 1, tzinfo=timezone.utc)
JOIN = tuple(name for name in STORE_NAMES if name != "default")


def test_stores_are_found_by_operator_and_partition(memory: MemoryTables) -> None:
    stores = [f"mine/0/{partition}/default" for partition in range(237)]
    stores += [f"mine/1/{partition}/{name}" for partition in range(61) for name in JOIN]
    stores += [f"mine/{operator}/0/default" for operator in range(2, 23)]
    others = ["mine2/0/0/default", "min/0/0/default"]
    for store in [*stores, *others]:
        memory.write([store_item(store), (meta_key(store), item_key(meta_key(store)) | {"format": FORMAT})])
    meter = Meter()
    assert list(catalog.find_stores(memory.metered(meter), "mine")) == stores
    assert meter.requests == 1 + -(-len(stores) // 100)


def test_usage_is_that_of_the_tables(engines: Engines, tables: Tables, store: str) -> None:
    namespace, engine = store.split("/", maxsplit=1)[0], engines()
    units = records = 0
    names = (store, store.replace("/0/default", "/1/default"), f"{namespace}/1/0/default")
    for name in names:
        newest, state = EMPTY, {b"%d" % number: b"one" * number for number in range(50)}
        for number in range(1, 15):
            newest, metrics = commit(engine, name, attempt(number), state, base=newest)
            # Listing the store, meta, schema and version list; and the record of the namespace.
            units += metrics["writeUnits"] - (4 + (name == store) if number == 1 else 0)
            units += number == 1
            records += len(state)
            if number in (5, 9):
                under_way = take_snapshot(engine, name, newest, state, lambda _: {b"7"})
                if under_way is not None:
                    assert under_way.commit()
    usages = usage_of_namespace(tables, namespace)
    assert sorted(usages) == [0, 1]
    assert usages[0].stores == 2
    both = usages[0] + usages[1]
    listed = [item for name in names for item in everything_of(tables, name)]
    assert both.stored.items == len(listed)
    assert both.stored.bytes == pytest.approx(sum(map(item_bytes, listed)), rel=0.03)
    assert (both.versions, both.records, both.write_units) == (42, records, units)
    snapshots = graph(tables, store).snapshots()
    assert len(snapshots) == 2


def test_workload_has_the_formulas_names(engines: Engines, tables: Tables, store: str) -> None:
    engine, newest = engines(), EMPTY
    for number in range(1, 11):
        changes: dict[bytes, bytes | None] = {b"%03d" % row: b"%d" % number * 20 for row in range(100)}
        newest = write(engine, store, attempt(number), changes, base=newest)
    (usage,) = usage_of_namespace(tables, store.split("/", maxsplit=1)[0]).values()
    workload = usage.workload()
    assert (workload["stores"], workload["changed_rows"], workload["families"]) == (1, 100, 1)
    assert workload["row_bytes"] == workload["state_row_bytes"] < 33
    assert workload["row_bytes"] * workload["compression"] == pytest.approx(10 + 3 + 20 + 2, rel=0.1)
    named: dict[str, Any] = workload
    assert predict(Workload(batches_a_day=100, **named)).day.write_units > 100


def test_a_namespace_without_stores_is_an_error(memory: MemoryTables) -> None:
    with pytest.raises(ConfigurationError, match=r"no store of this namespace.*state/0/0/dynastate.*namespace=unknown"):
        usage_of_namespace(memory, "unknown")


@pytest.mark.parametrize("is_deleted", [True, False])
def test_manifest_gone_or_broken(memory_engine: Engine, memory: MemoryTables, store: str, *, is_deleted: bool) -> None:
    """A snapshot without its manifest counts by its item; `stores` summarizes one with a broken one too."""
    state: dict[bytes, bytes] = {b"%d" % number: b"one" for number in range(50)}
    newest = write(memory_engine, store, attempt(1), state)
    save_snapshot(memory_engine, store, newest, state, lambda _: set(state))
    old_usage, whole = usage_of_store(memory, store), inspect_store(memory, store)
    (snapshot,) = graph(memory, store).snapshots()
    key = manifest_key(store, snapshot.version, snapshot.id)
    if is_deleted:  # by clean-up, just now
        memory.delete([key])
    else:
        memory.items[key]["data"] = b"broken"
    usage, summary = usage_of_store(memory, store), inspect_store(memory, store)
    assert 0 < usage.stored.items < old_usage.stored.items
    assert usage.rows == old_usage.rows
    assert usage.snapshot_rows == 50
    assert (summary.version, summary.snapshot) == (whole.version, whole.snapshot) == (1, 1)
    assert summary.items < whole.items


def test_figures_are_those_of_the_current_query(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """A query that started over has lower versions than the earlier one, whose snapshot is not its own."""
    earlier = StoreBuilder(memory_engine, store, family(), family(1, "more"))
    earlier.commit(*((user(f"{number}"), counted(1, "x" * 100)) for number in range(100)))
    earlier.count_to(5)
    compact_store(memory_engine, memory, store)
    current = StoreBuilder(memory_engine, store, run="b-1", query="other")
    for number in range(2):
        current.commit((user(f"b{number}"), counted(1)), by=attempt(50 + number))
    usage = usage_of_store(memory, store)
    assert (usage.rows, usage.families, usage.snapshot_rows, usage.versions) == (2, 1, 0, 7)
    assert usage.workload()["changed_rows"] == 1
    (load,) = read_loads(memory, [store])
    assert load.rows == 2
    assert load.bytes == sum(10 + len(key) + sum(map(len, values)) for (_, key), values in current.state.items())
    compact_store(memory_engine, memory, store)
    assert usage_of_store(memory, store).snapshot_rows == 2
    assert read_loads(memory, [store])[0].bytes == load.bytes


def report(batch: int, *, query: str = "q", run: str = "r", after_s: float = 0, **more: Any) -> dict[str, Any]:
    """Make a progress report as Spark does, of two operators; `units` are write units of each."""
    units = more.pop("units", 100)
    metrics = {
        **dict.fromkeys(("dynastateRequests", "dynastateMaintenanceRequests"), 10),
        "dynastateWriteUnits": units,
        "dynastateMaintenanceWriteUnits": 7,
        "dynastateReadUnits": 3,
        "dynastateMaintenanceReadUnits": 2,
        "dynastateDeleteUnits": 50,
        **dict.fromkeys(("dynastatePuts", "dynastateMaintenancePuts", "dynastateGets", "dynastateMaintenanceGets"), 1),
        "dynastateNanodollars": 1_000,
        "dynastateMaintenanceNanodollars": 500,
        "dynastateStoredItems": 10 + batch,
        "dynastateStoredBytes": 1_000 + batch,
        "dynastateStoredObjectBytes": 500 + batch,
        "dynastateLoadMs": 1,
    }
    at = (START + timedelta(seconds=after_s)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "id": query,
        "runId": run,
        "name": None,
        "timestamp": at,
        "batchId": batch,
        "durationMs": {"addBatch": 10, "triggerExecution": 12},
        "stateOperators": [{"customMetrics": metrics}, {"customMetrics": metrics}],
    } | more


def lines(*reports: dict[str, Any]) -> list[str]:
    return [json.dumps(each) + "\n" for each in reports]


def test_batches_are_added_up() -> None:
    reports = [report(number, after_s=30 * number, name="mine") for number in range(5)]
    (usage,) = usage_of_queries(lines(*reports), "here", None)
    assert usage == QueryUsage("q", "mine", 5, 200, 1_070, 50, 500, 20, 20, 15_000, StorageSize(28, 2_008, 1_008), 30.0)
    assert usage.dollars == 15e-6
    assert usage.dollars_a_day == pytest.approx(3e-6 * 2880)


def test_cost_at_other_prices() -> None:
    prices = Prices.of(Settings.from_spark({"writePrice": "2", "readPrice": "1", "putPrice": "3", "getPrice": "4"}))
    (usage,) = usage_of_queries(lines(report(0)), "here", prices)
    assert usage.nanodollars == 2_000 * (214 + 100) + 1_000 * 10 + 3_000 * 4 + 4_000 * 4
    assert (usage.interval_s, usage.dollars_a_day) == (None, None)


def test_only_batches_of_dynastate_count() -> None:
    """A repeated report counts once; triggers without a batch and queries on other stores do not count."""
    idle = report(2, after_s=500, durationMs={"latestOffset": 1, "triggerExecution": 2})
    rocks = report(0, query="rocks", stateOperators=[{"customMetrics": {"rocksdbPutCount": 1}}])
    stateless = report(0, query="stateless", stateOperators=[])
    first, second = report(0), report(1, after_s=10)
    (usage,) = usage_of_queries([*lines(first, second, first, idle, rocks, stateless), "\n", " "], "here", None)
    assert (usage.batches, usage.write_units, usage.stored, usage.interval_s) == (
        2,
        428,
        StorageSize(22, 2_002, 1_002),
        10.0,
    )


def test_queries_and_runs() -> None:
    """Queries are added up apart; the time between two runs of a query is no interval of batches."""
    reports = [report(number, query="a", after_s=10 * number) for number in range(3)]
    reports += [report(number, query="a", run="later", after_s=90_000 + 20 * number) for number in (2, 3)]
    reports += [report(0, query="b", units=1)]
    first, second = usage_of_queries(lines(*reports), "here", None)
    assert (first.query, first.batches) == ("a", 5)
    assert first.interval_s == pytest.approx(40 / 3)
    assert first.stored == StorageSize(26, 2_006, 1_006)
    assert (second.query, second.batches, second.write_units) == ("b", 1, 16)


def test_an_event_log_is_read() -> None:
    event = "org.apache.spark.sql.streaming.StreamingQueryListener$QueryProgressEvent"
    events: list[dict[str, Any]] = [
        {"Event": "SparkListenerLogStart", "Spark Version": "4.3.0"},
        {"Event": event, "progress": report(0)},
        {"Event": "SparkListenerTaskEnd", "Stage ID": 1},
        {"Event": event, "progress": report(1, after_s=5)},
        {"Event": event.replace("Progress", "Terminated"), "id": "q", "runId": "r"},
    ]
    (usage,) = usage_of_queries(lines(*events), "here", None)
    assert (usage.batches, usage.interval_s) == (2, 5.0)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("{", "line 2 of here is not JSON; progress reports are one JSON object a line"),
        ('{"id": 1,\n', "line 2 of here is not JSON"),
        ("[1]", "line 2 of here is not a progress report"),
        ("7", "line 2 of here is not a progress report"),
        ('{"a": 1}', "line 2 of here is not a progress report, or is of another dynastate: 'durationMs'"),
        (json.dumps(report(1) | {"timestamp": "today"}), "line 2 of here is not a progress report"),
        (json.dumps(report(1) | {"timestamp": None}), "line 2 of here is not a progress report"),
        (
            json.dumps(report(1) | {"stateOperators": [{"customMetrics": {"dynastateRequests": 1}}]}),
            "another dynastate",
        ),
        (json.dumps(report(1) | {"stateOperators": [{"customMetrics": {"dynastateRequests": "x"}}]}), "line 2 of here"),
        (json.dumps(report(1) | {"stateOperators": 3}), "line 2 of here"),
    ],
)
def test_a_line_that_is_not_a_report_is_refused(broken: str, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        usage_of_queries([*lines(report(0)), broken], "here", None)
    assert says in str(refused.value)


@pytest.mark.parametrize("given", [[], ["\n"], lines(report(0, stateOperators=[])), lines({"Event": "Other"})])
def test_no_batch_at_all_is_an_error(given: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="no batch of a query whose state is in DynamoDB is reported in here"):
        usage_of_queries(given, "here", None)


def committed(batch: int, *commit_ms: int, run: str = "r") -> str:
    """Make a line of progress, of operators whose commits took so long; the second was throttled twice, and so on."""
    metrics = report(batch)["stateOperators"][0]["customMetrics"]
    operators = [
        {"customMetrics": metrics | {"dynastateCommitMs": ms, "dynastateThrottles": 2 * operator}}
        for operator, ms in enumerate(commit_ms)
    ]
    return json.dumps(report(batch, run=run, stateOperators=operators)) + "\n"


def commits(file: ReportFile, *runs: str) -> list[tuple[int, int]]:
    """Commit times and throttles of the last batch of some runs, by operator."""
    batch = file.last_batch(runs)
    return [(each["dynastateCommitMs"], each["dynastateThrottles"]) for each in (batch.operators if batch else ())]


def test_the_last_batch_by_operator(tmp_path: Path) -> None:
    """The last batch is that of the given runs, whatever else reports to the same file; empty, if they have none."""
    path = tmp_path / "progress.json"
    idle = json.dumps(report(9, durationMs={"triggerExecution": 2})) + "\n"
    path.write_text(committed(0, 1, 1) + committed(1, 30, 700) + "\n" + committed(5, 9, run="other") + idle)
    file = ReportFile(str(path))
    assert commits(file, "r") == commits(file, "r", "before") == [(30, 0), (700, 2)]
    assert commits(file, "other") == [(9, 0)]
    assert commits(file, "r", "other") == [(9, 0)]
    assert commits(file, "unknown") == []


def test_each_report_is_read_once(tmp_path: Path) -> None:
    """Lines are read once, here proved by breaking them. A line that is being written is read later."""
    path = tmp_path / "progress.json"
    first, second = committed(0, 1), committed(1, 20)
    path.write_text(first + second[:70])
    file = ReportFile(str(path))
    assert commits(file, "r") == commits(file, "r") == [(1, 0)]
    path.write_text("#" * len(first[:-1]) + "\n" + second)
    assert commits(file, "r") == [(20, 0)]
    with path.open("a") as appended:
        appended.write("no JSON\n")
    with pytest.raises(ConfigurationError, match=r"line 3 of \S+progress.json is not JSON"):
        file.last_batch(["r"])


@pytest.mark.parametrize("how", ["cut", "replaced"])
def test_a_file_that_starts_over_is_read_again(tmp_path: Path, how: str) -> None:
    """A file that is overwritten, or replaced by log rotation, is read from its start."""
    path = tmp_path / "progress.json"
    path.write_text(committed(0, 1) + committed(1, 2))
    file = ReportFile(str(path))
    assert commits(file, "r") == [(2, 0)]
    if how == "replaced":
        path.rename(tmp_path / "old")
    path.write_text(committed(2, 3) if how == "cut" else "".join(committed(2 + each, 3 + each) for each in range(5)))
    assert commits(file, "r") == ([(3, 0)] if how == "cut" else [(7, 0)])


@pytest.mark.parametrize("inline_bytes", [0, 256])
def test_units_of_a_commit_are_those_of_its_requests(memory_engine: Engine, store: str, inline_bytes: int) -> None:
    """Parts and the version list as it is then: with changes in it, and without."""
    memory_engine.commits.inline_bytes = inline_bytes
    newest = EMPTY
    for number in range(1, 21):
        row = {b"%03d" % number: random.Random(number).randbytes(190)}  # noqa: S311  # no secret
        committed = begin(memory_engine, store, attempt(number), row, base=newest).commit({0: 100}, SCHEMA)
        newest = committed.entry.id
        if number > 1:  # the first one also writes schema and meta item
            assert commit_units(store, committed.entry) == committed.meter.write_units


def test_puts_of_a_query_with_objects(memory: MemoryTables) -> None:
    """They are in the dollars of a day while it runs. Its fork has sent none."""
    noise = random.Random("noise")  # noqa: S311  # bytes that cannot be compressed
    print("seed=noise")  # noqa: T201  # shown by pytest when the test fails
    settings, store, clock = Settings(objects="s3://bucket/prefix"), "puts/0/0/default", iter([0.0, 100.0])
    with closing(Engine(memory, settings)) as engine:
        monitor = Monitor(engine, [store], lambda: next(clock), Prices.of(settings))
        versions = [write(engine, store, attempt(1), {b"key": noise.randbytes(20_000)})]
        monitor.look()
        meter = Meter()
        for number in range(2, 12):
            write_attempt = begin(engine, store, attempt(number), {b"key": noise.randbytes(20_000)}, base=versions[-1])
            meter.add(write_attempt.commit({0: 1}, SCHEMA).meter)
            versions.append(VersionId(number, write_attempt.attempt))
        (activity,) = monitor.look()
    dollars = Prices.of(settings).nanodollars(meter.write_units, 0, meter.puts) / 1e9
    assert meter.puts == 10
    assert activity.dollars_a_day == pytest.approx(dollars * 864, rel=0.01)
    assert usage_of_store(memory, store).puts == 11
    fork_namespace(memory, "puts", "forked", None)
    assert usage_of_store(memory, "forked/0/0/default").puts == 0
