"""Rows of state as frames of Arrow and pandas, which are extras, and as objects of JSON."""

from __future__ import annotations

import base64
import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from dynastate.errors import ConfigurationError
from dynastate.unsafe_row import (
    Array,
    Binary,
    Boolean,
    CalendarInterval,
    DataType,
    Fixed,
    Floating,
    Interval,
    LongDecimal,
    Map,
    ShortDecimal,
    String,
    Struct,
    Variant,
    VariantType,
    Void,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from dynastate.state import Row, StateReader

#: Rows in one batch of Arrow.
BATCH_ROWS: Final = 10_000


# ---------------------------------------------------------------------------------------------------------------- arrow


def arrow() -> Any:  # pyarrow has no types of its own
    """The module pyarrow.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError as missing:
        raise ConfigurationError("pyarrow is not installed here; pip install 'dynastate[frames]'") from missing
    return pa


def to_arrow(state: StateReader) -> pa.Table:
    return arrow().Table.from_batches(batches(state), arrow_schema(state))


def to_pandas(state: StateReader) -> pd.DataFrame:
    try:
        importlib.import_module("pandas")
    except ImportError as missing:
        raise ConfigurationError("pandas is not installed here; pip install 'dynastate[frames]'") from missing
    found: pd.DataFrame = to_arrow(state).to_pandas()
    return found


def columns_of(state: StateReader) -> Struct:
    """The columns of a reader's rows."""
    key, value = state.key_columns, state.value_columns
    fields = list(zip(key.names, key.types, strict=True))
    if state.has_lists:
        return Struct([*fields, (state.list_column, Array(value))])
    return Struct([*fields, *zip(value.names, value.types, strict=True)])


def arrow_schema(state: StateReader) -> pa.Schema:
    pa, columns = arrow(), columns_of(state)
    return pa.schema([(name, arrow_type(pa, kind)) for name, kind in zip(columns.names, columns.types, strict=True)])


def batches(state: StateReader) -> Iterator[pa.RecordBatch]:
    """All rows, some thousands at a time.

    Raises:
        ConfigurationError: pyarrow is not installed, or a string is no UTF-8.
    """
    pa, columns, schema = arrow(), columns_of(state), arrow_schema(state)
    kinds = list(zip(columns.names, columns.types, strict=True))
    rows = iter(state)
    while window := list(islice(rows, BATCH_ROWS)):
        try:
            arrays = [
                pa.array([_to_arrow(pa, kind, row[name]) for row in window], schema.field(name).type)
                for name, kind in kinds
            ]
        except (UnicodeEncodeError, pa.ArrowInvalid) as wrong:
            raise ConfigurationError(f"a value does not fit into Arrow: {wrong}") from wrong
        # With a schema, since a key of no columns still has rows.
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def write_parquet(state: StateReader, file: Path | BinaryIO, told: Callable[[int], None]) -> int:
    """Write all rows into a file of Parquet, and return how many.

    Raises:
        ConfigurationError: pyarrow is not installed, or Parquet has no such type.
    """
    pa = arrow()
    from pyarrow import parquet

    written = 0
    try:
        with parquet.ParquetWriter(file, arrow_schema(state)) as out:
            for batch in batches(state):
                out.write_batch(batch)
                written += batch.num_rows
                told(written)
    except pa.ArrowNotImplementedError as wrong:
        raise ConfigurationError(f"a column does not fit into Parquet: {wrong}") from wrong
    return written


_ARROW_NUMBERS: Final = {
    "byte": "int8",
    "short": "int16",
    "integer": "int32",
    "long": "int64",
    "months": "int32",
    "date": "date32",
}


def arrow_type(pa: Any, kind: DataType) -> Any:
    """Arrow's type for one of Spark's."""
    found: Any
    match kind:
        case Fixed(name="timestamp"):
            found = pa.timestamp("us", tz="UTC")
        case Fixed(name="timestamp_ntz"):
            found = pa.timestamp("us")
        case Fixed(name="duration"):
            found = pa.duration("us")
        case Fixed(name="time"):
            found = pa.time64("us")
        case Fixed(name=name):
            found = getattr(pa, _ARROW_NUMBERS[name])()
        case Floating(width=width):
            found = pa.float32() if width == 4 else pa.float64()
        case ShortDecimal(digits=digits, scale=scale) | LongDecimal(digits=digits, scale=scale):
            found = pa.decimal128(digits, scale)
        case Struct():
            found = pa.struct([(name, arrow_type(pa, each)) for name, each in zip(kind.names, kind.types, strict=True)])
        case Array(element=element):
            found = pa.list_(arrow_type(pa, element))
        case Map(key=key, value=value):
            found = pa.map_(arrow_type(pa, key), arrow_type(pa, value))
        case VariantType():
            found = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
        case _:
            simple = {
                Boolean: "bool_",
                String: "string",
                Binary: "binary",
                Void: "null",
                Interval: "month_day_nano_interval",
            }
            found = getattr(pa, simple[type(kind)])()
    return found


def _to_arrow(pa: Any, kind: DataType, value: Any) -> Any:
    """A value as Arrow takes it."""
    if value is None:
        return None
    match kind:
        case Struct():
            return {n: _to_arrow(pa, each, value[n]) for n, each in zip(kind.names, kind.types, strict=True)}
        case Array(element=element):
            return [_to_arrow(pa, element, each) for each in value]
        case Map(key=key, value=inner):
            entries = ((kind.unhashed(each), held) for each, held in value.items())
            return [(_to_arrow(pa, key, each), _to_arrow(pa, inner, held)) for each, held in entries]
        case Interval():
            return pa.MonthDayNano([value.months, value.days, value.microseconds * 1000])
        case VariantType():
            return value._asdict()
    return value


# ----------------------------------------------------------------------------------------------------------------- JSON


def to_json(kind: DataType, value: Any) -> Any:
    """A value as JSON has it: see docs/reading-state.md."""
    found = value
    match kind, value:
        case _, None | bool() | int() | str():
            pass
        case _, float():
            found = value if math.isfinite(value) else str(value)
        case _, Decimal():
            found = f"{value:f}"
        case _, bytes():
            found = base64.b64encode(value).decode()
        case _, datetime():
            found = value.isoformat().replace("+00:00", "Z")
        case _, date() | time():
            found = value.isoformat()
        case _, timedelta():
            found = value // timedelta(microseconds=1)
        case _, CalendarInterval():
            found = value._asdict()
        case _, Variant():
            found = {"value": to_json(kind, value.value), "metadata": to_json(kind, value.metadata)}
        case Struct(), _:
            found = {n: to_json(each, value[n]) for n, each in zip(kind.names, kind.types, strict=True)}
        case Array(element=element), _:
            found = [to_json(element, each) for each in value]
        case Map(key=key, value=inner), _:
            entries = [(to_json(key, kind.unhashed(each)), to_json(inner, held)) for each, held in value.items()]
            found = dict(entries) if isinstance(key, String) else [list(entry) for entry in entries]
    return found


def row_to_json(columns: Struct, row: Row | None) -> dict[str, Any] | None:
    """The columns of a row that it has, as an object of JSON."""
    if row is None:
        return None
    kinds = dict(zip(columns.names, columns.types, strict=True))
    return {name: to_json(kinds[name], value) for name, value in row.items()}


def key_from_json(columns: Struct, given: Any) -> dict[str, Any]:
    """A key from an object of JSON, with values as `to_json` gives them.

    Raises:
        ConfigurationError: it is no object, or a value cannot be what its column is of.
    """
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"a key is an object of JSON with the columns {', '.join(columns.names) or 'none'}")
    kinds = dict(zip(columns.names, columns.types, strict=True))
    return {
        name: _column_from_json(name, kinds[name], value) if name in kinds else value for name, value in given.items()
    }


