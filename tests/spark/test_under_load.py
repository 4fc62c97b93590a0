"""A running query on a DynamoDB that is throttled, slow or unreachable for a while: it catches up and loses nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.process.test_under_load import ANSWER_S, CONNECT_S, MEMORY_MIB, MEMORY_MIB_STORE, Meeting
from tests.spark.conftest import Database
from tests.spark.programs.under_load import EVENTS
from tests.spark.streams import Record, Source, make_wide_rows
from tests.support.fault_proxy import FaultProxy, Forward, Reply, Request, Throttle
from tests.support.jvm import ROOT
from tests.support.processes import arguments, descendants, is_alive, kill, memory_mib, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STARTED_WITHIN_S = 240
ENDED_WITHIN_S = 180


class TaskFailure(NamedTuple):
    """When an attempt of a task began and failed, in seconds since the epoch, and why."""

    began: float
    failed: float
    why: str


class Load:
    """The program, fed with files, with its DynamoDB behind a fault proxy."""

    def __init__(self, folder: Path, files: list[list[Record]], proxy: FaultProxy, options: Mapping[str, Any]) -> None:
        self._folder = folder
        self._files = files
        self._source = Source(folder, files)
        self._released = 0
        self._log = folder / "driver.log"
        (folder / EVENTS).mkdir()
        self._options = [str(folder), proxy.endpoint, json.dumps(options)]

    @contextmanager
    def running(self, environment: Mapping[str, str]) -> Iterator[None]:
        words = [sys.executable, "-m", "tests.spark.programs.under_load", *self._options]
        variables = dict(environment) | {"PYSPARK_PYTHON": sys.executable}
        with self._log.open("wb") as log, subprocess.Popen(words, cwd=ROOT, env=variables, stderr=log) as self.process:
            try:
                yield
            finally:
                if self.process.poll() is None:
                    kill([*descendants(self.process.pid), self.process.pid])

    def release(self, files: int = 1) -> None:
        self._released += files
        self._source.release(self._released)

    def release_every_second(self, files: int) -> None:
        for _ in range(files):
            self.release()
            time.sleep(1)

    def wait_for_batch(self, batch: int) -> None:
        commit = self._folder / "checkpoint" / "commits" / str(batch)
        wait_until(
            lambda: commit.exists() or self.process.poll() is not None,
            f"no batch {batch}: {self.log()}",
            STARTED_WITHIN_S,
        )
        assert commit.exists(), self.log()

    def batches(self) -> int:
        return sum(each.name.isdigit() for each in (self._folder / "checkpoint" / "commits").iterdir())

    def sidecar(self) -> int:
        (sidecar_pid,) = [pid for pid in descendants(self.process.pid) if b"\0dynastate.sidecar\0" in arguments(pid)]
        return sidecar_pid

    def log(self) -> str:
        return self._log.read_text()

    def finish(self) -> dict[str, Any]:
        pids = descendants(self.process.pid)
        (self._folder / "stop").touch()
        assert self.process.wait(ENDED_WITHIN_S) == 0, self.log()
        wait_until(lambda: not any(map(is_alive, pids)), "a process outlived the program")
        answer: dict[str, Any] = json.loads((self._folder / "answer").read_text())
        assert answer["failed"] == "", answer["failed"]
        assert answer["rows"] == self._expected()
        return answer

    def _expected(self) -> dict[str, list[object]]:
        groups: dict[object, tuple[int, int, object]] = {}
        for row in (row for file in self._files[: self._released] for row in file):
            count, amount, _ = groups.get(row["key"], (0, 0, ""))
            groups[row["key"]] = (count + 1, amount + int(row["amount"] or 0), row["note"])
        return {str(key): list(values) for key, values in groups.items()}

    def failures(self) -> list[TaskFailure]:
        """Attempts of tasks that failed, from Spark's event log."""
        lines = [line for file in (self._folder / EVENTS).rglob("events_*") for line in file.read_text().splitlines()]
        ends = [event for event in map(json.loads, lines) if event["Event"] == "SparkListenerTaskEnd"]
        assert ends
        return [
            TaskFailure(
                end["Task Info"]["Launch Time"] / 1000,
                end["Task Info"]["Finish Time"] / 1000,
                json.dumps(end["Task End Reason"]),
            )
            for end in ends
            if end["Task End Reason"]["Reason"] == "ExceptionFailure"
        ]


@pytest.fixture
def proxy(database: Database) -> Iterator[FaultProxy]:
    with FaultProxy(database.endpoint) as fault_proxy:
        yield fault_proxy


def metric(progress: Mapping[str, Any], name: str) -> int:
    (operator,) = progress["stateOperators"]
    return int(operator["customMetrics"][name])


