"""Log lines of long loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dynastate import runtime
from dynastate.format.keys import NO_ATTEMPT, Attempt
from dynastate.format.parts import StoredChunk
from dynastate.redaction import get_logger

log = get_logger("dynastate.sidecar")

#: A load that takes longer than this is logged, and again after each such time.
PROGRESS_S = 2.0


def about(store: str, version: int, attempt: Attempt) -> str:
    """Store, version and attempt, for a line of the log."""
    return f"store={store} version={version} attempt={'any' if attempt == NO_ATTEMPT else attempt.hex()}"


class LoadProgressLog:
    """Logs the progress of a load every `PROGRESS_S` seconds."""

    def __init__(self, about: str, records: int, clock: Callable[[], float] = runtime.monotonic) -> None:
        self._about = about
        self._records = records
        self._clock = clock
        self._loaded = 0
        self._started = clock()
        self._next = self._started + PROGRESS_S

    def through(self, chunks: Iterator[StoredChunk]) -> Iterator[StoredChunk]:
        """Pass chunks on, and count their records."""
        for chunk in chunks:
            yield chunk
            self._loaded += chunk.records
            time_s = self._clock()
            if time_s >= self._next:
                self._next = time_s + PROGRESS_S
                log.info(
                    "loading %s records=%d of %d seconds=%.0f",
                    self._about,
                    self._loaded,
                    self._records,
                    time_s - self._started,
                )
