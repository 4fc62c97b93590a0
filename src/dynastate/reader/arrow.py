"""Rows of state as tables of Arrow, data frames of pandas, and Parquet files. Both packages are extras."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from dynastate.errors import ConfigurationError
from dynastate.reader.families import Row
from dynastate.unsaferow.nested import Struct

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: Rows in one batch of Arrow.
BATCH_ROWS: Final = 10_000


def extra(module: str) -> Any:  # these modules have no types
    """Import a module of the extra `frames`. Refuse if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        package = module.partition(".")[0]
        raise ConfigurationError(f"{package} is not installed here; pip install pandas pyarrow") from missing


def to_arrow(columns: Struct, rows: Iterable[Row]) -> pa.Table:
    return extra("pyarrow").Table.from_batches(batches(columns, rows), arrow_schema(columns))


def to_pandas(columns: Struct, rows: Iterable[Row]) -> pd.DataFrame:
    pandas, table = extra("pandas"), to_arrow(columns, rows)
    try:
        whole: pd.DataFrame = table.to_pandas(integer_object_nulls=True)
    except (ValueError, OverflowError, extra("pyarrow").ArrowException):
        # A date or time that Python cannot hold. Its column stays a column of Arrow.
        whole = pandas.concat([_series(pandas, table, name) for name in table.column_names], axis=1)
    integers = extra("pyarrow").types.is_integer
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.null_count and integers(column.type):
            whole[name] = whole[name].astype(str(column.type).title())
    return whole


def _series(pandas: Any, table: pa.Table, name: str) -> pd.Series[Any]:
    column = table.column(name)
    try:
        series: pd.Series[Any] = column.to_pandas(integer_object_nulls=True)
    except (ValueError, OverflowError, extra("pyarrow").ArrowException):
        series = pandas.Series(column, dtype=pandas.ArrowDtype(column.type))
    return series.rename(name)


def arrow_schema(columns: Struct, *, sql: bool = False) -> pa.Schema:
    """The columns in Arrow; with `sql` as DuckDB gets them."""
    pa = extra("pyarrow")
    return pa.schema(columns.arrow_fields(pa, sql=sql))


def batches(columns: Struct, rows: Iterable[Row], *, sql: bool = False) -> Iterator[pa.RecordBatch]:
    """Convert rows, `BATCH_ROWS` at a time."""
    pa, schema = extra("pyarrow"), arrow_schema(columns, sql=sql)
    kinds = list(zip(columns.names, columns.types, schema.types, strict=True))
    remaining = iter(rows)
    while window := list(islice(remaining, BATCH_ROWS)):
        try:
            arrays = [
                pa.array([None if (value := row[name]) is None else kind.to_arrow(value) for row in window], arrow_type)
                for name, kind, arrow_type in kinds
            ]
        except pa.ArrowInvalid as wrong:
            raise ConfigurationError(f"a value does not fit into Arrow: {wrong}") from wrong
        # With a schema, since a key of no columns still has rows.
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def write_parquet(columns: Struct, rows: Iterable[Row], file: Path | BinaryIO, progress: Callable[[int], None]) -> int:
    """Write rows into a Parquet file, and return how many. Refuse a type that Parquet does not have."""
    pa, parquet, count = extra("pyarrow"), extra("pyarrow.parquet"), 0
    try:
        with parquet.ParquetWriter(file, arrow_schema(columns)) as out:
            for batch in batches(columns, rows):
                out.write_batch(batch)
                count += batch.num_rows
                progress(count)
    except pa.ArrowNotImplementedError as wrong:
        raise ConfigurationError(f"a column does not fit into Parquet: {wrong}") from wrong
    return count
