"""What to do first: the steps for the troubles of a query, the worst trouble first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from shlex import quote
from typing import Final

from dynastate.counts import plural
from dynastate.operations.monitoring.monitor import StoreActivity, operator_of
from dynastate.operations.monitoring.skew import KEY_UNITS_S, busiest
from dynastate.ui.watch import Look

#: Sections of docs/troubleshooting.md.
CORRUPT: Final = "corrupt-or-lost-items"
THROTTLES: Final = "throttles-and-outages"
#: A partition key is near its limit above this share of it.
NEAR: Final = 0.7


@dataclass(frozen=True)
class Step:
    """One step: `what` to do, its reason, a command without the options of the tables, and a section of the docs."""

    what: str
    why: str
    command: str = ""
    section: str = ""


def first_steps(look: Look, corrupt_stores: int) -> list[Step]:
    """The steps by a look, and by the number of stores with corrupt or lost items in `verify`. Empty if all is well.

    There are none while DynamoDB does not answer: a banner says so, and nothing else is known.
    """
    if look.is_unreachable or look.is_missing:
        return []
    steps = list(_of_corrupt_state(look, corrupt_stores))
    if not look.problem:
        for activity in look.activities:
            steps += _of_operator(look, activity)
        if look.activities and all(look.is_stopped(each) for each in look.activities):
            steps.append(_start(look))
    return steps


def _of_corrupt_state(look: Look, corrupt_stores: int) -> Iterator[Step]:
    if not corrupt_stores and not (look.problem and look.failed):
        return
    if not corrupt_stores:
        yield Step(
            "See what is missing or corrupt.",
            "One item is known; this reads all of them, as Verify below does.",
            f"dynastate verify {quote(look.namespace)}",
            CORRUPT,
        )
    else:
        yield Step("Stop the query.", f"{plural(corrupt_stores, 'store')} cannot be read whole; what is left stays.")
    yield Step(
        "Take the query back to a batch whose version all stores can read,",
        "or restore both tables to a second before items were lost or corrupt. "
        "verify lists the versions that can be read.",
        section=CORRUPT,
    )
    yield Step(
        "Find out what removed or changed the item.", "Only dynastate may write to these tables; none may expire."
    )


def _of_operator(look: Look, activity: StoreActivity) -> Iterator[Step]:
    if look.is_stopped(activity):
        return
    if activity.throttles:
        loads = look.loads_of(activity.stores)
        busy = busiest(loads)
        near = busy is not None and busy.key_units_s > NEAR * KEY_UNITS_S
        yield Step(
            "Find the limit that throttles.",
            f"{plural(activity.throttles, 'request')} of the last batch of operator {activity.operator} had to wait. "
            + (
                f"{busy.store} takes {busy.key_units_s:,.0f} write units a second of each partition key, and "
                f"{KEY_UNITS_S:,} are the limit: use more shuffle partitions."
                if busy is not None and near
                else "The executor's log names it; Throttles below has the remedy for each. No partition key is near "
                "its own limit, so it is probably the table's or the account's."
            ),
            f"dynastate skew {quote(f'{look.namespace}/{activity.operator}')}",
            THROTTLES,
        )
    if activity.lag > 1:
        stores = {store: each for store, each in look.lineages.items() if operator_of(store) == activity.stores}
        last = min(stores, key=lambda store: stores[store].newest.version)
        yield Step(
            f"Look at partition {last.split('/')[2]} of operator {activity.operator}.",
            f"It is {plural(activity.lag, 'version')} behind another one: its task is slow, or fails and is retried.",
            f"dynastate versions {quote(last)}",
        )


def _start(look: Look) -> Step:
    version = min(each.version for each in look.activities)
    return Step("Start the query again, if it should run.", f"It is stopped, and resumes after version {version:,}.")
