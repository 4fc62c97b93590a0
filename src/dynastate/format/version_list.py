r"""Version lists: the entries of committed attempts (docs/storage-format.md).

entry := format:u8 body crc32:u32                                      crc32 over {store} "\n" and all bytes before it
body  := version attempt:16 parent:16 epoch schema:8 time
         parts records raw_bytes stored_bytes digest:8 families (family keys)* extras
extras := count (tag length bytes)*            tag 1: home, in forks; 2: bounds; 3: inline; 4: objects; 5: added;
                                               6: imported, empty; 7: rewritten
home  := shards length store
bounds := (lowest:u8 highest:u8)*                                      for each part, if there are several
inline := codec:u8 packed                                              the one chunk of a commit without parts
objects := length location size*                                       the first parts, which are in objects of S3
added   := values                                                      zigzag: values that its parent does not have
rewritten := id:16                                                     in the keys of its parts, not the attempt
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

from dynastate.errors import ConfigurationError, CorruptStateError, UnavailableError
from dynastate.format import binary
from dynastate.format.codec import CODEC_BYTES
from dynastate.format.items import FORMAT, Item, check_format, item_key
from dynastate.format.keys import Attempt, Home, Key, VersionId, part_key, version_list_key, where
from dynastate.format.objects import ObjectId, ObjectParts, ObjectStream, delta_stream
from dynastate.format.parts import RAW_BYTES_MAX, StoredChunk

#: The runs whose commits a version list refuses: their namespace was adopted for another checkpoint, or dropped. A
#: list with nothing else is a fence.
REFUSED: Final = "refused"
#: In the fence of the first list: the newest epoch of the store that was dropped.
DROPPED_EPOCH: Final = "epoch"
VERSIONS: Final = "versions"
#: In a version list: `erase_id` of the meta item when its entries were rewritten. Its counts are then right.
ERASED: Final = "erased"
#: The most parts whose bounds are in an entry.
BOUNDS_PARTS_MAX: Final = 2_000
_EXTRAS: Final = (
    binary.HOME,
    binary.BOUNDS,
    binary.INLINE,
    binary.OBJECTS,
    binary.ADDED,
    binary.IMPORTED,
    binary.REWRITTEN,
)


class InlineChanges(NamedTuple):
    """The changes of a small commit, within its version entry: one chunk, as a codec has packed it."""

    codec: str
    packed: bytes


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One committed attempt, as the version list names it. Sizes in bytes; `keys` by column family.

    `time_ms` is the time of the commit, in milliseconds since 1970 UTC by the committer's clock; it decides nothing.
    `home` is the store that contains its parts, if that is an origin of a fork.
    `bounds` are the highest bytes of the smallest and of the largest hash in each part; empty if they are not known.
    `inline` are the changes of a commit without parts; `stored_bytes` is then their size.
    `objects` are its first parts, if these are in objects of S3; the others are items.
    `added` is the number of values that it has more than its parent (negative: fewer), or None if the writer did not
    count. A row has one value, a list all of its values.
    `is_imported`: it was written in full, as a snapshot, and its parent was never made.
    `rewritten` is the id in the keys of its parts, in place of the attempt, if rows were erased from them; else None.
    """

    version: int
    attempt: Attempt
    parent: Attempt
    epoch: int
    schema: bytes
    parts: int
    records: int
    raw_bytes: int
    stored_bytes: int
    digest: bytes
    keys: dict[int, int]
    time_ms: int = 0
    home: Home | None = None
    bounds: bytes = b""
    inline: InlineChanges | None = None
    objects: ObjectParts | None = None
    added: int | None = None
    is_imported: bool = False
    rewritten: Attempt | None = None

    @property
    def id(self) -> VersionId:
        return VersionId(self.version, self.attempt)

    @property
    def parent_id(self) -> VersionId:
        return VersionId(self.version - 1, self.parent)

    @property
    def part_id(self) -> Attempt:
        """The id in the keys of its parts."""
        return self.rewritten or self.attempt

    @property
    def maker(self) -> VersionId:
        """The version id in the keys of its parts."""
        return VersionId(self.version, self.part_id)

    @property
    def items(self) -> range:
        """The parts that are items, by sequence."""
        return range(len(self.objects.sizes) if self.objects else 0, self.parts)

    def stream(self, store: str) -> ObjectStream | None:
        """The stream of its parts in objects, or None if it has none."""
        origin = self.home.store if self.home else store
        return self.objects and delta_stream(self.objects.location, origin, self.version, self.part_id)

    def object_ids(self, store: str) -> list[ObjectId]:
        """The objects with its parts."""
        stream = self.stream(store)
        return stream.objects(0, self.objects.bytes) if stream and self.objects else []

    def inline_chunk(self, key: Key) -> StoredChunk | None:
        """The inline changes, or None. `key` is the key of the version list with this entry."""
        return self.inline and StoredChunk(
            key, self.inline.codec, records=self.records, raw_bytes=self.raw_bytes, packed=self.inline.packed
        )


