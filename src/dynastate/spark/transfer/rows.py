"""Rows of state from elsewhere: a Python function over the old ones, or a frame (docs/changing-a-query.md)."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from datetime import time as datetime_time
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField, StructType

from dynastate.errors import ConfigurationError
from dynastate.progress import ProgressCallback, no_progress
from dynastate.settings import PREFIX
from dynastate.spark.configure import FILE_SYSTEM_CONF
from dynastate.spark.transfer.jvm import errors_of_spark
from dynastate.spark.transfer.origin import origin_settings
from dynastate.spark.transfer.steps import OURS, Moved, Source, Transfer, no_operator

if TYPE_CHECKING:
    import pyarrow as pa

#: The new value of a row, from its key and its old value, or None if the row is deleted.
Change = Callable[[dict[str, Any], dict[str, Any]], Mapping[str, Any] | None]
#: Rows that a preview looks at, at most.
LOOKED_AT: Final = 10_000


@dataclass(frozen=True)
class Difference:
    """A row that a function changes; `after` is None where it deletes it."""

    key: dict[str, Any]
    before: dict[str, Any]
    after: dict[str, Any] | None

    def as_json(self) -> dict[str, Any]:
        """The three in JSON's types, as far as it has them; other values as texts."""
        return {"key": _to_json(self.key), "before": _to_json(self.before), "after": _to_json(self.after)}


def bootstrap(
    spark: SparkSession,
    template: str,
    new: str,
    frame: DataFrame,
    namespace: str | None = None,
    operator: int = 0,
    store: str | None = None,
    progress: ProgressCallback = no_progress,
) -> Moved:
    """Give a new query state from a frame: `new` is the checkpoint `template` with these rows in place of its own.

    `template` is the checkpoint of the query after at least one batch, on any store; it is only read. It says how the
    state of the operator looks, and where the query resumes. `frame` has the columns `key` and `value`, structs as
    Spark's state reader shows them, or the columns of both. `store` is needed where the operator has several.

    Raises:
        ConfigurationError: it cannot be done; the message says why. Among others two rows have the same key.
        UnavailableError: DynamoDB was unreachable, or throttled, until the deadline; run it again.
    """
    with errors_of_spark():
        transfer = Transfer(spark, "bootstrap", template, new)
        chosen = _store(transfer, operator, store)
        rows = _as_pairs(frame, chosen)
        settings = origin_settings(transfer) if transfer.plan["provider"] == OURS else {}
        to = transfer.ours(namespace, other=settings.get(f"{PREFIX}namespace"))
        return transfer.run(to, Source(settings, frames={_path(chosen): rows}), progress)


