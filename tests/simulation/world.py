"""The world of a schedule: virtual time, tables and a bucket, and processes whose requests meet faults on the way."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from dynastate import runtime
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.retries import RetryPolicy
from dynastate.format.keys import Role
from dynastate.runtime import Limits
from dynastate.settings import DELTA_TABLE, SNAPSHOT_TABLE, Settings
from tests.simulation.dynamodb import DynamoDB
from tests.simulation.network import NO_FAULTS, Client, FaultRates, random_faults
from tests.simulation.s3 import S3
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.threads import runtime_of

NAMES: Final[dict[Role, str]] = {"delta": DELTA_TABLE, "snapshot": SNAPSHOT_TABLE}
#: Limits, smaller than in production, so that schedules reach them.
SMALL: Final = Limits(
    list_size=3,
    fragment_bytes_max=300,
    object_bytes=500,
    object_parts_max=6,
    writes_max=4,
    window_parts=3,
    submit_bytes=600,
    snapshot_request_bytes=800,
    request_bytes=1500,
    queued_bytes_max=4000,
)


#: The highest probability of a 503 from S3.
S3_THROTTLE: Final = 0.3


class World:
    """A world from a seed. `run` raises the first violation; `journal` has the steps."""

    settings: Settings

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)  # noqa: S311  # a simulation, no secret
        self.scheduler = Scheduler()
        self.faults = random_faults(self.chance)
        self._first_faults = str(self.faults)
        self.dynamodb = DynamoDB(NAMES)
        self.s3 = S3()
        self._processes = self._clocks = 0

    def run(self) -> None:
        """Take all steps."""
        with runtime.using(runtime_of(self.scheduler, self.chance, SMALL)):
            self._begin()
            self.scheduler.run("driver", self._drive)

    def journal(self, last: int = 0) -> list[str]:
        """The steps, or the `last` ones, one a line."""
        return [f"{at:9.3f} {who:22} {text % facts}" for at, who, text, facts in self.scheduler.steps[-last:]]

    def digest(self) -> str:
        sha256 = hashlib.sha256("\n".join(self.journal()).encode())
        for name, items in sorted(self.dynamodb.items.items()):
            sha256.update(f"{name} {sorted(items.items())!r}".encode())
        sha256.update(repr(sorted(self.s3.objects.items())).encode())
        return sha256.hexdigest()

    def _begin(self) -> None:
        """Prepare what needs the runtime of the simulation."""

    def _drive(self) -> None:
        """Play the part of what is outside: restarts, kills, and the checks at the end."""
        raise NotImplementedError

    def _on_request(self, operation: str, request: dict[str, Any]) -> None:
        """Check a request before it is sent."""

    def _is_calm(self) -> bool:
        return self.faults is NO_FAULTS

    def _process(self, name: str) -> Process:
        self._processes += 1
        return Process(f"{name}-{self._processes}")

    def _spawn(self, process: Process, body: Callable[[], None], doing: str = "") -> None:
        self.scheduler.spawn(process.name, body, process, doing)

    def _client(self, process: Process, chance: random.Random, rates: FaultRates | None = None) -> Client:
        """A client of a process, with faults of its own if it has `rates`."""

        def faults() -> FaultRates:
            return self.faults if rates is None or self._is_calm() else rates

        return Client(self.scheduler, chance, self.dynamodb, process, faults, self._on_request)

    def _tables(self, client: Any, chance: random.Random) -> BotoTables:
        clock, sleep = self.scheduler.clock, self.scheduler.sleep
        retries = RetryPolicy(self.settings.request_deadline_s, clock=clock, sleep=sleep, randomness=chance)
        s3 = self._s3_client(client) if isinstance(client, Client) else self.s3
        both = BotoTables(self.settings, retries=retries, client=client, s3_client=s3)
        both.objects.expect_answers()
        return both

    def _s3_client(self, client: Client) -> Client:
        """The client of S3 in the process of another one. S3 has faults of its own there."""
        chance = random.Random(f"{self.seed}/{client.process.name}/S3")  # noqa: S311  # no secret
        rates = replace(random_faults(chance), throttle=S3_THROTTLE * chance.random())
        return replace(self._client(client.process, client.chance, rates), service=self.s3)
