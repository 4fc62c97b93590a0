"""Chunks to blocks and back: LZ4, zstd, and cutting to item size (docs/storage-format.md, "Parts")."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple

import lz4.block

from dynastate.errors import CorruptStateError
from dynastate.format import zstd
from dynastate.runtime import limits

RAW: Final = "raw"
LZ4: Final = "lz4"
ZSTD: Final = "zstd"
#: The lowest level of LZ4's slower compressor: the highest takes fifteen times as long to save another hundredth.
DENSE_LEVEL = 2


def _compress_lz4(chunk: bytes, *, dense: bool) -> bytes:
    how = {"mode": "high_compression", "compression": DENSE_LEVEL} if dense else {"mode": "default"}
    packed: bytes = lz4.block.compress(chunk, store_size=False, **how)
    return packed


def _decompress_lz4(packed: bytes, raw_bytes: int) -> bytes:
    try:
        chunk: bytes = lz4.block.decompress(packed, uncompressed_size=raw_bytes)
    except (lz4.block.LZ4BlockError, OverflowError, ValueError) as corrupt:  # the last two: raw_bytes is not a length
        raise CorruptStateError(f"a block cannot be decompressed: {corrupt}") from corrupt
    return chunk


class Codec(NamedTuple):
    """A codec by its name. One byte of a block expands to at most `expansion` bytes.

    `require` refuses a codec whose package is not installed.
    """

    name: str
    expansion: float
    compress: Callable[..., bytes]
    decompress: Callable[[bytes, int], bytes]
    require: Callable[[], object] = lambda: None


#: All codecs. The place of a codec in this table is the byte that names it in binary values, so it never changes.
TABLE: Final = (
    Codec(RAW, inf, lambda chunk, *, dense: chunk, lambda packed, _: packed),  # noqa: ARG005
    Codec(LZ4, 255, _compress_lz4, _decompress_lz4),
    # Four bytes are a block of at most 128 KiB.
    Codec(ZSTD, 32 * 1024, zstd.compress, zstd.decompress, require=zstd.library),
)
CODECS: Final = {codec.name: codec for codec in TABLE}
#: The names of the codecs by the byte that names them in binary values.
CODEC_BYTES: Final = tuple(CODECS)


def require(codec: str) -> None:
    """Refuse a codec whose package is not installed.

    Raises:
        ConfigurationError: the message names the extra.
    """
    CODECS[codec].require()


def compress(chunk: bytes, codec: str = LZ4, *, dense: bool = False) -> tuple[str, bytes]:
    """Codec and bytes of a chunk: one block, or the chunk itself where that is not smaller.

    `dense` makes blocks of LZ4 smaller by an eighth, and blocks of zstd by a twenty-fifth. It takes 1.5 ms of processor
    time per 256 KiB, instead of 0.3 ms and 0.5 ms. Decompression takes as long.

    Raises:
        ConfigurationError: zstd is not installed.
    """
    packed = CODECS[codec].compress(chunk, dense=dense)
    return (codec, packed) if len(packed) < len(chunk) else (RAW, chunk)


def decompress(codec: str, packed: bytes, raw_bytes: int) -> bytes:
    """The chunk, which is exactly raw_bytes long. The codec is one of `CODECS`.

    Raises:
        ConfigurationError: zstd is not installed.
        CorruptStateError: the bytes are not a block, or have another length.
    """
    # Allocate memory for what a block can contain, not for what it claims to contain.
    if codec != RAW and not 0 <= raw_bytes <= CODECS[codec].expansion * (len(packed) + 1):
        raise CorruptStateError("a block cannot have this length", expected=raw_bytes, packed=len(packed))
    chunk = CODECS[codec].decompress(packed, raw_bytes)
    if len(chunk) != raw_bytes:
        raise CorruptStateError("a block has the wrong length", expected=raw_bytes, got=len(chunk))
    return chunk


def cut(packed: bytes) -> list[bytes]:
    """The fragments of a compressed chunk, at least one."""
    most = limits().fragment_bytes_max
    return [packed[start : start + most] for start in range(0, max(1, len(packed)), most)]