def part_keys(store: str, entry: VersionEntry, shards: int, sequences: Sequence[int] | None = None) -> Iterator[Key]:
    """The keys of all parts of a version, or of some, in sequence."""
    home = entry.home or Home(store, shards)
    numbers = range(entry.parts) if sequences is None else sequences
    return (part_key(home.store, entry.version, entry.part_id, sequence, shards=home.shards) for sequence in numbers)


def encode_entry(store: str, entry: VersionEntry) -> bytes:
    """The bytes of a version entry; the CRC covers the store's name too."""
    head = binary.varint(entry.version) + entry.attempt + entry.parent + binary.varint(entry.epoch) + entry.schema
    sizes = binary.varints((entry.time_ms, entry.parts, entry.records, entry.raw_bytes, entry.stored_bytes))
    families = binary.varints([len(entry.keys), *chain.from_iterable(sorted(entry.keys.items()))])
    extras = {binary.HOME: binary.encode_home(entry.home)} if entry.home else {}
    extras |= {binary.BOUNDS: entry.bounds} if entry.bounds else {}
    extras |= {binary.INLINE: _encode_inline(entry.inline)} if entry.inline else {}
    extras |= {binary.OBJECTS: _encode_objects(entry.objects)} if entry.objects else {}
    extras |= {binary.ADDED: binary.varint(binary.signed(entry.added))} if entry.added is not None else {}
    extras |= {binary.IMPORTED: b""} if entry.is_imported else {}
    extras |= {binary.REWRITTEN: entry.rewritten} if entry.rewritten else {}
    return binary.seal(store, head + sizes + entry.digest + families + binary.encode_extras(extras))


def decode_entry(store: str, raw: bytes) -> VersionEntry:
    cursor = binary.unseal(store, raw, "version entry")
    version, attempt, parent = cursor.varint(), Attempt(cursor.take(16)), Attempt(cursor.take(16))
    epoch, schema, time_ms = cursor.varint(), cursor.take(8), cursor.varint()
    sums = binary.decode_sums(cursor)
    keys = {cursor.varint(): cursor.varint() for _ in range(cursor.varint())}
    extras = binary.decode_extras(store, cursor, _EXTRAS, "version entry")
    home = binary.decode_home(store, extras[binary.HOME]) if binary.HOME in extras else None
    bounds = extras[binary.BOUNDS].rest() if binary.BOUNDS in extras else b""
    if not cursor.at_end():
        raise CorruptStateError("version entry has too many bytes", store=store, version=version)
    if bounds and len(bounds) != 2 * sums.parts:
        raise CorruptStateError("version entry has bounds of another number of parts", store=store, version=version)
    inline = _decode_inline(store, extras[binary.INLINE]) if binary.INLINE in extras else None
    if inline and not (
        sums.parts == 0 < sums.records and len(inline.packed) == sums.stored_bytes and sums.raw_bytes <= RAW_BYTES_MAX
    ):
        raise CorruptStateError("version entry has changes of another size", store=store, version=version)
    objects = _decode_objects(extras[binary.OBJECTS]) if binary.OBJECTS in extras else None
    if objects and not (0 < len(objects.sizes) <= sums.parts and sum(objects.sizes) <= sums.stored_bytes):
        raise CorruptStateError("version entry has objects of other parts", store=store, version=version)
    added = binary.unsigned(extras[binary.ADDED].varint()) if binary.ADDED in extras else None
    if added is not None and not extras[binary.ADDED].at_end():
        raise CorruptStateError("version entry has a count that is too long", store=store, version=version)
    is_imported = binary.IMPORTED in extras
    if is_imported and not extras[binary.IMPORTED].at_end():
        raise CorruptStateError("version entry has a mark that is too long", store=store, version=version)
    rewritten = Attempt(extras[binary.REWRITTEN].rest()) if binary.REWRITTEN in extras else None
    return VersionEntry(
        version,
        attempt,
        parent,
        epoch=epoch,
        schema=schema,
        parts=sums.parts,
        records=sums.records,
        raw_bytes=sums.raw_bytes,
        stored_bytes=sums.stored_bytes,
        digest=sums.digest,
        keys=keys,
        time_ms=time_ms,
        home=home,
        bounds=bounds,
        inline=inline,
        objects=objects,
        added=added,
        is_imported=is_imported,
        rewritten=rewritten,
    )


