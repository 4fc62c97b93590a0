"""SQL over committed state, by DuckDB: tables that are read when a query names them, and as far as it reads them.

Tables (docs/reading-state.md): `state` and `changes` of the column family, `state_NAME` and `changes_NAME` of each
family where there are several, and `versions`. DuckDB reads them as streams of Arrow, so a range of
rows, a batch, and the query's own rows, up to a limit, are in memory.
"""

from __future__ import annotations

import importlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from dynastate.errors import ConfigurationError, DynastateError
from dynastate.format.version_list import VersionEntry
from dynastate.reader.arrow import arrow_schema, batches, extra
from dynastate.reader.families import DEFAULT_FAMILY, Family, Row
from dynastate.reader.sql_values import is_in_arrow, to_json
from dynastate.unsaferow.nested import Struct, unique
from dynastate.unsaferow.schema import parse_schema

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection as Connection

    __all__ = ["Connection"]

#: MiB of memory that DuckDB may take.
MEMORY_MB: Final = 1024
#: Rows that are fetched from DuckDB at once.
FETCH_ROWS: Final = 10_000
#: The type of a statement that answers with rows: select, from, with, values, describe, show, summarize.
_QUERY: Final = "SELECT"
_MEMORY: Final = "Out of Memory Error"
#: Advice for DuckDB's errors, by what their texts begin with.
_ADVICE: Final = {
    "Permission Error": "; --external-access, or external_access=True, lets it use files and extensions",
    _MEMORY: (
        "; rows never wait on disk: --memory-mb, or memory_mb, lets it take more memory, and a condition, fewer"
        " columns or a limit need less"
    ),
}
_VERSIONS: Final = {
    "version": "long",
    "partition_id": "integer",
    "attempt": "string",
    "epoch": "long",
    "rows": "long",
    "changes": "long",
    "parts": "long",
    "bytes": "long",
    "committed": "timestamp",
}
#: Columns of these tables beside the columns of a row.
_PLACE: Final = {"partition_id": "integer"}
_CHANGE: Final = {"version": "long", "kind": "string", **_PLACE}


class View(Protocol):
    """State at one version, with the methods of `StateView` that tables are read by."""

    @property
    def family(self) -> str: ...
    @property
    def families(self) -> tuple[str, ...]: ...
    @property
    def columns(self) -> Struct: ...
    def of_family(self, name: str) -> View: ...
    def versions(self) -> list[int]: ...
    def listed(self) -> Iterator[tuple[int, VersionEntry, Mapping[str, Family]]]: ...
    def rows_by_partition(self) -> Iterator[tuple[int, Row]]: ...
    def changes_by_partition(self, after: int, *, one_schema: bool) -> Iterator[tuple[int, tuple[int, str, Row]]]: ...


def connect(
    state: View, *, after: int | None = None, memory_mb: int = MEMORY_MB, external_access: bool = False
) -> Connection:
    """Open a DuckDB in memory with the tables of a view.

    Args:
        state: the view; it must stay open, and nothing else may read it meanwhile.
        after: `changes` have the versions after this one; by default all that can be read.
        memory_mb: MiB of memory that DuckDB may take.
        external_access: let queries read and write files, and load extensions, also from the network.

    Raises:
        ConfigurationError: DuckDB or pyarrow is not installed.
    """
    return _Tables(state, after).connect(memory_mb, external_access=external_access)[0]


@dataclass(frozen=True)
class Answer:
    """The answer to a query: the names of its columns, and its rows in JSON's types, read as they are fetched."""

    columns: tuple[str, ...]
    rows: Iterator[tuple[Any, ...]]

    def as_json(self) -> Iterator[dict[str, Any]]:
        """The rows as JSON objects, with values as `dynastate get` has them."""
        names = unique(self.columns)
        return (dict(zip(names, row, strict=True)) for row in self.rows)


