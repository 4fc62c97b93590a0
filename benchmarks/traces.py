"""What a trace of the world shows of a query's tasks."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

#: How the sort keys of parts and of version lists begin; a part's has its version.
PART, LIST = re.compile(r"(\d+)/"), re.compile("list/")
#: A request that begins within so many milliseconds was waiting for the one before it, or for a processor.
SLACK_MS = 5.0


class Write(NamedTuple):
    """A request that writes parts of a store, or appends to its version list."""

    store: str
    begin_ms: float
    end_ms: float
    version: int | None
    """Of the parts. None: it appends to a version list."""
    is_done: bool
    """It succeeded; a throttled append is tried again."""


def requests_in_sequence(trace: Iterable[Mapping[str, Any]]) -> list[int]:
    """Of each commit of a task the number of requests that it waited for one after the other.

    A task writes the stores of one operator and partition. A request that begins
    right after one of its store waited for that, and any other one for the last request of the task that had ended.
    """
    tasks: dict[str, dict[str, list[list[Write]]]] = defaultdict(lambda: defaultdict(lambda: [[]]))
    for write in sorted(_writes(trace), key=lambda each: each.begin_ms):
        commits = tasks[write.store.rpartition("/")[0]][write.store]
        commits[-1].append(write)
        if write.version is None and write.is_done:
            commits.append([])
    return [
        _longest([write for commit in commits for write in _of_newest_version(commit)])
        for stores in tasks.values()
        for commits in zip_longest(*(each[:-1] for each in stores.values()), fillvalue=[])
    ]


def requests_of_log(trace: Iterable[Mapping[str, Any]], checkpoint: str) -> int:
    """The requests about files of a checkpoint in DynamoDB, at `dynastate://NAMESPACE/NAME`."""
    namespace, _, name = checkpoint.removeprefix("dynastate://").partition("/")
    partition = f"{namespace}/checkpoint/{name}#0"
    return sum(any(hash_key == partition for hash_key, _ in request["keys"]) for request in trace)


def _writes(trace: Iterable[Mapping[str, Any]]) -> Iterable[Write]:
    for request in trace:
        operation, times = request["operation"], (float(request["begin_ms"]), float(request["end_ms"]))
        versions: dict[str, int | None] = {}
        for hash_key, sort_key in request["keys"]:
            store, part = hash_key.rpartition("#")[0], PART.match(sort_key)
            if operation == "BatchWriteItem" and part:
                versions[store] = max(versions.get(store) or 0, int(part[1]))
            elif operation == "UpdateItem" and LIST.match(sort_key):
                versions[store] = None
        for store, version in versions.items():
            yield Write(store, *times, version=version, is_done=request["status"] == 200)


def _of_newest_version(commit: Sequence[Write]) -> list[Write]:
    """The writes of a commit without those that delete parts of earlier versions."""
    newest = max((write.version for write in commit if write.version is not None), default=None)
    return [write for write in commit if write.version in (None, newest)]


def _longest(writes: Sequence[Write]) -> int:
    """The most requests of which each waited for the one before it."""
    depths: dict[Write, int] = {}
    for write in sorted(writes, key=lambda each: each.begin_ms):
        ended = [each for each in depths if each.end_ms <= write.begin_ms]
        own = [each for each in ended if each.store == write.store]
        waited_for = max(own or ended, key=lambda each: each.end_ms, default=None)
        if own and waited_for and write.begin_ms - waited_for.end_ms > SLACK_MS:
            waited_for = max(ended, key=lambda each: each.end_ms)
        is_first = not own and write.begin_ms - min(each.begin_ms for each in writes) <= SLACK_MS
        depths[write] = 1 if waited_for is None or is_first else depths[waited_for] + 1
    return max(depths.values())
