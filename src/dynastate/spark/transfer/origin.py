"""The state in DynamoDB that a transfer reads: its namespace and settings."""

from __future__ import annotations

import re
from typing import Final

from dynastate.errors import ConfigurationError
from dynastate.operations.lifecycle.runs import refuse_copy
from dynastate.spark.transfer.steps import OURS, Target, Transfer, namespace_in, tables_of

_STORE: Final = re.compile(r"store=([^/\s]+)/")


def origin_settings(transfer: Transfer) -> dict[str, str]:
    """The session's settings, with the namespace of the old checkpoint's state. Refuse a copy of a checkpoint."""
    plan, source = transfer.plan, transfer.source
    refuse_provider(plan["provider"], source)
    namespace = namespace_in(source) or _marked_namespace(transfer)
    settings = transfer.settings(namespace)
    with tables_of(settings) as tables:
        refuse_copy(tables, transfer.stores(Target(OURS, namespace=namespace)), source)
    return settings


def refuse_provider(provider: str, old: str) -> None:
    """Refuse a checkpoint of other stores than ours."""
    if provider != OURS:
        raise ConfigurationError(
            "the query keeps its state in a store of Spark's own, not in DynamoDB", checkpoint=old, provider=provider
        )


def _marked_namespace(transfer: Transfer) -> str:
    """The namespace that the provider's file in the folder of a partition names."""
    folder = f"{transfer.source}/state/{transfer.plan['stores'][0]['operator']}/0"
    match = None
    if "dynastate" in transfer.jvm.names(folder):
        match = _STORE.search(transfer.jvm.read(folder, "dynastate"))
    if match is None:
        raise ConfigurationError(
            "the old checkpoint does not name its namespace: its file 'dynastate' is gone", folder=folder
        )
    return match[1]
