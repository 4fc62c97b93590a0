"""Values of every type of Spark through every reader: Python, JSON, Arrow, pandas, Parquet, SQL and the page.

Each gives the value that was stored, or its number or text, and each key that a reader gives is found again.
"""

from __future__ import annotations

import json
import math
import struct as packing
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.reader.arrow import write_parquet
from dynastate.reader.json_rows import json_text, key_from_json, parse_json, parse_key, row_to_json
from dynastate.reader.sql import answer
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from dynastate.ui.texts import shown
from dynastate.unsaferow.nested import Map, Struct, unique
from dynastate.unsaferow.scalars import RawNumber, scaled
from dynastate.unsaferow.schema import parse_schema
from dynastate.unsaferow.types import CalendarInterval
from tests.support.engine_driver import make_engine
from tests.support.memory_tables import MemoryTables
from tests.support.store_builder import StoreBuilder, counted, family, struct, user

Make = Callable[[int], Any]
#: One of other bits than Python has.
ODD_NAN: float = packing.unpack("<d", bytes.fromhex("010000000000f87f"))[0]
LONGS = st.one_of(st.sampled_from([0, 1, -1, 2**63 - 1, -(2**63), 17 * 10**17]), st.integers(-(2**63), 2**63 - 1))
INTS = st.one_of(st.sampled_from([0, 2**31 - 1, -(2**31), 10**7]), st.integers(-(2**31), 2**31 - 1))
FLOATS = st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, math.nan, math.inf])
TEXTS = st.text(max_size=5) | st.sampled_from(["", "\x00", "ä鍵😀", "\udcff", "'\"\\"])


def numbers(kind: Any, values: st.SearchStrategy[int]) -> st.SearchStrategy[Any]:
    """Values of a type whose slot has these numbers."""
    (read,) = parse_schema(struct([("c", kind)])).types
    return values.map(lambda number: read.read(packing.pack("<q", number), 0, 0, 8))


