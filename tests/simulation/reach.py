"""The reach of schedules: how often each kind of fault struck each step of the protocol.

The network notes each fault that it makes. The step is what the task was doing when it sent the request; the request
says which step of a commit it is. Other cells than those of `REACHED` and `RARE` cannot be reached. A single item is
not done in part, a read is not late, and only Query has pages. Only parts and buckets are in S3, and only entries are
appended. The clock is read for entries and for the age of a checkpoint's orphans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

#: Kinds of faults.
THROTTLE, PARTIAL, ERROR, LOST, NOT_SENT = "throttle", "partial", "error", "lost", "unsent"
LATE, KILL, STOP, PAGE, CLOCK = "late", "kill", "stop", "page", "clock"
SLOW_DOWN, MUTE, CUT_BODY, FULL = "S3 503", "S3 mute", "S3 cut", "full"
FAULTS: Final = {
    THROTTLE: "the whole request was throttled",
    PARTIAL: "a part of a batch was done",
    ERROR: "status 500; nothing, some or all was done",
    LOST: "some or all was done, and the answer was lost",
    NOT_SENT: "no connection",
    LATE: "a write arrived after its sender had given up, or had died",
    KILL: "the process died before or after the request",
    STOP: "the task or the process was suspended at the request",
    PAGE: "a page of a Query ended early",
    CLOCK: "the wall clock of the process jumped",
    SLOW_DOWN: "S3 answered 503",
    MUTE: "S3 did not answer",
    CUT_BODY: "the body of an object ended early",
    FULL: "an item had no room",
}
#: Steps of the protocol; a task does one of the last ones, or a commit.
ENTER, PART, ENTRY, SHORTEN, ABORT = "enter", "part", "entry", "shorten", "abort"
OPEN, SNAPSHOT, CLEAN_UP, READ = "open", "snapshot", "clean-up", "read"
FORK, DROP, ADOPT, COMPACT, CLEAN, ERASE = "fork", "drop", "adopt", "compact", "clean", "erase"
PUT_FILE, READ_FILES, DELETE_FILES = "put file", "read files", "delete files"
STEPS: Final = {
    OPEN: "a task opens its base, or a reader a version",
    ENTER: "a run enters the meta item, the list of stores and the schema",
    PART: "parts are written, as items or objects",
    ENTRY: "an entry is appended to the version list: the commit",
    SHORTEN: "a version list without room is shortened",
    ABORT: "the parts of an attempt are deleted",
    SNAPSHOT: "an executor makes a snapshot",
    CLEAN_UP: "an executor cleans up",
    READ: "a client of `open_state` reads",
    FORK: "`fork`",
    DROP: "`drop`",
    ADOPT: "`adopt`",
    COMPACT: "`compact`",
    CLEAN: "`clean`",
    ERASE: "`erase`",
    PUT_FILE: "a driver puts a file of its checkpoint",
    READ_FILES: "a driver or a reader lists and reads files",
    DELETE_FILES: "a driver deletes old files",
}
#: Steps that everything strikes: each client from outside, executors, and drivers of a checkpoint.
_ALL: Final = (
    *(OPEN, ENTER, PART, ENTRY, SNAPSHOT, CLEAN_UP, READ, FORK, DROP, ADOPT, COMPACT, CLEAN, ERASE),
    *(PUT_FILE, READ_FILES, DELETE_FILES),
)
#: Where each fault must strike in a run of CI. Of 315 seeds at least 5 % had each of these faults at each of these
#: steps. If the true share is 3 %, 400 seeds miss it in one run of 200,000.
REACHED: Final[dict[str, tuple[str, ...]]] = {
    THROTTLE: _ALL,
    PARTIAL: (OPEN, ENTER, PART, SNAPSHOT, PUT_FILE, DELETE_FILES),
    ERROR: _ALL,
    LOST: _ALL,
    NOT_SENT: _ALL,
    LATE: (ENTER, PART, ENTRY, ABORT, SNAPSHOT, FORK, DROP, ADOPT, PUT_FILE, DELETE_FILES),
    KILL: (OPEN, ENTER, PART, ENTRY, SNAPSHOT, CLEAN_UP, READ, FORK, PUT_FILE, READ_FILES, DELETE_FILES),
    STOP: (*_ALL, ABORT),
    PAGE: (OPEN, ENTER, SNAPSHOT, CLEAN_UP, READ, FORK, DROP, ADOPT, COMPACT, CLEAN, PUT_FILE, READ_FILES),
    CLOCK: (ENTRY, PUT_FILE),
    SLOW_DOWN: (OPEN, PART),
    MUTE: (OPEN, PART),
    CUT_BODY: (OPEN,),
    FULL: (ENTRY,),
}
#: Where a fault strikes in few of the seeds, so that a run may miss it: the step is rare, or is one request.
RARE: Final[dict[str, tuple[str, ...]]] = {
    THROTTLE: (SHORTEN, ABORT),
    PARTIAL: (SHORTEN, ABORT, CLEAN_UP, READ, FORK, DROP, ADOPT, COMPACT, CLEAN, ERASE),
    ERROR: (SHORTEN, ABORT),
    LOST: (SHORTEN, ABORT),
    NOT_SENT: (SHORTEN, ABORT),
    LATE: (SHORTEN, CLEAN_UP, COMPACT, CLEAN, ERASE),
    KILL: (SHORTEN, ABORT, DROP, ADOPT, COMPACT, CLEAN, ERASE),
    STOP: (SHORTEN,),
    PAGE: (DELETE_FILES, ERASE),
    SLOW_DOWN: (ABORT, SNAPSHOT, CLEAN_UP, READ, DROP, COMPACT, CLEAN, ERASE),
    MUTE: (ABORT, SNAPSHOT, CLEAN_UP, READ, DROP, COMPACT, CLEAN, ERASE),
    CUT_BODY: (SNAPSHOT, READ, COMPACT, ERASE),
}
_DELETES: Final = ("delete_item", "delete_objects")


class Cell(NamedTuple):
    """A step, and the kind of a fault that struck it."""

    step: str
    fault: str


def is_write(operation: str) -> bool:
    return operation.startswith(("batch_write", "put_", "update_", "delete_"))


def step_of(doing: str, operation: str, request: Mapping[str, Any]) -> str:
    """The step of a request by a task that does something; workers that write parts do nothing else."""
    if doing:
        return doing
    sort = (request.get("Key") or request.get("Item") or {}) if "Bucket" not in request else {}
    is_list = sort.get("entry", {}).get("S", "").startswith("list/")
    if is_list and operation != "get_item":
        return ENTRY if operation == "update_item" else SHORTEN
    writes = [write for table in request.get("RequestItems", {}).values() for write in table]
    if operation in _DELETES or (operation == "batch_write_item" and all("DeleteRequest" in each for each in writes)):
        return ABORT
    return PART if operation in ("batch_write_item", "put_object") else ENTER


def table(struck: Counter[Cell]) -> str:
    """The counts, a row for each step and a column for each kind of fault."""
    rows = [["", *FAULTS]]
    rows += [[step, *(str(struck[Cell(step, fault)] or "-") for fault in FAULTS)] for step in STEPS]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            word.rjust(width) if at else word.ljust(width)
            for at, (word, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def unreached(struck: Counter[Cell]) -> list[Cell]:
    """The cells that a run must reach, and that have no fault."""
    return [
        cell for fault, steps in REACHED.items() for cell in (Cell(step, fault) for step in steps) if not struck[cell]
    ]
