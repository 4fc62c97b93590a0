"""Where the tests of this folder run: tables of their own, in an account or in DynamoDB Local."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

from dynastate.dynamodb.admin import create_tables
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.failures import code_of
from dynastate.errors import ConfigurationError, DynastateError, UnavailableError
from dynastate.format.keys import SPECS, Role
from dynastate.settings import Settings
from tests.aws.spending import Ledger

PREFIX: Final = "dynastate-test"
#: Pauses between requests to delete a table, two minutes in all: both tables take less than a test's timeout.
PAUSES_S: Final = tuple(min(0.05 * 2**n, 2.0) for n in range(65))
#: DynamoDB does not delete a table while it makes or changes it, or makes and deletes too many others.
BUSY: Final = {"ResourceInUseException", "LimitExceededException"}
#: Signals that end a run in order, as Ctrl-C does: of `kill`, and of a terminal that is closed.
ENDING: Final = (signal.SIGTERM, signal.SIGHUP)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Place:
    """Tables of this run, and what may be spent on them. `say` prints a line at once."""

    settings: Settings
    ledger: Ledger
    say: Say
    is_local: bool
    role: str = ""


def own_names(settings: Settings) -> Settings:
    suffix = uuid4().hex[:8]
    return replace(settings, delta_table=f"{PREFIX}-{suffix}-delta", snapshot_table=f"{PREFIX}-{suffix}-snapshot-group")


@contextmanager
def own_tables(settings: Settings, say: Say) -> Iterator[Settings]:
    """Make both tables under names of their own, and delete them whatever happens in the block.

    Their names are printed first. Where the block fails, its error is raised, and one of the deletion printed.
    """
    run_settings = own_names(settings)
    say(f"tables of this run, deleted at its end: {run_settings.delta_table}, {run_settings.snapshot_table}")
    try:
        create_tables(run_settings)
        yield run_settings
    except BaseException:
        try:
            _delete_own(run_settings)
        except DynastateError as error:
            say(str(error))
        raise
    _delete_own(run_settings)


def _delete_own(settings: Settings) -> None:
    with closing(BotoTables(settings)) as tables:
        delete_tables(tables)


def delete_tables(tables: BotoTables, sleep: Callable[[float], None] = time.sleep) -> None:
    """Delete both tables, whether the other one can be deleted or not, and wait until they do not exist.

    Raises:
        UnavailableError: a table may be left. The message names it, and the reason.
    """
    reasons = [reason for role in SPECS if (reason := _why_left(tables, role, sleep))]
    if reasons:
        raise UnavailableError(f"tables may be left; delete them by hand: {'; '.join(reasons)}")


def _why_left(tables: BotoTables, role: Role, sleep: Callable[[float], None]) -> str:
    """The name of a table that may be left, and why; empty: it does not exist."""
    try:
        _delete(tables, role, sleep)
    except DynastateError as error:
        return f"{tables.names[role]} ({error})"
    return ""


def _delete(tables: BotoTables, role: Role, sleep: Callable[[float], None]) -> None:
    """Ask for the deletion of a table until it does not exist, whatever is being done to it."""
    reason = ""
    for pause_s in PAUSES_S:
        try:
            tables.call("DeleteTable", role)
            reason = "it is being deleted"
        except ConfigurationError as error:
            code = code_of(error.__cause__)
            if code == "ResourceNotFoundException":
                return
            if code not in BUSY:
                raise
            reason = str(error)
        sleep(pause_s)
    raise UnavailableError(f"not deleted within {sum(PAUSES_S):.0f} s: {reason}")


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Let the signals of `ENDING` raise KeyboardInterrupt in the block, but those that are ignored, as by `nohup`."""
    handlers = {number: signal.getsignal(number) for number in ENDING}
    numbers = [number for number in ENDING if handlers[number] is not signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, handlers[number])
