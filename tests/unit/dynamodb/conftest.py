"""Fixtures of tests of DynamoDB's failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.dynamodb.rig import Rig


@pytest.fixture
def rig(boto_client: Any) -> Iterator[Callable[..., Rig]]:
    """Make a rig; the client is given back as it was."""
    made: list[Rig] = []

    def make(*answers: Any, **settings: Any) -> Rig:
        made.append(Rig(boto_client, *answers, **settings))
        return made[-1]

    yield make
    for each in made:
        each.wire.close()
