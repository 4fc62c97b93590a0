"""Findings of `verify`, and its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dynastate.counts import plural
from dynastate.format.graph import ranges
from dynastate.format.keys import Attempt, Key, Role, SnapshotId, VersionId, where
from dynastate.storage.meter import Meter

What = Literal["missing", "corrupt", "orphaned"]
#: A version or a snapshot that names items.
Namer = VersionId | SnapshotId


@dataclass(frozen=True)
class Finding:
    """A defect of an item. `named_by` are versions and snapshots that cannot be read without the item.

    An item that nothing names is orphaned. The finding counts the `items` of one maker, in `named_by` if known.
    """

    what: What
    key: Key
    why: str
    named_by: frozenset[Namer] = frozenset()
    items: int = 1


@dataclass(frozen=True)
class Checked:
    """A version by one attempt. `is_dead`: it is abandoned, and clean-up has deleted items that it depends on."""

    version: int
    attempt: Attempt
    epoch: int
    is_readable: bool
    is_dead: bool


@dataclass(frozen=True)
class Report:
    """The result for a store: `items` of `stored_bytes` were read. `more` findings are not in `findings`.

    `other_locations`: the locations of other tables that have objects of this store.
    """

    store: str
    versions: tuple[Checked, ...]
    snapshots: int
    items: int
    stored_bytes: int
    findings: tuple[Finding, ...]
    more: int
    meter: Meter
    other_locations: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing or corrupt. Orphans do no harm: the items of attempts under way look the same."""
        return not self.more and all(finding.what == "orphaned" for finding in self.findings)

    @property
    def readable(self) -> set[int]:
        return {each.version for each in self.versions if each.is_readable}

    def to_json(self, names: Mapping[Role, str]) -> dict[str, object]:
        """The report as a JSON object, with these names of the tables."""
        return {
            "store": self.store,
            "whole": self.is_whole,
            "versions": [
                {
                    "version": each.version,
                    "attempt": each.attempt.hex(),
                    "epoch": each.epoch,
                    "readable": each.is_readable,
                    "dead": each.is_dead,
                }
                for each in self.versions
            ],
            "snapshots": self.snapshots,
            "items": self.items,
            "stored_bytes": self.stored_bytes,
            "requests": self.meter.requests,
            "read_units": self.meter.read_units,
            "findings": findings_json(self.findings, names),
            "more": self.more,
            "other_locations": list(self.other_locations),
        }

    def lines(self, names: Mapping[Role, str]) -> list[str]:
        """The report as lines of text, with these names of the tables."""
        unreadable = [each for each in self.versions if not each.is_readable and not each.is_dead]
        abandoned = plural(sum(each.is_dead for each in self.versions), "abandoned attempt")
        return [
            *findings_lines(self.findings, names),
            *([f"and {plural(self.more, 'more finding')}"] if self.more else []),
            *(f"cannot be read: version={each.version} attempt={each.attempt.hex()}" for each in unreadable),
            f"store {self.store}",
            f"versions {ranges(sorted(self.readable)) or 'none'} can be read; {abandoned}",
            *summary([self]),
        ]


def findings_json(findings: Sequence[Finding], names: Mapping[Role, str]) -> list[dict[str, object]]:
    """Findings as JSON objects, with these names of the tables."""
    return [
        {"what": each.what} | where(each.key) | {"table": names[each.key.role], "items": each.items, "why": each.why}
        for each in findings
    ]


def findings_lines(findings: Sequence[Finding], names: Mapping[Role, str]) -> list[str]:
    """Findings as lines of text, with these names of the tables."""
    return [
        f"{each.what:8} {plural(each.items, 'item')}: {each.why} "
        f"table={names[each.key.role]} store_shard={each.key.store_shard} item={each.key.sort}"
        for each in findings
    ]


def counted_items(findings: Sequence[Finding]) -> str:
    """The number of items of each kind of finding."""
    counts = Counter(dict.fromkeys(("missing", "corrupt", "orphaned"), 0))
    for finding in findings:
        counts[finding.what] += finding.items
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())


def summary(reports: Sequence[Report]) -> list[str]:
    """The figures of all reports together, as lines of text; the last line is the result."""
    meter = Meter()
    for report in reports:
        meter.add(report.meter)
    findings = [finding for report in reports for finding in report.findings]
    versions = ranges(sorted(set.intersection(*(each.readable for each in reports)))) if reports else ""
    broken = sum(not each.is_whole for each in reports)
    result = f"{broken:,} of them not whole" if broken and len(reports) > 1 else "not whole" if broken else "whole"
    snapshots, items = sum(each.snapshots for each in reports), sum(each.items for each in reports)
    stored = sum(each.stored_bytes for each in reports)
    locations = sorted({location for each in reports for location in each.other_locations})
    return [
        *([f"versions {versions or 'none'} can be read in all of them"] if len(reports) > 1 else []),
        f"{plural(snapshots, 'snapshot')}; {plural(items, 'item')} read, {plural(stored, 'byte')} of data",
        f"{plural(meter.requests, 'request')}, {plural(meter.read_units, 'read unit')}",
        *(f"objects of other tables are needed: {location}" for location in locations),
        f"{result}: {counted_items(findings)}",
    ]
