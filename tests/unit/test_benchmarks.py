"""The targets of the benchmarks on given figures: each can be met and missed, and is listed in the README."""

from __future__ import annotations

import copy
import importlib
import json
import math
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.support.jvm import ROOT

FOLDER = ROOT / "benchmarks"
READ_UNITS = {"uniform_dynastateReadUnits": 15, "zipf_dynastateReadUnits": 15}
QUERIES = ("aggregation", "sessions", "join", "transform-in-scala", "transform-in-python")
BEYOND_MEMORY = {
    "memory_mb": 28,
    "uniform_batch_ms": 250,
    "zipf_batch_ms": 120,
    "uniform_heap_mb": 30,
    "zipf_heap_mb": 31,
    **READ_UNITS,
}
ROCKSDB_BATCHES = {"uniform_batch_ms": 378, "zipf_batch_ms": 300}
AT_A_DISTANCE: dict[str, dict[str, Any]] = {
    "ours": {
        "batch_ms": 3_100,
        "batch_p99_ms": 3_600,
        "batches": 102,
        "world_cores": 0.04,
        "in_sequence": {"50": 2, "99": 3},
    },
    "rocksdb-changelog": {"batch_ms": 5_100, "batch_p99_ms": 6_900, "batches": 102, "world_cores": 0.04},
    "empty": {"batch_ms": 2_950, "batch_p99_ms": 3_300, "batches": 102, "world_cores": 0.03},
}
#: What each benchmark of `make bench` and `make bench-network` gives its `targets` where all are met: figures of the
#: README's kind.
MET: dict[str, tuple[Any, ...]] = {
    "provider": (
        {
            "ours": {
                "rows": 1_000_000,
                "open_ms": 4.6,
                "sidecar_rss_max_mb": 120,
                "batch_ms": 51,
                "get_ns": 330,
                "put_ns": 92,
                "state_heap_mb": 150,
            },
            "ours (10,000 rows)": {"open_ms": 3.6},
            "hdfs": {"batch_ms": 448, "get_ns": 828, "put_ns": 2_037, "state_heap_mb": 343},
            "rocksdb-changelog": {"batch_ms": 436},
        },
    ),
    "scans": (
        {
            "iterate_ns": 80,
            "prefix_ns": 304,
            "range_ns": 301,
            "timers_ns": 15_000,
            "timers_by_ranges_ns": 13_000,
            "append_short_ns": 230,
            "append_long_ns": 293,
            "append_short_bytes": 816,
            "append_long_bytes": 986,
        },
        {"iterate_ns": 104, "prefix_ns": 700, "range_ns": 490},
        {
            "iterate_ns": 335,
            "prefix_ns": 778,
            "range_ns": 762,
            "timers_ns": 59_000,
            "timers_by_ranges_ns": 75_000,
            "append_short_ns": 556_793,
        },
    ),
    "query": (
        {
            2: {
                "ours": {"trigger_ms": 300},
                "ours-no-files": {"trigger_ms": 310},
                "hdfs": {"trigger_ms": 900},
                "rocksdb-changelog": {"trigger_ms": 769},
            },
            200: {
                "ours": {"trigger_ms": 1_600, "partition_commit_ms": 2.4},
                "hdfs": {"trigger_ms": 5_900},
                "rocksdb-changelog": {"trigger_ms": 8_800},
            },
        },
    ),
    "recovery": (
        {
            "ours": {1_000_000: {"first_get_ms": 18, "every_row_ms": 600}, 100_000: {"first_get_ms": 19.6}},
            "hdfs": {1_000_000: {"every_row_ms": 820}},
            "ours-on-demand": {1_000_000: {"first_get_ms": 23}, 100_000: {"first_get_ms": 20}},
            "rocksdb": {1_000_000: {"first_get_ms": 190}},
            "rocksdb-changelog": {1_000_000: {"first_get_ms": 197}},
        },
    ),
    "deltas": (
        {
            "ours": {"first_get_ms": 95, "later_p95_ms": 0.0046},
            "ours-on-demand": {"first_get_ms": 114, "later_p95_ms": 14.8},
        },
    ),
    "beyond_memory": (
        {
            "1,000,000": {
                "ours": BEYOND_MEMORY | {"first_batch_ms": 1_200, "snapshot_first_batch_ms": 800, "first_row_ms": 100},
                "rocksdb-changelog": ROCKSDB_BATCHES | {"first_batch_ms": 1_900, "snapshot_first_batch_ms": 900},
                "ours-all-fits": {"uniform_batch_ms": 70},
                "ours-unbounded": {"uniform_batch_ms": 68, **READ_UNITS},
            },
            "5,000,000": {
                "ours": BEYOND_MEMORY | {"memory_mb": 143, "first_batch_ms": 3_000, "snapshot_first_batch_ms": 1_400},
                "rocksdb-changelog": ROCKSDB_BATCHES | {"first_batch_ms": 2_900, "snapshot_first_batch_ms": 1_500},
                "ours-all-fits": {"uniform_batch_ms": 140},
                "ours-unbounded": {"uniform_batch_ms": 137, **READ_UNITS},
            },
            "20,000,000": {"ours": BEYOND_MEMORY | {"uniform_batch_ms": 300, "pauses_p99_ms": 90, "first_row_ms": 400}},
        },
    ),
    "serving": (
        {
            "after_a_look": {"requests": 2, "ms": 20},
            "looks": {"idle": {"requests": 1, "units": 0.5, "ms": 8}},
            "rates": {"a thread": 20_000, "after a batch that changed nothing in their partitions": 18_000},
        },
    ),
    "queries_beyond_memory": (
        {
            query: {
                "ours": {"batch_ms": 900, "first_batch_ms": 4_000},
                "rocksdb": {"batch_ms": 1_500, "first_batch_ms": 5_000},
                "rocksdb-changelog": {"batch_ms": 1_000, "first_batch_ms": 4_500},
            }
            for query in QUERIES
        },
    ),
    "transfer": ({step: {"seconds": 15.0, "rows": 5_000_000} for step in ("repartition", "export", "import")},),
    "page": ({"first_ms": 740, "later_max_ms": 30, "peak_mb": 180},),
    "growth": (
        {
            "stored": {"maintained": {"items": 168, "bytes": 8_885_538}, "fresh": {"items": 66, "bytes": 4_648_302}},
            "maintained_dynastateWriteUnits": 46_995,
            "maintained_dynastateMaintenanceWriteUnits": 50_113,
            "changed_kb": 45_377,
        },
        {"maintained": {"every_row_ms": 906}, "fresh": {"every_row_ms": 454}},
        {
            "maintained_dynastateWriteUnits": 120_000,
            "maintained_dynastateMaintenanceWriteUnits": 126_000,
            "per_key_units": 2_000_000,
        },
    ),
    "background": (
        {"alone_commit_p95_ms": 13.6, "beside_commit_p95_ms": 24.3, "beside_batch_max_ms": 125, "snapshot_ms": 15_000},
    ),
    "lookup": (
        {
            "first": {"requests_with_opening": 6, "mb_with_opening": 0.53, "p50_ms": 44},
            "others": {"requests_most": 2, "mb_most": 0.73, "p50_ms": 7.3},
        },
    ),
    "objects": (
        {
            "in DynamoDB": {"batch_ms": 90, "every_row_ms": 1_100},
            "objects in S3": {"batch_ms": 60, "every_row_ms": 500},
            "objects in S3, 40 ms a PUT": {"batch_ms": 90, "every_row_ms": 500},
        },
    ),
    "distance": (
        {
            **dict.fromkeys(("aggregation-64", "join-64"), AT_A_DISTANCE),
            "checkpoint-64": {
                "ours": {"batch_ms": 2_000, "restart_ms": 9_000},
                "rocksdb-changelog": {"batch_ms": 3_300},
                "ours-no-files": {"batch_ms": 900, "restart_ms": 2_700},
            },
            "price": {"ours": AT_A_DISTANCE["ours"] | {"microdollars": 400, "predicted_microdollars": 380}},
            **{
                f"restart-{name}": {"ours": {"batch_ms": 4_000}, "rocksdb-changelog": {"batch_ms": 9_000}}
                for name in ("after-snapshot", "mid-interval", "25-stores")
            },
        },
    ),
    "distance_stores": ({"200": {"ours": {"batch_ms": 600}, "rocksdb-changelog": {"batch_ms": 4_000}}},),
    "commands": (
        {
            "typer_s": 0.06,
            "client_s": 0.24,
            "commands_s": {
                "--version": 0.05,
                **dict.fromkeys(("jar", "config", "get --help"), 0.1),
                **dict.fromkeys(("tables check", "stores commands", "show commands/0/0/default"), 0.38),
                "versions commands/0/0/default": 0.35,
                'get commands/0/0/default {"user":"user-000000001","item":1}': 0.41,
            },
            "completed_s": {
                **dict.fromkeys(("bash: name of a command", "bash: option"), 0.15),
                **dict.fromkeys(("zsh: name of a command", "fish: option"), 0.2),
            },
            "completed_store_s": 0.4,
        },
    ),
    "request_path": (
        {
            "commit": {"boto3": (2.9, 3.4), "direct": (0.79, 0.9)},
            "PutObject, 24 KB": {"boto3": (1.5, 5), "direct": (0.13, 4)},
            "GetObject, 24 KB": {"boto3": (1.7, 5), "direct": (0.11, 4)},
        },
    ),
    "scale": (
        {
            "400 stores of 20 rows, 8 threads": {
                "default": {"batch_ms": 400, "sidecar_ms": 0.9},
                "2": {"batch_ms": 395, "sidecar_ms": 0.95, "busiest_ms": 0.5},
            }
        },
    ),
}


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    monkeypatch.syspath_prepend(FOLDER)
    return {name: importlib.import_module(name) for name in MET}


