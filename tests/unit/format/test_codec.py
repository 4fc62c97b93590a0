"""Chunks and blocks."""

from __future__ import annotations

import random

import lz4.block
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynastate.errors import CorruptStateError
from dynastate.format.codec import CODECS, FRAGMENT_BYTES_MAX, LZ4, RAW, compress, cut, decompress


@given(st.binary(min_size=1, max_size=200) | st.integers(1, 5000).map(bytes), st.booleans())
def test_round_trip(chunk: bytes, dense: bool) -> None:  # noqa: FBT001  # hypothesis gives it
    """A chunk comes back as it was, and is never stored in more bytes than it has."""
    codec, packed = compress(chunk, dense=dense)
    assert codec in CODECS
    assert len(packed) <= len(chunk)
    assert decompress(codec, packed, len(chunk)) == chunk


def test_incompressible_chunks_are_stored_raw() -> None:
    """A chunk that LZ4 would not make smaller is stored as it is."""
    noise = random.Random(1).randbytes(1000)  # noqa: S311  # bytes that LZ4 cannot shrink, no secret
    assert compress(noise) == (RAW, noise)
    assert compress(bytes(1000))[0] == LZ4


def test_dense_blocks_are_smaller() -> None:
    """Dense compression saves at least a tenth on rows of text and numbers."""
    random_rows = random.Random(1)  # noqa: S311  # no secret
    rows = b"".join(b"order %010d shipped from depot %04d" % (random_rows.randrange(10**10), n) for n in range(5000))
    (_, quick), (_, dense) = compress(rows), compress(rows, dense=True)
    assert len(dense) < 0.9 * len(quick)


@pytest.mark.parametrize("raw_bytes", [-1, 0, 4, 6, 2**31, 2**70])
def test_a_block_of_another_length_is_refused(raw_bytes: int) -> None:
    """A block that does not have the length its item names is refused, also where LZ4 would not take the number."""
    # Five bytes with a length before them: what -1 would make LZ4 read.
    for packed in (lz4.block.compress(b"12345", store_size=False), lz4.block.compress(b"12345", store_size=True)):
        with pytest.raises(CorruptStateError):
            decompress(LZ4, packed, raw_bytes)
    with pytest.raises(CorruptStateError, match="wrong length"):
        decompress(RAW, b"12345", raw_bytes)


@pytest.mark.parametrize(
    ("length", "lengths"),
    [
        (0, [0]),
        (1, [1]),
        (FRAGMENT_BYTES_MAX, [FRAGMENT_BYTES_MAX]),
        (FRAGMENT_BYTES_MAX + 1, [FRAGMENT_BYTES_MAX, 1]),
        (3 * FRAGMENT_BYTES_MAX, [FRAGMENT_BYTES_MAX] * 3),
    ],
)
def test_cutting(length: int, lengths: list[int]) -> None:
    """Fragments are full but for the last, none but an only one is empty, and together they are what was cut."""
    packed = random.Random(length).randbytes(length)  # noqa: S311  # bytes to cut, no secret
    fragments = cut(packed)
    assert [len(fragment) for fragment in fragments] == lengths
    assert b"".join(fragments) == packed
