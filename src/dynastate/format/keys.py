"""Names of stores, and the keys of all items (docs/storage-format.md).

    delta table            store_shard = {store}#{shard}    part  = {version}/{attempt}/{sequence}
    snapshot-group table   store_shard = {store}#0          entry = meta | list/{g} | schema/{digest}
                                                            entry = snapshot/{version}/{attempt}
                                                            entry = snapshot_manifest/{version}/{id}
                           store_shard = {store}#{shard}    entry = bucket/{version}/{id}/{bucket}/{sequence}

WARNING: every constant here is stored. Changing one makes existing state unreadable; it takes a new format version.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, Literal, NamedTuple

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.runtime import limits

#: The largest version that a key has digits for.
VERSION_MAX: Final = 10**20 - 1
SHARDS_MAX: Final = 256
STORE_BYTES_MAX: Final = 1_024
#: DynamoDB's limit of a sort key.
SORT_KEY_BYTES_MAX: Final = 1_024

Role = Literal["delta", "snapshot"]


class TableSpec(NamedTuple):
    """The key attributes of a table, both strings."""

    hash_key: str
    range_key: str


class Key(NamedTuple):
    """The primary key of one item, and its table."""

    role: Role
    store_shard: str
    sort: str

    @property
    def namespace(self) -> str:
        """The namespace of its store, by which a policy allows or denies it."""
        return self.store_shard.partition("/")[0]


SPECS: Final[dict[Role, TableSpec]] = {
    "delta": TableSpec("store_shard", "part"),
    "snapshot": TableSpec("store_shard", "entry"),
}

META: Final = "meta"
#: Lowest and highest sort key of the items that describe snapshots.
SNAPSHOT_RANGE: Final = ("snapshot/", "snapshot/~")
#: Lowest and highest sort key of manifests.
MANIFEST_RANGE: Final = ("snapshot_manifest/", "snapshot_manifest/~")
#: The lowest sort key of version lists. Lists of format 2 begin there, so a read of all lists finds and refuses them.
LISTS: Final = "group/"
#: Lowest and highest sort key of everything of a store except parts and buckets.
STORE_RANGE: Final = (LISTS, MANIFEST_RANGE[1])
_URL: Final = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/]*))?(.*)", re.DOTALL)


class Attempt(bytes):
    """A random 128-bit id, 16 bytes. `hex()` is its form in keys; `NO_ATTEMPT` means none."""

    __slots__ = ()

    def __new__(cls, raw: bytes) -> Attempt:  # noqa: PYI034  # Self comes with Python 3.11, and it has no subclass
        if len(raw) != 16:
            raise CorruptStateError("an attempt is 16 bytes", got=len(raw))
        return super().__new__(cls, raw)


class VersionId(NamedTuple):
    """A version and the attempt that made it."""

    version: int
    attempt: Attempt


class SnapshotId(NamedTuple):
    """The version of a snapshot, and the snapshot's own id."""

    version: int
    id: Attempt


class Home(NamedTuple):
    """The store that holds the parts of an attempt or the items of a bucket, and its number of shards."""

    store: str
    shards: int


NO_ATTEMPT: Final = Attempt(bytes(16))
#: Version 0, which no attempt made.
EMPTY: Final = VersionId(0, NO_ATTEMPT)


def location_of(checkpoint: str) -> str:
    """A checkpoint's folder in one spelling: `/a/`, `file:/a` and `file:///a` are one, as are `s3`, `s3a` and `s3n`."""
    scheme, authority, path = _URL.fullmatch(checkpoint).groups()  # type: ignore[union-attr]  # it matches any text
    scheme = "s3" if scheme in ("s3a", "s3n") else scheme or "file"
    joined = re.sub("//+", "/", path).rstrip("/") or "/"
    return f"{scheme}://{authority}{joined}" if authority else f"{scheme}:{joined}"


def namespace_of(location: str) -> str:
    """First part of a store's name where no namespace is set: a digest of the location of the checkpoint's state."""
    return hashlib.sha256(location_of(location).encode()).hexdigest()[:32]


def check_store(store: str) -> str:
    """Refuse a store's name that does not fit into a key, and return any other."""
    if not store or "#" in store or len(store.encode()) > STORE_BYTES_MAX:
        raise ConfigurationError(
            f"a store name must have 1 to {STORE_BYTES_MAX} bytes and no '#'", store=repr(store[:200])
        )
    return store


def digest_of(raw: bytes) -> bytes:
    """BLAKE2b with 8 bytes of output: names the content of an item."""
    return hashlib.blake2b(raw, digest_size=8).digest()


def schema_digest(text: str) -> bytes:
    return digest_of(text.encode())


def store_shard(store: str, shard: int) -> str:
    return f"{store}#{shard}"


