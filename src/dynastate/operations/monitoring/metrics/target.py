"""A destination of metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from dynastate.operations.monitoring.metrics.table import Report, Sample


class Target(ABC):
    """A destination of metrics. Its methods run in one thread, except `close`, which runs after that thread."""

    #: The address of a server, if the target has one.
    address: str = ""
    #: The reason why the target takes nothing, or empty.
    problem: str = ""

    @abstractmethod
    def add(self, report: Report, samples: Sequence[Sample], text: str) -> None:
        """Take the report of a batch, its samples, and its text from Spark."""

    def add_state(self, samples: Sequence[Sample]) -> None:  # noqa: B027  # not every target has it
        """Take samples that are in no report: the begin or the end of a query."""

    def flush(self) -> None:  # noqa: B027  # not every target has anything to send
        """Send the added samples, once nothing else waits."""

    def close(self) -> None:  # noqa: B027  # the same
        """Release the target's resources."""
