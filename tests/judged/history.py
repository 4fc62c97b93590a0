"""What all threads of a history share: sidecars, calls, and the versions that were begun."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, NamedTuple

from dynastate.format.keys import VersionId
from tests.judged.calls import Record
from tests.judged.clients import Client, Host
from tests.judged.network import Network
from tests.support.samples import QUERY

NAMESPACE: Final = "judged"
OPERATOR: Final = f"{NAMESPACE}/0"
#: The probability that a task of a run is on the run's own host.
AT_HOME: Final = 0.8


class Query(NamedTuple):
    """A query with two partitions, which writes from one location. `life` drops of its namespace came before it."""

    namespace: str
    location: str
    id: str = QUERY
    life: int = 0

    @property
    def stores(self) -> tuple[str, ...]:
        return f"{self.namespace}/0/0/default", f"{self.namespace}/0/1/default"


class Size(NamedTuple):
    """The size of a history: its runs of the first query, and the batches of each."""

    runs: int
    batches: int


@dataclass
class History:
    """One history of a seed."""

    seed: int
    size: Size
    #: Versions that clean-up retains.
    retain: int
    hosts: Sequence[Host]
    #: The networks of the processes without sidecars: the one that views the operator, and that of commands.
    others: Sequence[Network]
    record: Record = field(default_factory=Record)
    #: Attempts that were begun, by store: each may be opened, also those that failed.
    attempts: defaultdict[str, list[VersionId]] = field(default_factory=lambda: defaultdict(list))
    #: The base of each attempt, and the keys that it changed.
    made: dict[VersionId, tuple[VersionId, set[bytes]]] = field(default_factory=dict)
    is_over: bool = False
    _clients: count[int] = field(default_factory=count)

    def chance(self, *of: object) -> random.Random:
        return random.Random(f"{self.seed} {of}")  # noqa: S311  # not for cryptography

    def host_of(self, run: int) -> Host:
        """The host of most tasks of a run: not that of the run before."""
        return self.hosts[run % len(self.hosts)]

    def client(self, chance: random.Random, run: int | None = None) -> Client | None:
        """A client of a sidecar, of a run's own if one is given; of another one if that does not answer."""
        hosts = chance.sample(self.hosts, len(self.hosts))
        if run is not None and chance.random() < AT_HOME:
            hosts.sort(key=lambda host: host is not self.host_of(run))
        for host in hosts:
            talk = None if host.is_stopped else host.connect()
            if talk is not None:
                return Client(self.next_client(), self.record, talk)
        return None

    def next_client(self) -> int:
        return next(self._clients)

    def changed(self, version: VersionId, since: int) -> set[bytes]:
        """The keys that changed between a version and an earlier one on its lineage."""
        keys: set[bytes] = set()
        while version.version > since:
            version, changed = self.made[version]
            keys |= changed
        return keys

    @property
    def networks(self) -> list[Network]:
        return [*self.others, *(host.network for host in self.hosts)]

    def faults(self) -> Counter[str]:
        return sum((network.counts for network in self.networks), Counter[str]())
