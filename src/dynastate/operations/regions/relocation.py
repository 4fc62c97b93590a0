"""Items of a store for other tables, with objects of S3 in another location, and with higher epochs.

docs/storage-format.md, "Objects" and "`meta`"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from dynastate.errors import CorruptStateError
from dynastate.format.items import Item, number
from dynastate.format.keys import Key, digest_of, maker_of_manifest, maker_of_snapshot, where
from dynastate.format.manifest import Bucket, decode_manifest, encode_manifest
from dynastate.format.meta import Value, parse_meta
from dynastate.format.version_list import VERSIONS, decode_entry, encode_entry, parse_list


class Relocation:
    """The items of one store for other tables, with objects in another location, and with higher epochs.

    `location` is empty if the store has no objects; `raised` is added to every epoch. `manifests` are all manifests of
    a store with objects: the item of a snapshot has the digest of its manifest.
    """

    def __init__(self, store: str, location: str, raised: int, manifests: Iterable[tuple[Key, Item]] = ()) -> None:
        self._store = store
        self._location = location
        self._raised = raised
        stored = (bytes_of(key, item, "data") for key, item in manifests)
        self._digests = {digest_of(raw): digest_of(self._manifest(raw)) for raw in stored}

    def meta(self, item: Item) -> Item:
        meta = parse_meta(self._store, item)
        relocated = replace(
            meta,
            epochs={run: epoch + self._raised for run, epoch in meta.epochs.items()},
            locations=self._with_raised_epochs(meta.locations),
            queries=self._with_raised_epochs(meta.queries),
            bases=self._with_raised_epochs(meta.bases),
            heights=self._with_raised_epochs(meta.heights),
            objects=frozenset([self._location] if meta.objects else []),
        )
        return item | relocated.attributes()

    def _with_raised_epochs(self, values: Mapping[int, Value]) -> dict[int, Value]:
        return {epoch + self._raised: value for epoch, value in values.items()}

    def item(self, key: Key, item: Item) -> Item:
        if not (self._location or self._raised):
            return item
        if VERSIONS in item:
            return item | {VERSIONS: [self._entry(raw) for raw in parse_list(key, item)]}
        if self._location and maker_of_manifest(key) is not None:
            return item | {"data": self._manifest(bytes_of(key, item, "data"))}
        if maker_of_snapshot(key) is not None:
            digest, epoch = bytes_of(key, item, "digest"), number(key, item, "epoch")
            return item | {"digest": self._digests.get(digest, digest), "epoch": epoch + self._raised}
        return item

    def _entry(self, raw: bytes) -> bytes:
        entry = decode_entry(self._store, raw)
        objects = entry.objects and entry.objects._replace(location=self._location)
        return encode_entry(self._store, replace(entry, epoch=entry.epoch + self._raised, objects=objects))

    def _manifest(self, raw: bytes) -> bytes:
        manifest = decode_manifest(self._store, raw)
        return encode_manifest(self._store, replace(manifest, buckets=tuple(map(self._bucket, manifest.buckets))))

    def _bucket(self, bucket: Bucket) -> Bucket:
        return bucket if bucket.place is None else replace(bucket, place=bucket.place._replace(location=self._location))


def bytes_of(key: Key, item: Item, name: str) -> bytes:
    value = item.get(name)
    if not isinstance(value, bytes):
        raise CorruptStateError("an item holds a value that dynastate never writes", **where(key), attribute=name)
    return value
