"""The state in DynamoDB that a transfer reads: its namespace and settings."""

from __future__ import annotations

import re
from typing import Final

from dynastate.errors import ConfigurationError
from dynastate.operations.lifecycle.runs import refuse_copy
from dynastate.spark.transfer.steps import OURS, Target, Transfer, tables_of

_STORE: Final = re.compile(r"store=([^/\s]+)/")


def origin_settings(transfer: Transfer) -> dict[str, str]:
    """The session's settings, with the namespace of the old checkpoint's state. Refuse a copy of a checkpoint."""
    plan, source = transfer.plan, transfer.source
    if plan["provider"] != OURS:
        raise ConfigurationError(
            "the query keeps its state in a store of Spark's own, not in DynamoDB",
            checkpoint=source,
            provider=plan["provider"],
        )
    operator = str(plan["stores"][0]["operator"])
    folder = f"{source}/state/{operator}/0"
    match = None
    if "dynastate" in transfer.jvm.names(folder):
        match = _STORE.search(transfer.jvm.read(folder, "dynastate"))
    if match is None:
        raise ConfigurationError(
            "the old checkpoint does not name its namespace: its file 'dynastate' is gone", folder=folder
        )
    settings = transfer.settings(match[1])
    with tables_of(settings) as tables:
        refuse_copy(tables, transfer.stores(Target(OURS, namespace=match[1])), source)
    return settings
