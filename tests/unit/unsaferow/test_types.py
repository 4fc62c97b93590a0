"""Spark's rows and keys: bytes that Spark made are read, made again to the byte, and hashed to its number."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.reader.json_rows import key_from_json, row_to_json
from dynastate.unsaferow.key_encoders import SEED, KeyEncoder, make_encoder, signed
from dynastate.unsaferow.nested import Struct
from dynastate.unsaferow.scalars import RawNumber, shortest
from dynastate.unsaferow.schema import parse_schema
from dynastate.unsaferow.types import CalendarInterval

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "unsafe_rows.json").read_text())
ROWS: list[dict[str, Any]] = VECTORS["rows"]
KEYS: list[dict[str, Any]] = VECTORS["keys"]
UTC = timezone.utc
LISTS = next(n for n, each in enumerate(ROWS) if " ints" in each["sql"])


def of(*columns: tuple[str, Any]) -> Struct:
    """Make a schema of columns."""
    return parse_schema({"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in columns]})


def read(number: int) -> dict[str, Any]:
    return parse_schema(ROWS[number]["schema"]).decode(bytes.fromhex(ROWS[number]["bytes"]))


@pytest.mark.parametrize("vector", ROWS, ids=[each["sql"][:30] for each in ROWS])
def test_rows_of_spark(vector: dict[str, Any]) -> None:
    """Decoded and encoded again they are the same bytes, also by way of JSON; the hash is Spark's, where it has one.

    A value may end with a checksum of four bytes, which does not matter to the columns. A variant cannot be given.
    """
    columns, raw = parse_schema(json.dumps(vector["schema"])), bytes.fromhex(vector["bytes"])
    values = columns.decode(raw)
    assert columns.encode(values) == raw
    if vector["hash"] is not None:
        assert signed(columns.mix(values, SEED)) == vector["hash"]
    assert len(raw) % 8 == 0
    assert repr(columns.decode(raw + b"\xff" * 4)) == repr(values)
    shown = json.loads(json.dumps(row_to_json(columns, values)))
    if "parse_json" not in vector["sql"]:
        assert columns.encode(key_from_json(columns, shown)) == raw


def test_values_are_pythons() -> None:
    """What the vectors say in SQL, by hand: numbers, text, times, intervals."""
    assert read(0) == {"byte": -7, "short": -300, "int": -70_000, "long": -5_000_000_000, "yes": True, "no": False}
    floats = read(1)
    assert math.isnan(floats.pop("nan"))
    assert math.copysign(1, floats["zero"]) == -1
    assert floats == {"f": 1.5, "d": -2.25, "inf": -math.inf, "zero": 0}
    decimals = {
        "short": "12.34",
        "long": "-12.50",
        "most": "-99999999999999999999999999999999999.999",
        "edge": "-128",
        "padded": "5.0000000000",
    }
    assert {name: str(value) for name, value in read(2).items()} == decimals
    assert set(read(3).values()) == {None, "behind"}
    assert read(4)["umlaut"] == "schlüssel-ß-鍵"
    assert read(4)["broken"] == "\udcffa"
    assert read(5) == {
        "d": date(2024, 2, 29),
        "before": date(1969, 12, 31),
        "t": datetime(2024, 5, 1, 12, 0, 0, 1, UTC),
        "old": datetime(1901, 1, 1, tzinfo=UTC),
        "n": datetime(2024, 5, 1, 12, 0, 0, 500_000),
        "clock": time(23, 59, 59, 999_999),
    }
    assert read(6) == {
        "ym": 14,
        "m": -3,
        "ds": timedelta(days=1, hours=2, minutes=3, seconds=4.5),
        "h": timedelta(hours=-5),
        "ci": CalendarInterval(14, 25, 18_367_500_000),
        "back": CalendarInterval(0, 0, -1_000_000),
    }


def test_nested_values_are_pythons() -> None:
    """Structs are dicts, arrays lists, maps dicts whose keys can be looked up."""
    assert read(7)["s"] == {"a": 1, "b": {"c": "x", "d": None}}
    assert read(7)["n"] is None
    lists = read(LISTS)
    assert (lists["ints"], lists["bools"]) == ([1, None, 3], [True, False, None])
    assert lists["decimals"] == [Decimal("1.00"), None]
    assert lists["nested"] == [[1], []]
    assert lists["structs"] == [{"a": "x"}]
    maps = read(LISTS + 1)
    assert maps["m"] == {"a": 1, "b": None}
    assert maps["by_struct"] == {(1,): "x"}
    assert maps["by_array"] == {(1, 2): "y"}
    same = next(n for n, each in enumerate(ROWS) if each["sql"].startswith("1 a, 2 a"))
    assert read(same) == {"a": 1, "a#2": 2, "c": {"b": 3, "b#2": 4}}


@pytest.mark.parametrize("vector", KEYS, ids=[f"{each['spec']['keyStateEncoderType']} {each['sql']}" for each in KEYS])
def test_keys_of_spark(vector: dict[str, Any]) -> None:
    """Keys by Spark's encoders, as its own encoders make them."""
    keys = encoder(vector["schema"], vector["spec"])
    raw = bytes.fromhex(vector["bytes"])
    assert keys.encode(keys.decode(raw)) == raw
    assert tuple(keys.decode(raw)) == keys.columns.names