def part_key(store: str, version: int, attempt: Attempt, sequence: int, shards: int) -> Key:
    """The key of part number `sequence` of an attempt."""
    return Key(
        "delta", store_shard(store, (version + sequence) % shards), f"{version:020d}/{attempt.hex()}/{sequence:06d}"
    )


def version_list_key(store: str, version: int) -> Key:
    """The key of the version list with the entries of a version."""
    return Key("snapshot", store_shard(store, 0), f"list/{version // limits().list_size:016d}")


def meta_key(store: str) -> Key:
    return Key("snapshot", store_shard(store, 0), META)


def schema_key(store: str, digest: bytes) -> Key:
    return Key("snapshot", store_shard(store, 0), f"schema/{digest.hex()}")


def snapshot_key(store: str, version: int, attempt: Attempt) -> Key:
    """The key of the item that describes the snapshot of a version."""
    return Key("snapshot", store_shard(store, 0), f"snapshot/{version:020d}/{attempt.hex()}")


def manifest_key(store: str, version: int, snapshot: Attempt) -> Key:
    """The key of a snapshot's manifest, by the snapshot's own id."""
    return Key("snapshot", store_shard(store, 0), f"snapshot_manifest/{version:020d}/{snapshot.hex()}")


def bucket_key(store: str, version: int, snapshot: Attempt, bucket: int, sequence: int, shards: int) -> Key:
    """The key of item number `sequence` of a bucket, by the id of the snapshot that wrote it."""
    sort = f"bucket/{version:020d}/{snapshot.hex()}/{bucket:04d}/{sequence:06d}"
    return Key("snapshot", store_shard(store, (bucket + sequence) % shards), sort)


_PART = re.compile(r"([0-9]{20})/([0-9a-f]{32})/([0-9]{6})")
_SNAPSHOT = re.compile(r"snapshot/([0-9]{20})/([0-9a-f]{32})")
_MANIFEST = re.compile(r"snapshot_manifest/([0-9]{20})/([0-9a-f]{32})")
_BUCKET = re.compile(r"bucket/([0-9]{20})/([0-9a-f]{32})/([0-9]{4})/([0-9]{6})")


def maker_of_part(key: Key) -> VersionId | None:
    """The version id that the key of a part names. Returns None for any other key."""
    match = _PART.fullmatch(key.sort)
    return None if match is None else VersionId(int(match[1]), _attempt_of(match))


def maker_of_snapshot(key: Key) -> VersionId | None:
    """The version id that the key of a snapshot's item names. Returns None for any other key."""
    match = _SNAPSHOT.fullmatch(key.sort)
    return None if match is None else VersionId(int(match[1]), _attempt_of(match))


def maker_of_manifest(key: Key) -> SnapshotId | None:
    """The snapshot whose manifest has this key. Returns None for any other key."""
    match = _MANIFEST.fullmatch(key.sort)
    return None if match is None else SnapshotId(int(match[1]), _attempt_of(match))


def maker_of_bucket(key: Key) -> tuple[SnapshotId, int] | None:
    """The snapshot that wrote a bucket's item, and the bucket's number. Returns None for any other key."""
    match = _BUCKET.fullmatch(key.sort)
    return None if match is None else (SnapshotId(int(match[1]), _attempt_of(match)), int(match[3]))


def _attempt_of(match: re.Match[str]) -> Attempt:
    return Attempt(bytes.fromhex(match[2]))


def bucket_range(snapshot: SnapshotId) -> tuple[str, str]:
    """Lowest and highest sort key of the buckets that one snapshot wrote."""
    prefix = f"bucket/{snapshot.version:020d}/{snapshot.id.hex()}/"
    return prefix, f"{prefix}~"


def versions_of(version_list: Key) -> range:
    """The versions whose entries are in the version list with this key."""
    list_size = limits().list_size
    first = int(version_list.sort.removeprefix("list/")) * list_size
    return range(first, first + list_size)


def parts_range(first: int, below: int) -> tuple[str, str]:
    """Lowest and highest sort key of the parts of all attempts at the versions from `first` up to `below`."""
    return f"{first:020d}", f"{below:020d}"


def graph_range(lowest: int, highest: int) -> tuple[str, str]:
    """Lowest and highest sort key of the items that opening a version can need: lists, meta, schemas, snapshots.

    The version lists begin with the list of version `lowest`, the snapshots end with version `highest`.
    """
    return lists_from(lowest), f"snapshot/{highest:020d}/~"


def lists_from(lowest: int) -> str:
    """The lowest sort key of the version lists that begin with the list of version `lowest`."""
    list_size = limits().list_size
    return f"list/{lowest // list_size:016d}" if lowest >= list_size else LISTS


def where(key: Key) -> dict[str, object]:
    """The facts that name an item in an error."""
    return {"table": key.role, "store_shard": key.store_shard, "item": key.sort}