def _encode_inline(inline: InlineChanges) -> bytes:
    return bytes([CODEC_BYTES.index(inline.codec)]) + inline.packed


def _decode_inline(store: str, cursor: binary.Cursor) -> InlineChanges:
    code = cursor.take(1)[0]
    if code >= len(CODEC_BYTES):
        raise CorruptStateError(
            "version entry has changes in a codec that this package does not know; upgrade dynastate",
            store=store,
            codec=code,
        )
    return InlineChanges(CODEC_BYTES[code], cursor.rest())


def _encode_objects(objects: ObjectParts) -> bytes:
    return binary.encode_text(objects.location) + binary.varints(objects.sizes)


def _decode_objects(cursor: binary.Cursor) -> ObjectParts:
    location, sizes = binary.decode_text(cursor), []
    while not cursor.at_end():
        sizes.append(cursor.varint())
    return ObjectParts(location, tuple(sizes))


def list_item(key: Key, entries: Sequence[bytes], refused: Collection[str] = ()) -> Item:
    refusal: Item = {REFUSED: frozenset(refused)} if refused else {}
    return item_key(key) | {"format": FORMAT, "versions": list(entries)} | refusal


def shorter_list(key: Key, entries: Sequence[bytes], attributes: Item) -> Item:
    """A version list with fewer entries than one with these `attributes`.

    It still refuses the same runs. It keeps the epoch of a store that was dropped, or epochs would count from 1.
    """
    refused = attributes.get(REFUSED)
    epoch: Item = {DROPPED_EPOCH: attributes[DROPPED_EPOCH]} if DROPPED_EPOCH in attributes else {}
    return list_item(key, entries, refused if isinstance(refused, frozenset) else ()) | epoch


def parse_list(key: Key, item: Item) -> list[bytes]:
    """The entries of the version list in an item, as they are stored."""
    check_format(key, item)
    listed = item.get("versions", [] if REFUSED in item else None)
    if not isinstance(listed, list):
        raise CorruptStateError("a version list has no versions", **where(key))
    return listed


def listed_entry(store: str, key: Key, raw: bytes) -> VersionEntry:
    """An entry of the version list with this key."""
    try:
        entry = decode_entry(store, raw)
    except CorruptStateError as corrupt:
        raise CorruptStateError(str(corrupt), **where(key)) from corrupt
    if version_list_key(store, entry.version) != key:
        raise CorruptStateError("a version entry is in another version list", version=entry.version, **where(key))
    return entry


def not_awaited(key: Key, run: str) -> UnavailableError:
    """The error of a commit that is not sent, or not sent again, because its task has ended."""
    return UnavailableError("this task ended before its commit was sent", run=run, **where(key))


def base_gone(key: Key, run: str) -> ConfigurationError:
    """The error of a commit to a list that no longer has versions."""
    return ConfigurationError(
        "the version that this commit follows is not listed any more: clean-up or a drop deleted its version list "
        "while this task was suspended. If the query goes on, it does not need this task; if its namespace was "
        "dropped, start it with a new checkpoint; if the tables were restored, run dynastate recover",
        run=run,
        **where(key),
    )


def run_refused(key: Key, run: str) -> ConfigurationError:
    """The error of a commit whose run a version list refuses."""
    return ConfigurationError(
        "this run may not commit any more: while it ran, its namespace was dropped (dynastate drop), or adopted for "
        "another checkpoint (dynastate adopt), or rows were erased (dynastate erase). Stop this query; after a drop "
        "its state is gone, so start it with a new checkpoint",
        run=run,
        **where(key),
    )