def encoder(schema: Mapping[str, Any], spec: Mapping[str, Any], store_name: str = "default") -> KeyEncoder:
    return make_encoder(parse_schema(schema), spec, store_name)


@pytest.mark.parametrize("seed", range(3))
def test_ordered_keys_are_in_the_order_of_numbers(seed: int) -> None:
    """What a range scan is for: bytes sort as the numbers do, nulls last."""
    dice = random.Random(seed)  # noqa: S311  # the same numbers at every run
    schema = {"type": "struct", "fields": [{"name": "d", "type": "double"}, {"name": "n", "type": "long"}]}
    keys = encoder(schema, {"keyStateEncoderType": "RangeKeyScanStateEncoderSpec", "orderingOrdinals": [0, 1]})
    rows: list[tuple[float, int]] = [
        (dice.choice([-1e300, -1.5, 0.0, 2.5, math.inf]), dice.randrange(-(2**63), 2**63)) for _ in range(200)
    ]
    encoded = {keys.encode({"d": d, "n": n}): (d, n) for d, n in rows}
    assert [encoded[raw] for raw in sorted(encoded)] == sorted(rows)
    assert keys.encode({"d": None, "n": 0}) > max(encoded)


def test_which_columns_place_a_key() -> None:
    """All of them; the prefix of a scan; not the number of a join's row, nor the time that orders timers."""
    schema = {"type": "struct", "fields": [{"name": "key", "type": "string"}, {"name": "index", "type": "long"}]}
    raw = {"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}
    prefix = {"keyStateEncoderType": "PrefixKeyScanStateEncoderSpec", "numColsPrefixKey": 1}
    ordered = {"keyStateEncoderType": "RangeKeyScanStateEncoderSpec", "orderingOrdinals": [1]}
    assert encoder(schema, raw).placing.names == ("key", "index")
    assert encoder(schema, raw, "left-keyWithIndexToValue").placing.names == ("key",)
    assert encoder(schema, prefix).placing.names == ("key",)
    assert encoder(schema, ordered).placing.names == ("key",)
    key = {"key": "a", "index": 1}
    assert {encoder(schema, raw).partition(key | {"index": n}, 5) for n in range(50)} == set(range(5))
    assert len({encoder(schema, prefix).partition(key | {"index": n}, 5) for n in range(50)}) == 1


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("long", "1"),
        ("long", True),
        ("long", 2**63),
        ("byte", 128),
        ("integer", 1.5),
        ("double", "x"),
        ("boolean", 1),
        ("string", b"a"),
        ("binary", "a"),
        ("decimal(5,2)", Decimal("1.234")),
        ("decimal(5,2)", Decimal("1234.5")),
        ("decimal(30,2)", Decimal("NaN")),
        ("decimal(30,2)", 1.5),
        ("date", datetime(2024, 1, 1, tzinfo=UTC)),
        ("timestamp", datetime(2024, 1, 1)),
        ("timestamp_ntz", datetime(2024, 1, 1, tzinfo=UTC)),
        ("interval day to second", 5),
        ("time(6)", 5),
        ("void", 1),
        ({"type": "array", "elementType": "long"}, 5),
        ({"type": "struct", "fields": [{"name": "a", "type": "long"}]}, {"b": 1}),
    ],
)
def test_a_value_of_another_type_is_refused(kind: Any, wrong: Any) -> None:
    """It is no key that cannot be there, but a mistake, and the column is named."""
    with pytest.raises(ConfigurationError, match=r"columns? "):
        of(("c", kind)).encode({"c": wrong})


