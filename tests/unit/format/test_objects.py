"""Frames of parts in objects, and the cuts of streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynastate.errors import CorruptStateError
from dynastate.format.codec import CODEC_BYTES
from dynastate.format.keys import Attempt, Key
from dynastate.format.objects import (
    FRAME_BYTES,
    bucket_and_prefix,
    decode_frames,
    delta_stream,
    encode_frame,
    is_of_tables,
    location_of_tables,
    object_numbers,
)
from dynastate.format.parts import Chunk, part_items, part_of
from dynastate.runtime import Limits

STORE = "ns/0/0/default"
A = Attempt(bytes(15) + b"\x01")


def parts_of(sizes: list[int]) -> tuple[list[bytes], list[Key]]:
    frames: list[bytes] = []
    keys: list[Key] = []
    for sequence, size in enumerate(sizes):
        ((key, item),) = part_items(STORE, 3, A, sequence, 4, Chunk(1, 5, 9, bytes(range(256)) * size))
        frames.append(encode_frame(part_of(item)))
        keys.append(key)
    return frames, keys


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5))
def test_frames_come_back(sizes: list[int]) -> None:
    frames, keys = parts_of(sizes)
    read = dict(decode_frames(keys, b"".join(frames)))
    assert list(read) == keys
    assert [encode_frame(part) for part in read.values()] == frames


def test_any_wrong_byte_is_found() -> None:
    """No byte of a frame can change, none can be missing, and no frame is that of another key."""
    (first, second), keys = parts_of([1, 2])
    raw = first + second
    for at in range(len(raw)):
        with pytest.raises(CorruptStateError):
            list(decode_frames(keys, raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :]))
    for wrong in (raw[:-1], raw + b"x", raw[1:], second + first, first, b""):
        with pytest.raises(CorruptStateError):
            list(decode_frames(keys, wrong))


def test_a_frame_is_thirty_bytes_and_the_data() -> None:
    """The size of a stream follows from the sizes of its parts' data."""
    ((_, item),) = part_items(STORE, 3, A, 0, 4, Chunk(1, 5, 9, b"abc"))
    assert part_of(item).codec == CODEC_BYTES[0]
    assert len(encode_frame(part_of(item))) == FRAME_BYTES + 3 == 33


@pytest.mark.parametrize(
    ("start", "end", "numbers"),
    [
        (0, 1, [0]),
        (0, Limits.object_bytes, [0]),
        (0, Limits.object_bytes + 1, [0, 1]),
        (Limits.object_bytes - 1, Limits.object_bytes + 1, [0, 1]),
        (Limits.object_bytes, 2 * Limits.object_bytes, [1]),
        (0, 0, []),
    ],
)
def test_objects_of_a_range(start: int, end: int, numbers: list[int]) -> None:
    assert list(object_numbers(start, end)) == numbers
    stream = delta_stream("s3://bucket/a/b", STORE, 3, A)
    assert [each.key for each in stream.objects(start, end)] == [
        f"a/b/{STORE}#delta/{3:020d}/{A.hex()}/{number:06d}" for number in numbers
    ]


@pytest.mark.parametrize(
    ("location", "parsed"),
    [("s3://b", ("b", "")), ("s3://b/", ("b", "")), ("s3://b/a/c", ("b", "a/c/")), ("s3://b/a/", ("b", "a/"))],
)
def test_locations(location: str, parsed: tuple[str, str]) -> None:
    """A location is a bucket, and what the names of its objects begin with."""
    assert bucket_and_prefix(location) == parsed
    with pytest.raises(CorruptStateError, match="is not s3://bucket/prefix"):
        bucket_and_prefix(location.removeprefix("s3:"))


@pytest.mark.parametrize("objects", ["s3://b", "s3://b/a/c"])
@pytest.mark.parametrize("table", ["groups", "arn:aws:dynamodb:eu-west-1:123456789012:table/groups"])
def test_a_location_ends_with_the_name_of_the_table(objects: str, table: str) -> None:
    """However the table is given; a bucket of that name, or a folder further up, is no location of its own."""
    location = location_of_tables(objects, table)
    assert location == f"{objects}/groups"
    assert is_of_tables(location, "groups")
    assert is_of_tables(location, table)
    for other in (objects, f"{objects}/groups2", f"{objects}/2groups", f"{objects}/groups/other", "s3://groups"):
        assert not is_of_tables(other, table)
