"""Committed state from plain Python, while the query runs: `open_state`. It only reads, and needs no Spark.

A row is one dict: the columns of its key, then those of its value, by their names in Spark's schema, which is stored
with the state; of equal names the later ones are called name#2. Where a key has a list of values (list state) there is
one column `values` in their place. Values are as in `unsafe_row`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from dynastate import rows, stores
from dynastate.errors import ConfigurationError, CorruptStateError, DynastateError, VersionMissingError
from dynastate.layout import VersionEntry
from dynastate.progress import Progress, unheard
from dynastate.reader import Lineage, hash_range
from dynastate.settings import DELTA_TABLE, SNAPSHOT_TABLE, Settings
from dynastate.state_keys import KeyEncoder, make_encoder
from dynastate.store import Engine, Opening, by_any_way
from dynastate.tables import BotoTables, Meter, Tables
from dynastate.unsafe_row import Struct, described_families, parse_schema, unique

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

DEFAULT_FAMILY: Final = "default"
#: The column of lists of values.
VALUES: Final = "values"
#: A rule that puts keys into partitions counts as the right one when this much speaks for it: one in 2^32 by chance.
CERTAIN: Final = 2**32

Row = dict[str, Any]
Kind = Literal["put", "append", "remove"]
_Rows = dict[bytes, rows.Value]
#: A key, and what it had before and after.
_Pair = tuple[bytes, rows.Value | None, rows.Value | None]
Changes = Iterable[rows.Change]


class Change(NamedTuple):
    """One change of one version. Of a key that was removed, `row` has the key's columns only.

    A put replaces all that the key had; an append adds to its list, and its row has the new value only.
    """

    version: int
    kind: Kind
    row: Row


class Past(NamedTuple):
    """What a key had from a version on; None: it was not there."""

    version: int
    row: Row | None


class Difference(NamedTuple):
    """A key that differs between two versions; None: it was not there."""

    key: Row
    before: Row | None
    after: Row | None


def open_state(
    store: str,
    *,
    endpoint: str = "",
    region: str = "",
    family: str = "",
    delta_table: str = DELTA_TABLE,
    snapshot_table: str = SNAPSHOT_TABLE,
    cache_mb: int = 64,
) -> StateReader:
    """Open the committed state of a store at its newest version, to read.

    Args:
        store: `namespace/operator/partition/name`; or `namespace/operator` for all partitions of an operator, and
            `namespace/operator/*/name` where it has several stores a partition, as stream-stream joins have.
        endpoint: URL of the DynamoDB endpoint; empty: the Region's own.
        region: AWS Region; empty: what boto3 finds.
        family: the column family, with transformWithState a state variable; empty: the only one there is.
        delta_table: name of the delta table.
        snapshot_table: name of the snapshot-group table.
        cache_mb: MiB of parts and buckets that are kept, so that what was read is not read again.

    Raises:
        ConfigurationError: no such store or column family, a type that cannot be read, or a wrong setting, table,
            permission or endpoint.
        VersionMissingError: nothing is committed yet.
        CorruptStateError: an item is lost or broken.
        UnavailableError: throttled, or out of reach, for a minute.
    """
    settings = Settings(
        delta_table=delta_table, snapshot_table=snapshot_table, region=region, endpoint=endpoint, cache_mb=cache_mb
    )
    tables = BotoTables(settings)
    return StateReader(tables, settings, store, family, tables.close)


class StateReader:
    """Rows of one column family of a store, or of an operator in all its partitions, at one version.

    It stays at its version until `refresh`. Used by one thread at a time; close it, or use it in a `with`. What is read
    is kept, up to `cache_mb`, so that it costs no request again. `meter` counts what was spent.

    The version of several partitions is the newest that all of them have committed.
    """

    def __init__(
        self,
        tables: Tables,
        settings: Settings,
        store: str,
        family: str = "",
        close_tables: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = store
        self.meter = Meter()
        self._tables = tables
        self._close_tables = close_tables
        self._engine = Engine.of(tables, settings)
        self._pool = ThreadPoolExecutor(settings.parallel_requests, thread_name_prefix="dynastate-state")
        self._asked_family = family
        self._families: dict[str, dict[str, _Family]] = {}
        self._is_placed: bool | None = None
        self._is_view = False
        with ExitStack() as when_failed:
            when_failed.callback(self.close)
            with self._naming():
                self._asked = stores.parse(store)
                self._stores = stores.of_asked(tables, self._asked, self.meter)
                self._lineages = self._follow(self._stores)
            self.version = self._opened_at = self._newest()
            self.family = self._choose_family()
            when_failed.pop_all()

    def __enter__(self) -> StateReader:  # noqa: PYI034  # Self comes with Python 3.11, and nobody derives from it
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the threads and close the connections. A reader that `at` gave has none of its own."""
        if not self._is_view:
            self._pool.shutdown(cancel_futures=True)
            self._engine.close()
            self._close_tables()

    # ------------------------------------------------------------------------------------------------------ description

    @property
    def stores(self) -> tuple[str, ...]:
        """The stores that are read, one a partition."""
        return tuple(self._stores)

    @property
    def families(self) -> tuple[str, ...]:
        """The column families of this version, Spark's own bookkeeping included."""
        return tuple(self._families_of(self._lineages[0], self._entries()[0]))

    @property
    def key_columns(self) -> Struct:
        """Names and types of the key's columns."""
        return self._schema().encoder.columns

    @property
    def value_columns(self) -> Struct:
        """Names and types of the value's columns, as rows have them; where a key has several values: of one of them."""
        return self._schema().value

    @property
    def has_lists(self) -> bool:
        """Whether a key has a list of values."""
        return self._schema().multiple

    @property
    def list_column(self) -> str:
        """The column that has the list, where a key has one."""
        return self._schema().list_column

    def versions(self) -> list[int]:
        """The versions that can be read, ascending."""
        first = max(lineage.entries[0].version for lineage in self._lineages)
        return list(range(first, self._newest() + 1))

    def __len__(self) -> int:
        """How many keys there are. It costs no request."""
        found = zip(self._lineages, self._entries(), strict=True)
        return sum(self._keys(lineage, entry) for lineage, entry in found)

    # ------------------------------------------------------------------------------------------------------------- read

    def get(self, key: Mapping[str, Any]) -> Row | None:
        """The row of a key, which is given by its columns; None: it is not there.

        It reads one bucket of the newest snapshot and the changes since, as far as they are not kept already, in the
        partition where Spark has the key.

        Raises:
            ConfigurationError: a column is missing, unknown, or its value is not of its type.
            VersionMissingError: clean-up has taken this version away; `refresh`.
            CorruptStateError: an item is lost or broken.
        """
        family = self._schema()
        raw = family.encoder.encode(key)
        for number in self._places(family, key, raw):
            lineage = self._lineages[number]
            value = self._value(lineage, lineage.find(self.version), raw)
            if value is not None:
                return family.row(raw, value)
        return None

    def __iter__(self) -> Iterator[Row]:
        """Every row, in no order. The rows of one partition at a time are in memory, encoded.

        Raises:
            VersionMissingError: clean-up has taken this version away; `refresh`.
            CorruptStateError: an item is lost or broken.
        """
        for lineage, entry in zip(self._lineages, self._entries(), strict=True):
            family = self._families_of(lineage, entry).get(self.family)
            if family is not None:
                for raw, value in self._all(lineage.store, entry, family).items():
                    yield family.row(raw, value)

    def at(self, version: int) -> StateReader:
        """The state at another version, for as long as this reader is open.

        Raises:
            VersionMissingError: it is not there, or clean-up took it away; the message names those that are there.
        """
        other = object.__new__(StateReader)
        other.__dict__.update(self.__dict__)
        other._is_view = True
        other.version = version
        other._entries()
        return other

    def refresh(self) -> bool:
        """Go on to the newest version; False: it is this one. What was read before is not read again.

        Raises:
            VersionMissingError: the store is gone.
            CorruptStateError: an item is lost or broken.
        """
        before = self.version, len(self._stores)
        with self._naming():
            # While the first batch commits, or a fork or an import is made, partitions may come. A query has all.
            if self.version == self._opened_at:
                self._stores = stores.of_asked(self._tables, self._asked, self.meter)
            self._lineages = self._follow(self._stores, self._lineages)
        self.version = self._newest()
        return (self.version, len(self._stores)) != before

    def changes(self, after: int, to: int | None = None) -> Iterator[Change]:
        """What was changed by the versions after one, up to another (by default this reader's), oldest first.

        Raises:
            VersionMissingError: one of them is not there.
            CorruptStateError: an item is lost or broken.
        """
        last = self.version if to is None else to
        if last <= after:
            return
        with self._reading(), ExitStack() as ended:
            feeds = [
                (lineage, ended.enter_context(closing(self._feed(lineage, after + 1, lineage.find(last)))))
                for lineage in self._lineages
            ]
            for version in range(after + 1, last + 1):
                for lineage, feed in feeds:
                    family = self._family_of(lineage, lineage.find(version))
                    for change in next(feed):
                        if change.family == family.id:
                            yield Change(version, _kind(change), family.changed(change))

    def history(self, key: Mapping[str, Any], progress: Progress = unheard) -> list[Past]:
        """What a key had, version by version: where it begins to be read, and wherever it differs from the one before.

        It reads the changes of all versions that are retained; `progress` is told of each, in each partition anew.

        Raises:
            ConfigurationError: a column is missing, unknown, or its value is not of its type.
            VersionMissingError: a version was taken away meanwhile; call again.
            CorruptStateError: an item is lost or broken.
        """
        family = self._schema()
        raw = family.encoder.encode(key)
        for number in self._places(family, key, raw):
            with self._naming():
                found = list(self._past(self._engine.lineage(self._stores[number]), raw, progress))
            if found:
                return found
        return []

    def diff(self, before: int, after: int, progress: Progress = unheard) -> Iterator[Difference]:
        """The keys whose rows differ between two versions, in no order.

        It reads the changes between them, and once all rows of the earlier one. `progress` is told of the versions
        whose changes are read, those of all partitions together.

        Raises:
            VersionMissingError: one of them is not there.
            CorruptStateError: an item is lost or broken.
        """
        low, high = sorted((before, after))
        read, total = count(1), (high - low) * len(self._lineages)
        with self._reading():
            for lineage in self._lineages:
                for raw, was, now in self._differing(lineage, low, high, lambda: progress(next(read), total)):
                    family = self._schema()
                    pair = [family.row_or_none(raw, value) for value in (was, now)]
                    first, second = pair if before == low else reversed(pair)
                    yield Difference(family.encoder.decode(raw), first, second)

    # ----------------------------------------------------------------------------------------------------------- frames

    def to_arrow(self) -> pa.Table:
        """All rows as a table of Arrow.

        Raises:
            ConfigurationError: pyarrow is not installed.
        """
        from dynastate.frames import to_arrow

        return to_arrow(self)

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a frame of pandas, with Arrow's way of turning types into those of pandas.

        Raises:
            ConfigurationError: pandas or pyarrow is not installed.
        """
        from dynastate.frames import to_pandas

        return to_pandas(self)

    # ----------------------------------------------------------------------------------------------------------- within

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Let errors name tables as the user knows them."""
        try:
            yield
        except DynastateError as failed:
            self._engine.name_table(failed)
            raise

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """The same, and nothing is called broken that is only gone: cleaned up, or left behind by a query set back."""
        with self._naming():
            try:
                yield
            except CorruptStateError as broken:
                store = self._left_behind()
                if store is None:
                    raise
                raise VersionMissingError(
                    "this version is gone: clean-up took it, or the query went back behind it or began anew; refresh",
                    store=store,
                    version=self.version,
                ) from broken

    def _left_behind(self) -> str | None:
        """A store in which this version cannot be opened any more; None: there is none, or nobody can tell."""
        for lineage in self._lineages:
            try:
                now = self._engine.lineage(lineage.store)
            except DynastateError:
                return None  # what was found broken says more
            if lineage.find(self.version) not in now.entries:
                return lineage.store
        return None

    def _follow(self, names: list[str], known: Iterable[Lineage] = ()) -> list[Lineage]:
        """The newest versions of stores, all asked for at once."""
        held = {each.store: each for each in known}
        found = list(self._pool.map(lambda name: self._engine.lineage(name, held.get(name)), names))
        for each in found:
            self.meter.add(each.meter)
        return found

    def _newest(self) -> int:
        return min(lineage.newest.version for lineage in self._lineages)

    def _entries(self) -> list[VersionEntry]:
        """The version in each partition."""
        return [lineage.find(self.version) for lineage in self._lineages]

    def _choose_family(self) -> str:
        known = self._families_of(self._lineages[0], self._entries()[0])
        if self._asked_family:
            if self._asked_family not in known:
                raise self._without(self._asked_family, known)
            return self._asked_family
        # transformWithState has its state variables beside a default family that it does not use.
        own = [each.name for each in known.values() if not each.internal and each.name != DEFAULT_FAMILY]
        if len(own) > 1:
            raise ConfigurationError(f"say which column family; this store has {', '.join(own)}", store=self.store)
        chosen = own[0] if own else DEFAULT_FAMILY
        if chosen not in known:
            raise self._without(chosen, known)
        return chosen

    def _families_of(self, lineage: Lineage, entry: VersionEntry) -> dict[str, _Family]:
        text = lineage.schema(entry)
        found = self._families.get(text)
        if found is None:
            name = lineage.store.rpartition("/")[2]
            found = self._families[text] = parse_families(text, name)
        return found

    def _family_of(self, lineage: Lineage, entry: VersionEntry) -> _Family:
        """The column family as a version has it; where it has it no more, its rows are removed there by its id."""
        return self._families_of(lineage, entry).get(self.family) or self._schema()

    def _schema(self) -> _Family:
        """The column family at this version; where it is not there yet, or no more, at the nearest where it is."""
        lineage = self._lineages[0]
        near = sorted(lineage.entries, key=lambda entry: abs(entry.version - self.version))
        for entry in near:
            found = self._families_of(lineage, entry).get(self.family)
            if found is not None:
                return found
        raise self._without(self.family, self._families_of(lineage, near[0]))

    def _without(self, family: str, known: Iterable[str]) -> ConfigurationError:
        there = ", ".join(known) or "none"
        return ConfigurationError(f"this store has no column family {family}; it has {there}", store=self.store)

    def _keys(self, lineage: Lineage, entry: VersionEntry) -> int:
        family = self._families_of(lineage, entry).get(self.family)
        return 0 if family is None else entry.keys.get(family.id, 0)

    def _opened(self, open_version: Callable[[], Opening], family: int, wanted: bytes | None = None) -> _Rows:
        """The rows of an opening; by another way, if there is one and the first leads nowhere."""
        with self._reading():
            return by_any_way(lambda _: self._folded(open_version(), family, wanted))

    def _folded(self, opening: Opening, family: int, wanted: bytes | None) -> _Rows:
        found: _Rows = {}
        try:
            for _, run in chain(opening.snapshot_chunks, opening.chunks):
                if wanted is None or wanted in run:
                    fold(found, rows.decode(run), family, wanted)
        finally:
            self.meter.add(opening.meter)
        return found

    def _value(self, lineage: Lineage, entry: VersionEntry, raw: bytes) -> rows.Value | None:
        """What a key has in one partition."""
        family = self._families_of(lineage, entry).get(self.family)
        if family is None or not entry.keys.get(family.id):
            return None
        return self._opened(self._lookup(lineage, entry, raw), family.id, raw).get(raw)

    def _lookup(self, lineage: Lineage, entry: VersionEntry, raw: bytes) -> Callable[[], Opening]:
        return partial(self._engine.lookup, lineage.store, entry.version, entry.attempt, rows.key_hash(raw))

    def _all(self, store: str, entry: VersionEntry, family: _Family, only: Iterable[bytes] | None = None) -> _Rows:
        """All rows of one partition, or those of some keys."""
        found = self._opened(partial(self._engine.open, store, entry.version, entry.attempt), family.id)
        return found if only is None else {raw: found[raw] for raw in only if raw in found}

    def _differing(self, lineage: Lineage, low: int, high: int, is_read: Callable[[], None]) -> Iterator[_Pair]:
        """The keys of one partition that differ between two versions, with what they had."""
        old, new = lineage.find(low) if low else None, lineage.find(high)
        if low == high:
            return
        family = self._family_of(lineage, new)
        changed = self._changed(lineage, low, high, is_read)
        was = {} if old is None else self._all(lineage.store, old, family, changed)
        now = {raw: _copy(value) for raw, value in was.items()}
        for changes in self._feed(lineage, low + 1, new):
            fold(now, changes, family.id)
        yield from ((raw, was.get(raw), now.get(raw)) for raw in changed if was.get(raw) != now.get(raw))

    def _changed(self, lineage: Lineage, after: int, to: int, is_read: Callable[[], None]) -> dict[bytes, None]:
        """The keys that were changed by the versions after one, up to another; `is_read` is called for each version."""
        family = self._family_of(lineage, lineage.find(to))
        found: dict[bytes, None] = {}
        for changes in self._feed(lineage, after + 1, lineage.find(to)):
            found.update((change.key, None) for change in changes if change.family == family.id)
            is_read()
        return found

    def _feed(
        self, lineage: Lineage, first: int, last: VersionEntry, wanted: bytes | None = None
    ) -> Generator[Changes, None, None]:
        """The changes of each version, from the first to the last; those of one key, if only that is wanted."""
        bucket = None if wanted is None else hash_range(32, rows.key_hash(wanted))
        feed = self._engine.changes(lineage.store, first, last.version, last.attempt, bucket=bucket)
        try:
            for _, chunks in feed.versions:
                yield chain.from_iterable(rows.decode(run) for _, run in chunks if wanted is None or wanted in run)
        finally:
            self.meter.add(feed.meter)

    def _past(self, lineage: Lineage, raw: bytes, progress: Progress) -> Iterator[Past]:
        """What a key had in one partition, from the oldest version that is listed on."""
        self.meter.add(lineage.meter)
        first, last = lineage.entries[0], lineage.newest
        try:
            value = self._value(lineage, first, raw)
        except CorruptStateError as broken:
            if first in self._engine.lineage(lineage.store).entries:
                raise
            raise VersionMissingError(
                "clean-up took the oldest version away meanwhile; call again",
                store=lineage.store,
                version=first.version,
            ) from broken
        if value is not None:
            yield Past(first.version, self._families_of(lineage, first)[self.family].row(raw, value))
        if last.version == first.version:
            return
        now: _Rows = {} if value is None else {raw: _copy(value)}
        for version, changes in enumerate(self._feed(lineage, first.version + 1, last, raw), first.version + 1):
            family = self._family_of(lineage, lineage.find(version))
            before = _copy(now[raw]) if raw in now else None
            fold(now, changes, family.id, raw)
            if now.get(raw) != before:
                yield Past(version, family.row_or_none(raw, now.get(raw)))
            progress(version - first.version, last.version - first.version)

    # -------------------------------------------------------------------------------------------------------- placement

    def _places(self, family: _Family, key: Mapping[str, Any], raw: bytes) -> Iterator[int]:
        """The partitions where a key may be: that where Spark's hash has it, and unless that rule holds here, the rest.

        Spark promises that rows of stateful operators lie by the hash of their keys. Which columns that is of, rows
        that are there have to confirm before it is taken for granted.
        """
        count = len(self._stores)
        first = family.encoder.partition(key, count) if count > 1 else 0
        yield first
        if count == 1:
            return
        if self._is_placed is None:
            self._is_placed = self._confirm(family, first, raw)
        if not self._is_placed:
            yield from (number for number in range(count) if number != first)

    def _confirm(self, family: _Family, number: int, raw: bytes) -> bool | None:
        """Whether rows that a lookup comes by lie where the rule has them; None: they are too few to say.

        That they were changed or removed since does not matter: they once were written there.
        """
        lineage, count, chance = self._lineages[number], len(self._stores), 1
        for other in self._opened(self._lookup(lineage, lineage.find(self.version), raw), family.id):
            if family.encoder.partition(family.encoder.decode(other), count) != number:
                return False
            chance *= count
            if chance >= CERTAIN:
                return True
        return None


