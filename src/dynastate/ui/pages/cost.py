"""Cost: units and dollars of a query, a prediction with other choices, and advice."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from dynastate.counts import plural
from dynastate.errors import ConfigurationError
from dynastate.operations.cost.prediction import PredictedUsage, predict
from dynastate.operations.cost.scenarios import MONTH_DAYS
from dynastate.operations.cost.usage import commit_units
from dynastate.operations.monitoring.reports import REPORTED, usage_of_batches
from dynastate.settings import Settings
from dynastate.storage.meter import Meter
from dynastate.ui.charts import Bar, Chart
from dynastate.ui.page import Ask, Page
from dynastate.ui.pages.plan import RETAIN, plan_of
from dynastate.ui.site import Site
from dynastate.ui.watch import Look


def view(site: Site, ask: Ask) -> Page:
    spent = Meter()
    look = site.watch(ask.namespace).latest()
    spent.add(look.spent)
    if not look.activities:
        raise ConfigurationError(look.why_nothing, namespace=ask.namespace)
    threshold = ask.positive("threshold", float(Settings().snapshot_threshold))
    retain = ask.number("retain", RETAIN, least=2)
    plan = plan_of(look, site.prices, threshold=threshold, retain=retain)
    values: dict[str, Any] = {"look": look, "plan": plan, "threshold": threshold, "retain": retain}
    values["stored"] = sum(each.stored_bytes for each in look.loads)
    values["by_version"] = _by_version(look)
    values["by_batch"] = _by_batch(look)
    reported = usage_of_batches(look.batches, site.prices).dollars_a_day if look.batches else None
    values |= {"reported_dollars": reported, "reported_note": REPORTED, "batches": len(look.batches)}
    command = f"dynastate cost {ask.namespace}"
    if plan is not None:
        partitions = max(usage.partitions for usage in plan.usages.values())
        trigger = ask.positive("trigger", plan.every_s)
        asked_partitions = ask.number("partitions", partitions, least=1)
        scenarios = plan.scenarios(trigger, asked_partitions)
        predictions = [predict(each) for each in plan.workloads]
        advice = plan.choices()
        values |= {
            "trigger": trigger,
            "partitions": asked_partitions,
            "own_partitions": partitions,
            "scenarios": [each.as_json(site.prices) for each in scenarios],
            "dollars_a_month": plan.month.dollars(site.prices),
            "kinds": [
                (kind, sum((getattr(each, part) for each in predictions), PredictedUsage()))
                for kind, part in (
                    ("commits", "commits"),
                    ("snapshots", "snapshots"),
                    ("deletes by clean-up", "clean_up"),
                    ("reads of restarts", "restarts"),
                )
            ],
            "prices": site.prices,
            "storage_dollars": site.prices.dollars_a_month(plan.month.stored) / MONTH_DAYS,
            "advice": [each for each in advice if each.is_advice],
            "others": sum(1 for each in advice if not each.is_advice),
            "month_days": MONTH_DAYS,
        }
        command += f" --every {plan.every_s:g} --trigger {trigger:g} --partitions {asked_partitions}"
        command += f" --snapshot-threshold {threshold:g} --retain {retain}"
    return Page(f"Cost of {ask.namespace}", "cost.html", command, values, spent=spent).by([look])


def _by_version(look: Look) -> Chart:
    """Write units of the commits of each version, in all partitions together."""
    units: dict[int, int] = defaultdict(int)
    changes: dict[int, int] = defaultdict(int)
    for store, lineage in look.lineages.items():
        for entry in lineage.entries:
            units[entry.version] += commit_units(store, entry)
            changes[entry.version] += entry.records
    return Chart(
        f"Write units of the commits of {plural(len(units), 'version')}",
        [
            Bar(
                units[each],
                "commit",
                f"version {each}: {plural(units[each], 'write unit')}, {plural(changes[each], 'change')}",
            )
            for each in sorted(units)
        ],
    )


def _by_batch(look: Look) -> list[Chart]:
    """Units by what took them, of the batches that were reported."""
    kinds = {
        "commits": "dynastateWriteUnits",
        "snapshots": "dynastateMaintenanceWriteUnits",
        "deletes": "dynastateDeleteUnits",
        "reads": "dynastateReadUnits",
    }
    if not look.batches:
        return []
    return [
        Chart(
            f"Units of {kind} in the last reported batches",
            [
                Bar(
                    each.metrics.get(metric, 0),
                    kind,
                    f"{each.at:%H:%M:%S}: {plural(each.metrics.get(metric, 0), 'unit')}",
                )
                for each in look.batches
            ],
        )
        for kind, metric in kinds.items()
    ]
