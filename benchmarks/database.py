"""The DynamoDB a benchmark of ours talks to: one that is there already, or the embedded one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

REGION = "us-east-1"
#: Which kind of keys does not matter to the embedded engine, but boto3 signs nothing without any.
DUMMY_CREDENTIALS = {"AWS_ACCESS_KEY_ID": "benchmark", "AWS_SECRET_ACCESS_KEY": "benchmark"}


@contextmanager
def database(endpoint: str | None) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield an endpoint with both tables, and the environment its users need.

    With an endpoint given, that one is used with the credentials of this process's environment, and the tables must
    be there. Without, a fresh embedded engine is started, and ended afterwards.
    """
    if endpoint is not None:
        yield endpoint, DUMMY_CREDENTIALS | dict(os.environ)
        return
    # Only here: the other stores can be measured where our package is not installed.
    from dynastate.local import EmbeddedDynamoDB

    with EmbeddedDynamoDB() as embedded:
        yield embedded.endpoint, dict(os.environ) | DUMMY_CREDENTIALS
