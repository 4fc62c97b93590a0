"""`open_state` compared with Spark's own state reader: every stateful operator, and every column type."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.engine import Engine
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.reader.json_rows import key_from_json, parse_json, row_to_json
from dynastate.reader.sql import answer
from tests.spark.conftest import CONF, Database, Open, Sessions
from tests.spark.operators import CASES, sums
from tests.spark.state_reader import parts_of, read_metadata, read_state
from tests.spark.streams import make_source, make_sources, run
from tests.support.processes import wait_until
from tests.unit.unsaferow.test_types import VECTORS

FILES = 3
PARTITIONS = 5
#: Those of `make test`: a value, a list, two stores a partition, and column families.
QUICK = (
    "aggregation in append mode",
    "session windows",
    "stream-stream join, full outer",
    "transformWithState in Scala",
)
#: One operator for each way to keep state.
OPERATORS = (
    "aggregation in append mode",
    "aggregation in update mode",
    "global aggregation",
    "dropDuplicates",
    "dropDuplicatesWithinWatermark",
    "limit",
    "applyInPandasWithState",
    "stream-stream join, full outer",
    "session windows",
    "transformWithStateInPandas",
    "transformWithState, row by row",
    "transformWithState in Scala",
    "join, then deduplication, then windows",
)


def leaves(value: Any) -> Iterator[Any]:
    """The leaf values of a value, without names; times as PySpark has them, in the zone of this machine."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, datetime) and value.tzinfo is not None:
        yield value.astimezone().replace(tzinfo=None)
    else:
        yield value


def of_state(rows: list[dict[str, Any]], lists: str) -> list[Any]:
    """Rows as Spark's reader has them: one for each value of a list."""
    return [row | {lists: value} for row in rows for value in row[lists]] if lists else rows


def flat(rows: list[Any]) -> list[str]:
    return sorted(repr(tuple(leaves(row))) for row in rows)


def of_spark(session: SparkSession, checkpoint: Path, options: Mapping[str, str]) -> list[Any]:
    return read_state(session, checkpoint, **options).drop("partition_id", "expiration_timestamp").collect()


def namespace_of(checkpoint: Path) -> str:
    marker = next((checkpoint / "state" / "0").rglob("dynastate")).read_text()
    return marker.strip().partition("store=")[2].split("/")[0]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in OPERATORS]
)
def test_rows_are_those_of_sparks_reader(name: str, sessions: Sessions, opened: Open, folder: Path) -> None:
    """At each version, scans and look-ups give the rows of Spark's reader, in the partition of the key's hash."""
    case = CASES[name]
    session = sessions({**case.conf, "spark.sql.shuffle.partitions": str(PARTITIONS)})
    sources = make_sources(folder, seed=5, files=FILES)
    sources.release()
    outcome = case.start(session, sources, folder / "checkpoint").finish()
    namespace, rows = namespace_of(folder / "checkpoint"), 0
    for store, options in parts_of(read_metadata(session, folder / "checkpoint")):
        if "readRegisteredTimers" in options:
            continue
        state = opened(f"{namespace}/{store}", family=options.get("stateVarName", ""))
        assert state.version == len(outcome.rows)
        assert len(state.stores) == (1 if name.startswith(("global", "limit")) else PARTITIONS)
        for version in (2, state.version):
            expected = of_spark(session, folder / "checkpoint", options | {"batchId": str(version - 1)})
            actual = of_state(list(state.at(version)), state.list_column if state.has_lists else "")
            assert flat(actual) == flat(expected)
        assert len(state) == len(list(state))
        for row in list(state)[:40]:
            key = {column: row[column] for column in state.key_columns.names}
            assert state.get(key) == row
            assert state.key_columns.names == tuple(key)
        rows += len(state)
        null_key = dict.fromkeys(state.key_columns.names)
        if len(state) > 20:
            assert state.get(null_key) == next((row for row in state if row.items() >= null_key.items()), None)
            assert state._placement.is_confirmed is not False
    assert rows > 0


def test_vectors_are_what_this_spark_makes(spark: SparkSession) -> None:
    for vector in VECTORS["rows"]:
        frame = spark.sql(f"select {vector['sql']}")
        (row,) = frame._jdf.queryExecution().executedPlan().executeCollect()
        assert bytes(row.getBytes()).hex() == vector["bytes"]
        assert frame.schema.jsonValue() == vector["schema"]
        if vector["hash"] is not None:
            assert frame.select(f.hash(*frame.columns)).head() == (vector["hash"],)


