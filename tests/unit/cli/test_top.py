"""The command `top`: operators look by look, sorted, in 80 columns, and its keys."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from dynastate.cli import top
from dynastate.cli.keys import pressed
from dynastate.engine.engine import Engine
from dynastate.format.checkpoint import Checkpoint
from dynastate.format.items import StorageSize
from dynastate.format.keys import VersionId
from dynastate.operations.cost.log import LogUsage
from dynastate.operations.monitoring.choices import Order
from dynastate.operations.monitoring.monitor import Monitor, StoreActivity, in_order
from tests.support.command_line import of_schema, refused, reported, run
from tests.support.samples import attempt
from tests.support.store_builder import StoreBuilder, counted, user

JOINED = ("left-keyToNumValues", "right-keyToNumValues")


def test_top(engine: Engine, tmp_path: Path) -> None:
    first, second = (StoreBuilder(engine, f"busy/0/{partition}/default") for partition in range(2))
    first.count_to(2)
    second.commit((user("b"), counted(1)))
    result = run("top", "busy", "--looks", "2", "--interval", "0.1", "--json")
    assert result.code == 0, result.err
    looks = [of_schema(("top",), json.loads(line)) for line in result.lines]
    assert [each["look"] for each in looks] == [1, 2]
    idle = dict.fromkeys(("versions_s", "write_units_s", "changes_s", "dollars_a_day"), 0)
    assert looks[0] | {"look": 2} | idle == looks[1]
    assert (looks[0]["stores"], looks[0]["partitions"], looks[0]["version"]) == ("busy/0/*/default", 2, 1)
    assert (looks[0]["lag"], looks[0]["rows"], looks[0]["versions_s"]) == (1, 2, None)
    assert "no store of this namespace" in refused("top", "missing", "--looks", "1")
    missing = str(tmp_path / "missing")
    assert "cannot be read" in refused("top", "busy", "--looks", "1", "--progress", missing)


@pytest.mark.parametrize("columns", ["20", "40", "60"])
def test_top_in_a_narrow_terminal(engine: Engine, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that only reports have need not be there to be left out."""
    StoreBuilder(engine, "slim/0/0/default").count_to(1)
    monkeypatch.setenv("COLUMNS", columns)
    result = run("top", "slim", "--looks", "1")
    assert (result.code, result.err) == (0, "")
    assert "slim/0/*/default" in result.out


def test_top_distinguishes_operators(engine: Engine, tmp_path: Path) -> None:
    """Commit times and throttles are those of the row's own operator, and of this query; a join's are shown once."""
    for partition in range(2):
        for place in (f"two/0/{partition}/default", *(f"two/1/{partition}/{name}" for name in JOINED)):
            StoreBuilder(engine, place, run="its-run").count_to(1)
    words = ("top", "two", "--looks", "1")
    lines_before = [json.loads(line) for line in run(*words, "--json").lines]
    file = tmp_path / "progress.json"
    progress = json.loads(Path(reported(tmp_path, 1)).read_text())
    (operator,) = progress["stateOperators"]
    durations = {"addBatch": 1_000, "triggerExecution": 1_500}

    def of(run: str, *figures: tuple[int, int]) -> str:
        """A report of operators, of milliseconds in commits and requests throttled."""
        operators = [
            {"customMetrics": operator["customMetrics"] | {"dynastateCommitMs": ms, "dynastateThrottles": throttles}}
            for ms, throttles in figures
        ]
        return json.dumps(progress | {"runId": run, "stateOperators": operators, "durationMs": durations}) + "\n"

    file.write_text(of("its-run", (1, 1), (1, 1)) + of("its-run", (25, 0), (3_000, 7)) + of("another", (5, 5), (5, 5)))
    result = run(*words, "--progress", str(file), "--json")
    assert result.code == 0, result.err
    looked = [of_schema(("top",), json.loads(line)) for line in result.lines]
    names = ["two/0/*/default", *(f"two/1/*/{name}" for name in JOINED)]
    figures = [(12.5, 0), (750.0, 7), (None, None)]
    assert [each["batch_ms"] for each in looked] == [1_500, 1_500, None]
    assert [(each["stores"], each["commit_ms"], each["throttles"]) for each in looked] == [
        (name, *figure) for name, figure in zip(names, figures, strict=True)
    ]
    assert [each | {"commit_ms": None, "throttles": None, "batch_ms": None} for each in looked] == lines_before
    table = run(*words, "--progress", str(file))
    assert table.lines[2].endswith("  throttles")
    rows = [(line.split()[-3], line.split()[-1]) for line in table.lines[3:] if not line.startswith("two/")]
    assert rows == [("12.5", "0"), ("750.0", "7"), ("-", "-")]
    file.write_text(of("another", (5, 5)))
    assert run(*words, "--progress", str(file)).lines[2].endswith("  throttles")