@pytest.mark.parametrize("schema", [each["schema"] for each in [*ROWS, *KEYS]], ids=repr)
def test_an_example_is_a_row_of_its_columns(schema: Any) -> None:
    """It can be written and read again, and shown as JSON and given as a key, except a variant."""
    columns = parse_schema(schema)
    shown = columns.example
    assert columns.decode(columns.encode(shown)) == shown
    if "variant" not in str(schema):
        assert key_from_json(columns, row_to_json(columns, shown)) == shown


def test_columns_must_be_all_and_no_others() -> None:
    """An error about a wrong name lists the right ones."""
    with pytest.raises(ConfigurationError, match="the columns are a, b; missing are b"):
        of(("a", "long"), ("b", "long")).encode({"a": 1})
    with pytest.raises(ConfigurationError, match="the columns are a; unknown are B"):
        of(("a", "long")).encode({"a": 1, "B": 1})


def slots(*words: int) -> bytes:
    return b"".join((word % 2**64).to_bytes(8, "little") for word in words)


def behind(variable: bytes, slot: int = 16) -> bytes:
    """Make a row of one column with a variable part."""
    return slots(0, slot << 32 | len(variable)) + variable


INTS = {"type": "array", "elementType": "long"}
MAP = {"type": "map", "keyType": "long", "valueType": "long"}
ONE, TWO = slots(1, 0, 7), slots(2, 0, 7, 8)


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("time(6)", slots(0, -1)),
        ("time(6)", slots(0, 86_400 * 10**9)),
        ("decimal(5,2)", slots(0, 100_000)),
        ("decimal(20,2)", behind((10**20).to_bytes(16, "big"))),
        ("decimal(38,2)", behind(b"\x7f" * 1_000_000)),
        ("decimal(38,2)", behind(b"")),
        ("interval", behind(bytes(8))),
        (MAP, behind(slots(len(ONE)) + ONE + TWO)),
        (MAP, behind(slots(len(ONE)) + slots(1, 1, 0) + ONE)),
        ({"type": "array", "elementType": "string"}, behind(slots(2, 0, 32 << 32 | 8, 32 << 32 | 8, 0))),
        ({"type": "array", "elementType": INTS}, behind(slots(1, 0, 0 << 32 | 24))),
        ({"type": "struct", "fields": [{"name": "a", "type": "string"}]}, behind(slots(0, 16 << 32 | 8)) + slots(0)),
    ],
)
def test_what_no_type_has_is_no_row(kind: Any, raw: bytes) -> None:
    """Numbers, lengths and places that Spark never makes: they are broken, not other values."""
    with pytest.raises(CorruptStateError):
        of(("c", kind)).decode(raw)


