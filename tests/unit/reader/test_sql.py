"""SQL over state: tables, what they read, what DuckDB may not, errors, and memory."""

from __future__ import annotations

import gc
import json
import struct
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, CorruptStateError, VersionMissingError
from dynastate.format.keys import EMPTY
from dynastate.format.parts import Chunk
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.reader.sql import answer
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from dynastate.unsaferow.schema import parse_schema
from tests.support.memory_tables import MemoryTables
from tests.support.samples import attempt, query_run
from tests.support.store_builder import StoreBuilder, counted, family, user
from tests.support.store_builder import struct as struct_type

Ask = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def state(memory: MemoryTables, written: StoreBuilder) -> Iterator[StateReader]:
    with StateReader(memory, Settings(), written.store) as opened:
        yield opened


@pytest.fixture
def ask(memory: MemoryTables) -> Ask:
    def one(store: str, query: str, family: str | None = None, **options: Any) -> list[dict[str, Any]]:
        with StateReader(memory, Settings(), store, family) as opened, answer(opened, query, **options) as result:
            return list(result.as_json())

    return one


def test_state(state: StateReader) -> None:
    with state.to_duckdb() as connection:
        assert connection.sql("from state order by user").fetchall() == [(0, "a", 2, ""), (0, "c", 1, "")]
        types = dict(connection.sql("select column_name, column_type from (describe state)").fetchall())
    assert types == {"partition_id": "INTEGER", "user": "VARCHAR", "count": "BIGINT", "note": "VARCHAR"}
    with state.at(1).to_duckdb() as connection:
        assert connection.sql("select user, count from state order by all").fetchall() == [("a", 1), ("b", 1)]


def test_changes(written: StoreBuilder, ask: Ask) -> None:
    result = ask(written.store, "select version, kind, user, count from changes order by all")
    assert [tuple(each.values()) for each in result] == [
        (1, "put", "a", 1),
        (1, "put", "b", 1),
        (2, "put", "a", 2),
        (2, "put", "c", 1),
        (3, "remove", "b", None),
    ]
    assert ask(written.store, "select distinct version from changes", after=2) == [{"version": 3}]
    assert ask(written.store, "from changes", after=3) == []


def test_changes_that_are_deleted(written: StoreBuilder, memory: MemoryTables, memory_engine: Engine, ask: Ask) -> None:
    """None of them is left out without a word."""
    written.count_to(6)
    assert compact_store(memory_engine, memory, written.store) is not None
    written.count_to(9)
    assert clean_store(memory_engine, memory, written.store, 3).items > 0
    assert [each["version"] for each in ask(written.store, "from changes")] == [8, 9]
    with pytest.raises(VersionMissingError):
        ask(written.store, "from changes", after=3)


def test_versions(written: StoreBuilder, ask: Ask) -> None:
    """Each version of each partition has what its version entry says; those above the view's are left out."""
    result = ask(written.store, "from versions order by version")
    assert [(each["version"], each["rows"], each["changes"], each["partition_id"]) for each in result] == [
        (1, 2, 2, 0),
        (2, 3, 2, 0),
        (3, 2, 1, 0),
    ]
    assert result[0]["attempt"] == attempt(1).hex()
    assert result[0]["committed"] == "2025-01-01T00:00:00Z"


def test_column_families(memory_engine: Engine, store: str, ask: Ask) -> None:
    """Of several, each has tables by its name, Spark's own included; the chosen one has the short names too."""
    families = family(), family(1, "Seen"), family(2, "seen", multiple=True), family(3, "$ttl", internal=True)
    builder = StoreBuilder(memory_engine, store, *families)
    builder.commit((user("a"), counted(1)), of=1)
    builder.commit((user("a"), counted(1)), (user("a"), counted(2)), of=2)
    tables = {each["name"] for each in ask(store, "show tables")}
    names = ("Seen", "seen#2", "$ttl")
    assert tables == {"versions", *(f"{of}_{name}" for of in ("state", "changes") for name in names)}
    values = [{"count": number, "note": ""} for number in (1, 2)]
    assert ask(store, 'select values from "state_seen#2"') == [{"values": values}]
    assert ask(store, 'select values from "changes_seen#2"') == [{"values": [each]} for each in values]
    assert ask(store, "select count from state", "Seen") == [{"count": 1}]
    assert ask(store, "select sum(rows) as rows from versions where version = 2") == [{"rows": 2}]
    with pytest.raises(ConfigurationError, match=r"Table with name state does not exist.*; tables are state_Seen, "):
        ask(store, "select user from state")


def test_columns_of_our_names(memory_engine: Engine, store: str, ask: Ask) -> None:
    """Where a row has a column of that name, ours is numbered."""
    builder = StoreBuilder(
        memory_engine, store, family(key=(("version", "string"),), value=(("partition_id", "long"),))
    )
    builder.commit(({"version": "a"}, {"partition_id": 7}))
    assert ask(store, "from state") == [{"partition_id#2": 0, "version": "a", "partition_id": 7}]
    (change,) = ask(store, "from changes")
    assert (change["version#2"], change["kind"], change["version"]) == (1, "put", "a")


