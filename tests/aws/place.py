"""Where the tests of this folder run: tables of their own, in an account or in DynamoDB Local."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from uuid import uuid4

from dynastate.dynamodb.admin import create_tables
from dynastate.dynamodb.client import make_client
from dynastate.settings import Settings
from tests.aws.spending import Ledger

log = logging.getLogger("dynastate.tests")

PREFIX = "dynastate-test"


@dataclass(frozen=True)
class Place:
    """Tables of this run, and what may be spent on them."""

    settings: Settings
    ledger: Ledger
    is_local: bool
    role: str = ""


def own_names(settings: Settings) -> Settings:
    """Settings with names of tables that no other run has."""
    suffix = uuid4().hex[:8]
    return replace(settings, delta_table=f"{PREFIX}-{suffix}-delta", snapshot_table=f"{PREFIX}-{suffix}-snapshot-group")


@contextmanager
def own_tables(settings: Settings) -> Iterator[Settings]:
    """Make both tables under names of their own, and delete them whatever happens in the block."""
    own = own_names(settings)
    names = (own.delta_table, own.snapshot_table)
    log.warning("tables of this run, deleted at its end: %s", ", ".join(names))
    try:
        create_tables(own)
        yield own
    finally:
        delete_tables(own)


def delete_tables(settings: Settings) -> None:
    """Delete both tables, those that were not made aside, and wait until they are gone."""
    with closing(make_client(settings)) as client:
        missing = client.exceptions.ResourceNotFoundException
        for name in (settings.delta_table, settings.snapshot_table):
            # A table that is being made cannot be deleted yet.
            with suppress(missing):
                if exists(client, name):
                    client.get_waiter("table_exists").wait(TableName=name)
                client.delete_table(TableName=name)
        for name in (settings.delta_table, settings.snapshot_table):
            client.get_waiter("table_not_exists").wait(TableName=name, WaiterConfig={"Delay": 2, "MaxAttempts": 90})


def exists(client: object, name: str) -> bool:
    """Whether a table is there, in whatever status."""
    try:
        client.describe_table(TableName=name)  # type: ignore[attr-defined]  # a boto3 client has no type of its own
    except client.exceptions.ResourceNotFoundException:  # type: ignore[attr-defined]
        return False
    return True
