"""The checkpoint of a query: files in a folder that pyarrow knows, or in DynamoDB, at `dynastate://NAMESPACE/NAME`."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dynastate.engine.checkpoint import CheckpointFiles, File
from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.checkpoint import SCHEME, checkpoint_of_location
from dynastate.format.spark_log import METADATA, batch_of
from dynastate.storage.tables import Tables, own_location

if TYPE_CHECKING:
    from pyarrow import fs

#: The provider's file in the folder of each partition, whose name is operator and number.
MARKER: Final = re.compile(r"state/[0-9]+/[0-9]+/dynastate")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_STORE: Final = re.compile(r"store=(\S+)")


class QueryCheckpoint(ABC):
    """The files of a checkpoint, by their paths in it."""

    location: str

    @abstractmethod
    def files(self, folder: str = "") -> dict[str, int]:
        """The paths of all files below a folder, with their lengths."""

    @abstractmethod
    def find(self, file: str) -> bytes | None:
        """The content of a file. Returns None if it does not exist."""

    @abstractmethod
    def create(self, file: str, data: bytes) -> bool:
        """Write a file, whole or not at all. Returns False if DynamoDB has the file of another writer."""

    @abstractmethod
    def mark(self, stores: Sequence[str]) -> None:
        """Write what Spark's state readers need to find the partitions of stores."""

    @abstractmethod
    def copy(self, folder: str, target: str) -> None:
        """Copy the files of a folder into another folder of the checkpoint."""

    @abstractmethod
    def delete(self, file: str) -> None:
        """Delete a file."""

    @abstractmethod
    def namespace(self) -> str:
        """The namespace of the checkpoint's state. Refuse a checkpoint without state in DynamoDB."""

    @abstractmethod
    def partitions(self) -> dict[str, set[int]]:
        """The partitions with state in DynamoDB, by operator."""

    def read(self, file: str) -> str:
        """The text of a file, which must exist."""
        data = self.find(file)
        if data is None:
            raise ConfigurationError(
                "this file of the checkpoint does not exist, or was deleted meanwhile: stop the query",
                checkpoint=self.location,
                file=file,
            )
        return data.decode()

    def batches(self, log: str) -> dict[int, list[str]]:
        """The names of each batch's files in a log, by the batch's number. A checksum alone is not a batch."""
        batches: dict[int, list[str]] = {}
        for file in self.files(log):
            name = file.removeprefix(f"{log}/")
            batch = batch_of(log, f"{log}/{name.removeprefix('.').removesuffix('.crc')}")
            if batch is not None:
                batches.setdefault(batch, []).append(name)
        return {batch: names for batch, names in batches.items() if str(batch) in names}


class FolderCheckpoint(QueryCheckpoint):
    """A checkpoint in a file system that pyarrow knows."""

    def __init__(self, location: str) -> None:
        try:
            from pyarrow import fs
        except ImportError as error:
            raise ConfigurationError(
                "a checkpoint is read with pyarrow, the extra 'frames' of dynastate; pip install pyarrow"
            ) from error
        self.location = location if _URL.match(location) else str(Path(location).absolute())
        self._kinds = fs.FileType
        self._select = partial(fs.FileSelector, allow_not_found=True, recursive=True)
        self._copy_files = fs.copy_files
        try:
            # pyarrow has no name for Hadoop's s3a, and takes local files by their path alone.
            uri = re.sub("^file:/+", "/", re.sub("^s3[an]:", "s3:", self.location))
            system, path = fs.FileSystem.from_uri(uri)
            system.get_file_info(f"{path}/{METADATA}")
        except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
            raise ConfigurationError(
                "the file system of a checkpoint cannot be looked at from here", location=location, reason=str(error)
            ) from error
        self._system: fs.FileSystem = system
        self._path = path.rstrip("/")

    def files(self, folder: str = "") -> dict[str, int]:
        entries = self._system.get_file_info(self._select(f"{self._path}/{folder}".rstrip("/")))
        return {
            entry.path.removeprefix(f"{self._path}/"): entry.size for entry in entries if entry.type == self._kinds.File
        }

    def find(self, file: str) -> bytes | None:
        try:
            with self._system.open_input_stream(f"{self._path}/{file}") as stream:
                data: bytes = stream.read()
        except FileNotFoundError:
            return None
        return data

    def create(self, file: str, data: bytes) -> bool:
        path = f"{self._path}/{file}"
        folder, _, name = path.rpartition("/")
        unfinished = f"{folder}/.{name}.unfinished"
        self._system.create_dir(folder)
        with self._system.open_output_stream(unfinished) as stream:
            stream.write(data)
        self._system.move(unfinished, path)
        return True

    def mark(self, stores: Sequence[str]) -> None:
        markers = {"state/{1}/{2}/dynastate".format(*store.split("/")): store for store in reversed(stores)}
        for marker, store in markers.items():
            self.create(marker, f"state of this partition is in DynamoDB store={store}\n".encode())

    def copy(self, folder: str, target: str) -> None:
        self._system.create_dir(f"{self._path}/{target}")
        self._copy_files(
            f"{self._path}/{folder}",
            f"{self._path}/{target}",
            source_filesystem=self._system,
            destination_filesystem=self._system,
        )

    def delete(self, file: str) -> None:
        self._system.delete_file(f"{self._path}/{file}")

    def namespace(self) -> str:
        for path in self._markers:
            match = _STORE.search(self.read(path))
            if match is not None:
                return match[1].split("/")[0]
        raise ConfigurationError("this checkpoint has no state in DynamoDB", checkpoint=self.location)

    def partitions(self) -> dict[str, set[int]]:
        partitions: dict[str, set[int]] = {}
        for operator, partition in (path.split("/")[1:3] for path in self._markers):
            partitions.setdefault(operator, set()).add(int(partition))
        return partitions

    @cached_property
    def _markers(self) -> list[str]:
        """The paths of the files that name stores."""
        return [path for path in self.files("state") if MARKER.fullmatch(path)]


