"""Rows of state as tables of Arrow, data frames of pandas, and Parquet files. Both packages are extras."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from dynastate.errors import ConfigurationError
from dynastate.reader.families import Row
from dynastate.unsaferow import types
from dynastate.unsaferow.nested import Array, Map, Struct

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: Rows in one batch of Arrow.
BATCH_ROWS: Final = 10_000


def _extra(module: str) -> Any:  # these have no types of their own
    """Import a module of the extra `frames`. Refuse if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        package = module.partition(".")[0]
        raise ConfigurationError(f"{package} is not installed here; pip install pandas pyarrow") from missing


def to_arrow(columns: Struct, rows: Iterable[Row]) -> pa.Table:
    return _extra("pyarrow").Table.from_batches(batches(columns, rows), arrow_schema(columns))


def to_pandas(columns: Struct, rows: Iterable[Row]) -> pd.DataFrame:
    _extra("pandas")
    found: pd.DataFrame = to_arrow(columns, rows).to_pandas()
    return found


def arrow_schema(columns: Struct) -> pa.Schema:
    pa = _extra("pyarrow")
    return pa.schema([(name, arrow_type(pa, kind)) for name, kind in zip(columns.names, columns.types, strict=True)])


def batches(columns: Struct, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """Convert rows, `BATCH_ROWS` at a time."""
    pa, schema = _extra("pyarrow"), arrow_schema(columns)
    kinds = list(zip(columns.names, columns.types, strict=True))
    remaining = iter(rows)
    while window := list(islice(remaining, BATCH_ROWS)):
        try:
            arrays = [
                pa.array([_to_arrow(pa, kind, row[name]) for row in window], schema.field(name).type)
                for name, kind in kinds
            ]
        except (UnicodeEncodeError, pa.ArrowInvalid) as wrong:
            raise ConfigurationError(f"a value does not fit into Arrow: {wrong}") from wrong
        # With a schema, since a key of no columns still has rows.
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def stream(columns: Struct, found: Iterator[pa.RecordBatch]) -> pa.RecordBatchReader:
    """Make a stream of batches, which are made as they are read."""
    return _extra("pyarrow").RecordBatchReader.from_batches(arrow_schema(columns), found)


def write_parquet(columns: Struct, rows: Iterable[Row], file: Path | BinaryIO, progress: Callable[[int], None]) -> int:
    """Write rows into a Parquet file, and return how many. Refuse a type that Parquet does not have."""
    pa, parquet, written = _extra("pyarrow"), _extra("pyarrow.parquet"), 0
    try:
        with parquet.ParquetWriter(file, arrow_schema(columns)) as out:
            for batch in batches(columns, rows):
                out.write_batch(batch)
                written += batch.num_rows
                progress(written)
    except pa.ArrowNotImplementedError as wrong:
        raise ConfigurationError(f"a column does not fit into Parquet: {wrong}") from wrong
    return written


#: The function of pyarrow that makes a type, by its name, and its arguments.
_ARROW: Final[dict[str, tuple[str, ...]]] = {
    "boolean": ("bool_",),
    "byte": ("int8",),
    "short": ("int16",),
    "integer": ("int32",),
    "long": ("int64",),
    "float": ("float32",),
    "double": ("float64",),
    "string": ("string",),
    "binary": ("binary",),
    "date": ("date32",),
    "time": ("time64", "us"),
    "timestamp": ("timestamp", "us", "UTC"),
    "timestamp_ntz": ("timestamp", "us"),
    "duration": ("duration", "us"),
    "months": ("int32",),
    "interval": ("month_day_nano_interval",),
    "void": ("null",),
}


def arrow_type(pa: Any, kind: types.DataType) -> Any:
    match kind:
        case types.ShortDecimal(digits=digits, scale=scale) | types.LongDecimal(digits=digits, scale=scale):
            return pa.decimal128(digits, scale)
        case Struct():
            return pa.struct([(name, arrow_type(pa, each)) for name, each in zip(kind.names, kind.types, strict=True)])
        case Array(element=element):
            return pa.list_(arrow_type(pa, element))
        case Map(key=key, value=value):
            return pa.map_(arrow_type(pa, key), arrow_type(pa, value))
        case types.VariantType():
            return pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    made, *arguments = _ARROW[kind.name]
    return getattr(pa, made)(*arguments)


def _to_arrow(pa: Any, kind: types.DataType, value: Any) -> Any:
    """Convert a value to what pyarrow accepts."""
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
        case types.Interval():
            return pa.MonthDayNano([value.months, value.days, value.microseconds * 1000])
        case types.VariantType():
            return value._asdict()
    return value