def test_partitions_are_joined(memory: MemoryTables, memory_engine: Engine, ask: Ask) -> None:
    for partition in range(3):
        builder = StoreBuilder(memory_engine, f"many/0/{partition}/default")
        builder.commit(*((user(f"{partition}-{number}"), counted(number)) for number in range(partition + 1)))
        builder.commit((user(f"{partition}-0"), counted(9)))
    result = ask("many/0", "select partition_id, count(*) as rows from state group by all order by all")
    assert [tuple(each.values()) for each in result] == [(0, 1), (1, 2), (2, 3)]
    joined = "select count(*) as n from state join changes using (user, count) where version = 2"
    assert ask("many/0", joined) == [{"n": 3}]


def test_values_are_spelt_as_in_other_commands(memory_engine: Engine, store: str, ask: Ask) -> None:
    """Nested values, times, decimals and bytes; and values that only DuckDB makes."""
    kinds = [
        ("since", "timestamp"),
        ("price", "decimal(5,2)"),
        ("raw", "binary"),
        ("m", struct_type([("x", "double")])),
    ]
    builder = StoreBuilder(memory_engine, store, family(value=kinds))
    builder.commit((user("a"), {"since": None, "price": None, "raw": b"\x00\xff", "m": {"x": float("nan")}}))
    assert ask(store, "select since, price, raw, m from state") == [
        {"since": None, "price": None, "raw": "AP8=", "m": {"x": "nan"}}
    ]
    made_up = (
        "select map([1], ['a']) m, {'a': [1.50]} s, '00000000-0000-0000-0000-000000000001'::uuid u, 1 as a, 2 as a"
    )
    assert ask(store, made_up) == [
        {"m": [[1, "a"]], "s": {"a": ["1.50"]}, "u": "00000000-0000-0000-0000-000000000001", "a": 1, "a#2": 2}
    ]


def test_a_table_that_is_not_named_is_not_read(state: StateReader) -> None:
    """Names of tables and columns, and the versions, take no request; a query reads its tables each time."""
    with state.to_duckdb() as connection:
        requests = state.meter.requests
        connection.sql("show tables").fetchall()
        connection.sql("describe changes").fetchall()
        assert len(connection.sql("from versions").fetchall()) == 3
        assert state.meter.requests == requests
        for _ in range(2):
            assert connection.sql("select count(*) from state").fetchall() == [(2,)]
        assert state.meter.requests > requests


@pytest.mark.parametrize(
    "query",
    [
        "from read_csv('{file}')",
        "from read_text('{file}')",
        "from glob('{file}')",
        "from '{file}'",
        "copy state to '{file}.csv'",
        "attach '{file}.db'",
        "export database '{file}.d'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "set lock_configuration = false",
        "set temp_directory = '{file}.t'",
        "from read_csv('https://localhost:1/x.csv')",
    ],
)
def test_duckdb_touches_nothing(state: StateReader, tmp_path: Path, query: str) -> None:
    """No statement reads or writes a file, loads an extension, or changes the configuration."""
    file = tmp_path / "secret"
    file.write_text("a\n1\n")
    with state.to_duckdb() as connection, pytest.raises(duckdb.Error, match=r"disabled|locked|does not exist"):
        connection.execute(query.format(file=file))
    assert list(tmp_path.iterdir()) == [file]


def test_external_access_is_opened_on_request(state: StateReader, tmp_path: Path) -> None:
    """Then a query reads files beside the state; variables of the program are no tables in either case."""
    users = tmp_path / "users.csv"
    users.write_text("user,name\na,Anna\n")
    with state.to_duckdb(external_access=True) as connection:
        joined = connection.sql(f"select name, count from state join '{users}' using (user)")  # noqa: S608  # a file of ours
        assert joined.fetchall() == [("Anna", 2)]
        with pytest.raises(duckdb.CatalogException):
            connection.sql("from joined")


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("selec 1", r'the query fails: Parser Error: syntax error at or near "selec"$'),
        ("select cuont from state", r"Referenced column \"cuont\" not found .*count"),
        ("from stat", r"Table with name stat does not exist.*; tables are state, changes, versions$"),
        ("select 1 / 'a' from state", r"the query fails: Conversion Error"),
        ("from read_csv('/etc/hosts')", r"disabled by configuration; --external-access, or external_access=True"),
        ("", r"give one query, as in: select count\(\*\) from state; state is only read got=nothing"),
        ("select 1; select 2", r"give one query.* got=select, select"),
        ("create table x as from state", r"give one query.* got=create"),
        ("drop view state", r"give one query.* got=drop"),
        (b"select '\xff'".decode(errors="surrogateescape"), r"the query has bytes that are not UTF-8"),
    ],
)
def test_errors_say_what_to_do(written: StoreBuilder, ask: Ask, query: str, said: str) -> None:
    """In one line, without the place in the query."""
    with pytest.raises(ConfigurationError, match=said) as error:
        ask(written.store, query)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("external_access", [False, True])
