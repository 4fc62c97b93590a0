"""Units and storage of a workload, by the formula of docs/costs.md. No I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Final, NamedTuple

from dynastate.engine import commit, snapshot_threshold, windows
from dynastate.errors import ConfigurationError
from dynastate.format.items import FORMAT, StorageSize, item_bytes, item_key
from dynastate.format.keys import EMPTY, NO_ATTEMPT, part_key, version_list_key
from dynastate.format.manifest import bits_for
from dynastate.format.objects import FRAME_BYTES
from dynastate.format.parts import CHUNK_BYTES_MAX, overhead_bytes
from dynastate.format.snapshot import DONE, Snapshot, snapshot_item
from dynastate.format.version_list import VersionEntry, encode_entry
from dynastate.prices import Prices
from dynastate.runtime import Limits
from dynastate.settings import Settings

WRITE_UNIT_BYTES: Final = 1024
READ_UNIT_BYTES: Final = 4096
DAY_S: Final = 86_400
#: A store's name of the usual length.
STORE: Final = f"{32 * '0'}/0/10/default"
PART_BYTES: Final = overhead_bytes(part_key(STORE, EMPTY.version, EMPTY.attempt, sequence=0, shards=1))
LIST_BYTES: Final = item_bytes(item_key(version_list_key(STORE, 0)) | {"format": FORMAT, "versions": []})
SNAPSHOT_BYTES: Final = item_bytes(
    snapshot_item(
        STORE,
        Snapshot(
            version=1,
            attempt=NO_ATTEMPT,
            id=NO_ATTEMPT,
            epoch=1,
            stage=DONE,
            digest=bytes(8),
            records=10**5,
            raw_bytes=10**7,
            stored_bytes=10**7,
        ),
    )
)
#: Meta and schema item of a store with a few columns.
DESCRIPTION_BYTES: Final = 1_200
#: Bytes of a manifest beside its buckets, and for each bucket.
MANIFEST_BYTES: Final = 250
BUCKET_BYTES: Final = 18
#: Bytes of a location such as s3://my-bucket/state/dynastate-snapshot-group, and of a part's or bucket's place there,
#: in entry and manifest.
LOCATION_BYTES: Final = 55
PLACE_BYTES: Final = 4
#: Heap of a row beside its bytes: buckets are sized by heap.
ROW_HEAP_BYTES: Final = 20


@dataclass(frozen=True)
class PredictedUsage:
    """Requests and units. Deletes take write units, too, which are counted apart in `delete_units`.

    Of the requests, `puts` write or list objects of S3, and `gets` read some.
    """

    requests: float = 0
    write_units: float = 0
    read_units: float = 0
    delete_units: float = 0
    puts: float = 0
    gets: float = 0

    def __add__(self, other: PredictedUsage) -> PredictedUsage:
        return PredictedUsage(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def __mul__(self, times: float) -> PredictedUsage:
        return PredictedUsage(*(getattr(self, each.name) * times for each in fields(self)))

    def dollars(self, prices: Prices) -> float:
        write_units = round(self.write_units + self.delete_units)
        return prices.nanodollars(write_units, round(self.read_units), round(self.puts), round(self.gets)) / 1e9


@dataclass(frozen=True)
class Workload:
    """Workload of a query. Hashing spreads changes and state evenly over the stores.

    A row's bytes are its key, its value and a header of ten bytes. Defaults are Spark's own.

    Raises:
        ConfigurationError: a number is out of range.
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
    """`spark.sql.streaming.ratioExtraSpaceAllowedInCheckpoint`: versions that one clean-up deletes, over `retain`."""
    snapshot_threshold: float = float(Settings().snapshot_threshold)
    """`spark.sql.streaming.stateStore.dynastate.snapshotThreshold`."""
    maintenance_s: float = 60
    """`spark.sql.streaming.stateStore.maintenanceInterval`."""
    shards: int = 4
    restarts_a_day: float = 0
    """How often all stores are read: the query restarts, or moves to other executors."""
    objects_threshold_kb: float | None = None
    """With `objects`: `spark.sql.streaming.stateStore.dynastate.objectsThresholdKb`, or None if all are items."""
    log_files: float = 0
    """Files of the query's log that a batch writes to DynamoDB: 2, and 1 for each file source; 0: the checkpoint is
    elsewhere."""
    log_file_units: float = 1
    """Write units of such a file: one for each KB."""

    def __post_init__(self) -> None:
        least = {"stores": 1, "batches_a_day": 1e-9, "compression": 0.1, "families": 1, "shards": 1}
        for name in (each.name for each in fields(self)):
            value, low = getattr(self, name), least.get(name, 0)
            if value is not None and not low <= value < math.inf:
                raise ConfigurationError(f"a workload's {name} must be {low:g} or more", got=value)


