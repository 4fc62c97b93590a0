"""A destination of metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from dynastate.operations.monitoring.metrics.table import Report, Sample


class Target(ABC):
    """A destination of metrics. Its methods run in one thread, but for `close`, after that has ended."""

    #: Where it can be found, if that was not given: the address of a server.
    address: str = ""
    #: Why it takes nothing, from its start on; empty: it does.
    problem: str = ""

    @abstractmethod
    def add(self, report: Report, found: Sequence[Sample], text: str) -> None:
        """Take the report of a batch, with its samples and as Spark spelt it."""

    def add_state(self, found: Sequence[Sample]) -> None:  # noqa: B027  # not every target has it
        """Take what is in no report: that a query began or ended."""

    def flush(self) -> None:  # noqa: B027  # not every target has anything to send
        """Send what was added, once nothing else waits."""

    def close(self) -> None:  # noqa: B027  # the same
        """Release what the target holds."""
