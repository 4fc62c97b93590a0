"""How many units a workload takes: the formula of docs/operations.md. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from dynastate import directory, layout, snapshots, store
from dynastate.errors import ConfigurationError
from dynastate.layout import EMPTY, NO_ATTEMPT, VersionEntry
from dynastate.prices import Prices
from dynastate.stored import Stored
from dynastate.tables import WRITES_MAX

WRITE_UNIT_BYTES: Final = 1024
READ_UNIT_BYTES: Final = 4096
DAY_S: Final = 86_400


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
    """When maintenance does what to one store, in versions."""

    looks: float
    """Versions from one look whether a snapshot is worth it to the next."""
    apart: float
    """Versions from one snapshot to the next."""
    cleans: float
    """Versions from one clean-up to the next."""
    kept: float
    """Versions that are listed, on average."""
    held: float
    """Snapshots that are there, on average."""


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
    least = max(1, round(of.extra * of.retain))
    cleans = math.ceil(least / tick) * tick
    if apart < cleans and cleans // apart * apart < least:
        cleans *= 2  # every other time too few versions would go
    # What the oldest retained version stands on stays: half the way from one snapshot to the next, on average.
    kept = max(2, of.retain) - 1 + (apart + cleans) / 2
    return Rhythm(looks, apart, cleans, kept, 1 + (kept - apart / 2) / apart)


def predict(of: Workload) -> Prediction:
    """What a workload takes in the long run, once its state has grown to what is given.

    1. Of one store: bytes of changes a version, of state, and the rhythm of maintenance. 2. The items they become.
    3. The lists and directories that name them. 4. What each operation takes. 5. All stores, all batches of a day.
    """
    rows, state_rows = of.changed_rows / of.stores, of.state_rows / of.stores  # 1
    changed, state = rows * of.row_bytes, state_rows * of.state_row_bytes
    looks, apart, cleans, kept, held = rhythm(of, changed, state)

    # Rows fall to stores by hash: in some batches a store has none, and no batch has just as many as the next. # 2
    share = 1 - math.exp(-rows)
    spread = math.sqrt(rows / share) * of.row_bytes if share else 0
    parts = items(changed / share if share else 0, spread, of.compression, 1, store.HAND_ON_BYTES)
    buckets = 1 << directory.bits_for(int(state * of.compression + state_rows * ROW_HEAP_BYTES))
    whole = items(state, 0, of.compression, buckets, snapshots.REQUEST_BYTES)
    anew = 1 - (1 - 1 / buckets) ** (rows * apart)

    entry = entry_bytes(of, rows, changed)  # 3
    appends = [LIST_BYTES + number * entry for number in range(1, layout.GROUP_SIZE + 1)]
    append = sum(rounded_up(size / WRITE_UNIT_BYTES) for size in appends) / layout.GROUP_SIZE
    named = DIRECTORY_BYTES + buckets * BUCKET_BYTES
    naming = rounded_up(named / READ_UNIT_BYTES)
    history = DESCRIPTION_BYTES + kept * (entry + LIST_BYTES / layout.GROUP_SIZE) + held * SNAPSHOT_BYTES

    commit = Spending(1 + share * parts.writes(), append + share * parts.write_units)  # 4
    # The lists of a store, with one Query.
    look = Spending(1, 0, rounded_up(history / READ_UNIT_BYTES, (apart + cleans) / 4 * entry / READ_UNIT_BYTES))
    # The last directory is read; an item says "writing"; buckets; a directory; a look at the last item; "done".
    snapshot = Spending(
        5 + whole.writes(anew), 2 + anew * whole.write_units + rounded_up(named / WRITE_UNIT_BYTES), 0
    ) + Spending(0, 0, naming + 1)
    # The directories of the snapshots that stay; which these are; a list that is shortened; a look into every shard.
    going = max(apart, cleans)
    stay = 1 + (of.retain - 1) / apart
    clean_up = Spending(
        stay + 2 + of.shards + parts.deletes(going * share), 1 - 1 / layout.GROUP_SIZE, stay * naming + 1 + of.shards
    )
    # A snapshot is said to leave; its directory is read; its buckets, its directory and its item are deleted.
    leaving = Spending(4 + whole.deletes(anew), 1, naming, 2 + anew * whole.write_units)
    # A version's parts are deleted, and every tenth time a list.
    version = Spending(1 / layout.GROUP_SIZE, 0, 0, 1 / layout.GROUP_SIZE + share * parts.write_units)
    # The run enters itself, and its schema; the last snapshot is read, and the versions since.
    since = apart / 2 * share
    restart = Spending(
        4 + whole.number / store.WINDOW + since * parts.number / store.WINDOW,
        2,
        2 + naming + whole.read_units + since * parts.read_units,
    )

    versions = of.stores * of.batches_a_day  # 5
    copies = 1 + (held - 1) * anew
    each = Stored(
        round(
            of.stores * (2 + kept * (share * parts.number + 1 / layout.GROUP_SIZE) + 2 * held + copies * whole.number)
        ),
        round(of.stores * (history + kept * share * parts.bytes + held * named + copies * whole.bytes)),
    )
    return Prediction(
        commits=commit * versions,
        snapshots=(look * (1 / looks) + snapshot * (1 / apart)) * versions,
        clean_up=(look * (1 / cleans) + clean_up * (1 / going) + leaving * (1 / apart) + version) * versions,
        restarts=(look + restart) * (of.stores * of.restarts_a_day),
        stored=each,
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
