"""The Spark process seen from the demo: its files, the progress of its queries, its start and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final, NamedTuple, final

from dynastate.errors import InternalError
from dynastate.operations.checkpoints import QueryCheckpoint
from dynastate.settings import Settings

QUERIES: Final = ("aircraft", "airport_hours")
#: A file with the error message of the Spark process.
FAILURE: Final = "failure"
_STOP_SETTLES_S: Final = 0.05
_END_DEADLINE_S: Final = 20.0
#: Children of a killed process end by themselves; without a parent that waits for them they remain as zombies.
_GROUP_ENDS_S: Final = 1.0


class Layout:
    """The work folder. Names are short: the sidecar's socket lies in it, and its path may have some 100 bytes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.input = root / "in"
        self.temporary = root / "tmp"
        self.log = root / "spark.log"
        # Each has a folder by the name of each query.
        self.outputs = root / "out"
        self.states = root / "state"
        self.progress = root / "progress"

    def progress_file(self, query: str, batch: int) -> Path:
        return self.progress / query / f"{batch:05d}.json"

    def record(self, query: str, batch: int, text: str) -> None:
        """Record a batch's progress; a crash meanwhile leaves nothing."""
        file = self.progress_file(query, batch)
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(".partial")
            partial.write_text(text)
            partial.rename(file)


def location(query: str) -> str:
    """The checkpoint of a query, in DynamoDB beside its state."""
    return f"dynastate://{query}/query"


class QueryProgress(NamedTuple):
    """Progress of a query: a batch begins with its offsets, and ends with its commit."""

    committed: int
    """Batches that have ended."""
    under_way: int | None
    """The batch that has begun and has not ended. None: the query is between two batches."""

    @classmethod
    def read(cls, checkpoint: QueryCheckpoint) -> QueryProgress:
        """Read it from the query's checkpoint, by one request."""
        numbers = {"offsets": -1, "commits": -1}
        for log, _, name in (file.rpartition("/") for file in checkpoint.files()):
            if log in numbers and name.isdigit():
                numbers[log] = max(numbers[log], int(name))
        begun, ended = numbers.values()
        return cls(ended + 1, begun if begun > ended else None)


@final
class SparkProcess(AbstractContextManager["SparkProcess"]):
    """One run of `python -m dynastate.demo`: Python driver, JVM and sidecar, in one process group.

    It is killed at the end of the `with` block, if it still runs.
    """

    def __init__(self, work: Layout, settings: Settings) -> None:
        self._work = work
        work.temporary.mkdir(exist_ok=True)
        with work.log.open("a") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own module in our own interpreter
                [sys.executable, "-m", "dynastate.demo", str(work.root), settings.endpoint, settings.region],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=os.environ | {"TMPDIR": str(work.temporary)},  # deleted with the folder when it is killed
                start_new_session=True,  # one group, and Ctrl-C is for the demo, which then kills it
            )
        self.pid = self._process.pid

    def __exit__(self, *_: object) -> None:
        self.kill()

    def is_running(self) -> bool:
        """Whether it runs. Raises InternalError, with the reason, if it failed."""
        code = self._process.poll()
        if code:
            failure = self._work.root / FAILURE
            why = failure.read_text().strip().split("\n", 1)[0] if failure.exists() else "its log says why"
            raise InternalError(f"the Spark process failed: {why}", exit_code=code, log=self._work.log)
        return code is None

    def stop(self) -> None:
        """Stop the group where it is (SIGSTOP), until `resume` or `kill`."""
        self._signal(signal.SIGSTOP)
        time.sleep(_STOP_SETTLES_S)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the group (SIGKILL), so that none of its processes can even clean up. Further calls do nothing."""
        self._signal(signal.SIGKILL)
        self._process.wait(_END_DEADLINE_S)
        # A process that was in a call when it was killed ends the call first: a file may still come to be.
        deadline = time.monotonic() + _GROUP_ENDS_S
        with suppress(OSError):  # the last of it has ended
            while time.monotonic() < deadline:
                os.killpg(self.pid, 0)
                time.sleep(_STOP_SETTLES_S)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # all of it has ended
            os.killpg(self.pid, number)