def record(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(*fields.values()).map(lambda values: dict(zip(fields, values, strict=True)))


def decimals(digits: int, scale: int) -> st.SearchStrategy[Any]:
    last = 10**digits - 1
    whole = st.sampled_from([0, last, -last]) | st.integers(-last, last)
    return whole.map(lambda number: scaled(number, digits, scale))


ARRAY = {"type": "array", "elementType": "timestamp", "containsNull": True}
INNER = struct([("a", "double"), ("A", "time(9)"), ("a#2", "string")])
MAP = {"type": "map", "keyType": "double", "valueType": "date", "valueContainsNull": True}
TO_LONG = {"type": "map", "keyType": "double", "valueType": "long", "valueContainsNull": True}
TEXT_MAP = {"type": "map", "keyType": "string", "valueType": "decimal(38,18)", "valueContainsNull": True}
NANOS = st.sampled_from([0, 1, 999, 43_200_123_456_789, 86_400 * 10**9 - 1]) | st.integers(0, 86_400 * 10**9 - 1)
TYPES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "boolean": ("boolean", st.booleans()),
    "byte": ("byte", st.integers(-128, 127)),
    "short": ("short", st.integers(-(2**15), 2**15 - 1)),
    "integer": ("integer", INTS),
    "long": ("long", LONGS),
    "float": ("float", FLOATS),
    "double": ("double", st.floats(allow_nan=False) | FLOATS),
    "short_decimal": ("decimal(5,2)", decimals(5, 2)),
    "long_decimal": ("decimal(38,18)", decimals(38, 18)),
    "string": ("string", TEXTS),
    "binary": ("binary", st.binary(max_size=5)),
    "date": ("date", numbers("date", INTS)),
    "time": ("time(6)", numbers("time(6)", NANOS.map(lambda number: number // 1000 * 1000))),
    "time_nanos": ("time(9)", numbers("time(9)", NANOS)),
    "timestamp": ("timestamp", numbers("timestamp", LONGS)),
    "timestamp_ntz": ("timestamp_ntz", numbers("timestamp_ntz", LONGS)),
    "duration": ("interval day to second", numbers("interval day to second", LONGS)),
    "months": ("interval year to month", INTS),
    "interval": ("interval", st.builds(CalendarInterval, INTS, INTS, LONGS)),
    "list": (ARRAY, st.lists(st.none() | numbers("timestamp", LONGS), max_size=3)),
    "inner": (INNER, record({"a": FLOATS, "A": st.none() | numbers("time(9)", NANOS), "a#2": st.none() | TEXTS})),
    "map": (MAP, st.dictionaries(FLOATS.filter(lambda f: f == f and f != 0), st.none() | numbers("date", INTS))),  # noqa: PLR0124
    "text_map": (TEXT_MAP, st.dictionaries(TEXTS, decimals(38, 18), max_size=2)),
    "void": ("void", st.none()),
}
KEY = [(name, kind) for name, (kind, _) in TYPES.items()]
VALUE = [(f"v_{name}", kind) for name, kind in KEY]
ROWS = record({name: st.none() | values for name, (_, values) in TYPES.items()})


def same(one: Any, other: Any) -> bool:
    """Whether values are the same; a NaN is one, and -0.0 is not 0.0."""
    return repr(one) == repr(other)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=st.lists(st.tuples(ROWS, ROWS), min_size=1, max_size=3))
def test_every_value_through_every_reader(rows: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    pairs = [({name: key[name] for name in TYPES}, {f"v_{name}": value[name] for name in TYPES}) for key, value in rows]
    tables = MemoryTables()
    builder = StoreBuilder(make_engine(tables), "types/0/0/default", family(key=KEY, value=VALUE))
    builder.commit(*pairs)
    with StateReader(tables, Settings(), builder.store) as state:
        rows_read = list(state)
        expected = {repr(key): values for key, values in pairs}
        assert len(rows_read) == len(expected) == len(state)
        columns = state.columns
        for row in rows_read:
            key = {name: row[name] for name in state.key_columns.names}
            assert same({name: row[name] for name in row if name not in key}, expected[repr(key)])
            assert same(state.get(key), row)
            text = json_text(row_to_json(state.key_columns, key))
            parsed_key = key_from_json(state.key_columns, parse_json(text))
            assert same(state.get(parsed_key), row), text
            for name, value in (row_to_json(columns, row) or {}).items():
                page = shown(value, 10_000)
                assert (page is None) == (value is None), name
        table = state.to_arrow()
        assert table.num_rows == len(rows_read)
        check_arrow(columns, rows_read, table)
        file = BytesIO()
        write_parquet(columns, rows_read, file, lambda _: None)
        assert parquet.read_table(BytesIO(file.getvalue())).num_rows == len(rows_read)
        frame = state.to_pandas()
        assert len(frame) == len(rows_read)
        names = unique(("partition_id", *columns.names), str.casefold)[1:]
        with answer(state, "from state") as result:
            shown_rows = list(result.as_json())
        for row, answered in zip(rows_read, shown_rows, strict=True):
            del answered["partition_id"]
            spelt = folded(row_to_json(columns, row))
            assert json.dumps(answered) == json.dumps(dict(zip(names, spelt.values(), strict=True)))


def folded(value: Any) -> Any:
    """JSON as SQL has it: names differ in more than capitals, and bytes that are not UTF-8 are escaped."""
    if isinstance(value, dict):
        if list(value) == ["a", "A", "a#2"]:
            value = dict(zip(["a", "A#3", "a#2"], value.values(), strict=True))
        return {folded(name): folded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [folded(each) for each in value]
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def check_arrow(columns: Struct, rows: list[dict[str, Any]], table: pa.Table) -> None:
    for name, kind in zip(columns.names, columns.types, strict=True):
        column = table.column(name)
        if pa.types.is_temporal(column.type):
            unit = 1000 if kind.name == "time" and column.type == pa.time64("us") else 1
            bits = pa.int32() if pa.types.is_date32(column.type) else pa.int64()
            stored = [None if row[name] is None else kind.give(row[name]) // unit for row in rows]  # type: ignore[attr-defined]
            assert column.cast(bits).to_pylist() == stored, name
        elif kind.name in ("long", "double", "binary") or "decimal" in kind.name:
            assert same(column.to_pylist(), [row[name] for row in rows]), name


def stored(store: str, *rows: tuple[Any, Any], key: Any, value: Any = (("n", "long"),), **options: Any) -> StateReader:
    tables = MemoryTables()
    builder = StoreBuilder(make_engine(tables), store, family(key=key, value=value, **options))
    builder.commit(*rows)
    return StateReader(tables, Settings(), builder.store)


def test_keys_that_spark_takes_for_equal(store: str) -> None:
    """-0.0 and 0.0, each NaN, and maps in any order of their entries, wherever they are in a key."""
    inside = struct([("x", "float"), ("xs", {"type": "array", "elementType": "double"})])
    key = [("d", "double"), ("m", {"type": "map", "keyType": "double", "valueType": "double"}), ("s", inside)]
    normal = {"d": 0.0, "m": {1.0: 0.0, math.inf: 2.0, math.nan: 3.0}, "s": {"x": math.nan, "xs": [0.0, None]}}
    with stored(store, (normal, {"n": 1}), key=key) as state:
        like = {"d": -0.0, "m": {math.nan: 3.0, math.inf: 2.0, 1.0: -0.0}, "s": {"x": -ODD_NAN, "xs": [-0.0, None]}}
        for given_key in (normal, like):
            assert (state.get(given_key) or {})["n"] == 1
            assert len(state.history(given_key)) == 1
        assert state.get(like | {"d": 1.0}) is None


def test_a_key_is_first_looked_up_as_it_is(store: str) -> None:
    """Where both are there, as with transformWithState in Scala, each is found: -0.0, 0.0, and NaN of other bits."""
    rows = [({"d": number}, {"n": n}) for n, number in enumerate((0.0, -0.0, math.nan, ODD_NAN))]
    with stored(store, *rows, key=[("d", "double")]) as state:
        assert [(state.get(key) or {})["n"] for key, _ in rows] == [0, 1, 2, 3]
        assert all((state.get({"d": row["d"]}) or {})["n"] == row["n"] for row in state)


def test_numbers_of_numpy_and_rows_of_pandas_are_keys(store: str) -> None:
    """What `to_pandas` gives finds its row: numbers, lists, maps, times."""
    key = [
        *(("i", "integer"), ("f", "float"), ("yes", "boolean"), ("at", "timestamp"), ("gap", "interval day to second")),
        *(
            ("xs", {"type": "array", "elementType": "long"}),
            ("m", {"type": "map", "keyType": "long", "valueType": "string"}),
        ),
        ("s", struct([("a", "long")])),
    ]
    columns = parse_schema(struct(key))
    row = columns.example | {"f": 0.1, "yes": True}
    with stored(store, (row, {"n": 1}), key=key) as state:
        record: dict[str, Any] = dict(zip(state.columns.names, state.to_pandas().iloc[0], strict=True))
        assert isinstance(record["xs"], np.ndarray)
        assert isinstance(record["i"], np.integer)
        del record["n"]
        others = {"i": np.int32(record["i"]), "f": np.float32(0.1), "yes": np.bool_(True)}
        assert state.get(record) == state.get(record | others) == next(iter(state))
        for wrong in ({"i": np.float64(1)}, {"f": np.bool_(True)}, {"yes": np.int64(1)}):
            with pytest.raises(ConfigurationError, match=r"column \w+ must be of type \w+, such as "):
                state.get(record | wrong)


@pytest.mark.parametrize(
    ("kind", "wrong", "said"),
    [
        ("long", '"5"', "must be of type long, such as 1: not a whole number"),
        ("long", "1.5", "such as 1: not a whole number"),
        ("double", "1e400", "such as 1.5: too large a number"),
        ("string", "5", 'such as "a": not a text'),
        ("timestamp", '"yesterday"', 'such as "2024-05-01T12:00:00Z": no such timestamp'),
        ("timestamp", '"2024-05-01T12:00:00"', "it needs a zone, as in 2024-05-01T12:00:00Z"),
        ("timestamp_ntz", '"2024-05-01T12:00:00Z"', "it has no zone"),
        ("timestamp", '"2024-05-01T12:00:00+99:99"', "no such zone: it is up to 18:00"),
        ("timestamp", '"2024-05-01T12:00:00-18:01"', "no such zone: it is up to 18:00"),
        ("timestamp", '"2024-05-01T12:00:00+00:60"', "no such zone: it is up to 18:00"),
        ("timestamp", "5", "not a text such as 2024-05-01T12:00:00Z"),
        ("date", '"2024-02-30"', 'such as "2024-05-01": no such date'),
        ("long", "99999999999999999999", "such as 1: out of range"),
        ("interval day to second", "99999999999999999999", "out of range"),
        ("double", '"x"', "such as 1.5: not a number"),
        ("boolean", "1", "such as true: not true or false"),
        ("string", r'"\ud800"', 'such as "a": not UTF-8'),
        ("decimal(5,2)", "NaN", "not a finite number"),
        ("decimal(5,2)", "-1e999999999", "not a finite number, or too large"),
        ("variant", '{"value": 1, "metadata": ""}', "not a text of base64"),
        ({"type": "map", "keyType": "long", "valueType": "long"}, "[[1]]", "not a pair"),
        ("time(6)", '"12"', 'such as "12:00:00": no such time'),
        ("binary", '"%"', 'such as "YQ==": not a text of base64'),
        ("decimal(5,2)", '"x"', 'such as "0.01": no decimal'),
        ("interval", "{}", "it needs months, days and microseconds"),
        (struct([("a", "long")]), '"x"', 'such as {"a": 1}: not an object with a'),
        ({"type": "map", "keyType": "long", "valueType": "long"}, "[[1, 2], [1, 3]]", "a key of a map twice"),
        ({"type": "array", "elementType": "long"}, '"x"', "such as [1]: not a list"),
    ],
)
def test_a_wrong_kind_of_key_is_an_error_with_an_example(kind: Any, wrong: str, said: str) -> None:
    """The message has the column, its type, a value of that type in JSON, and what is wrong, in words."""
    columns = parse_schema(struct([("c", kind)]))
    with pytest.raises(ConfigurationError, match=r"column c of the key must be of type ") as error:
        key_from_json(columns, {"c": parse_json(wrong)})
    assert said in str(error.value)
    assert "Error(" not in str(error.value)
    assert "Decimal(" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it ends too early"),
        ('{"user": ', "it ends too early"),
        ("{user: a}", "from character 2 on: user: a}"),
        ("{'user': 1}", "from character 2 on: 'user': 1}"),
        ('{"user" "a"}', 'from character 9 on: "a"}'),
        ('{"user": "a"} x', "from character 15 on: x"),
        ('{"user": "a', 'from character 10 on: "a'),
        ("9" * 5_000, "a number has too many digits"),
    ],
)
def test_a_key_that_is_not_json(text: str, said: str) -> None:
    """The error has the place, and no words of Python's parser."""
    with pytest.raises(ConfigurationError) as error:
        parse_key(text)
    assert f"the key is not JSON: {said}; a key looks like" in str(error.value)


def test_json_that_would_be_read_in_part_or_not_at_all_is_refused() -> None:
    """A member that is there twice, at any level, is named; levels beyond Python's are not JSON."""
    for text in ('{"a": 1, "a": 2}', '{"m": [{"b": 0, "a": 1, "a": 1}]}'):
        with pytest.raises(ConfigurationError, match="an object of JSON has a member twice; give each once member=a"):
            parse_json(text)
    for text in ("[" * 100_000, '{"a":' * 100_000):
        with pytest.raises(ValueError, match="too many levels of lists and objects"):
            parse_json(text)


def test_a_map_with_both_zeros(store: str) -> None:
    """Spark keeps 0.0 and -0.0 apart as keys of a map, alone or within a struct: it is read as a list of pairs."""
    pairs = [(0.0, 1), (-0.0, 2)]
    with stored(store, ({"m": pairs}, {"n": 1}), key=[("m", TO_LONG)]) as state:
        row = {"m": pairs, "n": 1}
        assert same(list(state), [row])
        assert same(state.get({"m": pairs}), row)
        text = json_text(row_to_json(state.key_columns, {"m": pairs}))
        assert same(state.get(key_from_json(state.key_columns, parse_json(text))), row)
        assert same(state.to_arrow().to_pylist(), [row])
        with answer(state, "select n from state") as result:
            assert list(result.rows) == [(1,)]
        for twice in ([(0.0, 1), (0.0, 2)], [(1.0, 1), (1.0, 2), *pairs]):
            with pytest.raises(ConfigurationError, match=r"column m must be of type map.*: a key of a map twice"):
                state.get({"m": twice})
    within = Map(parse_schema(struct([("x", "double")])), parse_schema(struct([("n", "long")])))
    nested = [({"x": number}, {"n": 1}) for number, _ in pairs]
    raw = within.dump(nested)
    assert same(within.load(raw, 0, len(raw)), nested)


def test_a_name_with_a_number_is_a_column_of_its_own(store: str) -> None:
    """`count#2` beside two columns `count` replaces none of them, in rows, Arrow, Parquet and SQL."""
    row = ({"count": "a", "count#2": "b"}, {"count": 1})
    with stored(store, row, key=[("count", "string"), ("count#2", "string")], value=[("count", "long")]) as state:
        whole = {"count": "a", "count#2": "b", "count#3": 1}
        assert list(state) == [whole]
        assert state.get({"count": "a", "count#2": "b"}) == whole
        file = BytesIO()
        write_parquet(state.columns, state, file, lambda _: None)
        assert parquet.read_table(BytesIO(file.getvalue())).to_pylist() == [whole]
        with answer(state, "from state") as result:
            assert list(result.as_json()) == [{"partition_id": 0} | whole]
    assert unique(["a", "a", "a#2", "a"]) == ("a", "a#3", "a#2", "a#4")


def test_names_that_differ_in_capitals(store: str) -> None:
    """They are columns of their own; SQL, which takes them for the same, has the second with a number."""
    inner = struct([("x", "long"), ("X", "long")])
    key = [("userId", "string"), ("userid", "string")]
    value = [("Partition_Id", "long"), ("s", inner)]
    row = ({"userId": "a", "userid": "b"}, {"Partition_Id": 7, "s": {"x": 1, "X": 2}})
    with stored(store, row, key=key, value=value) as state:
        assert list(state) == [row[0] | row[1]]
        assert state.to_arrow().to_pylist() == [row[0] | row[1]]
        with answer(
            state, 'select "userid", "userid#2", "partition_id", "partition_id#2", s."x#2" as x from state'
        ) as result:
            assert list(result.rows) == [("a", "b", 7, 0, 2)]


def test_one_bad_value_spoils_its_own_cell(store: str) -> None:
    """A timestamp in milliseconds taken for seconds, a text that is not UTF-8: each reader reads all rows."""
    far = RawNumber("timestamp", 1_700_000_000_000_000_000)
    rows: list[tuple[Any, Any]] = [(user(str(n)), {"since": None, "day": None, "note": "a"}) for n in range(5)]
    rows.append((user("bad"), {"since": far, "day": RawNumber("date", 10**7), "note": "\udcff"}))
    value = [("since", "timestamp"), ("day", "date"), ("note", "string")]
    with stored(store, *rows, key=[("user", "string")], value=value) as state:
        assert len(list(state)) == 6
        assert (state.get(user("bad")) or {})["since"] == far
        assert state.to_arrow().column("since").cast(pa.int64()).drop_null().to_pylist() == [far.number]
        frame = state.to_pandas().set_index("user")
        assert frame.loc["bad", "note"] == "\\udcff"
        assert int(frame["since"].astype("int64")["bad"]) == far.number
        with answer(state, "select count(*), max(epoch_us(since)) from state") as result:
            assert list(result.rows) == [(6, far.number)]
        with answer(state, "select since, day, note from state where note <> 'a'") as result:
            assert list(result.rows) == [("+55840-11-08T22:13:20Z", "+29349-01-26", "\\udcff")]


def test_a_broken_value_is_named(memory_engine: Engine, memory: MemoryTables, store: str) -> None:
    """What Spark never stores is an error with the key and the column."""
    builder = StoreBuilder(memory_engine, store, family(value=[("count", "long"), ("note", "string")]))
    builder.commit((user("a"), counted(-1)))
    builder.families = [family(value=[("count", "time(6)"), ("note", "string")])]
    builder.commit((user("b"), {"count": None, "note": ""}))
    with StateReader(memory, Settings(), store) as state:
        with pytest.raises(CorruptStateError, match=r"column count: a time lies outside the day .*key={'user': 'a'}"):
            list(state)
        assert state.get(user("b")) is not None


def test_values_that_only_duckdb_has(store: str) -> None:
    """Whole numbers stay numbers, nested ones too; what JSON has no form for is DuckDB's text."""
    query = """select sum(n) as s, [sum(n)] as l, map {'a': sum(n)} as m, interval '1 month 2 days' as i,
        '101'::bit as b,        [interval 1 day] as il, {'x': 1.50} as d, 1::bignum as big, null as nothing,
        time_ns '12:00:00.000000001' as t, timestamp_ns '2024-01-01 00:00:00.123456789' as ns,
        [null, [1]] as n, array_value(1, 2) as a, 'infinity'::double as f from state"""
    with stored(store, (user("a"), {"n": 3}), key=[("user", "string")]) as state, answer(state, query) as result:
        (row,) = result.as_json()
    assert row == {
        "s": 3,
        "l": [3],
        "m": {"a": 3},
        "i": "1 month 2 days",
        "b": "101",
        "il": "[1 day]",
        "d": {"x": "1.50"},
        "big": "1",
        "nothing": None,
        "t": "12:00:00.000000001",
        "ns": "2024-01-01T00:00:00.123456789",
        "n": [None, [1]],
        "a": [1, 2],
        "f": "inf",
    }
