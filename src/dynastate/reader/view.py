"""Rows of one column family at one version, in all partitions of an operator or in one store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from math import inf
from operator import index
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from dynastate.errors import ConfigurationError, CorruptStateError, DynastateError, VersionMissingError
from dynastate.format.changes import MERGE
from dynastate.format.changes import Change as RowChange
from dynastate.format.keys import Attempt
from dynastate.format.version_list import VersionEntry
from dynastate.progress import ProgressCallback, no_progress
from dynastate.reader import arrow, sql
from dynastate.reader.families import DEFAULT_FAMILY, Family, Row, nearest_family
from dynastate.reader.partition import Partition, Source
from dynastate.reader.placement import Placement
from dynastate.reader.scan import scan
from dynastate.storage.meter import Meter
from dynastate.unsaferow.nested import Struct

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from dynastate.engine.lineage import Lineage

Kind = Literal["put", "append", "remove"]


class Change(NamedTuple):
    """One change of one version. Of a removed key, `row` has the key's columns only.

    A put replaces the row of the key; an append adds to its list, and `row` has the new value only.
    """

    version: int
    kind: Kind
    row: Row


class Past(NamedTuple):
    """The row of a key from a version on, or None if the key was not there."""

    version: int
    row: Row | None


class Difference(NamedTuple):
    """A key that differs between two versions, with its rows, or None if it was not there."""

    key: Row
    before: Row | None
    after: Row | None


class TakenBack(NamedTuple):
    """The version at which the reader saw that the query was taken back, and the newest version before it that remains.

    `common` is 0 if none remains, and None if clean-up has deleted it, or may have.
    """

    version: int = 0
    common: int | None = 0

    def has_undone(self, version: int) -> bool:
        return (self.common or 0) < version <= self.version

    def refuse(self, store: str, version: int) -> VersionMissingError:
        """The error for changes after a version that was undone."""
        if self.common is None:
            return VersionMissingError(
                "the query was taken back to an earlier version and has made this one again, and no version that was "
                "read remains: read all rows again",
                store=store,
                version=version,
            )
        return VersionMissingError(
            "the query was taken back to an earlier version and has made this one again. What was read of the versions "
            "after 'common' is not its state: read all rows again, or the changes after that version",
            store=store,
            version=version,
            common=self.common,
        )


_NEVER: Final = TakenBack()


class StateView:
    """Rows at one version, for as long as the reader that made the view is open. Used by one thread at a time.

    Parts and buckets are cached, up to `cache_mb`, and take no request again. `meter` counts requests and units.

    Raises:
        ConfigurationError: from any method: a key or a version is not of its type, a package is not installed.
        VersionMissingError: a version is not there, or clean-up has deleted this one; `refresh`.
        CorruptStateError: an item is lost or corrupt.
    """

    def __init__(
        self,
        source: Source,
        placement: Placement,
        store: str,
        family: str,
        lineages: Iterable[Lineage],
        version: int,
        taken_back: TakenBack = _NEVER,
    ) -> None:
        self.store = store
        self.family = family
        self.version = version
        #: Set by the last refresh that moved.
        self._taken_back = taken_back
        self._source = source
        self._placement = placement
        self._partitions: Sequence[Partition] = [self._partition(lineage) for lineage in lineages]

    def _partition(self, lineage: Lineage) -> Partition:
        return Partition(self._source, lineage, self.family, lambda: self._schema)

    @property
    def meter(self) -> Meter:
        """Requests and units spent so far."""
        return self._source.meter

    @property
    def stores(self) -> tuple[str, ...]:
        """The stores that are read, one a partition."""
        return tuple(partition.store for partition in self._partitions)

    @property
    def families(self) -> tuple[str, ...]:
        """The column families of this version, Spark's internal ones included."""
        partition = self._partitions[0]
        return tuple(partition.families(partition.lineage.find(self.version)))

    @property
    def columns(self) -> Struct:
        """Names and types of the columns of a row."""
        return self._schema.columns

    @property
    def key_columns(self) -> Struct:
        """Names and types of the key's columns."""
        return self._schema.encoder.columns

    @property
    def value_columns(self) -> Struct:
        """Names and types of the value's columns, as rows have them; with lists, of one value."""
        return self._schema.value

    @property
    def has_lists(self) -> bool:
        """Whether a key has a list of values."""
        return self._schema.multiple

    @property
    def list_column(self) -> str:
        """The column with the list of values, in a family with lists."""
        return self._schema.list_column

    def versions(self) -> list[int]:
        """The versions that can be read, ascending."""
        first = max(partition.lineage.entries[0].version for partition in self._partitions)
        return list(range(first, min(partition.lineage.newest.version for partition in self._partitions) + 1))

    def made_by(self, version: int) -> tuple[Attempt, ...]:
        """The attempts that made a version, one a partition: a number may be used again. Version 0 has none."""
        return tuple(each.lineage.find(version).attempt for each in self._partitions) if version else ()

    def __len__(self) -> int:
        """The number of keys. It takes no request."""
        return sum(partition.count(entry) for partition, entry in self._current())

    def get(self, key: Mapping[str, Any]) -> Row | None:
        """Get the row of a key, which is given by its columns. Returns None if it is not there.

        A key that Spark takes for equal is found as well: -0.0 for 0.0, a map whose entries are in another order.

        It reads one bucket of the newest snapshot and the changes since, as far as they are not cached, in the
        partition where Spark has the key.
        """
        family = self._schema
        for exact, raw in family.find(key):
            with self._reading():
                for number in self._placement.find(self._partitions, self.version, family, key=exact, raw=raw):
                    partition = self._partitions[number]
                    value = partition.value(partition.lineage.find(self.version), raw)
                    if value is not None:
                        return family.row(raw, value)
        return None

    def __iter__(self) -> Iterator[Row]:
        """Read every row, in no order. About 8 MiB of rows at a time are in memory, before they are decoded."""
        return (row for _, row in self.rows_by_partition())

    def rows_by_partition(self) -> Iterator[tuple[int, Row]]:
        """Read every row as `iter` does, with the number of its partition."""
        for partition, entry in self._current():
            family = partition.families(entry).get(self.family)
            if family is not None:
                with self._reading():
                    for raw, value in scan(partition, entry, family):
                        yield partition.number, family.row(raw, value)

    def at(self, version: int) -> StateView:
        """View the state at another version."""
        version = _number(version)
        for partition in self._partitions:
            partition.lineage.find(version)
        return self._view(self._placement, self.family, version)

    def of_family(self, name: str) -> StateView:
        """View another column family at this version."""
        view = self._view(Placement(), name, self.version)
        view._schema  # noqa: B018, SLF001  # refuses a name that is not there
        return view

    def _view(self, placement: Placement, family: str, version: int) -> StateView:
        lineages = [partition.lineage for partition in self._partitions]
        return StateView(
            self._source, placement, self.store, family, lineages=lineages, version=version, taken_back=self._taken_back
        )

    def changes(self, after: int, to: int | None = None) -> Iterator[Change]:
        """Read the changes of the versions after one, up to another (by default this one), oldest first.

        Rows have the columns of the last of these versions, unless the column family was removed since, and made again
        with another schema: then those of their own version.

        Raises:
            VersionMissingError: the query was taken back before `after` while this reader was at or above it; or it has
                not made `after` yet.
        """
        return (change for _, change in self.changes_by_partition(after, to))

    def changes_by_partition(
        self, after: int, to: int | None = None, *, one_schema: bool = False
    ) -> Iterator[tuple[int, Change]]:
        """Read what `changes` does, each with the number of its partition.

        Raises:
            ConfigurationError: with `one_schema`, a row has other columns than the last version.
            VersionMissingError: as `changes`.
        """
        after, last = _number(after), _number(self.version if to is None else to)
        if self._taken_back.has_undone(after):
            raise self._taken_back.refuse(self.store, after)
        if after > last and to is None:
            raise VersionMissingError(
                "the query has not made this version: it was taken back to an earlier one, or is another query; read "
                "all rows again",
                store=self.store,
                version=after,
                newest=last,
            )
        if last <= after:
            return
        with self._reading(), ExitStack() as ended:
            feeds = []
            for partition in self._partitions:
                newest = partition.lineage.find(last)
                feed = ended.enter_context(closing(partition.feed(after + 1, newest)))
                feeds.append((partition, partition.family(newest), feed))
            for _ in range(after + 1, last + 1):
                for partition, latest, feed in feeds:
                    entry, changes = next(feed)
                    current = partition.family(entry)
                    family = latest if latest.reads(current) else current
                    for change in changes:
                        if change.family == family.id:
                            if one_schema and family is not latest:
                                raise _made_again(partition, entry.version)
                            yield partition.number, Change(entry.version, _kind(change), family.changed(change))

    def history(self, key: Mapping[str, Any], progress: ProgressCallback = no_progress) -> list[Past]:
        """Read the row of a key at the oldest version, and at each later version, up to this one, that changed it.

        It reads the changes of all versions that are retained; `progress` gets the versions of one partition.
        Rows have the columns of this version, unless the column family was removed since, and made again with
        another schema: then those of their own version.
        """
        return [past for past, _ in self.history_with_columns(key, progress)]

    def history_with_columns(
        self, key: Mapping[str, Any], progress: ProgressCallback = no_progress
    ) -> list[tuple[Past, Struct]]:
        """Read what `history` does, with the columns of each row."""
        family = self._schema
        for exact, raw in family.find(key):
            with self._reading():
                for number in self._placement.find(self._partitions, self.version, family, key=exact, raw=raw):
                    partition = self._partitions[number]
                    values = self._partition(self._retained(partition)).history(raw, progress)
                    past = [
                        (Past(entry.version, decoder.row_or_none(raw, value)), decoder.columns)
                        for entry, decoder, value in values
                    ]
                    if past:
                        return past
        return []

    def _retained(self, partition: Partition) -> Lineage:
        """The lineage of this version, from the oldest version on that can be opened now.

        If the query was taken back meanwhile, it is the lineage that was read.
        """
        retained, lineage = self._source.engine.lineage(partition.store), partition.lineage.up_to(self.version)
        return retained.up_to(self.version) if lineage.newest in retained.entries else lineage

    def diff(
        self, before: int, after: int, progress: ProgressCallback = no_progress, *, limit_bytes: float = inf
    ) -> Iterator[Difference]:
        """Read the keys whose rows differ between two versions, in no order.

        It reads the changes between them twice, and once all rows of the earlier one; the rows of changed keys are in
        memory, of one partition at a time. `progress` gets the versions whose changes are read, those of all partitions
        together. Rows have the columns of the later version.

        Raises:
            ConfigurationError: the changes in a partition have more than `limit_bytes`, or the column family was
                removed between the versions, and made again with another schema.
        """
        low, high = sorted((_number(before), _number(after)))
        counter, total = count(1), (high - low) * len(self._partitions)
        with self._reading():
            for partition in self._partitions:
                family = partition.family(partition.lineage.find(high))
                low_family = partition.families(partition.lineage.find(low)).get(self.family) if low else None
                for raw, old, new in partition.difference(
                    low, high, lambda: progress(next(counter), total), limit_bytes
                ):
                    if old is not None and low_family is not None and not family.reads(low_family):
                        raise _made_again(partition, low)
                    pair = [family.row_or_none(raw, value) for value in (old, new)]
                    first, second = pair if before == low else reversed(pair)
                    yield Difference(family.encoder.decode(raw), first, second)

    def to_arrow(self) -> pa.Table:
        """Read all rows into a table of Arrow."""
        return arrow.to_arrow(self.columns, self)

    def to_pandas(self) -> pd.DataFrame:
        """Read all rows into a data frame of pandas, with Arrow's conversion of types."""
        return arrow.to_pandas(self.columns, self)

    def to_duckdb(
        self, *, after: int | None = None, memory_mb: int = sql.MEMORY_MB, external_access: bool = False
    ) -> sql.Connection:
        """Open a DuckDB in memory with the tables `state`, `changes` and `versions`, which queries read as they run.

        The view must stay open, and nothing else may read it meanwhile. DuckDB cannot touch files or the network, and
        its configuration is locked, unless it has `external_access`. It takes up to `memory_mb` MiB. `changes` are
        those of the versions `after` one; by default all that can be read.
        """
        return sql.connect(self, after=after, memory_mb=memory_mb, external_access=external_access)

    def listed(self) -> Iterator[tuple[int, VersionEntry, Mapping[str, Family]]]:
        """The versions up to this one that can be read, of each partition, by its number. It takes no request."""
        for partition in self._partitions:
            for entry in partition.lineage.entries:
                if entry.version <= self.version:
                    yield partition.number, entry, partition.families(entry)

    def _current(self) -> list[tuple[Partition, VersionEntry]]:
        return [(partition, partition.lineage.find(self.version)) for partition in self._partitions]

    @property
    def _schema(self) -> Family:
        """The column family at this version, or near it."""
        partition = self._partitions[0]
        family = nearest_family(partition.lineage, self.family, self.version)
        if family is None:
            raise no_family(self.store, self.family, partition.families(partition.lineage.find(self.version)))
        return family

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Report deleted data as missing, never as corrupt, and name tables as the user knows them."""
        with naming(self._source):
            try:
                yield
            except (CorruptStateError, VersionMissingError) as lost:
                store = self._unreadable()
                if store is None:
                    raise
                raise VersionMissingError(
                    "this version was deleted: it was not retained, or the query restarted at an earlier one; refresh",
                    store=store,
                    version=self.version,
                ) from lost

    def _unreadable(self) -> str | None:
        """A store that no longer lists this version. Returns None if all do, or if a version list cannot be read."""
        for partition, entry in self._current():
            try:
                lineage = self._source.engine.lineage(partition.store)
            except DynastateError:
                return None  # the first error says more
            if entry not in lineage.entries:
                return partition.store
        return None


@contextmanager
def naming(source: Source) -> Iterator[None]:
    """Name tables in errors as the user knows them, and refuse to read closed state."""
    if source.closed.is_set():
        raise ConfigurationError("the state is closed; read it before close(), or within its 'with' block")
    try:
        yield
    except DynastateError as failed:
        source.engine.name_table(failed)
        raise


def no_family(store: str, family: str, names: Iterable[str]) -> ConfigurationError:
    """The error for a column family that a store does not have."""
    listed = ", ".join(names) or "none"
    return ConfigurationError(f"this store has no column family {family}; it has {listed}", store=store)


def choose_family(store: str, family: str | None, families: Mapping[str, Family]) -> str:
    """The column family by its name, or the only one. If `family` is None and there are several, none."""
    # transformWithState has its state variables beside a default family that it does not use.
    names = [each.name for each in families.values() if not each.internal and each.name != DEFAULT_FAMILY]
    if family is None and len(names) > 1:
        return ""
    if not family and len(names) > 1:
        raise ConfigurationError(f"say which column family; this store has {', '.join(names)}", store=store)
    chosen = family or (names[0] if names else DEFAULT_FAMILY)
    if chosen not in families:
        raise no_family(store, chosen, families)
    return chosen


def _made_again(partition: Partition, version: int) -> ConfigurationError:
    return ConfigurationError(
        f"column family {partition.name} was removed after this version, and made again with another schema; read"
        " later versions only, or only versions up to this one",
        store=partition.store,
        version=version,
    )


def _number(version: Any) -> int:
    """A version that was given as an int, or as a type of numpy that is like one."""
    if isinstance(version, bool) or not hasattr(version, "__index__"):
        raise ConfigurationError(
            "a version is a whole number, such as 41; versions() lists them", version=repr(version)
        )
    return index(version)


def _kind(change: RowChange) -> Kind:
    if change.value is None:
        return "remove"
    return "append" if change.operation == MERGE else "put"