def test_elements_that_share_their_bytes_take_no_memory() -> None:
    """A megabyte that says it has a hundred thousand strings of a megabyte each."""
    count = 100_000
    raw = behind(slots(count) + bytes((count + 63) // 64 * 8) + slots(1_000_000) * count + bytes(200_000))
    with pytest.raises(CorruptStateError, match="take more than its room"):
        of(("c", {"type": "array", "elementType": "string"})).decode(raw)


def test_a_null_within_the_key_of_a_map() -> None:
    """It is there, can be shown, is written as it was, and in the normal form comes first, as Spark orders entries."""
    inner = {"type": "struct", "fields": [{"name": "b", "type": "long"}]}
    key = {"type": "struct", "fields": [{"name": "a", "type": inner}]}
    columns = of(("m", {"type": "map", "keyType": key, "valueType": "long"}))
    row = {"m": {((1,),): 1, (None,): 2}}
    raw = columns.encode(row)
    assert columns.encode(columns.decode(raw)) == raw
    assert list(columns.decode(raw)["m"].items()) == [(((1,),), 1), ((None,), 2)]
    assert list(columns.normal(row)["m"].items()) == [((None,), 2), (((1,),), 1)]
    assert row_to_json(columns, columns.normal(row)) == {"m": [[{"a": None}, 2], [{"a": {"b": 1}}, 1]]}


def test_columns_within_columns_end_somewhere() -> None:
    """A hundred levels are read and shown; more are refused before any row is read."""
    kind: Any = "long"
    for _ in range(99):
        kind = {"type": "array", "elementType": kind}
    value: Any = 7
    for _ in range(99):
        value = [value]
    columns = of(("c", kind))
    assert row_to_json(columns, columns.decode(columns.encode({"c": value}))) == {"c": value}
    with pytest.raises(ConfigurationError, match="columns within columns of more than 100 levels"):
        of(("c", {"type": "array", "elementType": kind}))


def test_what_python_cannot_hold_is_a_number() -> None:
    """A time outside the years 1 to 9999, or of nanoseconds, is what Spark stores, and as a text of JSON exact."""
    raw = [1_700_000_000_000_000_000, -(2**63), 10_000_000, 43_200_123_456_789]
    columns = of(("t", "timestamp"), ("n", "timestamp_ntz"), ("d", "date"), ("c", "time(9)"))
    row = columns.decode(slots(0, *raw))
    assert row == {
        "t": RawNumber("timestamp", raw[0]),
        "n": RawNumber("timestamp_ntz", raw[1]),
        "d": RawNumber("date", raw[2]),
        "c": RawNumber("time", raw[3]),
    }
    assert columns.encode(row) == slots(0, *raw)
    texts = row_to_json(columns, row)
    assert texts == {
        "t": "+55840-11-08T22:13:20Z",
        "n": "-290308-12-21T19:59:05.224192",
        "d": "+29349-01-26",
        "c": "12:00:00.123456789",
    }
    assert key_from_json(columns, texts) == row
    for name, wrong in (("t", row["n"]), ("c", "12:00:00.1234567891"), ("t", "2024-05-01T12:00:00.1234567Z")):
        with pytest.raises(ConfigurationError, match=f"column {name} "):
            key_from_json(columns, texts | {name: wrong})
    with pytest.raises(ConfigurationError, match="the number of a timestamp_ntz"):
        columns.encode(row | {"t": row["n"]})


@pytest.mark.parametrize("number", range(len(ROWS)))
def test_bytes_cut_off_are_no_row(number: int) -> None:
    """A row that ends early is an error of corrupt state, wherever it ends, and never another row."""
    columns, raw = parse_schema(ROWS[number]["schema"]), bytes.fromhex(ROWS[number]["bytes"])
    least = (len(columns.names) + 63) // 64 * 8 + 8 * len(columns.names)
    for length in range(0, least, 4):
        with pytest.raises(CorruptStateError):
            columns.decode(raw[:length])
    for length in range(least, len(raw), 8):
        try:
            row = columns.decode(raw[:length])
        except CorruptStateError:
            continue
        assert row == columns.decode(raw)  # what is missing was padding, or a null's


@pytest.mark.parametrize("kind", ["geometry(4326)", "timestamp_ltz(9)", "decimal(39,2)", {"type": "object"}])
def test_types_that_are_not_read_are_said(kind: Any) -> None:
    """By their names, before any row is read."""
    with pytest.raises(ConfigurationError, match=re.escape("which dynastate does not read")):
        of(("c", kind))
    with pytest.raises(CorruptStateError):
        parse_schema("[")
    with pytest.raises(CorruptStateError):
        parse_schema('"long"')


def test_an_encoder_that_is_not_known_is_said() -> None:
    """A newer Spark may have one; its keys are not guessed."""
    with pytest.raises(ConfigurationError, match="keys by NewStateEncoderSpec, which dynastate does not read"):
        encoder({"type": "struct", "fields": []}, {"keyStateEncoderType": "NewStateEncoderSpec"})


def test_shortest_two_s_complement() -> None:
    """As Java's BigInteger has it, at the edges of a byte."""
    assert [shortest(n).hex() for n in (0, 1, -1, 127, 128, -128, -129)] == [
        "00",
        "01",
        "ff",
        "7f",
        "0080",
        "80",
        "ff7f",
    ]
