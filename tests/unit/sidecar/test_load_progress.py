"""Log lines of long loads."""

from __future__ import annotations

import pytest

from dynastate.sidecar import protocol
from dynastate.sidecar.load_progress import LoadProgressLog, about
from tests.support.samples import A
from tests.support.sidecar import chunk_of


def test_a_long_load_logs_its_progress(caplog: pytest.LogCaptureFixture) -> None:
    """A line every two seconds; none for a short load."""
    caplog.set_level("INFO", logger="dynastate.sidecar")
    times = iter([0.0, 0.5, 1.9, 2.1, 2.2, 4.0, 4.2])
    progress = LoadProgressLog(about("ns/0/0/default", 7, A), 600, clock=lambda: next(times))
    assert len(list(progress.through(iter([chunk_of(protocol.Rows(100, b""))] * 6)))) == 6
    assert [record.getMessage() for record in caplog.records if record.name == "dynastate.sidecar"] == [
        f"loading store=ns/0/0/default version=7 attempt={A.hex()} records=300 of 600 seconds=2",
        f"loading store=ns/0/0/default version=7 attempt={A.hex()} records=600 of 600 seconds=4",
    ]
