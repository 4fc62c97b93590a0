"""Diagnosis of an engine, by all checks (docs/engines.md)."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Final, Literal

from dynastate.dynamodb.probe import Probe, RefusedError
from dynastate.errors import UnavailableError
from dynastate.operations.doctor.checks import CHECKS, KB, Check, WrongError, append, write_all
from dynastate.operations.doctor.tables import TABLES
from dynastate.progress import ProgressCallback, no_progress
from dynastate.runtime import Limits

# isort: split
from dynastate.operations.doctor import concurrency, items, requests  # noqa: F401  # they add their checks

Verdict = Literal["pass", "fail", "warning"]
#: Properties that no request shows.
UNCHECKED: Final = (
    "durability: that a write survives the loss of a machine",
    "throttling: that a table beyond its limit answers with an error that says so, and returns unprocessed items",
    "backups, encryption at rest and deletion protection: 'terraform plan' of infra/ shows them",
)


@dataclass(frozen=True)
class Checked:
    """The outcome of one check. `seen` describes the defect if the check did not pass."""

    name: str
    verdict: Verdict
    reason: str
    seen: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All outcomes, and figures of speed: milliseconds of requests, and written KB per second."""

    checks: tuple[Checked, ...]
    figures: dict[str, float]
    unchecked: tuple[str, ...]

    @property
    def is_trustworthy(self) -> bool:
        return all(each.verdict != "fail" for each in self.checks)


def diagnose(probe: Probe, progress: ProgressCallback = no_progress) -> Diagnosis:
    """Run all checks, and delete their items. Raises UnavailableError if the engine does not answer."""
    outcomes: list[Checked] = []
    try:
        for number, check in enumerate(CHECKS):
            progress(number, len(CHECKS))
            defect = _outcome(check, probe)
            verdict: Verdict = "pass" if defect is None else "warning" if check.is_warning else "fail"
            outcomes.append(Checked(check.name, verdict, check.reason, defect or ""))
            if defect is not None and check.name == TABLES:
                return Diagnosis(tuple(outcomes), {}, UNCHECKED)
        progress(len(CHECKS), len(CHECKS))
        is_sound = all(each.verdict != "fail" for each in outcomes)
        figures = _figures(probe) if is_sound else {}
    finally:
        _clean(probe)
    return Diagnosis(tuple(outcomes), figures, UNCHECKED)


def _outcome(check: Check, probe: Probe) -> str | None:
    """The defect that a check found, as text. Returns None if the check passed."""
    try:
        check.run(probe)
    except (WrongError, RefusedError) as error:
        return str(error)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        return f"an answer has another form than DynamoDB's: {error!r}"
    return None


def _clean(probe: Probe) -> None:
    try:
        probe.clean()
    except RefusedError as error:
        raise UnavailableError(
            "items of the checks could not be deleted; delete those of this namespace with 'dynastate drop'",
            namespace=probe.namespace,
            reason=str(error),
        ) from error


def _figures(probe: Probe) -> dict[str, float]:
    """The time of requests as a query sends them, and the rate of large writes."""
    reads = probe.timed_ms(lambda _: probe.get("delta", "read"), 50)
    commits = probe.timed_ms(lambda number: append(probe, f"speed {number // 10}", b"x" * 100), 50)
    raw = {"data": {"B": b"x" * 10_000}}
    batches = [
        [probe.key("delta", f"{batch:02d}{number:02d}", "speed") | raw for number in range(Limits.writes_max)]
        for batch in range(16)
    ]
    (write_ms,) = probe.timed_ms(lambda _: probe.at_once(lambda number: write_all(probe, batches[number]), 16), 1)
    return {
        "get_p50_ms": statistics.median(reads),
        "get_p99_ms": reads[-1],
        "commit_p50_ms": statistics.median(commits),
        "commit_p99_ms": commits[-1],
        "written_kb_s": len(batches) * Limits.writes_max * 10_000 / KB / (write_ms / 1_000),
    }