#: Columns of a key, and of a value, of every type that PySpark can collect.
KEY_TYPES = """key, cast(id as byte) a, cast(id as short) b, cast(id as int) c, id d, cast(id as float) e,
    cast(id as double) / 3 g, id % 2 = 0 h, cast(id as decimal(10, 2)) i, cast(id as decimal(30, 2)) * -1000000000000 j,
    date_add(date'2024-01-01', cast(id as int)) k, at l, cast(at as timestamp_ntz) m, cast(note as binary) n,
    struct(id as x, struct(note as z) as y) o, array(note, null, key) p, make_dt_interval(cast(id as int)) q"""
VALUE_TYPES = {
    "map": "map(key, id)",
    "deep": "array(map('a', array(struct(id as i, note as s))))",
    "decimals": "array(cast(id as decimal(38, 3)), null)",
    "nothing": "cast(null as struct<a: decimal(20, 1), b: string>)",
}


def test_every_column_type(sessions: Sessions, opened: Open, folder: Path) -> None:
    session = sessions({"spark.sql.shuffle.partitions": "3"})
    source = make_source(folder / "files", seed=9, files=2)
    source.release()
    rows = source.stream(session).where("key is not null")
    columns = ", ".join([KEY_TYPES, *(f"{sql} as {name}" for name, sql in VALUE_TYPES.items())])
    rows.createOrReplaceTempView("every_type")
    frame = session.sql(f"select {columns} from every_type")  # noqa: S608  # our own
    values = [f.first(name).alias(name) for name in VALUE_TYPES]
    keys = [name for name in frame.columns if name not in VALUE_TYPES]
    run(frame.groupBy(*keys).agg(*values), folder / "checkpoint")
    state = opened(f"{namespace_of(folder / 'checkpoint')}/0")
    expected = of_spark(session, folder / "checkpoint", {})
    state_rows = list(state)
    assert len(state_rows) > 50
    assert flat(state_rows) == flat(expected)
    requests = state.meter.requests
    for row in state_rows[:10]:
        assert state.get({name: row[name] for name in state.key_columns.names}) == row
    assert state.meter.requests - requests <= 10 * 3
    assert state.to_arrow().num_rows == len(state_rows)


@pytest.mark.slow
def test_a_query_runs_on_beside_compact_and_clean(
    fresh_stores: None, sessions: Sessions, opened: Open, folder: Path, database: Database, tables: BotoTables
) -> None:
    """Snapshots and clean-ups on request after each batch disturb neither the query nor readers."""
    conf = {f"{CONF}.maintenanceInterval": "100ms", f"{CONF}.minDeltasForSnapshot": "1"}
    session = sessions(conf | {"spark.sql.streaming.minBatchesToRetain": "2", "spark.sql.shuffle.partitions": "2"})
    source = make_source(folder / "files", seed=12, files=8)
    source.release(1)
    frame = sums(source.stream(session), "key", "file")
    batches: list[int] = []

    def sink(batch: DataFrame, number: int) -> None:
        batch.collect()
        batches.append(number)

    writer = frame.writeStream.outputMode("update").foreachBatch(sink)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    with closing(Engine(tables, replace(database.settings, cache_mb=1))) as engine:
        try:
            for batch in range(8):
                wait_until(lambda batch=batch: batch in batches or not query.isActive, f"no batch {batch}", 60)  # type: ignore[misc]  # of this turn
                assert query.exception() is None
                if batch == 0:
                    state = opened(f"{namespace_of(folder / 'checkpoint')}/0")
                source.release(min(batch + 2, 8))
                snapshots = [compact_store(engine, tables, store) for store in state.stores]
                assert all(each is None or each.rows for each in snapshots)
                for store in state.stores:
                    clean_store(engine, tables, store, 2)
                state.refresh()
                rows = list(state)
                assert len(rows) == len(state) > 0
                assert state.get({name: rows[0][name] for name in ("key", "file")}) == rows[0]
        finally:
            query.stop()
        expected = sums(source.read(session), "key", "file").collect()
        state.refresh()
        assert flat(list(state)) == flat(expected)
        assert all(verify(tables, store).is_whole for store in state.stores)


