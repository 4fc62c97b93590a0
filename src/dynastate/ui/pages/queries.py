"""Queries: each namespace with its operators, trouble first: state, version, rows, bytes, dollars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from dynastate.operations.monitoring.monitor import StoreActivity
from dynastate.prices import Prices
from dynastate.storage.meter import Meter
from dynastate.ui.charts import Spark, spark
from dynastate.ui.history import VersionTotal, totals_of
from dynastate.ui.page import Ask, Page
from dynastate.ui.pages.plan import dollars_a_day
from dynastate.ui.site import Site
from dynastate.ui.watch import LOOK_S, Health, Look

#: Marks, the worst first: a query has the worst of its operators.
MARKS: Final = ("failing", "throttled", "behind", "old", "ok", "stopped")
TROUBLE: Final = ("failing", "throttled", "behind")
#: Queries that the tabs show, by their name in the URL.
FILTERS: Final = {
    "": ("All", MARKS),
    "trouble": ("Trouble", TROUBLE),
    "running": ("Running", ("throttled", "behind", "ok")),
    "stopped": ("Stopped", ("stopped",)),
}
#: Versions of a query whose figures are in its small lines.
SPARK_VERSIONS: Final = 400


@dataclass(frozen=True)
class Line:
    """The stores of one operator that have one name."""

    activity: StoreActivity
    health: Health
    bytes: int
    dollars_a_day: float | None
    operator_name: str

    @property
    def operator(self) -> int:
        return self.activity.operator

    @property
    def store(self) -> str:
        return self.activity.stores.rpartition("/")[2]

    @property
    def name(self) -> str:
        """Spark's name of the operator if it is known, with the name of the store if it has several."""
        store = "" if self.store == "default" else self.store
        return " ".join(filter(None, (self.operator_name, store))) or f"operator {self.operator}"


class Query:
    """One namespace by a look at it."""

    def __init__(self, look: Look, prices: Prices) -> None:
        self.look = look
        dollars = dollars_a_day(look, prices)
        self.lines = [
            Line(
                each,
                health=look.health(each),
                bytes=sum(load.stored_bytes for load in look.loads_of(each.stores)),
                dollars_a_day=dollars.get(each.stores),
                operator_name=look.operator_name(each.stores),
            )
            for each in look.activities
        ]

    @cached_property
    def health(self) -> Health:
        """The worst of its operators."""
        if self.lines:
            return min((each.health for each in self.lines), key=lambda health: MARKS.index(health.mark))
        if self.look.problem and self.look.failed and not self.look.is_unreachable:
            return Health("failing", "it cannot be read")
        return Health("old" if self.look.is_unreachable else "stopped", "no batch is committed yet")

    @property
    def order(self) -> tuple[int, str]:
        """Trouble first, then by name."""
        return MARKS.index(self.health.mark), self.look.namespace

    @property
    def is_stopped(self) -> bool:
        return all(self.look.is_stopped(each.activity) for each in self.lines)

    @property
    def reason(self) -> str:
        """The problem in full; empty if there is none."""
        if self.look.is_unreachable:
            return ""  # the page has a banner
        return self.look.problem if self.lines else self.look.why_nothing

    @property
    def rows(self) -> int:
        return sum(each.activity.rows for each in self.lines)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.lines)

    @property
    def batch_s(self) -> float | None:
        """The longest time from one version of an operator to the next."""
        return max((each.activity.batch_s for each in self.lines if each.activity.batch_s), default=None)

    @cached_property
    def totals(self) -> list[VersionTotal]:
        """Its newest versions, all operators together."""
        return totals_of([*self.look.lineages.values()], SPARK_VERSIONS)

    @property
    def batch_spark(self) -> Spark | None:
        """The seconds from version to version in the hour before the look."""
        points = [(each.time_ms / 1000, each.seconds) for each in self.totals if each.seconds is not None]
        return spark(points, self._looked_s, f"seconds from version to version of {self._name}", from_zero=True)

    @property
    def rows_spark(self) -> Spark | None:
        """The rows in the hour before the look."""
        points = [(each.time_ms / 1000, float(each.rows)) for each in self.totals]
        return spark(points, self._looked_s, f"rows of {self._name}", from_zero=False)

    @property
    def _name(self) -> str:
        return self.look.namespace

    @property
    def _looked_s(self) -> float:
        return 0.0 if self.look.looked is None else self.look.looked.timestamp()

    @property
    def committed_ms(self) -> int:
        """The last commit of the partition that committed least recently."""
        return min((each.activity.committed_ms for each in self.lines), default=0)

    @property
    def behind_s(self) -> float:
        return max((self.look.behind_s(each.activity) for each in self.lines), default=0.0)

    @property
    def dollars_a_day(self) -> float | None:
        """The predicted price, or None of a query that is stopped, and before its second batch."""
        prices = [each.dollars_a_day for each in self.lines if each.dollars_a_day is not None]
        return sum(prices) if prices and not self.is_stopped else None


def view(site: Site, ask: Ask) -> Page:
    """All namespaces, or the one in the path, with its newest batches if its checkpoint is in DynamoDB."""
    spent = Meter()
    is_one = "namespace" in ask.path
    listed = [ask.namespace] if is_one else site.namespaces(spent)
    looks = site.looks(listed or [])
    # A dropped namespace is still listed by its fences.
    existing = [each for each in looks if is_one or not each.is_missing]
    for look in existing:
        spent.add(look.spent)
    queries = sorted((Query(each, site.prices) for each in existing), key=lambda query: query.order)
    only = ask.choice("only", FILTERS)
    log = site.log(existing[0], spent) if is_one and existing else None
    dollars = [each.dollars_a_day for each in queries if each.dollars_a_day is not None]
    values = {
        "queries": queries,
        "chosen": _having(queries, FILTERS[only][1]),
        "only": only,
        "filters": [(name, label, len(_having(queries, marks))) for name, (label, marks) in FILTERS.items()],
        "troubles": [] if is_one else _troubles(queries),
        "running": len(_having(queries, FILTERS["running"][1])),
        "dollars_a_day": sum(dollars) if dollars else None,
        "rows": sum(each.rows for each in queries),
        "stored": sum(each.bytes for each in queries),
        "is_listing": listed is None,
        "log": None if log is None or log.is_elsewhere else log,
    }
    command = f"dynastate top {existing[0].namespace}" if len(existing) == 1 else "dynastate stores"
    title = ask.namespace if is_one else "Queries"
    return Page(title, "queries.html", command, values, spent=spent, refresh_s=LOOK_S).by(existing)


def _having(queries: Sequence[Query], marks: Sequence[str]) -> list[Query]:
    return [each for each in queries if each.health.mark in marks]


def _troubles(queries: Sequence[Query]) -> list[tuple[str, list[str], str]]:
    """For each kind of trouble that there is: its word, the queries that have it, and its colour."""
    named = [(mark, [each.look.namespace for each in _having(queries, [mark])]) for mark in TROUBLE]
    return [(mark.capitalize(), names, "bad" if mark == "failing" else "warn") for mark, names in named if names]
