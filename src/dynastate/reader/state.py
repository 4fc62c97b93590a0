"""Committed state from plain Python, while the query runs: `open_state`. It only reads, and needs no Spark.

A row is one dict: the columns of its key, then the columns of its value, by their names in Spark's schema. The schema
is stored with the state. Of equal names the later ones are called name#2. Where a key has a list of values (list state)
there is one column `values` in their place. Values are as in `dynastate.unsaferow`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import timedelta
from typing import Literal, overload

from dynastate import runtime
from dynastate.dynamodb.boto_tables import open_tables
from dynastate.engine.catalog import matching
from dynastate.engine.engine import Engine
from dynastate.engine.lineage import Lineage, of_one_run
from dynastate.format.keys import EMPTY
from dynastate.reader.families import families_at
from dynastate.reader.follow import EACH_SECOND, StateFollower
from dynastate.reader.partition import Source
from dynastate.reader.placement import Placement
from dynastate.reader.view import StateView, TakenBack, choose_family, naming
from dynastate.settings import DELTA_TABLE, SNAPSHOT_TABLE, Settings
from dynastate.storage.meter import Meter
from dynastate.storage.tables import Tables


@overload
def open_state(
    store: str,
    *,
    follow: Literal[False] = False,
    endpoint: str = "",
    region: str = "",
    family: str = "",
    delta_table: str = DELTA_TABLE,
    snapshot_table: str = SNAPSHOT_TABLE,
    cache_mb: int = 64,
    objects_endpoint: str = "",
) -> StateReader: ...


@overload
def open_state(
    store: str,
    *,
    follow: Literal[True] | timedelta,
    endpoint: str = "",
    region: str = "",
    family: str = "",
    delta_table: str = DELTA_TABLE,
    snapshot_table: str = SNAPSHOT_TABLE,
    cache_mb: int = 64,
    objects_endpoint: str = "",
) -> StateFollower: ...


def open_state(
    store: str,
    *,
    follow: bool | timedelta = False,
    endpoint: str = "",
    region: str = "",
    family: str = "",
    delta_table: str = DELTA_TABLE,
    snapshot_table: str = SNAPSHOT_TABLE,
    cache_mb: int = 64,
    objects_endpoint: str = "",
) -> StateReader | StateFollower:
    """Open the committed state of a store at its newest version, to read.

    Args:
        store: `namespace/operator/partition/name`; or `namespace/operator` for all partitions of an operator, and
            `namespace/operator/*/name` where it has several stores a partition, as stream-stream joins have.
        follow: True: keep to the newest batch that is whole, with a look each second; a `timedelta`: with a look at
            this interval; zero: when `refresh` is called. The state is a `StateFollower` then, which serves look-ups
            from many threads.
        endpoint: URL of the DynamoDB endpoint; empty: AWS_ENDPOINT_URL, or the Region's own.
        region: AWS Region; empty: AWS_REGION, or what boto3 finds.
        family: the column family, with transformWithState a state variable; empty: the only one there is.
        delta_table: name of the delta table.
        snapshot_table: name of the snapshot-group table.
        cache_mb: MiB of parts and buckets that are cached, so that what was read is not read again.
        objects_endpoint: URL of the S3 endpoint, for state with objects there; empty: the Region's own.

    Raises:
        ConfigurationError: no such store or column family, an unsupported type, or a wrong setting, table, permission
            or endpoint.
        VersionMissingError: nothing is committed yet.
        CorruptStateError: an item is lost or corrupt.
        UnavailableError: throttled, or unreachable, for a minute.
    """
    settings = Settings(
        delta_table=delta_table,
        snapshot_table=snapshot_table,
        region=region,
        endpoint=endpoint,
        cache_mb=cache_mb,
        objects_endpoint=objects_endpoint,
    )
    tables = open_tables(settings)
    if follow is not False:
        interval = EACH_SECOND if follow is True else follow
        return StateFollower(
            tables, settings, store, family, interval=interval, stop_tables=tables.stop, close_tables=tables.close
        )
    return StateReader(tables, settings, store, family, close_tables=tables.close)


class StateReader(StateView):
    """The state at its newest version, of one store or of an operator in all its partitions.

    It stays at its version until `refresh`. Close it, or use it in a `with`. The version of several partitions is the
    newest that all of them have of one run. A `family` of None is the only one, or none of several.
    """

    def __init__(
        self,
        tables: Tables,
        settings: Settings,
        store: str,
        family: str | None = "",
        close_tables: Callable[[], None] = lambda: None,
    ) -> None:
        self._tables = tables = tables.metered(Meter())
        source = Source(Engine(tables, settings), tables.meter)
        self._close_tables = close_tables
        self._pool = runtime.pool(settings.parallel_requests, "dynastate-state")
        with ExitStack() as when_failed:
            when_failed.callback(self._close, source.engine)
            with naming(source):
                lineages = of_one_run(self._read(source, matching(tables, store)))
            newest = lineages[0].newest
            families = families_at(lineages[0], newest)
            chosen = choose_family(store, family, families)
            super().__init__(source, Placement(), store, chosen, lineages=lineages, version=newest.version)
            when_failed.pop_all()
        self._opened_at = self.version

    def __enter__(self) -> StateReader:  # noqa: PYI034  # Self comes with Python 3.11, and it has no subclasses
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the threads and close the connections, also for views that `at` gave."""
        self._source.closed.set()
        self._close(self._source.engine)

    def _close(self, engine: Engine) -> None:
        self._pool.shutdown(cancel_futures=True)
        engine.close()
        self._close_tables()

    def refresh(self) -> bool:
        """Move to the newest version; return False if it is this one. Cached parts are not read again.

        If the query was taken back since, `changes` after a version that it has made again is refused until the next
        refresh that moves.

        Raises:
            VersionMissingError: the store was deleted; or no version is in all partitions by one run.
            CorruptStateError: an item is lost or corrupt.
        """
        old_version, old_stores = self.version, self.stores
        with naming(self._source):
            old_lineages = [partition.lineage for partition in self._partitions]
            # Partitions are added while the first batch commits, or while a fork or an import is made.
            is_first = self.version == self._opened_at
            lineages = [] if is_first else self._read(self._source, self.stores, old_lineages)
            # If the version that was read is gone, the run may be another query's, with other partitions.
            if is_first or any(old.newest not in new.entries for new, old in zip(lineages, old_lineages, strict=True)):
                stores = matching(self._tables, self.store)
                lineages = self._read(self._source, stores, lineages or old_lineages)
            lineages = of_one_run(lineages)
        common = _common(old_lineages, lineages, old_version)
        self.version = lineages[0].newest.version
        self._partitions = [self._partition(lineage) for lineage in lineages]
        has_other_stores = self.stores != old_stores
        if has_other_stores:
            self._opened_at = self.version
        is_taken_back = common is None or common < old_version
        if has_other_stores or is_taken_back:
            self._placement = Placement()  # another query may have its rows elsewhere
        has_moved = self.version != old_version or has_other_stores or is_taken_back
        if has_moved:
            self._taken_back = TakenBack(old_version, common)
        return has_moved

    def _read(self, source: Source, stores: Iterable[str], previous: Iterable[Lineage] = ()) -> list[Lineage]:
        """Read the newest versions of stores, in parallel."""
        by_store = {each.store: each for each in previous}
        lineages = list(self._pool.map(lambda store: source.engine.lineage(store, by_store.get(store)), stores))
        for lineage in lineages:
            source.meter.add(lineage.meter)
        return lineages


def _common(old: Iterable[Lineage], new: Iterable[Lineage], version: int) -> int | None:
    """The newest version, up to `version`, that each store has in both lineages.

    Returns 0 if there is none, and None if none is listed where clean-up has deleted versions.
    """
    by_store = {lineage.store: lineage for lineage in new}
    common = min(by_store[each.store].common(each, version) if each.store in by_store else 0 for each in old)
    is_whole = all(each.entries[0].parent_id == EMPTY for each in by_store.values())
    return common if common or is_whole else None
