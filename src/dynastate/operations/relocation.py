"""Objects of S3 in another location: what names them, changed for it (docs/storage-format.md, "Objects")."""

from __future__ import annotations

from dataclasses import replace

from dynastate.errors import CorruptStateError
from dynastate.format.items import Item
from dynastate.format.keys import Key, digest_of, maker_of_manifest, maker_of_snapshot, where
from dynastate.format.manifest import Bucket, decode_manifest, encode_manifest
from dynastate.format.meta import OBJECTS
from dynastate.format.version_list import VERSIONS, decode_entry, encode_entry, parse_list


def relocated_meta(meta: Item, location: str) -> Item:
    """A meta item that lists one location, if it lists some."""
    return meta | {OBJECTS: frozenset([location])} if OBJECTS in meta else meta


class Relocation:
    """The items of one store, as they are where its objects lie in another location.

    They are given in the order of their keys, in which a manifest comes before the snapshot that has its digest.
    """

    def __init__(self, store: str, location: str) -> None:
        self._store = store
        self._location = location
        self._digests: dict[bytes, bytes] = {}

    def item(self, key: Key, item: Item) -> Item:
        if VERSIONS in item:
            return item | {VERSIONS: [self._entry(raw) for raw in parse_list(key, item)]}
        if maker_of_manifest(key) is not None:
            return item | {"data": self._manifest(_bytes(key, item, "data"))}
        if maker_of_snapshot(key) is not None:
            digest = _bytes(key, item, "digest")
            return item | {"digest": self._digests.get(digest, digest)}
        return item

    def _entry(self, raw: bytes) -> bytes:
        entry = decode_entry(self._store, raw)
        if entry.objects is None:
            return raw
        moved = replace(entry, objects=entry.objects._replace(location=self._location))
        return encode_entry(self._store, moved)

    def _manifest(self, raw: bytes) -> bytes:
        manifest = decode_manifest(self._store, raw)
        moved = encode_manifest(self._store, replace(manifest, buckets=tuple(map(self._bucket, manifest.buckets))))
        self._digests[digest_of(raw)] = digest_of(moved)
        return moved

    def _bucket(self, bucket: Bucket) -> Bucket:
        return bucket if bucket.place is None else replace(bucket, place=bucket.place._replace(location=self._location))


def _bytes(key: Key, item: Item, name: str) -> bytes:
    value = item.get(name)
    if not isinstance(value, bytes):
        raise CorruptStateError("an item holds a value that dynastate never writes", **where(key), attribute=name)
    return value
