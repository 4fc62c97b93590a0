"""A destination of metrics."""

from __future__ import annotations

from collections.abc import Sequence

from dynastate.operations.monitoring.metrics.table import Report, Sample


class Target:
    """A destination of metrics. Its methods run in one thread, except `close`, which runs after that thread."""

    #: The address of a server, if the target has one.
    address: str = ""
    #: The reason why the target takes nothing, or empty.
    problem: str = ""

    def add(self, report: Report, samples: Sequence[Sample], text: str) -> None:  # noqa: ARG002  # the samples do
        """Take the report of a batch, its samples, and its text from Spark."""
        self.add_state(samples)

    def add_state(self, samples: Sequence[Sample]) -> None:
        """Take samples that are in no report: the begin or the end of a query."""

    def flush(self) -> None:
        """Send the added samples, once nothing else waits."""

    def close(self) -> None:
        """Release the target's resources."""