def _column_from_json(name: str, kind: DataType, value: Any) -> Any:
    try:
        return _from_json(kind, value)
    except (ValueError, TypeError, KeyError, AttributeError, InvalidOperation) as wrong:
        raise ConfigurationError(
            f"column {name} of the key cannot be read: {wrong!r}", value=repr(value)[:100]
        ) from wrong


def _from_json(kind: DataType, value: Any) -> Any:
    if value is None:
        return None
    found = value
    match kind:
        case Fixed(name=name) if name in _FROM_TEXT:
            found = _FROM_TEXT[name](value)
        case Floating():
            found = float(value)
        case ShortDecimal() | LongDecimal():
            found = Decimal(str(value))
        case Binary():
            found = base64.b64decode(value, validate=True)
        case Interval():
            found = CalendarInterval(**value)
        case Struct():
            kinds = dict(zip(kind.names, kind.types, strict=True))
            found = {name: _from_json(kinds[name], each) for name, each in value.items()}
        case Array(element=element):
            found = [_from_json(element, each) for each in value]
        case Map(key=key, value=inner):
            entries: Iterable[Any] = value.items() if isinstance(value, Mapping) else value
            found = {kind.hashed(_from_json(key, each)): _from_json(inner, held) for each, held in entries}
    return found


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


_FROM_TEXT: Final[dict[str, Callable[[Any], Any]]] = {
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timestamp": _moment,
    "timestamp_ntz": datetime.fromisoformat,
    "duration": lambda micros: timedelta(microseconds=micros),
}
