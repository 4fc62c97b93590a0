"""Chunks as parts, and parts that are refused."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format import parts
from dynastate.format.codec import CODEC_BYTES, compress
from dynastate.format.items import FORMAT, Item
from dynastate.format.keys import Key, SnapshotId
from dynastate.format.parts import RAW_BYTES_MAX, Chunk, Part, bucket_items, join_fragments, parse_part, part_items
from tests.support.samples import A, B

STORE = "ns/0/0/default"


def part(run: bytes = b"the same again and again " * 9) -> tuple[Key, Item]:
    ((key, item),) = part_items(STORE, 1, A, 0, 4, Chunk(1, 5, 5, run))
    return key, item


@given(st.binary(min_size=1, max_size=300), st.integers(0, 999), st.integers(1, 256))
def test_a_chunk_comes_back_from_its_parts(run: bytes, first: int, shards: int) -> None:
    items = part_items(STORE, 3, B, first, shards, Chunk(1, 0, 2**32 - 1, run))
    parts = [parse_part(key, item) for key, item in items]
    assert join_fragments(items[0][0], parts).changes == run


def test_small_batches_and_snapshots_are_compressed_densely() -> None:
    """The first parts of an attempt and every item of a bucket are dense; later parts and large rows are quick."""
    run = b"".join(b"order %010d" % (n * n) for n in range(1000))
    quick, dense = (compress(run, dense=care)[1] for care in (False, True))
    assert len(dense) < len(quick)
    for first, expected in ((0, dense), (parts.DENSE_PARTS - 1, dense), (parts.DENSE_PARTS, quick)):
        assert part_items(STORE, 1, A, first, 1, Chunk(1, 0, 0, run))[0][1]["data"] == expected
    assert bucket_items(STORE, SnapshotId(1, A), 0, 99, 1, Chunk(1, 0, 0, run))[0][1]["data"] == dense
    large = run * 30
    assert len(large) > parts.CHUNK_BYTES_MAX
    assert part_items(STORE, 1, A, 0, 1, Chunk(1, 0, 0, large))[0][1]["data"] == compress(large)[1]


def test_a_row_larger_than_a_reader_accepts_is_refused_when_written() -> None:
    """What could never be read back is never written: the largest chunk is the same for both ends."""
    largest = part_items(STORE, 1, A, 0, 1, Chunk(1, 0, 0, bytes(RAW_BYTES_MAX)))
    assert [parse_part(key, item).raw_bytes for key, item in largest] == [RAW_BYTES_MAX]
    with pytest.raises(ConfigurationError, match=f"larger than 64 MiB.* store={STORE}"):
        part_items(STORE, 1, A, 0, 1, Chunk(1, 0, 0, bytes(RAW_BYTES_MAX + 1)))


@pytest.mark.parametrize(
    ("codec", "raw_bytes"),
    [
        ("brotli", 10),
        ("zstd", 0),
        ("zstd", RAW_BYTES_MAX + 1),
        ("lz4", 0),
        ("lz4", -1),
        ("raw", -1),
        ("lz4", RAW_BYTES_MAX + 1),
        ("lz4", 2**40),
    ],
)
def test_an_impossible_part_is_refused_before_memory_is_taken(codec: str, raw_bytes: int) -> None:
    """A part with an unknown codec or an impossible length is refused even where its checksum is right."""
    key, item = part()
    fields = (FORMAT, codec, 1, raw_bytes, 0, 1, 5, 5)
    data = item["data"]
    assert isinstance(data, bytes)
    crc = parts._part_crc(key, fields, data)
    with pytest.raises(CorruptStateError, match="unknown codec or an impossible size"):
        parse_part(key, item | {"codec": codec, "raw_bytes": raw_bytes, "crc32": crc})


@given(st.sampled_from(CODEC_BYTES), st.binary(max_size=30), st.integers(1, 100), st.integers(-1, 3))
def test_any_fragments_are_a_chunk_or_an_error(codec: str, data: bytes, raw_bytes: int, fragments: int) -> None:
    """Whatever a part with a right checksum holds, it is a chunk of the length it names, or CorruptStateError."""
    key, _ = part()
    only = Part(codec, 1, raw_bytes, 0, fragments, 0, 0, 0, data)
    try:
        assert len(join_fragments(key, [only]).changes) == raw_bytes
    except CorruptStateError as error:
        assert key.sort in str(error)  # noqa: PT017  # both ends of the `try` are right


@pytest.mark.parametrize("order", [(1, 0), (0, 0), (0,), (0, 1, 1), (1,)])
def test_fragments_out_of_order_are_refused(order: tuple[int, ...]) -> None:
    """Fragments that are swapped, lost or there twice are no chunk, though each has a right checksum."""
    noise = hashlib.shake_128(b"seed").digest(500_000)
    items = part_items(STORE, 1, A, 0, 1, Chunk(1, 0, 0, noise))
    parts = [parse_part(key, item) for key, item in items]
    assert len(parts) == 2
    with pytest.raises(CorruptStateError, match="do not follow each other"):
        join_fragments(items[0][0], [parts[place] for place in order])