def test_a_query_that_was_taken_back(engine: Engine) -> None:
    """What it makes again counts, though its versions are lower than those of the look before."""
    store = "back/0/0/default"
    builder = StoreBuilder(engine, store).count_to(9)
    seconds = iter(range(0, 100, 10))
    monitor = Monitor(engine, [store], lambda: next(seconds))
    monitor.look()
    second_builder = StoreBuilder(engine, store, run="run-2")
    second_builder.version, second_builder.state = VersionId(3, attempt(3)), builder.state
    for number in (4, 5):
        second_builder.commit((user("a"), counted(number)), by=attempt(40 + number))
    (figures,) = monitor.look()
    assert (figures.version, figures.versions_s, figures.changes_s) == (5, 0.2, 0.2)
    second_builder.commit((user("a"), counted(6)), by=attempt(46))
    (figures,) = monitor.look()
    assert (figures.version, figures.versions_s) == (6, 0.1)


def activity(operator: int, **figures: float | None) -> StoreActivity:
    rates: dict[str, float | None] = dict.fromkeys(("versions_s", "write_units_s", "changes_s"))
    counts = {"partitions": 1, "version": 1, "lag": 0, "rows": 0}
    return StoreActivity(f"o/{operator}/*/default", **(rates | counts | figures))  # type: ignore[arg-type]


def test_order() -> None:
    activities = [activity(10, lag=1, commit_ms=3.0), activity(9, lag=7), activity(2, lag=7, commit_ms=9.0)]
    assert [each.operator for each in in_order(activities, Order.NAME)] == [2, 9, 10]
    assert [each.operator for each in in_order(activities, Order.LAG)] == [9, 2, 10]
    assert [each.operator for each in in_order(activities, Order.COMMIT)] == [2, 10, 9]
    for order in Order:
        assert len(in_order(activities, order)) == 3


def test_sort(engine: Engine) -> None:
    for operator, versions in enumerate((1, 5, 3)):
        StoreBuilder(engine, f"sorted/{operator}/0/default").count_to(versions)

    def operators(*words: str) -> list[int]:
        result = run("top", "sorted", "--looks", "1", "--json", *words)
        return [int(json.loads(line)["stores"].split("/")[1]) for line in result.lines]

    assert operators() == [0, 1, 2]
    assert operators("--sort", "version") == [1, 2, 0]
    assert run("top", "sorted", "--looks", "1", "--sort", "version").lines[0].endswith(", by version")
    assert "Invalid value for '--sort'" in refused("top", "sorted", "--sort", "size")


