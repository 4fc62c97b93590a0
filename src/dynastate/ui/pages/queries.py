"""Queries: the operators of each namespace, with version, rows, bytes, dollars and health."""

from __future__ import annotations

from dataclasses import dataclass

from dynastate.operations.monitoring.monitor import StoreActivity
from dynastate.storage.meter import Meter
from dynastate.ui.page import Ask, Page
from dynastate.ui.pages.plan import dollars_a_day
from dynastate.ui.site import Site
from dynastate.ui.watch import LOOK_S, Health


@dataclass(frozen=True)
class Line:
    """One operator."""

    activity: StoreActivity
    health: Health
    bytes: int
    behind_s: float
    dollars_a_day: float | None

    @property
    def operator(self) -> int:
        return self.activity.operator

    @property
    def store(self) -> str:
        return self.activity.stores.rpartition("/")[2]


def view(site: Site, ask: Ask) -> Page:
    """All namespaces, or the one in the path, with its newest batches if its checkpoint is in DynamoDB."""
    spent = Meter()
    is_one = "namespace" in ask.path
    listed = [ask.namespace] if is_one else site.namespaces(spent)
    looks = site.looks(listed or [])
    # A dropped namespace is still listed by its fences.
    existing = [each for each in looks if is_one or not each.is_missing]
    queries = []
    for look in existing:
        spent.add(look.spent)
        prices = dollars_a_day(look, site.prices)
        lines = [
            Line(
                each,
                health=look.health(each),
                bytes=sum(load.stored_bytes for load in look.loads_of(each.stores)),
                behind_s=look.behind_s(each),
                dollars_a_day=prices.get(each.stores),
            )
            for each in look.activities
        ]
        queries.append((look, lines))
    log = site.log(existing[0], spent) if is_one and existing else None
    command = f"dynastate top {existing[0].namespace}" if len(existing) == 1 else "dynastate stores"
    values = {"queries": queries, "is_listing": listed is None, "log": None if log is None or log.is_elsewhere else log}
    title = ask.namespace if is_one else "Queries"
    return Page(title, "queries.html", command, values, spent=spent, refresh_s=LOOK_S).by(existing)