def migrate(
    spark: SparkSession,
    old: str,
    new: str,
    change: Change,
    schema: str | StructType,
    namespace: str | None = None,
    operator: int = 0,
    store: str | None = None,
    progress: ProgressCallback = no_progress,
) -> Moved:
    """Give a query that has stopped another schema of its state: `change` makes each row's new value, in parallel.

    `old` and its namespace are only read. `schema` describes the new values, as a StructType or in DDL; keys stay.
    Every new value has exactly its columns. `preview` shows what would change.

    Raises:
        ConfigurationError: it cannot be done; the message says why.
        UnavailableError: DynamoDB was unreachable, or throttled, until the deadline; run it again.
    """
    with errors_of_spark():
        transfer = Transfer(spark, "migrate", old, new)
        settings = origin_settings(transfer)
        chosen = _store(transfer, operator, store)
        to = transfer.ours(namespace, other=settings[f"{PREFIX}namespace"])
        rows = _read(spark, transfer, settings, chosen)
        value = _struct(schema)
        columns = [each.name for each in value.fields]

        def batches(old_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import pyarrow as pa  # of the worker

            kind = to_arrow_type(value)
            for batch in old_batches:
                pairs = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
                values = [_changed(change, columns, key, old_value) for key, old_value in pairs]
                is_kept = pa.array([each is not None for each in values])
                column = pa.array([each for each in values if each is not None], kind)
                yield pa.RecordBatch.from_arrays([batch.column(0).filter(is_kept), column], names=["key", "value"])

        # Workers need neither this package nor the function's module.
        for module in {__name__, change.__module__} - {"__main__"}:
            cloudpickle.register_pickle_by_value(sys.modules[module])  # type: ignore[no-untyped-call]
        pairs = StructType([rows.schema["key"], StructField("value", value)])
        return transfer.run(to, Source(settings, frames={_path(chosen): rows.mapInArrow(batches, pairs)}), progress)


def preview(
    spark: SparkSession,
    old: str,
    new: str,
    change: Change,
    schema: str | StructType,
    operator: int = 0,
    store: str | None = None,
    most: int = 10,
) -> list[Difference]:
    """The first `most` rows that `change` changes, of the first 10,000 rows. Nothing is written."""
    differences: list[Difference] = []
    with errors_of_spark():
        transfer = Transfer(spark, "migrate", old, new)
        rows = _read(spark, transfer, origin_settings(transfer), _store(transfer, operator, store))
        value = _struct(schema)
        for row in rows.limit(LOOKED_AT).toLocalIterator():
            key, old_value = row["key"].asDict(recursive=True), row["value"].asDict(recursive=True)
            try:
                new_value = _changed(change, value.names, dict(key), dict(old_value))
            except Exception as failed:  # whatever a user's function raises
                raise ConfigurationError(f"the function failed: {failed!r}", key=key) from failed
            if repr(new_value) != repr(old_value):  # 1 and 1.0 are equal
                differences.append(Difference(key, old_value, new_value))
            if len(differences) == most:
                break
        changed = [each.after for each in differences if each.after is not None]
        try:
            spark.createDataFrame(changed, value)  # it checks the types of each column
        except PySparkException as wrong:
            raise ConfigurationError(f"the function returns other types than the schema's: {wrong}") from wrong
    return differences


def _changed(change: Change, columns: list[str], key: dict[str, Any], value: dict[str, Any]) -> dict[str, Any] | None:
    """The new value of a row by a function; refuse other columns than those of the new schema."""
    new_value = change(key, value)
    if new_value is None:
        return None
    if not isinstance(new_value, Mapping) or set(new_value) != set(columns):
        got = ", ".join(map(str, new_value)) if isinstance(new_value, Mapping) else repr(new_value)
        raise ValueError(f"the function must return exactly the columns {', '.join(columns)}, or None; got {got}")
    return dict(new_value)


def _store(transfer: Transfer, operator: int, store: str | None) -> dict[str, Any]:
    """The description of the store to fill, which has no column families."""
    stores: list[dict[str, Any]] = [each for each in transfer.plan["stores"] if each["operator"] == operator]
    if not stores:
        operators = sorted({each["operator"] for each in transfer.plan["stores"]})
        raise no_operator(operators, operator)
    chosen = [each for each in stores if store in (None, each["name"])]
    if len(chosen) != 1:
        raise ConfigurationError(
            f"give one of the operator's stores: {', '.join(each['name'] for each in stores)}", operator=operator
        )
    if chosen[0]["families"]:
        raise ConfigurationError(
            "rows of an operator with column families cannot be given; use Avro state encoding, or an initial state",
            operator=operator,
            kind=chosen[0]["kind"],
        )
    return chosen[0]


def _path(store: Mapping[str, Any]) -> str:
    return f"{store['operator']}/{store['name']}"


def _read(spark: SparkSession, transfer: Transfer, settings: Mapping[str, str], store: Mapping[str, Any]) -> DataFrame:
    """Keys and values of a store, by Spark's state reader, which needs Spark's description of the operator."""
    if not transfer.jvm.names(transfer.source, "state", str(store["operator"]), "_metadata"):
        raise ConfigurationError(
            "Spark 3.5 does not describe operators, which Spark's reader needs; run a batch of the query on Spark "
            "4.0.1 or newer first, or use bootstrap",
            checkpoint=transfer.source,
        )
    session = spark.newSession()
    file_system = {name: spark.conf.get(name, None) for name in FILE_SYSTEM_CONF}
    for name, value in {**settings, **file_system}.items():
        if value is not None:
            session.conf.set(name, value)
    reader = session.read.format("statestore").option("batchId", transfer.plan["batch"])
    reader = reader.option("operatorId", store["operator"]).option("storeName", store["name"])
    return reader.load(transfer.source).select("key", "value")


def _to_json(value: Any) -> Any:
    """A value of Spark's rows in JSON's types. A map without texts as its keys is a list of pairs."""
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _to_json(each) for key, each in value.items()}
        return [[_to_json(key), _to_json(each)] for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return [_to_json(each) for each in value]
    if isinstance(value, (bytes, bytearray)):
        return b64encode(value).decode()
    if isinstance(value, (date, datetime_time)):
        return value.isoformat()
    is_plain = value is None or isinstance(value, (str, bool, int)) or (isinstance(value, float) and isfinite(value))
    return value if is_plain else str(value)


def _struct(schema: str | StructType) -> StructType:
    if isinstance(schema, StructType):
        return schema
    try:
        parsed = StructType.fromDDL(schema)
    except PySparkException as wrong:
        raise ConfigurationError("the schema is not DDL, such as 'rows long, note string'", got=schema) from wrong
    if not isinstance(parsed, StructType):
        raise ConfigurationError("the schema needs names of columns, as in 'rows long, note string'", got=schema)
    return parsed


def _as_pairs(frame: DataFrame, store: Mapping[str, Any]) -> DataFrame:
    """A frame with the columns `key` and `value` as a store has them, from one that has these, or their columns."""
    (described,) = store["described"]
    kinds = {side: StructType.fromJson(described[side]) for side in ("key", "value")}
    columns = frame.columns
    names = [*kinds["key"].names, *kinds["value"].names]
    are_structs = sorted(columns) == ["key", "value"] and sorted(names) != sorted(columns)
    if are_structs:
        for side, kind in kinds.items():
            if sorted(_struct_of(frame, side).names) != sorted(kind.names):
                raise ConfigurationError(f"the struct {side} needs exactly the columns {', '.join(kind.names)}")
    elif sorted(columns) != sorted(names) or len(set(names)) < len(names):
        raise ConfigurationError(
            f"the frame needs the columns key and value, or exactly the columns {', '.join(names)}",
            got=", ".join(columns),
        )
    structs = {}
    for side, kind in kinds.items():
        struct = f.struct(*((f.col(side)[name] if are_structs else f.col(name)).alias(name) for name in kind.names))
        # A struct that is null stays so.
        structs[side] = f.when(f.col(side).isNotNull(), struct) if are_structs else struct
    pairs = frame.select(*(struct.alias(side) for side, struct in structs.items()))
    for side, kind in kinds.items():
        for column, frame_column in zip(kind.fields, _struct_of(pairs, side).fields, strict=True):
            if not same_schema(column.dataType.jsonValue(), frame_column.dataType.jsonValue()):
                raise ConfigurationError(
                    f"a column of the frame must be {column.dataType.simpleString()}; cast it",
                    column=column.name,
                    got=frame_column.dataType.simpleString(),
                )
    return pairs


def _struct_of(frame: DataFrame, column: str) -> StructType:
    kind = frame.schema[column].dataType
    if not isinstance(kind, StructType):
        raise ConfigurationError("this column of the frame must be a struct", column=column, got=kind.simpleString())
    return kind


def _types(described: Any) -> Any:
    """A type in JSON without what says whether there may be nulls."""
    if isinstance(described, dict):
        return {name: _types(each) for name, each in described.items() if "ull" not in name and name != "metadata"}
    return [_types(each) for each in described] if isinstance(described, list | tuple) else described


def same_schema(schema: Any, other: Any) -> bool:
    """Whether two schemas in JSON have the same columns of the same types."""
    return json.dumps(_types(schema), sort_keys=True) == json.dumps(_types(other), sort_keys=True)