def changed(figures: Any) -> Iterator[Any]:
    """The same figures, each time with one of them a million times larger or smaller."""
    if isinstance(figures, (dict, list, tuple)):
        keys = figures if isinstance(figures, dict) else range(len(figures))
        for key in keys:
            for other in changed(figures[key]):
                figures_copy = list(figures) if isinstance(figures, tuple) else copy.copy(figures)
                figures_copy[key] = other
                yield figures_copy
    else:
        yield (figures or 1) * 1e6
        yield figures / 1e6


def test_every_benchmark_is_covered() -> None:
    makefile = (ROOT / "Makefile").read_text()
    names = re.findall(r"for each in ([\w ]+); do \$\(PYTHON\) benchmarks/", makefile)
    assert set(" ".join(names).split()) == set(MET)


@pytest.mark.parametrize("name", MET)
def test_each_target_can_be_met_and_missed(name: str, benchmarks: dict[str, ModuleType]) -> None:
    """All are met by figures like those of the README, and each is missed when some figure is far worse."""
    targets = benchmarks[name].targets
    judged = targets(*MET[name])
    assert judged
    assert {target.text for target in judged if not target.met} == set()
    missed = set()
    for figures in changed(MET[name]):
        others = targets(*figures)
        assert [target.limit for target in others] == [target.limit for target in judged]
        missed |= {number for number, target in enumerate(others) if not target.met}
    assert missed == set(range(len(judged)))


