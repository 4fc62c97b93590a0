"""The Spark process seen from the demo: its files, the progress of its queries, its start and end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from dynastate.errors import InternalError
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
        self.checkpoints = root / "checkpoint"
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


@dataclass(frozen=True)
class Checkpoint:
    """Progress of a query, from its checkpoint: a batch begins with its offsets, and ends with its commit."""

    folder: Path

    def committed(self) -> int:
        """Batches that have ended."""
        return max(self._numbers("commits"), default=-1) + 1

    def under_way(self) -> int | None:
        """The batch that has begun and has not ended. Returns None if the query is between two batches."""
        begun, ended = max(self._numbers("offsets"), default=-1), self.committed() - 1
        return begun if begun > ended else None

    def stores(self) -> list[str]:
        """The names of the query's stores, from Spark's operator metadata and dynastate's markers."""
        stores = []
        for metadata in self.folder.glob("state/*/_metadata/metadata"):
            version, _, text = metadata.read_text().partition("\n")
            if version != "v1":
                raise InternalError("Spark's operator metadata has an unknown version", file=metadata, version=version)
            for info in json.loads(text)["stateStoreInfo"]:
                for partition in range(info["numPartitions"]):
                    marker = metadata.parents[1] / str(partition) / "dynastate"
                    with suppress(FileNotFoundError):  # it comes with the partition's first commit
                        path = marker.read_text().strip().rpartition("store=")[2].rpartition("/")[0]
                        stores.append(f"{path}/{info['storeName']}")
        return sorted(stores)

    def _numbers(self, log: str) -> list[int]:
        return [int(file.name) for file in (self.folder / log).glob("*") if file.name.isdigit()]


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