# ------------------------------------------------------------------------------------------------------------- families


@dataclass(frozen=True)
class _Family:
    """A column family: how its keys and values are read."""

    id: int
    name: str
    internal: bool
    multiple: bool
    encoder: KeyEncoder
    value: Struct

    def row(self, raw: bytes, value: rows.Value) -> Row:
        key = self.encoder.decode(raw)
        if self.multiple:
            values = value if isinstance(value, list) else [value]
            return key | {self.list_column: [self.value.decode(each) for each in values]}
        if isinstance(value, list):
            raise CorruptStateError("a key has several values in a column family of single ones", family=self.name)
        return key | self.value.decode(value)

    def row_or_none(self, raw: bytes, value: rows.Value | None) -> Row | None:
        return None if value is None else self.row(raw, value)

    def changed(self, change: rows.Change) -> Row:
        if change.value is None:
            return self.encoder.decode(change.key)
        return self.row(change.key, change.value)

    @property
    def list_column(self) -> str:
        return unique([*self.encoder.columns.names, VALUES])[-1]


def parse_families(text: str, store_name: str) -> dict[str, _Family]:
    """The column families of a schema item, but for those that were dropped.

    Raises:
        CorruptStateError: it is no schema of column families.
        ConfigurationError: it has a type or a key encoder that this package does not read.
    """
    return {each["name"]: _family(each, store_name) for each in described_families(text)}


def _family(described: Mapping[str, Any], store_name: str) -> _Family:
    key, value = parse_schema(described["key"]), parse_schema(described["value"])
    if not described["multiple"]:
        names = unique([*key.names, *value.names])[len(key.names) :]
        value = Struct(list(zip(names, value.types, strict=True)))
    return _Family(
        id=described["id"],
        name=described["name"],
        internal=described["internal"],
        multiple=described["multiple"],
        encoder=make_encoder(key, described["key_encoder"], store_name),
        value=value,
    )


def fold(found: _Rows, changes: Changes, family: int, wanted: bytes | None = None) -> None:
    """Apply changes to the rows of a family; those of one key, if only that is wanted."""
    for change in changes:
        if change.family != family or (wanted is not None and change.key != wanted):
            continue
        rows.apply(found, change.key, change)


def _copy(value: rows.Value) -> rows.Value:
    """A value of its own: lists grow in place."""
    return list(value) if isinstance(value, list) else value


def _kind(change: rows.Change) -> Kind:
    if change.value is None:
        return "remove"
    return "append" if change.operation == rows.MERGE else "put"
