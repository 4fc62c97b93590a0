"""Fixtures of tests of DynamoDB's failures: BotoTables on scripted answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.retries import RetryPolicy
from dynastate.settings import Settings
from dynastate.storage.meter import Meter
from tests.conftest import REGION
from tests.support.clients import Wire
from tests.support.clock import Clock, Longest


class Rig:
    """BotoTables on a real boto3 client whose answers come from a script, with a clock and chance of the test's own."""

    def __init__(self, client: Any, *answers: Any, answer_s: float = 0.0, **settings: Any) -> None:
        self.settings = Settings(region=REGION, **settings)
        self.wire = Wire(client, *answers)
        self.clock, self.chance, self.meter = Clock(answer_s=answer_s), Longest(), Meter()
        retries = RetryPolicy(
            self.settings.request_deadline_s, clock=self.clock, sleep=self.clock.sleep, randomness=self.chance
        )
        self.tables = BotoTables(self.settings, retries=retries, client=client)

    def has_answered(self) -> Rig:
        """Be past the first contact."""
        self.tables.expect_answers()
        return self


@pytest.fixture
def rig(boto_client: Any) -> Iterator[Callable[..., Rig]]:
    """Make a rig; the client is given back as it was."""
    rigs: list[Rig] = []

    def make(*answers: Any, **settings: Any) -> Rig:
        rigs.append(Rig(boto_client, *answers, **settings))
        return rigs[-1]

    yield make
    for one in rigs:
        one.wire.close()
