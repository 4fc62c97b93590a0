"""Spark's log of a query: the files of its checkpoint that dynastate knows, by name and content.

    metadata               the id of the query
    offsets/{batch}        version, metadata of the batch, then the end of each source's data: a line each
    commits/{batch}        version, then the ids of the batch's versions under checkpoint format v2
    sources/{number}/…     the logs of the sources: of a file source {batch}, each tenth one {batch}.compact
    state/{operator}/_metadata/v2/{batch}   the description of an operator, from this batch on

Spark defines them. Text that is not as Spark writes it is a ValueError here: the caller knows whose file it is, and
raises `malformed`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from dynastate.errors import CorruptStateError
from dynastate.format.items import is_map

#: The file that each checkpoint has from its first run on.
METADATA: Final = "metadata"
OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
SOURCES: Final = "sources"
STATE: Final = "state"
#: The files of batches in each of these folders.
_BATCH_FILES: Final = {
    OFFSETS: re.compile(rf"{OFFSETS}/([0-9]+)"),
    COMMITS: re.compile(rf"{COMMITS}/([0-9]+)"),
    SOURCES: re.compile(rf"{SOURCES}/[0-9]+/([0-9]+)(?:\.compact)?"),
    STATE: re.compile(rf"{STATE}/[0-9]+/_metadata/v2/([0-9]+)"),
}


class BatchFile(NamedTuple):
    """A file of one batch. Its `folder` is `OFFSETS`, `COMMITS`, `SOURCES`, or `STATE`: an operator's description."""

    folder: str
    batch: int


def batch_file(path: str) -> BatchFile | None:
    """The batch whose file has a path. Returns None for all other files."""
    folder = path.partition("/")[0]
    match = _BATCH_FILES[folder].fullmatch(path) if folder in _BATCH_FILES else None
    return None if match is None else BatchFile(folder, int(match[1]))


def batch_of(log: str, path: str) -> int | None:
    """The batch whose file in `OFFSETS` or `COMMITS` has a path. Returns None for all other files."""
    file = batch_file(path)
    return file.batch if file is not None and file.folder == log else None


def parse_object(text: str, line: int = 0, default: str = "") -> dict[str, Any]:
    """The JSON object in a line of a file, which is not empty; the default if the file has fewer lines."""
    lines = text.splitlines()
    if not lines:
        raise ValueError("the file is empty")
    content = json.loads(lines[line] if len(lines) > line else default)
    if not is_map(content, object):
        raise ValueError("the line is not a JSON object")
    return content


def parse_conf(text: str) -> Mapping[str, str]:
    """The conf in a batch's offsets with which the batch was planned."""
    conf = parse_object(text, line=1).get("conf", {})
    if not is_map(conf, str):
        raise ValueError("the conf is not by name")
    return conf


def parse_offsets(text: str) -> tuple[int, tuple[str, ...]]:
    """The time when a batch began, in milliseconds since 1970, and the end of each source's data, as JSON texts."""
    began_ms = parse_object(text, line=1).get("batchTimestampMs")
    if type(began_ms) is not int:
        raise ValueError("the batch has no time")
    return began_ms, tuple(text.splitlines()[2:])


def parse_ids(text: str) -> Mapping[str, Sequence[Sequence[str]]]:
    """The ids of a batch's versions, by operator, partition and store. Empty without ids (format v1)."""
    ids = parse_object(text, line=1, default="{}").get("stateUniqueIds") or {}
    if not is_map(ids, list) or not all(_is_list(stores, str) for each in ids.values() for stores in each):
        raise ValueError("the ids are not by operator, partition and store")
    return ids


def parse_description(text: str) -> tuple[str, list[int]]:
    """Spark's name of an operator, and the partitions of each of its stores. Both are empty if they are not there."""
    content = parse_object(text, line=1, default="{}")
    operator, stores = content.get("operatorInfo", {}), content.get("stateStoreInfo", [])
    if not isinstance(operator, dict) or not _is_list(stores, dict):
        raise ValueError("the description has no operator or no stores")
    name, counts = operator.get("operatorName", ""), [store.get("numPartitions", 0) for store in stores]
    if not isinstance(name, str) or not _is_list(counts, int):
        raise ValueError("the operator has no name, or its stores no number of partitions")
    return name, counts


def _is_list(values: object, kind: type) -> bool:
    return isinstance(values, list) and all(type(each) is kind for each in values)


def malformed(checkpoint: str, file: str) -> CorruptStateError:
    """The error for a file of the checkpoint at a location that cannot be parsed."""
    return CorruptStateError("this file of the checkpoint is not as Spark writes it", checkpoint=checkpoint, file=file)