#: Columns of a key with values that Python's types cannot hold, or that Spark takes for equal to others. Beside each is
#: the number that Spark stores for it, by Spark's own functions. `number` is 0, 1 or 2.
EXTREME_KEYS = {
    "far": (
        "timestamp_micros(array(1700000000000000000, -62135596800000001, 1714564800000001)[number])",
        "unix_micros({})",
    ),
    "ntz": (
        "cast(timestamp_micros(array(1700000000000000000, -62135596800000001, 0)[number]) as timestamp_ntz)",
        "unix_micros(cast({} as timestamp))",
    ),
    "day": ("date_from_unix_date(array(10000000, -719163, 0)[number])", "unix_date({})"),
    "clock": ("cast(concat('12:00:00.12345', array('6789', '6001', '6002')[number]) as time(9))", "cast({} as string)"),
    "zero": ("array(double('-0.0'), double('NaN'), double('Infinity'))[number]", "{}"),
    "single": ("array(float('-0.0'), float('NaN'), float('0.1'))[number]", "{}"),
    "long": ("cast(number || '2345678901234567890.123456789012345678' as decimal(38, 18))", "{}"),
    # So Spark calls a map by which it groups.
    "_groupingmapsort": ("map(double('NaN'), 1, double('-0.0'), 2, double(number + 1), 3)", "to_json({})"),
    "gap": ("make_dt_interval(number, 1, 2, 3.456789)", "{}"),
    "userId": ("cast(number as string)", "{}"),
    "userid": ("cast(-number as string)", "{}"),
}


def map_text(value: dict[float, int]) -> str:
    return "{" + ",".join(f'"{str(key).replace("nan", "NaN")}":{each}' for key, each in value.items()) + "}"


@pytest.fixture
def times(spark: SparkSession) -> Iterator[None]:
    """Columns of type time in every session. A streaming query asks the first one whether it may have them."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    yield
    spark.conf.unset("spark.sql.timeType.enabled")


def test_extreme_values_are_those_of_sparks_reader(times: None, sessions: Sessions, opened: Open, folder: Path) -> None:
    """All in one key: each is Spark's number, is found by what a reader gave, and by what Spark takes for equal."""
    conf = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.caseSensitive": "true",
        "spark.sql.timeType.enabled": "true",
    }
    session = sessions(conf | {"spark.sql.shuffle.partitions": "2"})
    source = make_source(folder / "files", seed=9, files=1)
    source.release()
    source.stream(session).selectExpr("cast(id % 3 as int) as number").createOrReplaceTempView("numbers")
    columns = ", ".join(f"{sql} as `{name}`" for name, (sql, _) in EXTREME_KEYS.items())
    session.sql(f"select {columns} from numbers").createOrReplaceTempView("extremes")  # noqa: S608  # our own
    names = ", ".join(f"`{name}`" for name in EXTREME_KEYS)
    counts = session.sql(f"select {names}, count(*) as n from extremes group by {names}")  # noqa: S608  # our own
    run(counts.select("n"), folder / "checkpoint")  # Python could not collect the others
    state = opened(f"{namespace_of(folder / 'checkpoint')}/0")
    state_rows = list(state)
    assert len(state_rows) == 3
    kinds = dict(zip(state.columns.names, state.columns.types, strict=True))
    frame = read_state(session, folder / "checkpoint")
    numbers = [expression.format(f"key.`{name}`") for name, (_, expression) in EXTREME_KEYS.items()]
    expected = [tuple(row) for row in frame.selectExpr(*numbers, "value.*").collect()]
    texts: dict[str, Any] = {"clock": kinds["clock"].to_json, "_groupingmapsort": map_text}
    for name in ("far", "ntz", "day"):
        texts[name] = kinds[name].give  # type: ignore[attr-defined]
    rows = [tuple(texts.get(name, lambda value: value)(value) for name, value in row.items()) for row in state_rows]
    assert sorted(map(repr, rows)) == sorted(map(repr, expected))
    with answer(state, "from state") as result:
        json_rows = list(result.as_json())
    for row, of_sql in zip(state_rows, json_rows, strict=True):
        key = {name: row[name] for name in EXTREME_KEYS}
        in_json = row_to_json(state.key_columns, key)
        assert repr(state.get(key)) == repr(row)
        assert repr(state.get(key_from_json(state.key_columns, parse_json(json.dumps(in_json))))) == repr(row)
        equal_key = key | {
            "zero": key["zero"] or -0.0,
            "_groupingmapsort": dict(reversed(key["_groupingmapsort"].items())),
        }
        assert repr(state.get(equal_key)) == repr(row)
        assert {name: of_sql[name] for name in ("far", "ntz", "day", "clock")} == {
            name: (in_json or {})[name] for name in ("far", "ntz", "day", "clock")
        }
    assert state.to_arrow().num_rows == 3