def test_a_tenth_of_the_demand(proxy: FaultProxy, folder: Path, environment: dict[str, str]) -> None:
    """A query that writes 1 MB a second gets a tenth of that for 25 s: batches wait, none fails, it catches up."""
    keys, full_s, slow_s, rest_s = 1000, 8, 25, 3
    files = [make_wide_rows(file, keys, 800) for file in range(1 + full_s + slow_s + rest_s)]
    options = {"master": "local[4]", "conf": {"spark.sql.shuffle.partitions": "4"}, "settings": {}}
    load = Load(folder, files, proxy, options)
    throttle = Throttle()
    proxy.rule = throttle
    with load.running(environment):
        load.release()
        load.wait_for_batch(0)
        units, batches = throttle.units, load.batches()
        load.release_every_second(full_s)
        demand = (throttle.units - units) / full_s
        pace = (load.batches() - batches) / full_s

        units, batches = throttle.units, load.batches()
        throttle.rate = demand / 10
        load.release_every_second(slow_s)
        slow_units = throttle.units - units
        slow_pace = (load.batches() - batches) / slow_s
        most_mib = memory_mib(load.sidecar())

        throttle.rate = None
        end_s = time.monotonic()
        load.release_every_second(rest_s)
        answer = load.finish()
        caught_up_s = time.monotonic() - end_s
    # A tenth, with one more item of 256 KB at most, and a few units of the other table.
    assert slow_units < 1.5 * slow_s * demand / 10 + 300, (slow_units, demand)
    assert slow_pace < pace / 2, (slow_pace, pace)
    assert most_mib < MEMORY_MIB + 4 * MEMORY_MIB_STORE, most_mib
    assert caught_up_s < 60, caught_up_s
    assert sum(metric(each, "dynastateThrottles") for each in answer["progress"]) > 5
    assert metric(answer["progress"][-1], "dynastateThrottles") == 0
    assert "DynamoDB throttles reasons=TableWriteProvisionedThroughputExceeded:arn:" in load.log()
    assert load.failures() == []


def test_two_hundred_stores_on_a_slow_dynamodb(proxy: FaultProxy, folder: Path, environment: dict[str, str]) -> None:
    """200 tasks open and commit at once, every request takes 300 ms: none waits for another's.

    In some batch more than half of them are at their commit point together, whenever a busy machine begins the others.
    """
    stores, batches = 200, 3
    conf = {"spark.sql.shuffle.partitions": str(stores), "spark.driver.memory": "2g"}
    options = {"master": f"local[{stores}]", "conf": conf, "settings": {"sidecars": 1}}
    load = Load(folder, [make_wide_rows(file, 2000, 100) for file in range(batches)], proxy, options)
    meetings = [Meeting(stores // 2 + 1) for _ in range(batches)]

    def slow(meeting: Meeting, request: Request, forward: Forward) -> Reply:
        time.sleep(0.3)
        return meeting(request, forward)

    with load.running(environment):
        for batch, meeting in enumerate(meetings):
            proxy.rule = partial(slow, meeting)
            load.release()
            load.wait_for_batch(batch)
        most_mib = memory_mib(load.sidecar())
        answer = load.finish()
    assert any(progress.all_there.is_set() for progress in meetings)
    assert most_mib < MEMORY_MIB + MEMORY_MIB_STORE * stores, most_mib
    for progress in answer["progress"]:
        assert progress["stateOperators"][0]["numShufflePartitions"] == stores
        in_turn_s = 0.3 * metric(progress, "dynastateRequests")
        assert progress["durationMs"]["addBatch"] / 1000 < in_turn_s / 2
    assert load.failures() == []
    assert "pool is full" not in load.log()


def test_an_unreachable_dynamodb(proxy: FaultProxy, folder: Path, environment: dict[str, str]) -> None:
    """DynamoDB is unreachable for 13 s: tasks fail at the deadline, Spark tries them four times, nothing is lost."""
    deadline_s, away_s = 5, 13
    options = {"master": "local[2,4]", "settings": {"request_deadline_s": deadline_s}}
    load = Load(folder, [make_wide_rows(file, 100, 100) for file in range(20)], proxy, options)
    with load.running(environment):
        load.release()
        load.wait_for_batch(0)
        load.release_every_second(3)
        outage_start_s = time.time()
        proxy.shut()
        load.release_every_second(away_s)
        proxy.open()
        outage_end_s = time.time()
        load.release_every_second(2)
        load.finish()
    failures = load.failures()
    assert failures
    for failure in failures:
        assert failure.failed - max(outage_start_s, failure.began) < 2 * (deadline_s + CONNECT_S + ANSWER_S)
        assert failure.began < outage_start_s or failure.failed - failure.began >= deadline_s, (
            "it failed before its deadline"
        )
        assert "until the deadline" in failure.why
        assert outage_start_s < failure.failed < outage_end_s + 2 * (deadline_s + CONNECT_S + ANSWER_S)
