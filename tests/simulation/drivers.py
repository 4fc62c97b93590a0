"""Drivers that share a checkpoint, as Spark's MicroBatchExecution uses its files, and others that read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final

from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.errors import CorruptStateError, DynastateError, UnavailableError, UnknownOutcomeError
from tests.simulation.actors import Actor
from tests.simulation.checkpoint_model import REFUSED, CheckpointModel, Put
from tests.simulation.model import COMMITTED, FAILED, UNKNOWN
from tests.simulation.reach import DELETE_FILES, PUT_FILE, READ_FILES
from tests.simulation.scheduler import Scheduler, Task

#: Files of a log that are deleted together, as by `DynastateCheckpointFileManager`, with a smaller number.
GARBAGE_MAX: Final = 3
#: A source has one file for so many batches, beside those of single ones.
COMPACT_EVERY: Final = 3
#: Bytes of files: those of the last size have several fragments.
SIZES: Final = (0, 10, 200, 1000)
OFFSETS, COMMITS, SOURCE = "offsets", "commits", "sources/0"
#: A file that is put once, and one that each run overwrites.
METADATA, DESCRIPTION = "metadata", "state/0/_metadata/metadata"


class ConcurrentQueryError(Exception):
    """Another driver writes this checkpoint: Spark ends the query."""


@dataclass
class Files:
    """The files of a checkpoint in one process. The model checks what each call returns."""

    scheduler: Scheduler
    model: CheckpointModel
    _files: CheckpointFiles
    #: The put of each task that puts a file.
    puts: dict[Task, Put]

    def put(self, path: str, data: bytes, *, overwrites: bool, is_wanted: Callable[[], bool]) -> bool:
        task = self.scheduler.current
        assert task is not None
        put = self.puts[task] = self.model.begin_put(path, data, overwrites=overwrites, is_wanted=is_wanted)
        try:
            with self.scheduler.doing(PUT_FILE):
                is_done = self._files.put(self.model.checkpoint, path, data, overwrites=overwrites, is_wanted=is_wanted)
        except DynastateError as failed:
            self.model.end_put(put, UNKNOWN if isinstance(failed, UnknownOutcomeError) else FAILED)
            raise
        self.scheduler.note("%s %s", "put" if is_done else "refused to put", path)
        self.model.end_put(put, COMMITTED if is_done else REFUSED)
        return is_done

    def get(self, path: str) -> bytes | None:
        since = self.model.moment
        try:
            with self.scheduler.doing(READ_FILES):
                file = self._files.get(self.model.checkpoint, path)
        except CorruptStateError as corrupt:
            self.model.check_corrupt(path, since, corrupt)
            raise
        data = file and file.data
        self.model.check_read(path, data, since)
        return data

    def read_all(self) -> dict[str, bytes | None]:
        """The data of all files, by path. A file with fragments has no data (None)."""
        since = self.model.moment
        with self.scheduler.doing(READ_FILES):
            files = {file.path: file for file in self._files.read_all(self.model.checkpoint)}
        for folder in (OFFSETS, COMMITS, SOURCE):
            names = {name_in(folder, path): file.raw_bytes for path, file in files.items() if is_in(folder, path)}
            self.model.check_list(folder, names, since)
        for path, file in files.items():
            if file.data is not None:
                self.model.check_read(path, file.data, since)
        return {path: file.data for path, file in files.items()}

    def names(self, folder: str) -> set[str]:
        since = self.model.moment
        with self.scheduler.doing(READ_FILES):
            names = {entry.name: entry.bytes for entry in self._files.list(self.model.checkpoint, folder)}
        self.model.check_list(folder, names, since)
        return set(names)

    def delete(self, paths: list[str]) -> None:
        self.model.deletes(paths)
        with self.scheduler.doing(DELETE_FILES):
            self._files.delete(self.model.checkpoint, paths)


@dataclass
class RunStart:
    """The files of one run, as the class of this name has them: read at its start, and known until its first commit."""

    files: Files
    is_wanted: Callable[[], bool]
    _known: dict[str, bytes | None] | None = None

    def read(self) -> None:
        self._known = self.files.read_all()

    def put(self, path: str, data: bytes, *, overwrites: bool = False) -> bool:
        known, self._known = self._known, None
        is_done = self.files.put(path, data, overwrites=overwrites, is_wanted=self.is_wanted)
        if known is not None and is_done and not path.startswith(f"{COMMITS}/"):
            self._known = known | {path: data}
        return is_done

    def get(self, path: str) -> bytes | None:
        if self._known is None or self._known.get(path, b"") is None:
            return self.files.get(path)
        return self._known.get(path)

    def names(self, folder: str) -> set[str]:
        if self._known is None:
            return self.files.names(folder)
        return {name_in(folder, path) for path in self._known if is_in(folder, path)}

    def delete(self, paths: list[str]) -> None:
        known, self._known = self._known, None
        self.files.delete(paths)
        if known is not None:
            self._known = {path: data for path, data in known.items() if path not in paths}


@dataclass
class Log:
    """A folder in one run of a query, as `DynastateCheckpointFileManager` has it."""

    files: RunStart
    folder: str
    _newest: int = -1
    _names: set[str] | None = None
    _garbage: set[str] = field(default_factory=set)

    def put(self, name: str, data: bytes) -> None:
        """Put a file of which there is none, as `HDFSMetadataLog.add`."""
        path = f"{self.folder}/{name}"
        if self._exists(name) or not self.files.put(path, data):
            raise ConcurrentQueryError(path)
        self._newest = max(self._newest, batch_of(name))
        if self._names is not None:
            self._names.add(name)

    def _exists(self, name: str) -> bool:
        return name in self.names() if self._newest >= 0 else self.files.get(f"{self.folder}/{name}") is not None

    def get(self, name: str) -> bytes:
        data = self.files.get(f"{self.folder}/{name}")
        if data is None:
            raise ConcurrentQueryError(f"{self.folder}/{name} was deleted")
        return data

    def names(self) -> set[str]:
        if self._names is not None:
            return self._names
        listed = self.files.names(self.folder) - self._garbage
        if self._newest >= 0:
            self._names = listed
        return listed

    def newest(self) -> int:
        return max(map(batch_of, self.names()), default=-1)

    def purge(self, below: int) -> None:
        """Delete the files of batches below one, several at a time; what is left when a run ends, the next deletes."""
        old = {name for name in self.names() if batch_of(name) < below}
        self.names().difference_update(old)
        self._garbage |= old
        while len(self._garbage) >= GARBAGE_MAX:
            due = sorted(self._garbage, key=batch_of)[:GARBAGE_MAX]
            try:
                self.files.delete([f"{self.folder}/{name}" for name in due])
            except DynastateError as failed:
                self.files.files.scheduler.note("not deleted yet: %s", failed)
                return
            self._garbage.difference_update(due)


def batch_of(name: str) -> int:
    return int(name.removesuffix(".compact"))


def is_in(folder: str, path: str) -> bool:
    return path.rpartition("/")[0] == folder


def name_in(folder: str, path: str) -> str:
    return path.removeprefix(f"{folder}/")


@dataclass
class Driver(Actor):
    """A process with runs of a query, one after another; each begins where the log ends."""

    _files: Files
    _retain: int
    #: Whether a run reads all files at its start.
    _reads_all: bool
    #: A number for each file, so that none has the data of another one.
    _numbers: count[int]
    #: Batches that have ended.
    batches: int = 0
    _runs: int = 0

    def drive(self, is_over: Callable[[], bool]) -> None:
        for _ in self._pauses(is_over):
            self._try_run()

    def _try_run(self) -> None:
        try:
            self.run(self._chance.choice((1, 3, 10)))
        except (ConcurrentQueryError, DynastateError) as failed:
            self._scheduler.note("the query ends: %s", failed)

    def stop(self) -> None:
        """Stop the run; what it puts just now is not sent again."""
        self._scheduler.note("stop the query")
        self._runs += 1

    def run(self, batches: int) -> None:
        """One run of the query, of some batches, unless it is stopped."""
        self._runs += 1
        is_wanted = partial(self._is_current, self._runs)
        self._scheduler.note("begin a run")
        since = self._files.model.moment
        files = RunStart(self._files, is_wanted)
        if self._reads_all:
            files.read()
        offsets, commits, source = self.open_logs(files)
        self._describe(files)
        batch, data = offsets.newest(), b""
        self._files.model.check_start(OFFSETS, batch, since)
        is_planned = batch >= 0 and commits.newest() < batch
        if batch >= 0:
            data = offsets.get(str(batch))
            if batch > 0 and self._retain > 1:
                offsets.get(str(batch - 1))
        if not is_planned:
            batch += 1
        self._read_source(source)
        for batch_number in range(batch, batch + batches):
            if not is_wanted():
                return
            if not is_planned:
                data = self._plan(batch_number, offsets, commits, source)
            is_planned = False
            self._scheduler.note("execute batch %d", batch_number)
            self._files.model.execute(batch_number, data)
            self._scheduler.sleep(self._chance.choice((0.0, 0.01, 0.5)) * self._chance.random())
            commits.put(str(batch_number), self._data(0))
            self.batches += 1

    def _is_current(self, run: int) -> bool:
        return run == self._runs

    def open_logs(self, files: RunStart) -> list[Log]:
        """The logs of a run: a manager for each, which knows nothing of earlier runs."""
        return [Log(files, folder) for folder in (OFFSETS, COMMITS, SOURCE)]

    def _describe(self, files: RunStart) -> None:
        if files.get(METADATA) is None and not files.put(METADATA, self._data(10)):
            raise ConcurrentQueryError(METADATA)
        files.put(DESCRIPTION, self._data(self._chance.choice(SIZES)), overwrites=True)

    def _plan(self, batch: int, offsets: Log, commits: Log, source: Log) -> bytes:
        """Put what a batch reads: the log of the source, and the offsets; then delete old batches."""
        number = source.newest() + 1
        is_compact = number % COMPACT_EVERY == COMPACT_EVERY - 1
        source.put(f"{number}.compact" if is_compact else str(number), self._data(SIZES[-1] if is_compact else 10))
        if is_compact:
            source.purge(number - COMPACT_EVERY)
        data = self._data(self._chance.choice(SIZES))
        offsets.put(str(batch), data)
        for log in (offsets, commits):
            log.purge(batch - self._retain)
        return data

    def _read_source(self, source: Log) -> None:
        """Read the newest compact file and those after it."""
        names = sorted(source.names(), key=batch_of)
        compact = [number for number, name in enumerate(names) if name.endswith(".compact")]
        for name in names[compact[-1] if compact else 0 :]:
            source.get(name)

    def _data(self, size: int) -> bytes:
        return b"%d/" % next(self._numbers) + self._chance.randbytes(size)


@dataclass
class CheckpointReader(Actor):
    """Another process that reads the checkpoint, such as a command or Spark's state reader."""

    _files: Files

    def read_now_and_then(self, is_over: Callable[[], bool]) -> None:
        for _ in self._pauses(is_over):
            self._read(METADATA)
            self._read(DESCRIPTION)
            for folder in (OFFSETS, COMMITS, SOURCE):
                for name in self._names(folder):
                    self._read(f"{folder}/{name}")

    def _names(self, folder: str) -> list[str]:
        try:
            return sorted(self._files.names(folder), key=batch_of)
        except UnavailableError as failed:
            self._scheduler.note("reader: %s", failed)
            return []

    def _read(self, path: str) -> None:
        try:
            self._files.get(path)
        except (CorruptStateError, UnavailableError) as failed:  # the model has checked that it may be corrupt
            self._scheduler.note("reader: %s", failed)