class StoredCheckpoint(QueryCheckpoint):
    """A checkpoint in DynamoDB. The list of its namespace's stores has the partitions.

    `objects` is the setting for files that are too large for an item.
    """

    def __init__(self, tables: Tables, location: str, objects: str = "") -> None:
        self._checkpoint = checkpoint_of_location(location)
        self._files = CheckpointFiles(tables, set(), location=own_location(tables, objects))
        self.location = self._checkpoint.location

    def files(self, folder: str = "") -> dict[str, int]:
        return self._files.lengths(self._checkpoint, folder)

    def find(self, file: str) -> bytes | None:
        content = self._files.get(self._checkpoint, file)
        return None if content is None else content.data

    def create(self, file: str, data: bytes) -> bool:
        return self._files.put(self._checkpoint, file, data, overwrites=False)

    def mark(self, stores: Sequence[str]) -> None:
        """Nothing: the list of stores has the partitions."""

    def copy(self, folder: str, target: str) -> None:
        for file in self.files(folder):
            data = self.find(file)
            if data is not None:
                self._files.put(self._checkpoint, target + file.removeprefix(folder), data, overwrites=True)

    def delete(self, file: str) -> None:
        self._files.delete(self._checkpoint, [file], may_return=True)

    def namespace(self) -> str:
        return self._checkpoint.namespace

    def partitions(self) -> dict[str, set[int]]:
        partitions: dict[str, set[int]] = {}
        for operator in self._folders("state"):
            if numbers := self._folders(f"state/{operator}"):
                partitions[str(operator)] = numbers
        return partitions

    def _folders(self, folder: str) -> set[int]:
        """The folders in a folder whose names are numbers."""
        entries = self._files.list(self._checkpoint, folder)
        return {
            int(entry.name) for entry in entries if entry.is_folder and entry.name.isascii() and entry.name.isdecimal()
        }


class LoadedCheckpoint(StoredCheckpoint):
    """A checkpoint in DynamoDB whose files are all read at once, when the first one is needed."""

    def files(self, folder: str = "") -> dict[str, int]:
        prefix = f"{folder}/" if folder else ""
        return {
            file: len(content.data) if isinstance(content, File) else 0
            for file, content in self.contents.items()
            if file.startswith(prefix)
        }

    def find(self, file: str) -> bytes | None:
        content = self.contents.get(file)
        if isinstance(content, CorruptStateError):
            raise content
        return None if content is None else content.data

    @cached_property
    def contents(self) -> Mapping[str, File | CorruptStateError]:
        """All files by their paths, each whole or with its defect."""
        return self._files.read(self._checkpoint)

    def partitions(self) -> dict[str, set[int]]:
        return self._partitions

    @cached_property
    def _partitions(self) -> dict[str, set[int]]:
        return super().partitions()

    def has_changed(self, files: Iterable[str]) -> bool:
        """Whether any of these files was deleted, or written again, since it was read."""
        return any(self._files.get(self._checkpoint, file) != self.contents.get(file) for file in files)


def checkpoint_at(tables: Tables, location: str, objects: str = "") -> QueryCheckpoint:
    """The checkpoint at a location, which need not have files. `objects` is the setting for what is written there."""
    return StoredCheckpoint(tables, location, objects) if location.startswith(SCHEME) else FolderCheckpoint(location)


def open_checkpoint(tables: Tables, location: str) -> QueryCheckpoint:
    """The checkpoint at a location. Refuse a location without one."""
    checkpoint = checkpoint_at(tables, location)
    if checkpoint.find(METADATA) is None:
        raise ConfigurationError(
            "there is no checkpoint of a query; give the folder that has metadata, offsets and commits",
            checkpoint=location,
        )
    return checkpoint