@dataclass(frozen=True)
class RestartBytes:
    """Bytes of rows that one restart of all stores reads.

    `snapshots`: just after snapshots were made; `most`: just before the next ones; `mean`: at any time.
    """

    snapshots: float = 0
    mean: float = 0
    most: float = 0

    def __add__(self, other: RestartBytes) -> RestartBytes:
        return RestartBytes(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def __mul__(self, times: float) -> RestartBytes:
        return RestartBytes(*(getattr(self, each.name) * times for each in fields(self)))


@dataclass(frozen=True)
class Prediction:
    """Usage of a day, by cause, average storage, and the bytes that one restart reads."""

    commits: PredictedUsage
    snapshots: PredictedUsage
    clean_up: PredictedUsage
    restarts: PredictedUsage
    log: PredictedUsage
    stored: StorageSize
    restart_bytes: RestartBytes

    @property
    def day(self) -> PredictedUsage:
        return self.commits + self.snapshots + self.clean_up + self.restarts + self.log


class MaintenanceSchedule(NamedTuple):
    """Intervals of maintenance of one store, in versions, and the average numbers of versions and snapshots."""

    looks: float
    """Versions from one check whether a snapshot saves write units to the next."""
    apart: float
    """Versions from one snapshot to the next."""
    cleans: float
    """Versions from one clean-up to the next."""
    removes: float
    """Versions from one clean-up that deletes something to the next."""
    listed: float
    """Versions that are listed."""
    snapshots: float
    """Snapshots that are retained."""


class Items(NamedTuple):
    """Items with rows: the parts of a version with changes, or all buckets of a snapshot."""

    number: float
    bytes: float
    write_units: float
    read_units: float
    request_bytes: int

    def writes(self, times: float = 1) -> float:
        """Requests that write these items `times` times."""
        return times and rounded_up(times * max(self.number / Limits.writes_max, self.bytes / self.request_bytes))

    def deletes(self, times: float) -> float:
        """Requests that delete these items `times` times."""
        return times and rounded_up(times * self.number / Limits.writes_max)


class Objects(NamedTuple):
    """Objects with rows: a share of 1 if they take the place of items, else 0; and their bytes."""

    share: float = 0
    bytes: float = 0

    @property
    def puts(self) -> float:
        return rounded_up(self.bytes / Limits.object_bytes)

    @property
    def gets(self) -> float:
        return rounded_up(self.bytes / windows.OBJECT_READ_BYTES)


#: A share of batches that is not distinguished from none.
RARE: Final = 1e-6
#: Files of a log that are deleted at once, as by DynastateCheckpointFileManager, and bytes that a Query returns.
LOG_DELETES: Final = 24
QUERY_BYTES: Final = 1 << 20
#: Objects that a request deletes.
OBJECT_DELETES: Final = 1_000


def schedule_of(workload: Workload, changed: float, state: float) -> MaintenanceSchedule:
    """The maintenance schedule of one store with `changed` compressed bytes a version and `state` bytes in all."""
    tick = max(1.0, workload.batches_a_day * workload.maintenance_s / DAY_S)
    looks = math.ceil(max(1, workload.min_deltas) / tick) * tick
    # A snapshot is made at the first look at which the changes since the last one exceed the threshold.
    worth = math.ceil(workload.snapshot_threshold * state / changed / looks) if changed else math.inf
    apart = looks * max(1, min(worth, math.ceil(snapshot_threshold.VERSIONS_MAX / looks)))
    least = max(1, math.floor(workload.extra * workload.retain + 0.5))
    cleans = math.ceil(least / tick) * tick
    removes = max(cleans, apart * math.ceil(least / apart))
    # Listed are the versions retained, those that the oldest of them depends on, and those not cleaned up yet.
    retained = max(2, workload.retain) - 1
    clean_ups = range(round(apart / tick))
    ancestors = sum((each * cleans - retained) % apart for each in clean_ups) / len(clean_ups)
    listed = retained + ancestors + (1 + (cleans if apart >= cleans else removes)) / 2
    return MaintenanceSchedule(
        looks=looks,
        apart=apart,
        cleans=cleans,
        removes=removes,
        listed=listed,
        snapshots=1 + max(0, listed - apart / 2) / apart,
    )


class OneStore:
    """Average usage of one store of a workload, by version."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._rows, state_rows = workload.changed_rows / workload.stores, workload.state_rows / workload.stores
        self._changed, state = self._rows * workload.row_bytes, state_rows * workload.state_row_bytes
        self._schedule = schedule_of(workload, self._changed, state)
        # Rows are spread by hash: in some batches a store has none, and the number varies from batch to batch.
        share = -math.expm1(-self._rows)
        spread = math.sqrt(self._rows / share) * workload.row_bytes if share else 0
        # The changes of some batches are within the version entry; others have parts.
        most = int(commit.INLINE_BYTES_MAX / workload.row_bytes) if workload.row_bytes else 0
        inline, listed = few_rows(self._rows, most)
        with_parts = max(0.0, share - inline)
        in_parts = (self._rows - listed) * workload.row_bytes / with_parts if with_parts > RARE else 0
        parts = items(in_parts, spread, workload.compression, pieces=1, request_bytes=Limits.submit_bytes)
        self._parts, self._objects = parts, objects_of(parts, workload.objects_threshold_kb)
        #: Shares of versions whose changes are items, and objects.
        self._with_parts = with_parts * (1 - self._objects.share)
        self._with_objects = with_parts * self._objects.share
        buckets = 1 << bits_for(int(state * workload.compression + state_rows * ROW_HEAP_BYTES))
        self._buckets = items(
            state, 0, workload.compression, pieces=buckets, request_bytes=Limits.snapshot_request_bytes
        )
        # The fraction of buckets that a snapshot writes, because rows in them changed since the one before.
        self._rewritten: float = 1 - (1 - 1 / buckets) ** (self._rows * self._schedule.apart)
        #: What a snapshot writes, if that is objects.
        snapshot_items = self._buckets._replace(
            bytes=self._rewritten * self._buckets.bytes, write_units=self._rewritten * self._buckets.write_units
        )
        self._snapshot_objects = objects_of(snapshot_items, workload.objects_threshold_kb)
        self._manifest_bytes = MANIFEST_BYTES + buckets * BUCKET_BYTES
        if self._snapshot_objects.share:
            self._manifest_bytes += LOCATION_BYTES + buckets * PLACE_BYTES
        self._manifest_reads = rounded_up(self._manifest_bytes / READ_UNIT_BYTES)
        self._entry_bytes = entry_bytes(workload, self._rows, self._changed) + round(listed * workload.row_bytes)
        self._entry_bytes += round(self._with_objects * (LOCATION_BYTES + PLACE_BYTES * max(1, parts.number)))
        lists = (LIST_BYTES + number * self._entry_bytes for number in range(1, Limits.list_size + 1))
        #: Write units of a version list with one entry, with two, and so on.
        self._list_units = [rounded_up(size / WRITE_UNIT_BYTES) for size in lists]
        self._list_mean = sum(self._list_units) / Limits.list_size

    def commit(self) -> PredictedUsage:
        """Parts, where there are changes, and the version list with the new entry."""
        parts = PredictedUsage(self._parts.writes(), self._parts.write_units) * self._with_parts
        puts = self._objects.puts * self._with_objects
        return PredictedUsage(1, self._list_mean) + parts + PredictedUsage(puts, puts=puts)

    def snapshots(self) -> PredictedUsage:
        """Snapshots. An offer that is declined reads nothing.

        One that is made reads the lists and the last manifest, enters itself as being written, reads the meta item, and
        writes buckets and a manifest. Then it reads the last snapshot's item again, and enters itself as done.
        """
        puts = self._snapshot_objects.puts * self._snapshot_objects.share
        snapshot = PredictedUsage(
            requests=6 + self._buckets.writes(self._bucket_items) + puts,
            write_units=2
            + self._bucket_items * self._buckets.write_units
            + rounded_up(self._manifest_bytes / WRITE_UNIT_BYTES),
            read_units=self._manifest_reads + 2,
            puts=puts,
        )
        return (self._look() + snapshot) * (1 / self._schedule.apart)

    def clean_up(self) -> PredictedUsage:
        """Looks at the lists, and deletions."""
        workload, apart, removes = self._workload, self._schedule.apart, self._schedule.removes
        # Manifests of the snapshots retained; which these are; a list that is shortened; a look into each shard.
        retained = 1 + (workload.retain - 1) / apart
        once = PredictedUsage(
            requests=retained
            + 2
            + workload.shards
            + self._parts.deletes(removes * self._with_parts)
            + (self._with_objects and rounded_up(removes * self._with_objects * self._objects.puts / OBJECT_DELETES)),
            write_units=(1 - 1 / Limits.list_size) * self._list_units[-1],
            read_units=retained * self._manifest_reads + 1 + workload.shards,
        )
        # A snapshot is marked for deletion; its manifest is read; its buckets, its manifest and its item are deleted.
        snapshot = PredictedUsage(
            requests=4 + self._buckets.deletes(self._bucket_items) + self._snapshot_objects.share,
            write_units=1,
            read_units=self._manifest_reads,
            delete_units=2 + self._bucket_items * self._buckets.write_units,
        )
        # A version's parts are deleted, and with the last version of a list the list.
        parts = PredictedUsage(delete_units=self._with_parts * self._parts.write_units)
        # It was shortened before, unless one clean-up deletes several lists.
        whole = max(0.0, 1 - Limits.list_size / removes)
        units = whole * self._list_units[-1] + (1 - whole) * self._list_mean
        last = PredictedUsage(requests=1, delete_units=units) * (1 / Limits.list_size)
        look = self._look() * (1 / self._schedule.cleans)
        return look + once * (1 / removes) + snapshot * (1 / apart) + parts + last

    def restart(self) -> PredictedUsage:
        """Usage of one restart: it reads the last snapshot and the versions since, and enters run and schema."""
        since, in_items = self._schedule.apart / 2, 1 - self._snapshot_objects.share
        items = in_items * self._buckets.number + since * self._with_parts * self._parts.number
        whole = rounded_up(self._buckets.bytes / windows.OBJECT_READ_BYTES)
        gets = self._snapshot_objects.share * whole + since * self._with_objects * self._objects.gets
        # The first clean-up lists the objects of attempts and of snapshots.
        puts = 2 if self._workload.objects_threshold_kb is not None else 0
        units = in_items * self._buckets.read_units + since * self._with_parts * self._parts.read_units
        reading = PredictedUsage(
            requests=4 + items / Limits.window_parts + gets + puts,
            write_units=2,
            read_units=2 + self._manifest_reads + units,
            puts=puts,
            gets=gets,
        )
        return self._look() + reading

    def restart_bytes(self) -> RestartBytes:
        """The last snapshot, and the versions since."""
        a_version = self._with_parts * self._parts.bytes + self._with_objects * self._objects.bytes
        snapshot, changes = self._buckets.bytes, self._schedule.apart * a_version
        return RestartBytes(snapshot, snapshot + changes / 2, snapshot + changes)

    @property
    def _bucket_items(self) -> float:
        """The share of all buckets that a snapshot writes as items."""
        return self._rewritten * (1 - self._snapshot_objects.share)

    def stored(self) -> tuple[float, float, float]:
        """Items and their bytes, and bytes of objects."""
        versions, snapshots, in_objects = self._schedule.listed, self._schedule.snapshots, self._snapshot_objects.share
        copies = self._copies() * (1 - in_objects)
        items = 2 + versions / Limits.list_size + versions * self._with_parts * self._parts.number + 2 * snapshots
        size = self._lists() + versions * self._with_parts * self._parts.bytes + snapshots * self._manifest_bytes
        objects = versions * self._with_objects * self._objects.bytes
        objects += in_objects * self._copies() * self._buckets.bytes
        return items + copies * self._buckets.number, size + copies * self._buckets.bytes, objects

    def _look(self) -> PredictedUsage:
        """A Query of version lists and snapshots, whose size varies with snapshots and clean-up."""
        spread = (self._schedule.apart + self._schedule.cleans) / 4 * self._entry_bytes
        return PredictedUsage(1, 0, rounded_up(self._lists() / READ_UNIT_BYTES, spread / READ_UNIT_BYTES))

    def _lists(self) -> float:
        """Bytes of version lists, of snapshot items, and of meta and schema item."""
        lists = self._schedule.listed * (self._entry_bytes + LIST_BYTES / Limits.list_size)
        return lists + self._schedule.snapshots * SNAPSHOT_BYTES + DESCRIPTION_BYTES

    def _copies(self) -> float:
        """How many times the state is stored: snapshots share the buckets without changes between them."""
        return 1 + (self._schedule.snapshots - 1) * self._rewritten


#: A restart reads and writes the record of the namespace.
_RECORD: Final = PredictedUsage(requests=2, write_units=1, read_units=1)


def predict(workload: Workload) -> Prediction:
    """Predict what a workload takes a day in the long run, once its state has grown to the given size."""
    store = OneStore(workload)
    versions = workload.stores * workload.batches_a_day
    log_stored = _log_stored(workload)
    stored = StorageSize(*(round(workload.stores * each) for each in store.stored()))
    return Prediction(
        commits=store.commit() * versions,
        snapshots=store.snapshots() * versions,
        clean_up=store.clean_up() * versions,
        restarts=store.restart() * (workload.stores * workload.restarts_a_day) + _RECORD * workload.restarts_a_day,
        log=_log(workload, log_stored),
        stored=stored + log_stored,
        restart_bytes=store.restart_bytes() * workload.stores,
    )


def _log_stored(workload: Workload) -> StorageSize:
    """The files of the log that are retained, in whole KB each."""
    files = workload.retain * workload.log_files
    return StorageSize(round(files), round(files * workload.log_file_units * WRITE_UNIT_BYTES))


def _log(workload: Workload, stored: StorageSize) -> PredictedUsage:
    """The log of a day. Each file is put alone. Several are deleted by two requests: the first one reads them.

    A restart reads all files, by a request for each MB.
    """
    files = workload.log_files * workload.batches_a_day
    if not files:
        return PredictedUsage()
    units = workload.log_file_units
    batches = PredictedUsage(
        requests=1 + 2 / LOG_DELETES,
        write_units=units,
        read_units=rounded_up(units * WRITE_UNIT_BYTES / READ_UNIT_BYTES),
        delete_units=units,
    )
    restart = PredictedUsage(
        requests=rounded_up(stored.bytes / QUERY_BYTES), read_units=rounded_up(stored.bytes / READ_UNIT_BYTES)
    )
    return batches * files + restart * workload.restarts_a_day


def items(data: float, spread: float, compression: float, pieces: int, request_bytes: int) -> Items:
    """Items for `data` bytes of compressed rows in `pieces`, each cut into chunks of at most 256 KiB of rows."""
    if not data:
        return Items(number=0, bytes=0, write_units=0, read_units=0, request_bytes=request_bytes)
    chunk = pieces * CHUNK_BYTES_MAX / compression
    number = pieces * rounded_up(data / chunk, spread / chunk)
    size, spread = data / number + PART_BYTES, spread / number
    write_units, read_units = (rounded_up(size / unit, spread / unit) for unit in (WRITE_UNIT_BYTES, READ_UNIT_BYTES))
    return Items(
        number=number,
        bytes=number * size,
        write_units=number * write_units,
        read_units=number * read_units,
        request_bytes=request_bytes,
    )


def objects_of(all_items: Items, threshold_kb: float | None) -> Objects:
    """The objects that take the place of items, if these have more than `threshold_kb` on average."""
    if threshold_kb is None or not all_items.number or all_items.write_units <= threshold_kb:
        return Objects()
    return Objects(1, all_items.bytes - all_items.number * (PART_BYTES - FRAME_BYTES))


def few_rows(mean: float, most: int) -> tuple[float, float]:
    """The share of batches of 1 to `most` rows, and the mean number of such rows in a batch, by Poisson's law."""
    if not mean:
        return 0, 0
    shares = [math.exp(rows * math.log(mean) - mean - math.lgamma(rows + 1)) for rows in range(1, most + 1)]
    return sum(shares), sum(rows * share for rows, share in enumerate(shares, 1))


def rounded_up(mean: float, spread: float = 0) -> float:
    """Mean of values rounded up to 1, 2, 3, …, which are normally distributed with this mean and deviation."""
    if spread <= 0:
        return max(1, math.ceil(mean))
    width = spread * math.sqrt(2)
    return 1 + sum(math.erfc((each - mean) / width) / 2 for each in range(1, math.ceil(mean + 4 * spread)))


def entry_bytes(workload: Workload, rows: float, changed: float) -> int:
    """Size of an entry in a version list, with the bounds of its parts."""
    parts = max(1, math.ceil(changed * workload.compression / CHUNK_BYTES_MAX))
    keys = dict.fromkeys(range(workload.families), round(workload.state_rows / workload.stores))
    entry = VersionEntry(
        version=10_000,
        attempt=NO_ATTEMPT,
        parent=NO_ATTEMPT,
        epoch=1,
        schema=bytes(8),
        parts=parts,
        records=round(rows),
        raw_bytes=round(changed * workload.compression),
        stored_bytes=round(changed),
        digest=bytes(8),
        keys=keys,
    )
    entry = replace(entry, bounds=bytes(2 * parts) if parts > 1 else b"")
    return 1 + len(encode_entry(STORE, entry))
