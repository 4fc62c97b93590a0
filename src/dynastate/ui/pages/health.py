"""Health: problems, `verify` with its progress, and throttles."""

from __future__ import annotations

from typing import Any, Final

from dynastate.counts import plural
from dynastate.operations.inspection.findings import Report, summary
from dynastate.operations.lifecycle.verify_checkpoint import CheckpointReport
from dynastate.operations.monitoring.skew import KEY_UNITS_S, busiest
from dynastate.operations.scope import stores_in
from dynastate.storage.meter import Meter
from dynastate.ui.charts import Chart, Series
from dynastate.ui.check import Check
from dynastate.ui.page import Ask, Page
from dynastate.ui.pages.steps import first_steps
from dynastate.ui.site import Site
from dynastate.ui.watch import LOOK_S, Look

#: Findings of `verify` that are shown.
FINDINGS: Final = 100
DOCS: Final = "https://github.com/dynastate/dynastate/blob/main/docs/"


def view(site: Site, ask: Ask) -> Page:
    spent = Meter()
    look = site.watch(ask.namespace).latest()
    spent.add(look.spent)
    check = site.checks.get(ask.namespace)
    marks = [(each, look.health(each), look.operator_name(each.stores)) for each in look.activities]
    values: dict[str, Any] = {
        "look": look,
        "marks": marks,
        "busiest": busiest(look.loads),
        "key_units_s": KEY_UNITS_S,
        "throttles": _throttles(look),
        "batches": len(look.batches),
        "check": check,
        "troubleshooting": f"{DOCS}troubleshooting.md",
        "metrics": f"{DOCS}metrics.md#export",
    }
    corrupt_stores = 0
    if check is not None:
        spent.add(check.spent)
        corrupt_stores = sum(1 for each in check.reports if not each.is_whole)
        reports, checkpoints = list(check.reports), list(check.checkpoints)
        names = site.tables.names
        whole = [line for each in checkpoints if each.is_whole for line in each.lines(names)]
        parts: list[Report | CheckpointReport] = [*reports, *checkpoints]
        values |= {
            "result": [*(summary(reports) if reports else []), *whole],
            "lines": [line for each in parts if not each.is_whole for line in each.lines(names)][:FINDINGS],
        }
    values["steps"] = first_steps(look, corrupt_stores)
    values["is_well"] = bool(marks) and all(health.mark == "ok" for _, health, _ in marks)
    command = f"dynastate verify {ask.namespace}"
    return Page(f"Health of {ask.namespace}", "health.html", command, values, spent=spent, refresh_s=LOOK_S).by([look])


def verify(site: Site, ask: Ask) -> None:
    """Start to verify the stores of a namespace, if no check is under way."""
    site.watch(ask.namespace)  # refuses a namespace that is not shown
    check = site.checks.get(ask.namespace)
    if check is None or not check.is_running:
        stores = stores_in(site.tables, ask.namespace, may_have_files_only=True).current
        site.checks[ask.namespace] = Check(site.patient_tables, ask.namespace, stores).start()


def cancel(site: Site, ask: Ask) -> None:
    """Cancel the check that `verify` began."""
    check = site.checks.get(ask.namespace)
    if check is not None:
        check.cancel()


def _throttles(look: Look) -> Chart | None:
    """The throttled requests of each reported batch. Returns None if there were none."""
    counts = [each.metrics.get("dynastateThrottles", 0) for each in look.batches]
    if not any(counts):
        return None
    return Chart(
        "throttles",
        f"Throttled requests of the last {plural(len(counts), 'reported batch')}",
        noun="time",
        places=[each.at.timestamp() * 1000 for each in look.batches],
        series=[Series("throttled", "requests a batch", counts, colour="warn")],
        labels=[f"{each.number:,}" for each in look.batches],
        label_noun="batch",
    )
