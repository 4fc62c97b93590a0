"""New rows of state: queries whose schema changed, that begin with a frame, or whose checkpoint is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from dynastate import bootstrap, migrate, recover_checkpoint
from dynastate.errors import ConfigurationError
from dynastate.spark.transfer import jvm
from dynastate.spark.transfer.export import export_checkpoint
from dynastate.spark.transfer.rows import Change, Difference, preview
from tests.spark.conftest import CONF, ON_ROCKSDB, Sessions
from tests.spark.operators import CASES, sums
from tests.spark.state_reader import last_states, read_state, read_states
from tests.spark.streams import Source, Sources, make_rows, make_source, make_sources, run
from tests.support.jvm import SPARK

pytestmark = [
    pytest.mark.skipif(SPARK != jvm.SPARK, reason=f"new rows of state need Spark {jvm.SPARK}"),
    pytest.mark.usefixtures("clean_environment"),
]
SCHEMA = "count long, sum double"


def totals(rows: DataFrame, kind: str) -> DataFrame:
    return rows.groupBy("key").agg(f.count("*").alias("rows"), f.sum(f.col("amount").cast(kind)).alias("amount"))


def with_double(key: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    return {"count": value["count"], "sum": float(value["sum"])}


@pytest.fixture
def source(folder: Path) -> Source:
    result = make_source(folder / "source", seed=12, files=4)
    result.release(2)
    return result


@pytest.fixture
def stopped(sessions: Sessions, folder: Path, source: Source) -> Path:
    """A checkpoint of a query with sums of whole numbers that has stopped."""
    session = sessions({f"{CONF}.dynastate.namespace": f"{folder.name}-old"})
    run(totals(source.stream(session), "long"), folder / "old")
    return folder / "old"


@pytest.mark.slow
def test_a_migrated_query_gives_equal_results(stopped: Path, source: Source, sessions: Sessions, folder: Path) -> None:
    """A column is widened; without the migration Spark refuses the query."""
    differences = preview(sessions({}), str(stopped), str(folder / "new"), with_double, SCHEMA, most=3)
    result = migrate(sessions({}), str(stopped), str(folder / "new"), with_double, SCHEMA, f"{folder.name}-new")
    assert len(differences) == 3
    assert all(type(each.after["sum"]) is float and each.after == each.before for each in differences if each.after)
    reference = run(totals(source.stream(sessions(ON_ROCKSDB)), "double"), folder / "stays")
    source.release()
    ours = run(totals(source.stream(sessions(result.confs)), "double"), folder / "new")
    reference = run(totals(source.stream(sessions(ON_ROCKSDB)), "double"), folder / "stays")
    assert (ours.rows, ours.state) == (reference.rows, reference.state)
    state = last_states(sessions(result.confs), folder / "new", ours)
    assert state == last_states(sessions(ON_ROCKSDB), folder / "stays", ours)


@pytest.mark.slow
def test_rows_that_a_function_deletes_are_gone(stopped: Path, sessions: Sessions, folder: Path) -> None:
    """None deletes a row; the others keep their keys and partitions."""

    def change(key: dict[str, Any], value: dict[str, Any]) -> dict[str, Any] | None:
        return None if key["key"] in (None, "") else value

    rows = read_state(sessions({f"{CONF}.dynastate.namespace": f"{folder.name}-old"}), stopped).collect()
    rest = [row for row in rows if row["key"]["key"] not in (None, "")]
    assert len(rest) < len(rows)
    differences = preview(sessions({}), str(stopped), str(folder / "new"), change, "count long, sum long")
    result = migrate(sessions({}), str(stopped), str(folder / "new"), change, "count long, sum long", "deleted")
    assert {each.after is None for each in differences} == {True}
    assert differences[0] == Difference(differences[0].key, differences[0].before, None)
    assert result.rows == len(rest)
    new_rows = read_state(sessions(result.confs), folder / "new").collect()
    assert sorted(new_rows, key=repr) == sorted(rest, key=repr)


def fails(key: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    raise LookupError("no such row")


def no_dict(key: dict[str, Any], value: dict[str, Any]) -> Any:
    return [value]


#: A function or the arguments of a migration, and the message.
WRONG: dict[str, tuple[Change, dict[str, Any], str]] = {
    "raises": (fails, {}, "the function failed: LookupError.*no such row"),
    "another column": (
        lambda _, value: {**value, "other": 1},
        {},
        "exactly the columns count, sum, or None; got count",
    ),
    "no dict": (no_dict, {}, "the function must return exactly the columns"),
    "no DDL": (with_double, {"schema": "count, sum"}, "the schema is not DDL"),
    "no operator": (with_double, {"operator": 7}, "there is no such operator; the query has 0"),
    "no store": (with_double, {"store": "left"}, "give one of the operator's stores: default"),
    "the same namespace": (with_double, {"namespace": "{}-old"}, "the new state needs a namespace of its own"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_wrong_migrations_are_refused(name: str, stopped: Path, sessions: Sessions, folder: Path) -> None:
    change, changes, message = WRONG[name]
    arguments: dict[str, Any] = {"schema": SCHEMA, "namespace": "{}-wrong"} | changes
    arguments["namespace"] = arguments["namespace"].format(folder.name)
    with pytest.raises(ConfigurationError, match=message):
        migrate(sessions({}), str(stopped), str(folder / "new"), change, **arguments)
    assert not (folder / "new" / "commits").exists()


@pytest.mark.slow
def test_wrong_functions_are_found_by_a_preview(stopped: Path, sessions: Sessions, folder: Path) -> None:
    """Errors of the function, and of the types that it returns, come before anything is written."""
    for change, message in (
        (fails, "the function failed: LookupError.*no such row.* key="),
        (lambda _, value: {**value, "sum": "many"}, "the function returns other types than the schema's"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            preview(sessions({}), str(stopped), str(folder / "new"), change, SCHEMA)
    assert not (folder / "new").exists()


@pytest.mark.slow
def test_operators_with_column_families_are_not_migrated(sessions: Sessions, folder: Path) -> None:
    """Avro state encoding is for transformWithState."""
    old = CASES["transformWithState in Scala"].stopped(sessions({}), folder)
    with pytest.raises(ConfigurationError, match="rows of an operator with column families"):
        migrate(sessions({}), str(old), str(folder / "new"), with_double, SCHEMA, "another")


def test_query_begins_with_a_frame(source: Source, stopped: Path, sessions: Sessions, folder: Path) -> None:
    """Its state is then that of the frame and of all later batches, in the partitions that Spark looks in."""
    history = make_source(folder / "history", seed=13, files=5)
    history.release()
    session = sessions({})
    long_ago = totals(history.read(session), "long").select(
        f.col("amount").alias("sum"), f.col("rows").alias("count"), "key"
    )
    result = bootstrap(session, str(stopped), str(folder / "new"), long_ago, f"{folder.name}-new")
    assert result.rows == long_ago.count()
    with pytest.raises(AssertionError):  # the template's own state is not in it
        assert_same(sessions(result.confs), folder / "new", totals(source.read(session), "long"))
    assert_same(sessions(result.confs), folder / "new", totals(history.read(session), "long"))
    source.release()
    run(totals(source.stream(sessions(result.confs)), "long"), folder / "new")
    rest = source.read(session).where("file >= 2")
    assert_same(sessions(result.confs), folder / "new", totals(history.read(session).union(rest), "long"))


def assert_same(session: Any, checkpoint: Path, expected: DataFrame) -> None:
    state = read_state(session, checkpoint).select("key.key", "value.count", "value.sum").collect()
    rows = expected.select("key", f.col("rows").alias("count"), f.col("amount").alias("sum")).collect()
    assert sorted(state, key=repr) == sorted(rows, key=repr)


@pytest.mark.slow
def test_wrong_frames_are_refused(stopped: Path, sessions: Sessions, folder: Path) -> None:
    session = sessions({})
    rows = session.createDataFrame([("a", 1, 2), ("b", 3, 4)], "key string, count long, sum long")
    for frame, message in (
        (rows.union(rows), "two rows have the same key; nothing was written.* key=[ab]"),
        (rows.drop("sum"), "the frame needs the columns key and value, or exactly the columns key, count, sum"),
        (rows.withColumn("sum", f.col("sum").cast("int")), "a column of the frame must be bigint; cast it column=sum"),
        (
            rows.select(
                f.when(f.col("key") != "a", f.struct("key")).alias("key"), f.struct("count", "sum").alias("value")
            ),
            "a row has a null where the state has none.* columns=key",
        ),
        (rows.select("key", f.col("sum").alias("value")), "this column of the frame must be a struct column=key"),
        (
            rows.select(f.struct("key").alias("key"), f.struct("sum").alias("value")),
            "the struct value needs exactly the columns count, sum",
        ),
    ):
        with pytest.raises(ConfigurationError, match=message):
            bootstrap(session, str(stopped), str(folder / "new"), frame, f"{folder.name}-new")
        assert not (folder / "new" / "commits").exists()


@pytest.mark.parametrize(
    ("name", "conf"),
    [
        ("aggregation in update mode", {}),
        pytest.param("transformWithState in Scala", {f"{CONF}.checkpointFormatVersion": "2"}, marks=pytest.mark.slow),
        pytest.param("stream-stream join, inner", {}, marks=pytest.mark.slow),
    ],
)
def test_query_without_checkpoint_goes_on(name: str, conf: Mapping[str, str], sessions: Sessions, folder: Path) -> None:
    """A template that has read the last data again continues from the lost state, as if nothing had happened."""
    case, namespace = CASES[name], f"{folder.name}-lost"
    sources = make_sources(folder / "sources", seed=14, files=4)
    sources.release(3)
    case.start(sessions({**conf, f"{CONF}.dynastate.namespace": namespace}), sources, folder / "old").finish()
    shutil.rmtree(folder / "old")
    case.start(sessions({**ON_ROCKSDB, **conf}), sources, folder / "stays").finish()
    sources.release()
    reference = case.start(sessions({**ON_ROCKSDB, **conf}), sources, folder / "stays").finish()

    ends = Sources(*(Source(folder / f"end-{seed}", [make_rows(seed, file) for file in (2, 3)]) for seed in (14, 15)))
    ends.release(1)
    case.start(sessions(conf), ends, folder / "template").finish()
    result = recover_checkpoint(
        sessions({}), namespace, str(folder / "template"), str(folder / "new"), f"{folder.name}-new"
    )
    ends.release()
    ours = case.start(sessions({**conf, **result.confs}), ends, folder / "new").finish()
    assert ours.rows[max(ours.rows)] == reference.rows[max(reference.rows)]
    states = [
        [row[1:] for row in last_states(sessions(options), folder / name, outcome)]
        for options, name, outcome in ((result.confs, "new", ours), ({**ON_ROCKSDB, **conf}, "stays", reference))
    ]
    assert states[0] == states[1]


def test_a_copied_checkpoint_is_refused(stopped: Path, source: Source, sessions: Sessions, folder: Path) -> None:
    """Its files name the state of the original, which has gone on; recovery reads no state by its template's files."""
    copy, new, namespace = str(shutil.copytree(stopped, folder / "copy")), folder / "new", f"{folder.name}-new"
    source.release()
    old = sessions({f"{CONF}.dynastate.namespace": f"{folder.name}-old"})
    run(totals(source.stream(old), "long"), stopped)
    expected = read_states(old, stopped, range(3, 4))
    session = sessions({})
    frame = session.createDataFrame([("a", 1, 2)], "key string, count long, sum long")
    commands: dict[str, Callable[[], object]] = {
        "preview": lambda: preview(session, copy, str(new), with_double, SCHEMA),
        "migrate": lambda: migrate(session, copy, str(new), with_double, SCHEMA, namespace),
        "bootstrap": lambda: bootstrap(session, copy, str(new), frame, namespace),
        "export": lambda: export_checkpoint(session, copy, str(new), "rocksdb"),
    }
    for name, command in commands.items():
        with pytest.raises(ConfigurationError, match="which belongs to the checkpoint"):
            command()
        assert not new.exists(), name
    result = recover_checkpoint(session, f"{folder.name}-old", copy, str(new), namespace)
    states = read_states(sessions(result.confs), new, range(result.batch, result.batch + 1))
    assert [row[1:] for row in states] == [row[1:] for row in expected]
    assert len(states) == result.rows
    original = sessions({f"{CONF}.dynastate.namespace": f"{folder.name}-old"})
    assert read_states(original, stopped, range(3, 4)) == expected


@pytest.mark.slow
def test_foreign_templates_are_refused(stopped: Path, source: Source, sessions: Sessions, folder: Path) -> None:
    """The stores, their partitions and the rows' schema must be those of the lost query."""
    old_namespace = f"{folder.name}-old"

    def recover(template: str, namespace: str, name: str = "new") -> None:
        recover_checkpoint(sessions({}), namespace, str(folder / template), str(folder / name), f"{folder.name}-new")

    other = {"spark.sql.shuffle.partitions": "3", f"{CONF}.dynastate.namespace": f"{folder.name}-three"}
    run(totals(source.stream(sessions(other)), "long"), folder / "three")
    with pytest.raises(ConfigurationError, match="the template has other stores than the namespace"):
        recover("three", old_namespace)
    run(sums(source.stream(sessions({})), "key"), folder / "sums")
    with pytest.raises(ConfigurationError, match="the template's rows have another schema than the state"):
        recover("sums", old_namespace)
    with pytest.raises(ConfigurationError, match="the new state needs a namespace of its own"):
        recover("old", f"{folder.name}-new")
    with pytest.raises(ConfigurationError, match="no store of this namespace"):
        recover("old", "nothing-here")
    assert not (folder / "new").exists()
