"""Operator: its versions over time, its partitions by size, its heaviest keys, its columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from shlex import quote
from statistics import median
from typing import Any, Final

from dynastate.counts import plural
from dynastate.errors import ConfigurationError
from dynastate.operations.inspection.inspect import CommittedAttempt, families_of
from dynastate.operations.monitoring.skew import StoreLoad, read_keys
from dynastate.storage.meter import Meter
from dynastate.ui.charts import Chart, Lane, Series
from dynastate.ui.history import VersionTotal, totals_of
from dynastate.ui.page import Ask, Page
from dynastate.ui.site import Site
from dynastate.ui.watch import Look

#: Partitions in the table, the largest first, and on a page of all of them.
LARGEST: Final = 8
PAGE_PARTITIONS: Final = 50
#: Names of partitions with an event, in a cell of the versions.
NAMED: Final = 3
#: The heaviest keys that are shown, and the bytes of rows that are read for them.
KEYS: Final = 10
KEYS_BYTES: Final = 8 * 2**20
#: Seconds between two looks: after a change, all version lists of a store are read.
REFRESH_S: Final = 5.0
#: A partition is an outlier above this multiple of the median, in an operator of at least so many.
OUTLIER: Final = 2.0
OUTLIER_PARTITIONS: Final = 3


@dataclass(frozen=True)
class Measure:
    """A figure of partitions: its label with the unit, and how it is read of a load."""

    label: str
    axis: str
    of: Callable[[StoreLoad], float]
    digits: int = 0


#: The figures of partitions, by their name in the URL.
MEASURES: Final[Mapping[str, Measure]] = {
    "rows": Measure("Rows", "rows, by partition", lambda load: load.rows),
    "stored": Measure("Stored, KB", "KB stored, by partition", lambda load: load.stored_bytes / 2**10, 1),
    "units": Measure("Write units/s", "write units a second, by partition", lambda load: load.units_s or 0.0, 2),
}


@dataclass(frozen=True)
class Partition:
    """One partition in the table: each figure with its share of the largest, and whether it is an outlier."""

    number: int
    version: int
    figures: Sequence[tuple[float, float, bool]]


def stores_of(ask: Ask) -> str:
    """`namespace/operator/*/name` of a request."""
    return f"{ask.namespace}/{ask.operator}/*/{ask.store}"


def family_option(family: str) -> str:
    """The option of a command for a column family, with the space before it; for the only family, an empty text."""
    return f" --family {quote(family)}" if family else ""


def loads_of(look: Look, ask: Ask) -> list[StoreLoad]:
    """The partitions of the requested operator. Refuse an operator that is not there."""
    loads = look.loads_of(stores_of(ask))
    if not loads:
        raise ConfigurationError(
            "there is no such operator, or it has no version yet" if look.activities else look.why_nothing,
            stores=stores_of(ask),
        )
    return loads


def view(site: Site, ask: Ask) -> Page:
    spent = Meter()
    look = site.watch(ask.namespace).latest()
    spent.add(look.spent)
    loads = {int(each.store.split("/")[2]): each for each in loads_of(look, ask)}
    partition = ask.number_or_none("partition")
    if partition is not None and partition not in loads:
        raise ConfigurationError(
            f"there is no such partition; there are {min(loads)} to {max(loads)}", partition=partition
        )
    by = ask.choice("by", MEASURES) or "stored"
    if ask.text("keys"):
        site.reachable(ask.namespace)
    lineages = {number: look.lineages[each.store] for number, each in loads.items() if each.store in look.lineages}
    activity = next(each for each in look.activities if each.stores == stores_of(ask))
    table = _partitions(loads, {number: each.newest.version for number, each in lineages.items()}, by)
    first = (ask.number("page", 1, least=1) - 1) * PAGE_PARTITIONS
    is_all = bool(ask.text("all"))
    values: dict[str, Any] = {
        "look": look,
        "activity": activity,
        "health": look.health(activity),
        "operator_name": look.operator_name(activity.stores),
        "is_stopped": look.is_stopped(activity),
        "stored": sum(each.stored_bytes for each in loads.values()),
        "partition": partition,
        "by": by,
        "measures": MEASURES,
        "table": table[first : first + PAGE_PARTITIONS] if is_all else table[:LARGEST],
        "rest": [] if is_all else table[LARGEST:],
        "is_all": is_all,
        "page": first // PAGE_PARTITIONS + 1,
        "has_next": is_all and first + PAGE_PARTITIONS < len(table),
        "medians": [median(each.of(load) for load in loads.values()) for each in MEASURES.values()],
        "chart": _by_partition(loads, by),
        "outlier": _outlier(loads),
        "families": _families(lineages),
        "keys": read_keys(site.engine, [*loads.values()], KEYS, KEYS_BYTES, meter=spent) if ask.text("keys") else None,
    }
    is_earlier = False
    if partition is None:
        totals = totals_of([*lineages.values()])
        values["versions"] = _versions(totals, [*loads.values()], look) if totals else None
        command = f"dynastate skew {quote(f'{ask.namespace}/{ask.operator}')}"
        page = Page(ask.namespace, "operator.html", command, values, spent=spent)
    else:
        lists = site.lists(look, loads[partition].store, spent)
        values |= {"summary": lists.summary, "read_at": lists.looked}
        values["versions"] = _attempts(lists.versions, partition)
        command = f"dynastate versions {quote(loads[partition].store)}"
        page = Page(ask.namespace, "operator.html", command, values, spent=spent)
        # While DynamoDB does not answer, the versions may be of an earlier look.
        store = loads[partition].store
        is_earlier = store in look.lineages and lists.attempt != look.lineages[store].newest.attempt
    page.title = f"{ask.namespace}, operator {ask.operator}"
    page.refresh_s = 0 if ask.text("keys") else REFRESH_S
    page = page.by([look])
    return replace(page, looked=values["read_at"]) if is_earlier else page


def _versions(totals: Sequence[VersionTotal], loads: Sequence[StoreLoad], look: Look) -> Chart:
    """The versions of all partitions, over time."""
    numbers = [each.version for each in totals]
    took_s = {each.number + 1: each.duration_ms / 1000 for each in look.batches}
    reported = [took_s.get(each) for each in numbers]
    seconds = reported if any(each is not None for each in reported) else [each.seconds for each in totals]
    name, axis = (
        ("batch", "seconds that a batch took")
        if seconds is reported
        else ("since the version before", "seconds from one version to the next")
    )
    throttles = {each.number + 1: each.metrics.get("dynastateThrottles", 0) for each in look.batches}
    return Chart(
        "versions",
        f"{plural(len(totals), 'version')} by changed rows and seconds",
        noun="time",
        places=[each.time_ms for each in totals],
        series=[
            Series("changed rows", "changed rows a version", [each.changes for each in totals]),
            Series(name, axis, seconds, draw="line", colour="ink", digits=1, unit="s"),
        ],
        lanes=[
            Lane("snapshots", [_named(loads, each, "snapshots") for each in numbers], "diamond", "c2"),
            Lane("abandoned", [_named(loads, each, "abandoned") for each in numbers], "cross", "bad"),
            Lane("throttled", [str(throttles.get(each) or "") for each in numbers], "triangle", "warn"),
        ],
        labels=[f"{each:,}" for each in numbers],
        label_noun="version",
        starts=[f"run {each.epoch}" if each.is_start else "" for each in totals],
    )


def _named(loads: Sequence[StoreLoad], version: int, what: str) -> str:
    """The partitions that have a snapshot, or an abandoned attempt, of a version."""
    numbers = sorted(int(each.store.split("/")[2]) for each in loads if version in getattr(each, what))
    if not numbers:
        return ""
    if len(numbers) > NAMED:
        return f"{len(numbers)} partitions"
    return f"{'partition' if len(numbers) == 1 else 'partitions'} {', '.join(map(str, numbers))}"


def _attempts(attempts: Sequence[CommittedAttempt], partition: int) -> Chart | None:
    """The versions of one partition, over time, with attempts that were abandoned."""
    current = [each for each in attempts if each.is_current]
    if not current:
        return None
    abandoned = {each.version: each.attempt[:8] for each in attempts if not each.is_current}
    epochs = [each.epoch for each in current]
    return Chart(
        "versions",
        f"{plural(len(current), 'version')} of partition {partition}, by changed rows",
        noun="time",
        places=[datetime.fromisoformat(each.committed).timestamp() * 1000 for each in current],
        series=[
            Series("changed rows", "changed rows a version", [each.changes for each in current]),
            Series("rows", "rows", [each.rows for each in current], draw="line", colour="ink"),
            Series("written", "KB written a version", [each.bytes / 2**10 for each in current], digits=1, unit="KB"),
        ],
        lanes=[
            Lane("snapshots", ["snapshot" if each.has_snapshot else "" for each in current], "diamond", "c2"),
            Lane("abandoned", [abandoned.get(each.version, "") for each in current], "cross", "bad"),
        ],
        labels=[f"{each.version:,}" for each in current],
        label_noun="version",
        starts=[
            f"run {epoch}" if number and epoch != epochs[number - 1] else "" for number, epoch in enumerate(epochs)
        ],
    )


def _partitions(loads: Mapping[int, StoreLoad], versions: Mapping[int, int], by: str) -> list[Partition]:
    """The partitions, those with the largest figure first."""
    most = [max(map(each.of, loads.values())) or 1 for each in MEASURES.values()]
    medians = [median(map(each.of, loads.values())) for each in MEASURES.values()]
    order = sorted(loads, key=lambda number: (-MEASURES[by].of(loads[number]), number))
    table = []
    for number in order:
        figures = [each.of(loads[number]) for each in MEASURES.values()]
        marked = [
            (figure, figure / largest, _is_outlier(figure, middle, len(loads)))
            for figure, largest, middle in zip(figures, most, medians, strict=True)
        ]
        table.append(Partition(number, versions.get(number, 0), marked))
    return table


def _by_partition(loads: Mapping[int, StoreLoad], by: str) -> Chart:
    """One figure of all partitions, by their number."""
    measure, numbers = MEASURES[by], sorted(loads)
    figures = [measure.of(loads[each]) for each in numbers]
    largest = max(range(len(figures)), key=figures.__getitem__)
    return Chart(
        "partitions",
        f"{plural(len(numbers), 'partition')} by {measure.label.split(',')[0].lower()}",
        noun="partition",
        places=numbers,
        series=[Series(measure.label.split(",")[0].lower(), measure.axis, figures, digits=measure.digits)],
        is_time=False,
        hot=largest if _is_outlier(figures[largest], median(figures), len(figures)) else None,
    )


def _is_outlier(figure: float, middle: float, partitions: int) -> bool:
    """Whether the figure of a partition is unlike the median of all."""
    return partitions >= OUTLIER_PARTITIONS and figure > OUTLIER * middle > 0


@dataclass(frozen=True)
class Outlier:
    """The partition with the most of what `noun` says: a multiple of the median."""

    number: int
    noun: str
    times: float


def _outlier(loads: Mapping[int, StoreLoad]) -> Outlier | None:
    """The partition with the highest multiple of a median. Returns None if all are alike."""
    outliers = []
    for noun, measure in (("stored bytes", MEASURES["stored"]), ("rows", MEASURES["rows"])):
        figures = {number: measure.of(load) for number, load in loads.items()}
        number, middle = max(figures, key=figures.__getitem__), median(figures.values())
        if _is_outlier(figures[number], middle, len(figures)):
            outliers.append(Outlier(number, noun, figures[number] / middle))
    return max(outliers, key=lambda outlier: outlier.times, default=None)


def _families(lineages: Mapping[int, Any]) -> list[dict[str, Any]]:
    """The column families of the newest versions, rows of all partitions added up, Spark's own last."""
    families: dict[str, dict[str, Any]] = {}
    for lineage in lineages.values():
        for family in families_of(lineage.schema(lineage.newest), lineage.newest):
            families.setdefault(family["name"], {**family, "rows": 0})["rows"] += family["rows"]
    return sorted(families.values(), key=lambda family: bool(family["internal"]))
