"""How many units a workload takes: the formula of docs/operations.md. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from dynastate import directory, layout, reader, snapshots, store
from dynastate.errors import ConfigurationError
from dynastate.layout import EMPTY, NO_ATTEMPT, VersionEntry
from dynastate.prices import Prices
from dynastate.stored import Stored
from dynastate.tables import WRITES_MAX

WRITE_UNIT_BYTES: Final = 1024
READ_UNIT_BYTES: Final = 4096
DAY_S: Final = 86_400
#: A store's name of the usual length.
STORE: Final = f"{32 * '0'}/0/10/default"
PART_BYTES: Final = layout.overhead_bytes(layout.part_key(STORE, *EMPTY, 0, 1))
LIST_BYTES: Final = layout.item_bytes(
    layout.item_key(layout.group_key(STORE, 0)) | {"format": layout.FORMAT, "versions": []}
)
SNAPSHOT_BYTES: Final = layout.item_bytes(
    layout.snapshot_item(
        STORE, layout.Snapshot(1, NO_ATTEMPT, NO_ATTEMPT, 1, layout.DONE, bytes(8), 10**5, 10**7, 10**7)
    )
)
#: Meta and schema item of a store with a few columns.
DESCRIPTION_BYTES: Final = 1_200
#: A directory has this many bytes beside its buckets, and these for each of them.
DIRECTORY_BYTES: Final = 250
BUCKET_BYTES: Final = 18
#: Heap of a row beside its bytes: buckets are sized by heap.
ROW_HEAP_BYTES: Final = 20


@dataclass(frozen=True)
class Spending:
    """Requests and units. Units of deletes are write units too, and are not in `write_units`."""

    requests: float = 0
    write_units: float = 0
    read_units: float = 0
    delete_units: float = 0

    def __add__(self, other: Spending) -> Spending:
        return Spending(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def __mul__(self, times: float) -> Spending:
        return Spending(*(getattr(self, each.name) * times for each in fields(self)))

    def dollars(self, prices: Prices) -> float:
        return prices.nanodollars(round(self.write_units + self.delete_units), round(self.read_units)) / 1e9


@dataclass(frozen=True)
class Workload:
    """What a query does all day. Changes and state are spread evenly over the stores, as hashes spread them.

    A row's bytes are those of key, value and a header of ten bytes. Spark's own defaults stand for what has one.

    Raises:
        ConfigurationError: a number that no workload can have.
    """

    stores: int
    """Stateful operators times shuffle partitions; a stream-stream join has four stores a partition."""
    batches_a_day: float
    changed_rows: float
    """Rows that one batch puts or removes, in all stores."""
    row_bytes: float
    """Of a changed row, compressed."""
    state_rows: float
    """Rows of state, in all stores."""
    state_row_bytes: float
    """Of a row in a snapshot, compressed: less than of a changed row where batches are small."""
    compression: float = 2.0
    """How many times larger rows are before compression."""
    families: int = 1
    """Column families of a store: one, but with transformWithState."""
    retain: int = 100
    """`spark.sql.streaming.minBatchesToRetain`."""
    min_deltas: int = 10
    """`spark.sql.streaming.stateStore.minDeltasForSnapshot`."""
    extra: float = 0.3
    """`spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint`: versions that go at once, over those retained."""
    maintenance_s: float = 60
    """`spark.sql.streaming.stateStore.maintenanceInterval`."""
    shards: int = 4
    restarts_a_day: float = 0
    """How often all stores are read: the query starts again, or on other executors."""

    def __post_init__(self) -> None:
        for name, least in (
            ("stores", 1),
            ("batches_a_day", 1e-9),
            ("compression", 0.1),
            ("families", 1),
            ("shards", 1),
        ):
            self._require(name, least)
        for each in fields(self):
            self._require(each.name, 0)

    def _require(self, name: str, least: float) -> None:
        value = getattr(self, name)
        if not least <= value < math.inf:
            raise ConfigurationError(f"a workload's {name} must be {least:g} or more", got=value)


@dataclass(frozen=True)
class Prediction:
    """What a day takes, by what takes it; and what is stored on average."""

    commits: Spending
    snapshots: Spending
    clean_up: Spending
    restarts: Spending
    stored: Stored

    @property
    def day(self) -> Spending:
        return self.commits + self.snapshots + self.clean_up + self.restarts


class Rhythm(NamedTuple):
    """When maintenance does what to one store, in versions; and what there is of it, on average."""

    looks: float
    """Versions from one look whether a snapshot is worth it to the next."""
    apart: float
    """Versions from one snapshot to the next."""
    cleans: float
    """Versions from one clean-up to the next."""
    removes: float
    """Versions from one clean-up that removes something to the next."""
    kept: float
    """Versions that are listed."""
    held: float
    """Snapshots that there are."""


class Items(NamedTuple):
    """Items that hold rows: the parts of a version that has changes, or all buckets of a snapshot."""

    number: float
    bytes: float
    write_units: float
    read_units: float
    request_bytes: int

    def writes(self, times: float = 1) -> float:
        """Requests that write so many times these items."""
        return times and rounded_up(times * max(self.number / WRITES_MAX, self.bytes / self.request_bytes))

    def deletes(self, times: float) -> float:
        """Requests that delete so many times these items."""
        return times and rounded_up(times * self.number / WRITES_MAX)


def rhythm(of: Workload, changed: float, state: float) -> Rhythm:
    """When maintenance comes, for so many compressed bytes of changes a version and bytes of state in one store."""
    tick = max(1.0, of.batches_a_day * of.maintenance_s / DAY_S)
    looks = math.ceil(max(1, of.min_deltas) / tick) * tick
    # A snapshot comes at the first look at which the changes since the last one are large enough a part of it.
    worth = math.ceil(snapshots.FRACTION * state / changed / looks) if changed else math.inf
    apart = looks * max(1, min(worth, math.ceil(snapshots.VERSIONS_MAX / looks)))
    least = max(1, math.floor(of.extra * of.retain + 0.5))
    cleans = math.ceil(least / tick) * tick
    removes = max(cleans, apart * math.ceil(least / apart))
    # Kept are the versions retained, those on which the oldest of them stands, and those that no clean-up took yet.
    retained = max(2, of.retain) - 1
    clean_ups = range(round(apart / tick))
    stands_on = sum((each * cleans - retained) % apart for each in clean_ups) / len(clean_ups)
    kept = retained + stands_on + (1 + (cleans if apart >= cleans else removes)) / 2
    return Rhythm(looks, apart, cleans, removes, kept, 1 + max(0, kept - apart / 2) / apart)


class OneStore:
    """What a workload takes of one of its stores, on average; units are of one version."""

    def __init__(self, of: Workload) -> None:
        self._of = of
        self._rows, state_rows = of.changed_rows / of.stores, of.state_rows / of.stores
        self._changed, state = self._rows * of.row_bytes, state_rows * of.state_row_bytes
        self._rhythm = rhythm(of, self._changed, state)
        # Rows fall to stores by hash: in some batches a store has none, and no batch has as many as the next.
        self._share = share = -math.expm1(-self._rows)
        spread = math.sqrt(self._rows / share) * of.row_bytes if share else 0
        self._parts = items(self._changed / share if share else 0, spread, of.compression, 1, store.HAND_ON_BYTES)
        buckets = 1 << directory.bits_for(int(state * of.compression + state_rows * ROW_HEAP_BYTES))
        self._buckets = items(state, 0, of.compression, buckets, snapshots.REQUEST_BYTES)
        # Buckets that a snapshot writes, because something changed in them since the one before.
        self._anew: float = 1 - (1 - 1 / buckets) ** (self._rows * self._rhythm.apart)
        self._directory_bytes = DIRECTORY_BYTES + buckets * BUCKET_BYTES
        self._directory_reads = rounded_up(self._directory_bytes / READ_UNIT_BYTES)
        self._entry_bytes = entry_bytes(of, self._rows, self._changed)

    def commit(self) -> Spending:
        """Parts, where there are changes, and the version list as it is after the append."""
        lists = [LIST_BYTES + number * self._entry_bytes for number in range(1, layout.GROUP_SIZE + 1)]
        append = sum(rounded_up(size / WRITE_UNIT_BYTES) for size in lists) / len(lists)
        return Spending(1 + self._share * self._parts.writes(), append + self._share * self._parts.write_units)

    def snapshots(self) -> Spending:
        """Looks at the lists, and snapshots.

        For one of these the last directory is read; an item says that it is being written; buckets and a directory are
        written; the last snapshot's item is read again; the item says that it is done.
        """
        made = Spending(
            requests=5 + self._buckets.writes(self._anew),
            write_units=2
            + self._anew * self._buckets.write_units
            + rounded_up(self._directory_bytes / WRITE_UNIT_BYTES),
            read_units=self._directory_reads + 1,
        )
        return self._look() * (1 / self._rhythm.looks) + made * (1 / self._rhythm.apart)

    def clean_up(self) -> Spending:
        """Looks at the lists, and what goes."""
        of, apart, removes = self._of, self._rhythm.apart, self._rhythm.removes
        # Directories of the snapshots that stay; which these are; a list that is shortened; a look into each shard.
        stay = 1 + (of.retain - 1) / apart
        once = Spending(
            requests=stay + 2 + of.shards + self._parts.deletes(removes * self._share),
            write_units=1 - 1 / layout.GROUP_SIZE,
            read_units=stay * self._directory_reads + 1 + of.shards,
        )
        # A snapshot is said to leave; its directory is read; its buckets, its directory and its item are deleted.
        snapshot = Spending(
            requests=4 + self._buckets.deletes(self._anew),
            write_units=1,
            read_units=self._directory_reads,
            delete_units=2 + self._anew * self._buckets.write_units,
        )
        # A version's parts are deleted; and with the last of a list, that.
        parts = Spending(delete_units=self._share * self._parts.write_units)
        last = Spending(requests=1, delete_units=1) * (1 / layout.GROUP_SIZE)
        look = self._look() * (1 / self._rhythm.cleans)
        return look + once * (1 / removes) + snapshot * (1 / apart) + parts + last

    def restart(self) -> Spending:
        """Not of a version: the last snapshot is read, and the versions since; the run enters itself and its schema."""
        since = self._rhythm.apart / 2 * self._share
        read = Spending(
            requests=4 + (self._buckets.number + since * self._parts.number) / reader.WINDOW,
            write_units=2,
            read_units=2 + self._directory_reads + self._buckets.read_units + since * self._parts.read_units,
        )
        return self._look() + read

    def items(self) -> float:
        """Items stored."""
        kept, held = self._rhythm.kept, self._rhythm.held
        parts = kept * self._share * self._parts.number
        return 2 + kept / layout.GROUP_SIZE + parts + 2 * held + self._copies() * self._buckets.number

    def bytes(self) -> float:
        """Bytes stored."""
        kept, held = self._rhythm.kept, self._rhythm.held
        parts = kept * self._share * self._parts.bytes
        return self._lists() + parts + held * self._directory_bytes + self._copies() * self._buckets.bytes

    def _look(self) -> Spending:
        """A Query of everything that names something; how much that is goes up and down with snapshots and clean-up."""
        spread = (self._rhythm.apart + self._rhythm.cleans) / 4 * self._entry_bytes
        return Spending(1, 0, rounded_up(self._lists() / READ_UNIT_BYTES, spread / READ_UNIT_BYTES))

    def _lists(self) -> float:
        """Bytes of version lists, of what says which snapshots there are, and of meta and schema item."""
        lists = self._rhythm.kept * (self._entry_bytes + LIST_BYTES / layout.GROUP_SIZE)
        return lists + self._rhythm.held * SNAPSHOT_BYTES + DESCRIPTION_BYTES

    def _copies(self) -> float:
        """How many times the state is there: snapshots share the buckets that did not change from one to the next."""
        return 1 + (self._rhythm.held - 1) * self._anew


def predict(of: Workload) -> Prediction:
    """What a workload takes a day in the long run, once its state has grown to what is given."""
    one = OneStore(of)
    versions = of.stores * of.batches_a_day
    return Prediction(
        commits=one.commit() * versions,
        snapshots=one.snapshots() * versions,
        clean_up=one.clean_up() * versions,
        restarts=one.restart() * (of.stores * of.restarts_a_day),
        stored=Stored(round(of.stores * one.items()), round(of.stores * one.bytes())),
    )


def items(data: float, spread: float, compression: float, runs: int, request_bytes: int) -> Items:
    """Items for so many bytes of compressed rows in so many runs, each cut into chunks of at most 256 KiB of rows."""
    if not data:
        return Items(0, 0, 0, 0, request_bytes)
    chunk = runs * layout.CHUNK_BYTES_MAX / compression
    number = runs * rounded_up(data / chunk, spread / chunk)
    size, spread = data / number + PART_BYTES, spread / number
    write, read = (rounded_up(size / unit, spread / unit) for unit in (WRITE_UNIT_BYTES, READ_UNIT_BYTES))
    return Items(number, number * size, number * write, number * read, request_bytes)


def rounded_up(mean: float, spread: float = 0) -> float:
    """Mean of what is rounded up to 1, 2, 3, …, where it is spread normally about its own mean."""
    if spread <= 0:
        return max(1, math.ceil(mean))
    width = spread * math.sqrt(2)
    return 1 + sum(math.erfc((each - mean) / width) / 2 for each in range(1, math.ceil(mean + 4 * spread)))


def entry_bytes(of: Workload, rows: float, changed: float) -> int:
    """Size of an entry in a version list."""
    sizes = 1, round(rows), round(changed * of.compression), round(changed)
    keys = dict.fromkeys(range(of.families), round(of.state_rows / of.stores))
    entry = VersionEntry(10_000, NO_ATTEMPT, NO_ATTEMPT, 1, bytes(8), *sizes, bytes(8), keys)
    return 1 + len(layout.encode_entry(STORE, entry))
