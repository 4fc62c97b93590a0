"""The codec zstd, of the package's extra `zstd` (docs/storage-format.md, "Parts"). Safe for threads."""

from __future__ import annotations

import threading
from typing import Any, Final

from dynastate.errors import ConfigurationError, CorruptStateError

#: Levels by whether compression is to be dense: with LZ4's time, and with a third of it (benchmarks/codecs.py).
LEVELS: Final = {True: 5, False: 1}

#: Each thread has its own contexts, of 1 to 2 MB, which are not safe for several.
_contexts = threading.local()


def library() -> Any:  # the extra has types, but is not always there
    """The extra's module. Raises if it is not installed."""
    try:
        import zstandard
    except ImportError as missing:
        raise ConfigurationError(
            "rows compressed with zstd need zstandard, the extra zstd of dynastate, in the Python that reads or writes "
            "them; pip install zstandard"
        ) from missing
    return zstandard


def compress(chunk: bytes, *, dense: bool) -> bytes:
    """One frame with its content size, without dictionary, and without checksum since every item has one."""
    zstd = library()
    contexts = _contexts.__dict__.setdefault("compressors", {})
    if dense not in contexts:
        contexts[dense] = zstd.ZstdCompressor(LEVELS[dense], write_checksum=False, write_content_size=True)
    packed: bytes = contexts[dense].compress(chunk)
    return packed


def decompress(frame: bytes, raw_bytes: int) -> bytes:
    """The content of a frame, which is `raw_bytes` long. The caller has checked this length."""
    zstd = library()
    context = getattr(_contexts, "decompressor", None)
    if context is None:
        context = _contexts.decompressor = zstd.ZstdDecompressor()
    try:
        # Memory is allocated for the size that the frame claims.
        size = zstd.frame_content_size(frame)
        if size != raw_bytes:
            raise CorruptStateError("a block has the wrong length", expected=raw_bytes, got=size)
        chunk: bytes = context.decompress(frame, allow_extra_data=False)
    except zstd.ZstdError as corrupt:
        raise CorruptStateError(f"a block cannot be decompressed: {corrupt}") from corrupt
    return chunk