def test_figures_of_a_running_query(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch time is from version to version; dollars are those of the units since the look before."""
    now_ms = [1_700_000_000_000]
    monkeypatch.setattr(engine.commits, "now_ms", lambda: now_ms[0])
    builder = StoreBuilder(engine, "run/0/0/default")
    for number in range(4):
        builder.commit((user("a"), counted(number)))
        now_ms[0] += 2_500
    monitor = Monitor(engine, [builder.store], iter([100.0, 110.0]).__next__)
    (first,) = monitor.look()
    builder.commit((user("a"), counted(9)))
    (second,) = monitor.look()
    assert (first.batch_s, first.dollars_a_day) == (2.5, None)
    assert (second.versions_s, second.write_units_s, second.changes_s) == (0.1, 0.2, 0.1)
    # A unit of the version list, and 3.6 of the part: 0.46 a second, at $0.625 a million.
    assert second.dollars_a_day == pytest.approx(0.46 * 86_400 * 0.625e-6, abs=1e-6)


def test_the_log_is_with_the_first_operator(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files of each version are written and later deleted."""
    names = [f"logs/{operator}/{partition}/default" for operator in range(2) for partition in range(3)]
    builders = [StoreBuilder(engine, name).count_to(1) for name in names]
    usages = []
    for log in (None, LogUsage("logs/query", StorageSize(), batches=10, files=30, write_units=40)):
        monitor = Monitor(engine, names, iter([0.0, 100.0]).__next__)
        monitor.log = log
        monitor.look()
        for builder in builders:
            for _ in range(5):
                builder.commit((user("a"), counted(builder.version.version)))
        usages.append(monitor.look())
    (first_without, second_without), (first, second) = usages
    assert second == replace(second_without, version=second.version, committed_ms=second.committed_ms)
    assert (first.write_units_s, first_without.write_units_s) == (0.5, 0.3)
    assert first.dollars_a_day is not None
    assert first_without.dollars_a_day is not None
    dollars = first.dollars_a_day - first_without.dollars_a_day
    assert dollars == pytest.approx(2 * 5 * 4 / 100 * 86_400 * 0.625e-6, abs=1e-6)

    logs: list[LogUsage | None] = []

    def look(monitor: Monitor) -> list[StoreActivity]:
        logs.append(monitor.log)
        return []

    monkeypatch.setattr(Monitor, "look", look)
    for batch in range(2):
        for file in ("offsets", "commits"):
            engine.checkpoint_files().put(Checkpoint("logs", "query"), f"{file}/{batch}", b"v1", overwrites=False)
    assert run("top", "logs", "--looks", "1").code == 0
    assert [log and (log.checkpoint, log.units_a_batch) for log in logs] == [("logs/query", 2)]


def test_figures_are_of_a_version_that_one_run_made_in_all_partitions(engine: Engine) -> None:
    """A query that was taken back has made its first version again in one partition only."""
    builders = [StoreBuilder(engine, f"backwards/0/{partition}/default") for partition in range(2)]
    for each in builders:
        each.count_to(7)
    builders[0].version, builders[0].run = VersionId(4, attempt(4)), "run-2"
    builders[0].commit((user("new"), counted(1)), by=attempt(105))
    (activity,) = Monitor(engine, [each.store for each in builders], lambda: 0.0).look()
    assert (activity.version, activity.lag, activity.rows) == (4, 3, 2)


def test_80_columns(engine: Engine, tmp_path: Path) -> None:
    """With large figures and reports everything is in one table, without a broken word."""
    store = StoreBuilder(engine, "0c64c9d2a24f3d2d7f3e6f0b8a119f2c/0/0/left-keyWithIndexToValue", run="r")
    store.commit(*((user(f"u{number}"), counted(number)) for number in range(2_000)))
    store.commit(*((user(f"u{number}"), counted(number)) for number in range(2_000)))
    words = ("top", store.store.split("/")[0], "--looks", "2", "--interval", "0.1", "--progress", reported(tmp_path, 1))
    result = run(*words)
    assert result.code == 0
    assert max(map(len, result.lines)) <= 80
    # Of each look: totals, two lines of headers, the name, the figures.
    assert len(result.lines) == 2 * 5
    for word in ("lag", "rows", "batch", "units/s", "day", "throttles"):
        assert re.search(rf"\b{word}\b", result.out), word


def test_a_terminal_is_drawn_over(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look takes the place of the one before, in one write; s sorts by the next column, q ends it."""
    StoreBuilder(engine, "drawn/0/0/default").count_to(2)
    keys = iter("sxq")
    monkeypatch.setattr(top, "pressed", lambda: nullcontext(lambda _: next(keys)))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR")
    result = run("top", "drawn")
    assert result.code == 0
    first, second = result.out.split("\x1b[H")[1:]
    assert first.endswith("\x1b[J")
    assert second.endswith("\x1b[J")
    assert (", by name" in first, ", by version" in second) == (True, True)


def test_keys_of_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key ends the wait without Enter; the terminal is afterwards as it was."""
    ours, terminal = pty.openpty()
    try:
        with open(terminal, closefd=False) as stdin:  # a terminal
            monkeypatch.setattr(sys, "stdin", stdin)
            with pressed() as wait:
                assert wait(0.01) == ""
                typed = threading.Timer(0.05, os.write, (ours, b"q"))
                typed.start()
                assert wait(30) == "q"
                typed.join()
    finally:
        os.close(ours)
        os.close(terminal)


def test_without_a_terminal_it_only_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a pipe, or without standard input."""
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with pressed() as wait:
            assert wait(0.01) == ""