def test_a_figure_that_is_none_meets_no_target(benchmarks: dict[str, ModuleType]) -> None:
    """Without a sidecar its memory is unknown; in JSON that is null."""
    figures = copy.deepcopy(MET["provider"])
    figures[0]["ours"]["sidecar_rss_max_mb"] = 0
    (sidecar,) = [target for target in benchmarks["provider"].targets(*figures) if not target.met]
    assert math.isnan(sidecar.measured)
    assert json.loads(json.dumps(sidecar.as_json, allow_nan=False)) == {
        "figure": "sidecar's peak memory, MB",
        "measured": None,
        "at_most": 300,
        "verdict": "FAIL",
    }


def test_targets_of_the_readme_are_judged(benchmarks: dict[str, ModuleType]) -> None:
    """All of them, under the same name and with the same limit; and the README's own figures meet them."""
    judged = {each.text: f"{each.limit:g}" for name, its in benchmarks.items() for each in its.targets(*MET[name])}
    readme = (FOLDER / "README.md").read_text()
    (table,) = re.findall(r"\| target \| at most \|.*\n\|[-:|]+\|\n((?:\|.*\n)+)", readme)
    rows = [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in table.splitlines()]
    assert {text for text, _, _ in rows} == set(judged)
    for text, limit, measured in rows:
        assert judged.get(text) == limit, text
        assert measured.startswith("not yet") or float(measured) <= float(limit), text