@contextmanager
def answer(
    state: View, query: str, *, after: int | None = None, memory_mb: int = MEMORY_MB, external_access: bool = False
) -> Iterator[Answer]:
    """Answer one query; the other arguments are `connect`'s. Refuse what is not exactly one query."""
    if not query.isascii() and _is_broken(query):
        raise ConfigurationError("the query has bytes that are not UTF-8; give it in UTF-8", got=repr(query)[:100])
    connection, tables = _Tables(state, after).connect(memory_mb, external_access=external_access)
    with closing(connection), _errors(tables, query):
        statements = connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type.name != _QUERY:
            names = ", ".join(each.type.name.lower() for each in statements) or "nothing"
            raise ConfigurationError("give one query, as in: select count(*) from state; state is only read", got=names)
        relation = connection.sql(query)
        columns, kinds = tuple(relation.columns), list(relation.types)
        if not all(map(is_in_arrow, kinds)):
            relation = relation.project(", ".join(_readable(n, kind) for n, kind in enumerate(kinds, 1)))
            kinds = list(relation.types)
        rows = _fetched(relation, kinds, tables, query)
        first = list(islice(rows, 1))  # most errors come with the first row, before anything is printed
        yield Answer(columns, chain(first, rows))


def _readable(number: int, kind: Any) -> str:
    """A column by its number; as text, if Arrow does not hold its values."""
    return f"#{number} as c{number}" if is_in_arrow(kind) else f"cast(#{number} as varchar) as c{number}"


def _is_broken(query: str) -> bool:
    """Whether a text has surrogates, which stand for bytes that are not UTF-8."""
    return any("\ud800" <= letter <= "\udfff" for letter in query)


def _fetched(
    relation: Any, kinds: Sequence[Any], tables: Mapping[str, _Table], query: str
) -> Iterator[tuple[Any, ...]]:
    with _errors(tables, query):
        for batch in relation.to_arrow_reader(FETCH_ROWS):
            columns = [to_json(kind, column) for kind, column in zip(kinds, batch.columns, strict=True)]
            yield from zip(*columns, strict=True)


@contextmanager
def _errors(tables: Mapping[str, _Table], query: str) -> Iterator[None]:
    """Convert DuckDB's errors: to the error of the table that could not be read, or to one with advice."""
    try:
        yield
    # If DuckDB fails while rows are fetched, Arrow raises an error with its text.
    except (_duckdb().Error, extra("pyarrow").ArrowException, OSError) as wrong:
        for table in tables.values():
            if table.failed is not None:
                raise table.failed from None
        # Further lines have the place in the query, or settings for memory, which are locked.
        text = str(wrong)
        kind = next((kind for kind in _ADVICE if kind in text), "")
        message = text.partition("\n" if kind == _MEMORY else "\nLINE ")[0]
        advice = _ADVICE.get(kind, "")
        if "Catalog Error" in message:
            advice = f"; tables are {', '.join(tables)}"
        elif "Parser Error" in message:
            advice = _quoting(tables, query)
        raise ConfigurationError(f"the query fails: {' '.join(message.split()).rstrip('!')}{advice}") from wrong


def _quoting(tables: Mapping[str, _Table], query: str) -> str:
    """Advice for a query that names a column by a word of SQL, such as window, without quotes."""
    with closing(_duckdb().connect(":memory:")) as connection:
        reserved = "select keyword_name from duckdb_keywords() where keyword_category <> 'unreserved'"
        words = {word for (word,) in connection.execute(reserved).fetchall()}
    columns = {name.casefold() for table in tables.values() for name in table.columns.names}
    bare = re.findall(r"\w+", re.sub(r'"[^"]*"|\'[^\']*\'', " ", query).casefold())
    named = [f'"{word}"' for word in dict.fromkeys(bare) if word in words & columns]
    return f"; a column that is called as a word of SQL needs double quotes: {', '.join(named)}" if named else ""


def _duckdb() -> Any:
    try:
        return importlib.import_module("duckdb")
    except ImportError as missing:
        raise ConfigurationError("duckdb is not installed here; pip install duckdb pyarrow") from missing