def test_rows_never_wait_on_disk(
    state: StateReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, external_access: bool
) -> None:
    """A sort of 200 MB in 64 MiB is an error that says what to do, and leaves no file; in enough memory it is done."""
    monkeypatch.chdir(tmp_path)
    large = (
        "select * from (select md5(range::varchar) as h, repeat(h, 6) as t from range(900000)) order by h limit 600000"
    )
    options: dict[str, Any] = {"memory_mb": 64, "external_access": external_access}
    message = r"Out of Memory Error.*; rows never wait on disk: --memory-mb, or memory_mb, lets it take more memory"
    with pytest.raises(ConfigurationError, match=message), answer(state, large, **options) as result:
        next(result.rows)
    with state.to_duckdb(**options) as connection, pytest.raises(duckdb.OutOfMemoryException):
        connection.execute(large).fetchone()
    with answer(state, large.replace("900000", "90000"), memory_mb=256) as result:
        assert len(next(result.rows)[1]) == 192
    assert list(tmp_path.iterdir()) == []


def test_times_are_in_utc(memory_engine: Engine, store: str, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever zone the machine is in: values, days and hours are those of UTC, as in other commands."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        builder = StoreBuilder(memory_engine, store, family(value=[("since", "timestamp")]))
        builder.commit((user("a"), {"since": datetime(2024, 5, 1, 2, 30, tzinfo=timezone.utc)}))
        query = (
            "select since, since::date as day, hour(since) as hour, date_trunc('day', since) as begun, since::text as t"
        )
        assert ask(store, f"{query} from state") == [
            {
                "since": "2024-05-01T02:30:00Z",
                "day": "2024-05-01",
                "hour": 2,
                "begun": "2024-05-01T00:00:00Z",
                "t": "2024-05-01 02:30:00+00",
            }
        ]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_column_called_as_a_word_of_sql(memory_engine: Engine, store: str, ask: Ask) -> None:
    """As `window` of an aggregation by windows is: the error says that it needs quotes."""
    builder = StoreBuilder(memory_engine, store, family(key=[("window", "string")], value=[("count", "long")]))
    builder.commit(({"window": "a"}, {"count": 1}))
    message = r'syntax error at or near ","; a column that is called as a word of SQL needs double quotes: "window"$'
    with pytest.raises(ConfigurationError, match=message):
        ask(store, "select window, count from state")
    assert ask(store, 'select "window", count from state') == [{"window": "a", "count": 1}]
    with pytest.raises(ConfigurationError, match=r'near "selec"$'):
        ask(store, 'selec "window" from state')


def test_an_error_of_the_state_is_its_own(memory: MemoryTables, written: StoreBuilder, ask: Ask) -> None:
    """A lost part is reported as everywhere, not as an error of the query; of the next query, there is none left."""
    part = next(key for key in memory.items if key.role == "delta")
    lost = memory.items.pop(part)
    with StateReader(memory, Settings(cache_mb=0), written.store) as state:
        with pytest.raises(CorruptStateError, match="is not in its table"), answer(state, "from state"):
            pass
        memory.items[part] = lost
        with answer(state, "select count(*) from state") as result:
            assert list(result.rows) == [(2,)]


def rss_mb(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) // 1024


@pytest.mark.slow
@pytest.mark.serial
def test_memory_is_bounded_at_a_million_rows(memory: MemoryTables, memory_engine: Engine, store: str) -> None:
    """Of 1,000,000 rows of 250 bytes in one partition, less than 250 MB more are in memory, whatever is asked."""
    rows, described = 1_000_000, family(key=(("id", "long"),), value=(("count", "long"), ("note", "string")))
    value = parse_schema(described["value"]).encode({"count": 7, "note": "x" * 200})
    head, key = struct.pack("<HIi", 0, 16, len(value)), struct.Struct("<qq").pack  # a put into the first family
    under_way = memory_engine.begin(store, query_run(), *EMPTY, attempt(1))
    for first in range(0, rows, 800):
        raw = b"".join(head + key(0, number) + value for number in range(first, first + 800))
        under_way.append(Chunk(800, 0, (1 << 32) - 1, raw))
    under_way.commit({0: rows}, json.dumps({"families": [described]}))
    queries = {
        "select count(*), sum(count), max(length(note)), count(distinct id) from state": [(rows, 7 * rows, 200, rows)],
        "select id, note from state": None,
    }
    with StateReader(memory, Settings(), store) as state:
        for query, expected in queries.items():
            gc.collect()
            Path("/proc/self/clear_refs").write_text("5")  # the peak is reset
            base_mb = rss_mb("VmRSS")
            with answer(state, query) as result:
                fetched = sum(expected is None or row == expected[0] for row in result.rows)
            assert fetched == (rows if expected is None else 1)
            assert rss_mb("VmHWM") - base_mb < 250, query
