"""Version entries as bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynastate.errors import CorruptStateError
from dynastate.format import binary
from dynastate.format.changes import FAMILY_MAX
from dynastate.format.codec import CODEC_BYTES, LZ4
from dynastate.format.items import FORMAT, Item, item_bytes, item_key
from dynastate.format.keys import SHARDS_MAX, Attempt, Home, version_list_key
from dynastate.format.objects import ObjectParts
from dynastate.format.parts import RAW_BYTES_MAX, StoredChunk
from dynastate.format.version_list import InlineChanges, VersionEntry, decode_entry, encode_entry
from tests.support.samples import A, B

STORE = "ns/0/0/default"
U64 = st.integers(0, 2**64 - 1)
ATTEMPTS = st.binary(min_size=16, max_size=16).map(Attempt)
DIGESTS = st.binary(min_size=8, max_size=8)
ENTRIES = st.builds(
    VersionEntry,
    version=U64,
    attempt=ATTEMPTS,
    parent=ATTEMPTS,
    epoch=U64,
    schema=DIGESTS,
    parts=U64,
    records=U64,
    raw_bytes=U64,
    stored_bytes=U64,
    digest=DIGESTS,
    keys=st.dictionaries(st.integers(0, FAMILY_MAX), U64, max_size=4),
    home=st.none()
    | st.builds(
        Home,
        store=st.text(st.characters(exclude_characters="#", exclude_categories=["Cs"]), min_size=1, max_size=200),
        shards=st.integers(1, SHARDS_MAX),
    ),
    added=st.none() | st.integers(-(2**63), 2**63 - 1),
    rewritten=st.none() | ATTEMPTS,
)


@given(ENTRIES, st.binary(max_size=40))
def test_an_entry_comes_back(entry: VersionEntry, bounds: bytes) -> None:
    assert decode_entry(STORE, encode_entry(STORE, entry)) == entry
    bounded = replace(entry, parts=len(bounds), bounds=bounds * 2)
    assert decode_entry(STORE, encode_entry(STORE, bounded)) == bounded


@given(ENTRIES, st.lists(st.integers(0, 2**40), min_size=1, max_size=9), st.integers(0, 3))
def test_an_entry_with_objects_comes_back(entry: VersionEntry, sizes: list[int], more: int) -> None:
    objects = ObjectParts("s3://bucket/prefix/é", tuple(sizes))
    entry = replace(entry, parts=len(sizes) + more, stored_bytes=sum(sizes) + more, objects=objects)
    assert decode_entry(STORE, encode_entry(STORE, entry)) == entry
    assert entry.items == range(len(sizes), len(sizes) + more)


def test_an_entry_has_no_count_unless_it_was_made() -> None:
    """Entries without the extra are read as before; zero is a count."""
    entry = VersionEntry(1, A, B, 1, bytes(8), 0, 0, 0, 0, bytes(8), {})
    assert decode_entry(STORE, encode_entry(STORE, entry)).added is None
    counted = encode_entry(STORE, replace(entry, added=0))
    assert decode_entry(STORE, counted).added == 0
    assert len(counted) == len(encode_entry(STORE, entry)) + 3
    longer = binary.seal(STORE, counted[1:-7] + b"\x05\x02\x00\x00")
    with pytest.raises(CorruptStateError, match="a count that is too long"):
        decode_entry(STORE, longer)


@given(ENTRIES, st.sampled_from(CODEC_BYTES), st.binary(max_size=300), st.integers(1, RAW_BYTES_MAX))
def test_an_entry_with_its_changes_comes_back(entry: VersionEntry, codec: str, packed: bytes, raw_bytes: int) -> None:
    """They are read back as they were written, and known as a chunk of the version list."""
    inline = InlineChanges(codec, packed)
    sizes: Any = {"parts": 0, "records": entry.records + 1, "raw_bytes": raw_bytes, "stored_bytes": len(packed)}
    small = replace(entry, **sizes, inline=inline)
    assert decode_entry(STORE, encode_entry(STORE, small)) == small
    key = version_list_key(STORE, entry.version)
    assert small.inline_chunk(key) == StoredChunk(key, codec, small.records, raw_bytes, packed)
    assert entry.inline_chunk(key) is None


WITH_OBJECTS = VersionEntry(1, A, B, 1, bytes(8), 2, 1, 1, 7, bytes(8), {}, objects=ObjectParts("s3://b", (3, 4)))
WITH_BOUNDS = VersionEntry(1, A, B, 1, bytes(8), 3, 1, 1, 1, bytes(8), {}, bounds=bytes(6))
WITH_CHANGES = VersionEntry(1, A, B, 1, bytes(8), 0, 1, 12, 5, bytes(8), {}, inline=InlineChanges(LZ4, b"12345"))
WRONG: list[tuple[VersionEntry, dict[str, Any], str]] = [
    *((WITH_OBJECTS, wrong, "objects of other parts") for wrong in ({"parts": 1}, {"stored_bytes": 6})),
    (WITH_OBJECTS, {"objects": ObjectParts("s3://b", ())}, "objects of other parts"),
    (WITH_BOUNDS, {"bounds": bytes(4)}, "bounds of another number of parts"),
    *(
        (WITH_CHANGES, wrong, "changes of another size")
        for wrong in ({"parts": 1}, {"records": 0}, {"stored_bytes": 4})
    ),
    (WITH_CHANGES, {"raw_bytes": RAW_BYTES_MAX + 1}, "changes of another size"),
]


@pytest.mark.parametrize(("entry", "wrong", "said"), WRONG)
def test_parts_of_an_entry_that_disagree_are_refused(entry: VersionEntry, wrong: dict[str, Any], said: str) -> None:
    """Sizes of objects, bounds of parts, and changes within the entry."""
    assert decode_entry(STORE, encode_entry(STORE, entry)) == entry
    with pytest.raises(CorruptStateError, match=said):
        decode_entry(STORE, encode_entry(STORE, replace(entry, **wrong)))


def test_changes_in_an_unknown_codec_are_refused() -> None:
    """The advice is to upgrade."""
    body = encode_entry(STORE, WITH_CHANGES)[1:-4]
    assert body.endswith(b"\x0112345")
    with pytest.raises(CorruptStateError, match="does not know; upgrade dynastate") as caught:
        decode_entry(STORE, binary.seal(STORE, body[:-6] + b"\x0312345"))
    assert caught.value.facts["codec"] == 3


@given(ENTRIES, st.data())
def test_an_entry_with_a_wrong_byte_is_refused(entry: VersionEntry, data: st.DataObject) -> None:
    raw = encode_entry(STORE, entry)
    at = data.draw(st.integers(0, len(raw) - 1))
    for corrupt in (raw[:at] + bytes([raw[at] ^ data.draw(st.integers(1, 255))]) + raw[at + 1 :], raw[:-1], raw + b"x"):
        with pytest.raises(CorruptStateError):
            decode_entry(STORE, corrupt)
    with pytest.raises(CorruptStateError, match="wrong checksum"):
        decode_entry("ns/0/1/default", raw)


def test_ten_entries_cost_one_write_unit() -> None:
    """The item of a full group of one-family entries stays under 1 KB, with up to 3 parts each."""
    sizes = (3, 6_000, 750_000, 300_000)
    entries = [
        VersionEntry(1000 + n, A, B, 100, bytes(8), *sizes, bytes(8), {0: 1_000_000}, time_ms=1 << 40, bounds=bytes(6))
        for n in range(10)
    ]
    item: Item = item_key(version_list_key(STORE, 1000)) | {"format": FORMAT}
    item |= {"versions": [encode_entry(STORE, each) for each in entries]}
    assert item_bytes(item | {"store_shard": "", "entry": ""}) + 80 + 22 <= 1024
