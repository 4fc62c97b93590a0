"""Changes that wait on local disk, encrypted.

    file  := block *        block := bytes XOR keystream        keystream := SHAKE-256(secret:32  number of block:u64)

Each file has a random secret, which is in memory only, and numbers its blocks. The file has no name, and ends with its
process.
"""

from __future__ import annotations

import hashlib
from secrets import token_bytes
from tempfile import TemporaryFile
from typing import IO, Final

_SECRET_BYTES: Final = 32


class SpillFile:
    """Bytes that are appended, then read: in memory up to a limit in bytes, and in blocks of that size on disk."""

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._tail = bytearray()
        self._secret = token_bytes(_SECRET_BYTES)
        self._blocks: list[int] = []
        self._file: IO[bytes] | None = None

    def write(self, raw: bytes) -> None:
        """Append bytes. Raises OSError if they do not fit on disk."""
        self._tail += raw
        if len(self._tail) > self._memory:
            if self._file is None:
                self._file = TemporaryFile()  # noqa: SIM115  # closed by close()
            self._file.write(self._crypt(bytes(self._tail), len(self._blocks)))
            self._blocks.append(len(self._tail))
            self._tail.clear()

    def read(self) -> bytes:
        """All bytes that were appended."""
        if self._file is None:
            return bytes(self._tail)
        self._file.seek(0)
        blocks = (self._crypt(self._file.read(size), number) for number, size in enumerate(self._blocks))
        return b"".join([*blocks, self._tail])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _crypt(self, raw: bytes, number: int) -> bytes:
        """Encrypt a block, or decrypt an encrypted block."""
        stream = hashlib.shake_256(self._secret + number.to_bytes(8, "little")).digest(len(raw))
        mixed = int.from_bytes(raw, "little") ^ int.from_bytes(stream, "little")
        return mixed.to_bytes(len(raw), "little")