class _Table:
    """A table for DuckDB, by Arrow's interface of streams: each scan of a query asks for a new one."""

    def __init__(self, columns: Struct, rows: Callable[[], Iterable[Row]], lock: threading.Lock) -> None:
        self.columns = columns
        self._rows = rows
        self._lock = lock
        #: The error that ended a scan: DuckDB's has only its text.
        self.failed: Exception | None = None

    def __arrow_c_schema__(self) -> object:
        return arrow_schema(self.columns, sql=True).__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = extra("pyarrow").RecordBatchReader.from_batches(arrow_schema(self.columns, sql=True), self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[Any]:
        """The batches of one scan. DuckDB may scan two tables in two threads, and the state has one reader."""
        self.failed = None
        remaining = batches(self.columns, self._rows(), sql=True)
        try:
            while True:
                with self._lock:
                    batch = next(remaining, None)
                if batch is None:
                    return
                yield batch
        except DynastateError as failed:
            self.failed = failed
            raise


class _Tables:
    """The tables of a view."""

    def __init__(self, state: View, after: int | None) -> None:
        readable = state.versions()
        # The changes of the oldest version may be deleted, unless it is the first.
        self._after = readable[0] - (readable[0] == 1) if after is None else after
        self._state = state
        self._lock = threading.Lock()

    def connect(self, memory_mb: int, *, external_access: bool) -> tuple[Connection, Mapping[str, _Table]]:
        """Make the connection, whose configuration is locked then."""
        conf: dict[str, Any] = {"memory_limit": f"{memory_mb}MiB", "python_enable_replacements": False}
        if not external_access:
            conf |= {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
        connection = _duckdb().connect(":memory:", config=conf)
        # Without a folder for temporary files DuckDB writes no rows to disk, where they could be read as plain text.
        connection.execute("set temp_directory = ''")
        if not external_access:
            connection.execute("set enable_external_access = false")
        # Days and hours are in UTC, as in all other commands.
        connection.execute("set TimeZone = 'UTC'")
        tables = dict(self._tables())
        for name, table in tables.items():
            connection.register(name, table)
        connection.execute("set lock_configuration = true")
        return cast("Connection", connection), tables

    def _tables(self) -> Iterator[tuple[str, _Table]]:
        state, names = self._state, self._state.families
        if state.family:
            yield from self._of(state, "")
        if len(names) > 1:
            # With transformWithState there is a default family that nothing uses.
            named = [name for name in names if name != DEFAULT_FAMILY]
            # DuckDB does not distinguish capitals.
            for name, folded in zip(named, unique(map(str.casefold, named)), strict=True):
                yield from self._of(state.of_family(name), f"_{name}{folded[len(name) :]}")
        yield "versions", _Table(_typed(_VERSIONS), self._versions, self._lock)

    def _of(self, state: View, suffix: str) -> Iterator[tuple[str, _Table]]:
        """The tables of one column family."""
        columns, names = _joined(_PLACE, state.columns)
        yield f"state{suffix}", _Table(columns, partial(self._rows, state, names), self._lock)
        columns, names = _joined(_CHANGE, state.columns)
        yield f"changes{suffix}", _Table(columns, partial(self._changes, state, names), self._lock)

    def _rows(self, state: View, names: Sequence[str]) -> Iterator[Row]:
        (column,) = names
        return (row | {column: number} for number, row in state.rows_by_partition())

    def _changes(self, state: View, names: Sequence[str]) -> Iterator[Row]:
        nothing = dict.fromkeys(state.columns.names)
        for number, (version, kind, row) in state.changes_by_partition(self._after, one_schema=True):
            yield nothing | row | dict(zip(names, (version, kind, number), strict=True))

    def _versions(self) -> Iterator[Row]:
        for number, entry, families in self._state.listed():
            internal = {family.id for family in families.values() if family.internal}
            yield {
                "version": entry.version,
                "partition_id": number,
                "attempt": entry.attempt.hex(),
                "epoch": entry.epoch,
                "rows": sum(keys for family, keys in entry.keys.items() if family not in internal),
                "changes": entry.records,
                "parts": entry.parts,
                "bytes": entry.stored_bytes,
                "committed": datetime.fromtimestamp(entry.time_ms / 1000, timezone.utc),
            }


def _typed(columns: Mapping[str, str]) -> Struct:
    return parse_schema({"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in columns.items()]})


def _joined(table_columns: Mapping[str, str], columns: Struct) -> tuple[Struct, tuple[str, ...]]:
    """The columns of a table before the columns of its rows, and their names, numbered if a row has the name."""
    names = unique([*columns.names, *table_columns], str.casefold)[len(columns.names) :]
    fields = [*zip(names, _typed(table_columns).types, strict=True), *zip(columns.names, columns.types, strict=True)]
    return Struct(fields), names
