"""Operator: a timeline of versions, its partitions by size, its columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from shlex import quote
from typing import Final

from dynastate.counts import plural
from dynastate.errors import ConfigurationError
from dynastate.operations.inspection.inspect import CommittedAttempt
from dynastate.operations.monitoring.skew import StoreLoad, read_keys, skew_of
from dynastate.storage.meter import Meter
from dynastate.ui.charts import Bar, Chart
from dynastate.ui.page import Ask, Page
from dynastate.ui.site import Site
from dynastate.ui.watch import Look

#: The newest versions, in the table below the timeline.
LISTED: Final = 20
#: The heaviest keys that are shown, and the bytes of rows that are read for them.
KEYS: Final = 10
KEYS_BYTES: Final = 8 * 2**20
#: Seconds between two looks: after a change, all version lists of a store are read.
REFRESH_S: Final = 5.0


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
    partition = ask.number("partition", min(loads))
    if partition not in loads:
        raise ConfigurationError(
            f"there is no such partition; there are {min(loads)} to {max(loads)}", partition=partition
        )
    store = loads[partition].store
    lists = site.lists(look, store, spent)
    summary, versions = lists.summary, lists.versions
    if ask.text("keys"):
        site.reachable(ask.namespace)
    skew = skew_of([*loads.values()])[0]
    values = {
        "look": look,
        "store": store,
        "read_at": lists.looked,
        "partition": partition,
        "summary": summary,
        "versions": versions[: -LISTED - 1 : -1],
        "timeline": Chart(
            f"{plural(len(versions), 'version')} of partition {partition}, by changed rows", [*map(_bar, versions)]
        ),
        "strips": [
            _strip("row", {number: each.rows for number, each in loads.items()}, partition),
            _strip("byte", {number: each.bytes for number, each in loads.items()}, partition),
        ],
        "skew": skew,
        "keys": read_keys(site.engine, [*loads.values()], KEYS, KEYS_BYTES, meter=spent) if ask.text("keys") else None,
    }
    title = f"{ask.namespace}, operator {ask.operator}"
    command, refresh_s = f"dynastate versions {quote(store)}", 0 if ask.text("keys") else REFRESH_S
    page = Page(title, "operator.html", command, values, spent=spent, refresh_s=refresh_s).by([look])
    # While DynamoDB does not answer, the versions may be of an earlier look.
    is_earlier = store in look.lineages and lists.attempt != look.lineages[store].newest.attempt
    return replace(page, looked=lists.looked) if is_earlier else page


def _bar(version: CommittedAttempt) -> Bar:
    """A version in the timeline."""
    kind = "committed" if version.is_current else "abandoned attempt"
    sizes = [plural(version.changes, "change"), plural(version.rows, "row"), plural(version.bytes, "byte")]
    marks = ("snapshot",) if version.has_snapshot else ()
    title = f"version {version.version}, {kind}: {', '.join([*sizes, *marks])}"
    return Bar(version.changes, "commit" if version.is_current else "abandoned", title, marks=marks)


def _strip(noun: str, sizes: Mapping[int, int], chosen: int) -> Chart:
    """The partitions side by side."""
    bars = [
        Bar(
            size,
            "chosen" if number == chosen else "partition",
            f"partition {number}: {plural(size, noun)}",
            str(number),
        )
        for number, size in sorted(sizes.items())
    ]
    return Chart(f"{noun.capitalize()}s of {plural(len(bars), 'partition')}", bars)
