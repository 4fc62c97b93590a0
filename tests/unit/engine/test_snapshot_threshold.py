"""When a snapshot is worth it."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import pytest

from dynastate.engine import snapshot_threshold
from dynastate.engine.snapshot_threshold import is_worth_it
from dynastate.format.version_list import VersionEntry
from dynastate.storage.tables import Tables
from tests.support.contents import graph
from tests.support.engine_driver import Engines, save_snapshot, take_snapshot, write_versions
from tests.support.samples import attempt, numbers

pytestmark = pytest.mark.usefixtures("always_worth_it")

#: What `always_worth_it` replaces.
THRESHOLD_OF = snapshot_threshold.threshold_of


@pytest.mark.parametrize(
    ("parts", "stored", "versions", "worth"),
    [
        (1, 10, 9, False),
        (1, 10, 10, True),
        (1, 6, 10, False),
        (0, 0, 500, False),
        (0, 0, 10_000, True),
        (1000, 1, 10, False),
    ],
)
def test_is_worth_it(monkeypatch: pytest.MonkeyPatch, parts: int, stored: int, versions: int, *, worth: bool) -> None:
    """It depends on the bytes and the number of the deltas, on the minimum and on the threshold that are set."""
    monkeypatch.setattr(snapshot_threshold, "threshold_of", THRESHOLD_OF)
    entry = VersionEntry(1, attempt(1), attempt(0), 1, bytes(8), parts, parts, 2 * stored, stored, bytes(8), {})
    store = "orders/0/0/default"
    for factor in (1, 4):
        assert is_worth_it(store, [entry] * versions, 100 // factor, 10, factor * 0.75) is worth
    # The first is never larger than what was written so far, as with rows that never change.
    assert is_worth_it(store, [entry] * versions, None, 10, 0.75) is (worth or (parts > 0 and versions >= 10))


@pytest.mark.parametrize("threshold", ["0.5", "2"])
def test_the_threshold_is_a_setting(
    engines: Engines, tables: Tables, store: str, threshold: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes are written up to that multiple of the last snapshot before the next one."""
    monkeypatch.setattr(snapshot_threshold, "threshold_of", THRESHOLD_OF)
    engine = engines(snapshot_threshold=Decimal(threshold))
    versions = write_versions(engine, store, 20)
    save_snapshot(engine, store, versions[20], numbers(20))
    last = graph(tables, store).snapshots()[0].stored_bytes
    while (under_way := take_snapshot(engine, store, versions[-1], numbers(versions[-1].version))) is None:
        versions += write_versions(engine, store, 1, versions[-1])[1:]
    under_way.abort()
    sizes = [each.stored_bytes for each in graph(tables, store).entries()][20:]
    limit = float(threshold) * last
    assert 0.95 * limit <= sum(sizes)
    assert sum(sizes[:-1]) <= 1.05 * limit


def test_stores_that_grow_alike_make_snapshots_at_different_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name a store needs a little more or less than others; on average it is the threshold that is set."""
    monkeypatch.setattr(snapshot_threshold, "threshold_of", THRESHOLD_OF)
    entry = VersionEntry(1, attempt(1), attempt(0), 1, bytes(8), 1, 1, 1, 1, bytes(8), {})
    names = [f"orders/0/{partition}/default" for partition in range(200)]
    needed = [next(n for n in range(1, 2000) if is_worth_it(name, [entry] * n, 1000, 1, 0.85)) for name in names]
    assert max(Counter(needed).values()) <= 10
    assert sum(needed) / len(needed) == pytest.approx(850, rel=0.02)
    assert min(needed) >= 0.95 * 850
    assert max(needed) <= 1.05 * 850 + 1