def test_a_day_has_a_target_for_each_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are met where nothing grows; what grows in the second half misses its own, and its beginning is left out."""
    monkeypatch.syspath_prepend(FOLDER)
    day = importlib.import_module("day")
    keys = [*day.SAMPLED, *day.REPORTED]

    def run(grown: str = "", factor: float = 1.0) -> dict[str, Any]:
        rows = [dict.fromkeys(keys, 100.0) | {"s": at, "rows": 10.0} for at in range(101)]
        for row in rows[60:]:
            row.update({grown: 100 * factor} if grown else {})
        rows[3] |= dict.fromkeys(keys, 1000.0)
        return {"samples": rows, "batches": rows, "killed": 1, "seconds": 100.0}

    assert [target.measured for target in day.targets(run())] == [1.0] * len(keys)
    for number, key in enumerate(keys):
        missed = [at for at, target in enumerate(day.targets(run(key, factor=1.2))) if not target.met]
        assert missed == [number]


def test_targets_of_real_time_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """The median of the pairs is judged, of each rate; without RocksDB nothing is."""
    monkeypatch.syspath_prepend(FOLDER)
    realtime = importlib.import_module("realtime")

    def runs(p99_ms: list[float], pause_ms: float) -> list[dict[str, float]]:
        return [{"p99_ms": each, "pause_ms": pause_ms} for each in p99_ms]

    theirs, ours = runs([2.0, 2.0, 2.0], 300), runs([1.0, 9.0, 2.0], 150)
    judged = realtime.targets({rate: {"ours": ours, "rocksdb-changelog": theirs} for rate in (1_000, 20_000)})
    assert [(each.measured, each.met) for each in judged] == 2 * [(1.0, True), (0.5, True)]
    slower = realtime.targets({1_000: {"ours": runs([1.0, 9.0, 2.1], 301), "rocksdb-changelog": theirs}})
    assert [each.met for each in slower] == [False, False]
    assert realtime.targets({1_000: {"ours": ours}}) == []
    (distant,) = realtime.targets({}, {1_000: {"ours": ours, "rocksdb-changelog": theirs}})
    assert ("at a distance" in distant.text, distant.measured, distant.met) == (True, 0.5, True)


def test_a_long_checkpoint_has_a_target_for_each_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """All are met where nothing grows after the first run, and what grows misses its own."""
    monkeypatch.syspath_prepend(FOLDER)
    checkpoint = importlib.import_module("checkpoint")
    keys = ["log_items", "items", "units", "restart_ms", "orphans"]

    def runs(grown: str = "") -> list[dict[str, float]]:
        figures = [dict.fromkeys(keys, 100.0) | {"orphans": 0.0} for _ in range(9)]
        figures[0] = dict.fromkeys(keys, 1.0) | {"orphans": 0.0}
        for each in figures[5:]:
            each.update({grown: 200.0} if grown else {})
        return figures

    assert [target.met for target in checkpoint.targets(runs())] == [True] * len(keys)
    for number, key in enumerate(keys):
        missed = [at for at, target in enumerate(checkpoint.targets(runs(key))) if not target.met]
        assert missed == [number]
