"""Chunks and blocks."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import lz4.block
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.codec import CODECS, LZ4, RAW, ZSTD, compress, cut, decompress, require
from dynastate.format.parts import RAW_BYTES_MAX
from dynastate.runtime import Limits
from dynastate.settings import Settings

MISSING = r"need zstandard, the extra zstd of dynastate, .*; pip install zstandard$"


@given(
    st.binary(min_size=1, max_size=200) | st.integers(1, 5000).map(bytes), st.sampled_from((LZ4, ZSTD)), st.booleans()
)
def test_round_trip(chunk: bytes, wanted: str, dense: bool) -> None:  # noqa: FBT001  # hypothesis gives it
    """A chunk comes back as it was, and is never stored in more bytes than it has."""
    codec, packed = compress(chunk, wanted, dense=dense)
    assert codec in (wanted, RAW)
    assert len(packed) <= len(chunk)
    assert decompress(codec, packed, len(chunk)) == chunk


@pytest.mark.parametrize("wanted", [LZ4, ZSTD])
def test_incompressible_chunks_are_stored_raw(wanted: str) -> None:
    noise = random.Random(1).randbytes(1000)  # noqa: S311  # bytes that no codec can shrink, no secret
    assert compress(noise, wanted) == (RAW, noise)
    assert compress(bytes(1000), wanted)[0] == wanted


def test_the_setting_names_the_codecs() -> None:
    """Every codec that compresses is a value of the setting, and LZ4 is the default."""
    assert [Settings(compression=codec).compression for codec in CODECS if codec != RAW] == [LZ4, ZSTD]
    assert Settings().compression == LZ4


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != RAW])
def test_every_codec_is_known_everywhere(codec: str) -> None:
    """The JVM decompresses it, the vectors have a part of it, and the storage format describes it."""
    root = Path(__file__).parents[3]
    scala = (root / "jvm-bridge/src/main/scala/io/dynastate/bridge/Codec.scala").read_text()
    assert f'case "{codec}" =>' in scala
    parts = json.loads((root / "tests/vectors/format.json").read_text())["parts"]
    assert codec in {item["codec"] for part in parts for item in part["items"]}
    assert f"`{codec}`" in (root / "docs/storage-format.md").read_text()


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_the_most_that_a_block_expands_to_can_be_read(codec: str) -> None:
    """The largest chunk of nothing but zeros, of which a block has the fewest bytes."""
    packed = compress(bytes(RAW_BYTES_MAX), codec)[1]
    assert len(packed) < 2 * RAW_BYTES_MAX / CODECS[codec].expansion
    assert decompress(codec, packed, RAW_BYTES_MAX) == bytes(RAW_BYTES_MAX)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without zstandard LZ4 and raw chunks work; zstd is refused with what to install, which is no corruption."""
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for call in (lambda: require(ZSTD), lambda: compress(bytes(9), ZSTD), lambda: decompress(ZSTD, b"(\xb5/\xfd", 9)):
        with pytest.raises(ConfigurationError, match=MISSING):
            call()
    require(LZ4)
    assert decompress(*compress(bytes(100)), 100) == bytes(100)


@pytest.mark.parametrize("has_size", [False, True])
def test_a_frame_says_its_length(*, has_size: bool) -> None:
    """A frame of zstd that does not say the length that its item names is refused, and so is one with more after it."""
    frame = zstandard.ZstdCompressor(write_content_size=has_size).compress(b"12345" * 9)
    for packed, raw_bytes in ((frame, 44), (frame, 46), (frame + frame, 45), (frame[:-1], 45), (b"12345" * 9, 45)):
        with pytest.raises(CorruptStateError, match=r"a block (has the wrong length|cannot be decompressed)"):
            decompress(ZSTD, packed, raw_bytes)
    if has_size:
        assert decompress(ZSTD, frame, 45) == b"12345" * 9
    else:
        with pytest.raises(CorruptStateError, match="wrong length"):
            decompress(ZSTD, frame, 45)


def test_dense_blocks_are_smaller() -> None:
    """Dense compression saves at least a tenth on rows of text and numbers, and zstd another tenth."""
    random_rows = random.Random(1)  # noqa: S311  # no secret
    rows = b"".join(b"order %010d shipped from depot %04d" % (random_rows.randrange(10**10), n) for n in range(5000))
    (_, quick), (_, dense) = compress(rows), compress(rows, dense=True)
    assert len(dense) < 0.9 * len(quick)
    assert len(compress(rows, ZSTD)[1]) < 0.9 * len(dense)


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
        (Limits.fragment_bytes_max, [Limits.fragment_bytes_max]),
        (Limits.fragment_bytes_max + 1, [Limits.fragment_bytes_max, 1]),
        (3 * Limits.fragment_bytes_max, [Limits.fragment_bytes_max] * 3),
    ],
)
def test_cutting(length: int, lengths: list[int]) -> None:
    """Fragments are full except the last, none but an only one is empty, and together they are what was cut."""
    packed = random.Random(length).randbytes(length)  # noqa: S311  # bytes to cut, no secret
    fragments = cut(packed)
    assert [len(fragment) for fragment in fragments] == lengths
    assert b"".join(fragments) == packed
