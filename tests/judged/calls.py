"""Calls of clients to sidecars, as the judge reads them: a JSON object a line."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from dynastate.errors import (
    ConfigurationError,
    CorruptStateError,
    InternalError,
    MismatchError,
    UnavailableError,
    UnknownOutcomeError,
    VersionMissingError,
)
from dynastate.format.keys import NO_ATTEMPT, Attempt

#: What a call ends with: the kind of its error, by the number of the protocol; or one of these.
OUTCOMES: Final = {
    ConfigurationError.kind: "configuration",
    UnavailableError.kind: "unavailable",
    UnknownOutcomeError.kind: "unknown",
    VersionMissingError.kind: "missing",
    CorruptStateError.kind: "corrupt",
    MismatchError.kind: "mismatch",
    InternalError.kind: "defect",
}
OK, NO_ANSWER, ABORTED, REFUSED = "ok", "no answer", "aborted", OUTCOMES[ConfigurationError.kind]


@dataclass
class Call:
    """One call, with the times when it began and ended, in nanoseconds of one clock.

    Values of rows are digests; an attempt is in hexadecimal digits, and "" is none.
    """

    client: int
    op: str
    store: str
    version: int
    attempt: str
    begin: int = 0
    end: int = 0
    outcome: str = NO_ANSWER
    error: str = ""
    run: int = 0
    parent: str = ""
    changes: dict[str, str | None] = field(default_factory=dict)
    retain: int = 0
    origin: str = ""
    life: int = 0
    found: str = ""
    rows: dict[str, str] = field(default_factory=dict)
    shown: dict[str, str] = field(default_factory=dict)


def named(attempt: Attempt) -> str:
    return "" if attempt == NO_ATTEMPT else attempt.hex()


def digests(rows: Mapping[bytes, bytes]) -> dict[str, str]:
    return {key.decode(): hashlib.sha256(value).hexdigest()[:12] for key, value in rows.items()}


class Record:
    """The calls of a history. Safe for threads."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._lock = threading.Lock()

    @contextmanager
    def noting(self, call: Call) -> Iterator[Call]:
        """Note a call, whatever becomes of it, with the times of the block."""
        call.begin = time.monotonic_ns()
        try:
            yield call
        finally:
            call.end = time.monotonic_ns()
            with self._lock:
                self.calls.append(call)

    def counts(self) -> Counter[str]:
        return Counter(f"{call.op} {call.outcome}" for call in self.calls)

    def write(self, path: Path) -> None:
        path.write_text("".join(f"{json.dumps(asdict(call))}\n" for call in self.calls))
