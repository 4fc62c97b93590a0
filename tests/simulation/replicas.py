"""The tables in two Regions, as replicas with multi-Region strong consistency; a Region can be cut off.

Before a write is answered it is on its way to the other Region, and a cut does not stop it. AWS has it on the disks of
another replica or of the witness by then. A request takes what is on its way to its replica before it acts. Two Regions
that write one item at about the same time conflict, and the later one is refused.

With a `delay` replicas are asynchronous: an item arrives later, each by itself. A cut loses what is on its way, and of
two writes of an item the later one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dynastate.format.keys import Role
from tests.simulation.dynamodb import DynamoDB, Place, Wire
from tests.support.clients import client_error

#: AWS takes milliseconds; more here, so that schedules have conflicts.
CONFLICT_S: Final = 0.5
NAMES: Final = ("region-a", "region-b")


@dataclass(frozen=True)
class Write:
    """A write of an item, which was deleted if there is none, and when it arrives in the other Region."""

    table: str
    place: Place
    item: Wire | None
    region: str
    at: float
    arrives: float


class Replica(DynamoDB):
    """The tables in one Region."""

    def __init__(
        self, region: str, names: Mapping[Role, str], clock: Callable[[], float], delay: Callable[[], float]
    ) -> None:
        super().__init__(names)
        self.region = region
        self.other = self
        self._clock, self._delay = clock, delay
        self._incoming: list[Write] = []
        self._last: dict[tuple[str, Place], Write] = {}

    def cut(self) -> None:
        """Answer no request from now on, until the Region is `back`."""
        self.is_cut = True
        self.other._take()
        self.other._incoming.clear()

    def back(self) -> None:
        self.is_cut = False

    def item(self, name: str, key: Wire) -> Wire | None:
        self._take()
        return super().item(name, key)

    def query(self, **request: object) -> Wire:
        self._take()
        return super().query(**request)

    def _change(self, name: str, place: Place, item: Wire | None) -> None:
        self._take()
        time_s, delay_s = self._clock(), self._delay()
        last = self._last.get((name, place))
        if not delay_s and last is not None and last.region != self.region and time_s - last.at < CONFLICT_S:
            raise client_error("ReplicatedWriteConflictException")
        write = Write(name, place, item, self.region, time_s, time_s + delay_s)
        self._last[name, place] = write
        self.other._incoming.append(write)
        super()._change(name, place, item)

    def _take(self) -> None:
        time_s = self._clock()
        arrived = [write for write in self._incoming if write.arrives <= time_s]
        self._incoming = [write for write in self._incoming if write.arrives > time_s]
        for write in arrived:
            last = self._last.get((write.table, write.place))
            if last is None or last.at <= write.at:
                self._last[write.table, write.place] = write
                self._set(write.table, write.place, write.item)


def no_delay() -> float:
    return 0.0


def two_regions(names: Mapping[Role, str], clock: Callable[[], float], delay: Callable[[], float]) -> list[Replica]:
    one, other = (Replica(region, names, clock, delay) for region in NAMES)
    one.other, other.other = other, one
    return [one, other]
