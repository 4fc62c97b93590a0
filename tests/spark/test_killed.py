"""Repeated SIGKILL of executors, sidecars, drivers and the engine: the queries give the same output as without them.

`DYNASTATE_SEED` chooses other times and another order, `DYNASTATE_KILLS` another number of kills of one query.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime, timezone
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.checkpoint import ORPHAN_AGE, CheckpointFiles
from dynastate.format.checkpoint import Checkpoint as StoredCheckpoint
from dynastate.spark.configure import FILE_SYSTEM_CONF
from tests.spark.conftest import CONF, ON_ROCKSDB, Sessions, only
from tests.spark.programs.cluster import cluster_environment
from tests.spark.programs.killed import BATCH_BY_FILE, IN_DYNAMODB, QUERIES, checkpoint_of, rows_folder
from tests.spark.state_reader import read_states
from tests.spark.streams import Source, Sources, make_source
from tests.support.dynoxide import Dynoxide
from tests.support.folder_log import Checkpoint
from tests.support.jvm import ALSO_ON_35, ROOT, SPARK
from tests.support.processes import arguments, children, descendants, kill, wait_until

SEED = int(os.environ.get("DYNASTATE_SEED", "1"))
#: Number of kills of each kind; recovery from one takes about eight seconds.
VICTIMS = {"executor": 2, "sidecar": 3, "driver": 1, "engine": 1}
#: Kills of the query whose checkpoint is in DynamoDB. Recovery from a driver's takes much longer than from others.
SHARES = ("executor", "sidecar", "executor", "sidecar", "driver")
KILLS = int(os.environ.get("DYNASTATE_KILLS", "12"))
#: Part of their command lines.
WORDS = {"executor": "ExecutorBackend", "sidecar": "dynastate.sidecar"}
ENGINE_AWAY_S = 15
#: Longest time from the end of a batch to the next kill: a batch takes about a second.
PAUSE_MOST_S = 1.5
#: Kinds of errors that mean a defect, or state that is lost. A kill does not excuse them.
NEVER = ("(state corrupt)", "(version missing)", "(versions differ)", "(defect of dynastate")
FILES_MOST = 400 + 3 * KILLS
#: Files of a log: 10 batches are retained, and up to 24 old ones are deleted together.
LOG_MOST = 10 + 1 + 24
#: Until a batch of each query has ended after a kill: after a driver's, another Spark starts.
PROGRESS_DEADLINE_S = 180


class Log:
    """Progress of the query whose checkpoint is in DynamoDB, as `Checkpoint` has it of a folder."""

    def __init__(self, engine: Dynoxide, environment: dict[str, str]) -> None:
        with only(environment):
            self._tables = BotoTables(engine.settings)
        self._checkpoint = StoredCheckpoint(IN_DYNAMODB, "query")

    def committed(self) -> int:
        return self._last("commits") + 1

    def under_way(self) -> int | None:
        begun = self._last("offsets")
        return begun if begun >= self.committed() else None

    def _last(self, folder: str) -> int:
        return max(map(int, self._names(folder)), default=-1)

    def _names(self, folder: str) -> list[str]:
        return [entry.name for entry in CheckpointFiles(self._tables, set()).list(self._checkpoint, folder)]

    def check(self, files: int) -> None:
        """Check that it is the log of so many files, a batch for each, and that nothing is left over."""
        offsets, commits = self._lines("offsets"), self._lines("commits")
        assert sorted(offsets) == list(range(min(offsets), files))
        assert sorted(commits) == list(range(min(commits), files))
        assert max(len(commits), len(offsets)) <= LOG_MOST
        assert all(lines[-1] == {"logOffset": batch} for batch, lines in offsets.items())
        entries = [entry for lines in self._lines("sources/0").values() for entry in lines]
        names = {entry["batchId"]: Path(entry["path"]).name for entry in entries}
        assert names == {number: f"{number:04d}.json" for number in range(files)}
        tomorrow = CheckpointFiles(self._tables, set(), clock=lambda: datetime.now(timezone.utc) + 2 * ORPHAN_AGE)
        assert tomorrow.orphans(self._checkpoint, []).items == {}

    def _lines(self, folder: str) -> dict[int, list[Any]]:
        """The lines of each file of a folder, without the first, by batch."""
        lines: dict[int, list[Any]] = {}
        for name in self._names(folder):
            file = CheckpointFiles(self._tables, set()).get(self._checkpoint, f"{folder}/{name}")
            assert file is not None
            lines[int(name.removesuffix(".compact"))] = [json.loads(line) for line in file.data.splitlines()[1:]]
        return lines

    def close(self) -> None:
        self._tables.close()


class Cluster:
    """The program killed.py with some queries, and its processes: finds, kills and restarts them."""

    def __init__(self, folder: Path, engine: Dynoxide, environment: dict[str, str], names: list[str]) -> None:
        self.folder, self.engine, self.names = folder, engine, names
        self._environment = environment | cluster_environment(folder) | {"PYSPARK_PYTHON": sys.executable}
        self._log_in_dynamodb = Log(engine, environment)
        self._checkpoints = [
            self._log_in_dynamodb if name == IN_DYNAMODB else Checkpoint(folder / "checkpoint" / name) for name in names
        ]
        self._log = (folder / "log").open("ab")
        self._program: subprocess.Popen[bytes] | None = None
        self._seen: dict[int, bytes] = {}

    def start(self) -> None:
        words = [sys.executable, "-m", "tests.spark.programs.killed", str(self.folder), self.engine.settings.endpoint]
        words += self.names
        self._program = subprocess.Popen(words, cwd=ROOT, env=self._environment, stdout=self._log, stderr=self._log)

    def look(self) -> dict[int, bytes]:
        """The command lines of what it started, by process id."""
        assert self._program is not None
        assert self._program.poll() is None, f"the program has ended:\n{self.log()}"
        commands = {pid: arguments(pid) for pid in descendants(self._program.pid)}
        self._seen |= commands
        return commands

    def outlived(self) -> dict[int, bytes]:
        return {pid: command for pid, command in self._seen.items() if command and arguments(pid) == command}

    def kill(self, kind: str, chance: random.Random) -> None:
        """Kill one of a kind as soon as there is one, and restart what Spark does not restart."""
        if kind == "driver":
            self.kill_driver()
            self.start()
        elif kind == "engine":
            self.engine.kill()
            time.sleep(ENGINE_AWAY_S)
            self.engine.start()
        else:
            self._kill_one(WORDS[kind], chance)

    def _kill_one(self, word: str, chance: random.Random) -> None:
        deadline = time.monotonic() + PROGRESS_DEADLINE_S
        while True:
            assert time.monotonic() < deadline, f"there is no {word}\n{self.log()}"
            if pids := [pid for pid, command in self.look().items() if word.encode() in command]:
                with suppress(ProcessLookupError):  # it has just ended: kill another one
                    os.kill(chance.choice(pids), signal.SIGKILL)
                    return
            time.sleep(0.05)

    def kill_driver(self) -> None:
        """Kill the JVM of the driver, and its Python. Executors and sidecars end by themselves."""
        if self._program is not None and self._program.poll() is None:
            self.look()
            kill([*children(self._program.pid), self._program.pid])
            self._program.wait()

    def finish(self) -> None:
        self.look()
        (self.folder / "stop").touch()
        assert self._program is not None
        assert self._program.wait(PROGRESS_DEADLINE_S) == 0, self.log()

    def close(self) -> None:
        self.kill_driver()
        self._log.close()
        self._log_in_dynamodb.close()

    def committed(self) -> list[int]:
        return [each.committed() for each in self._checkpoints]

    def in_mid_batch(self) -> bool:
        return any(each.under_way() is not None for each in self._checkpoints)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-6000:]


@pytest.fixture
def engine(folder: Path) -> Iterator[Dynoxide]:
    """An engine that keeps its data when it is killed."""
    with Dynoxide(folder / "engine") as dynoxide:
        dynoxide.create_tables()
        yield dynoxide


@ALSO_ON_35
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_output_after_kills(sessions: Sessions, engine: Dynoxide, environment: dict[str, str], folder: Path) -> None:
    """Kills of all kinds, many in mid-batch: rows of every batch and the last state are as on RocksDB."""
    victims = [victim for victim, times in VICTIMS.items() for _ in range(times)]
    check_kills(Cluster(folder, engine, environment, list(QUERIES)), victims, sessions)


@pytest.mark.slow
@pytest.mark.timeout(600 + 60 * KILLS)
def test_log_after_kills(sessions: Sessions, engine: Dynoxide, environment: dict[str, str], folder: Path) -> None:
    """A dozen kills of the query whose checkpoint is in DynamoDB: state and log are those of the input."""
    victims = list(islice(cycle(SHARES), KILLS))
    files = check_kills(Cluster(folder, engine, environment, [IN_DYNAMODB]), victims, sessions)
    with closing(Log(engine, environment)) as log:
        log.check(files)


def check_kills(cluster: Cluster, victims: list[str], sessions: Sessions) -> int:
    """Kill processes in random order, compare rows and state with those without kills; return the number of files."""
    engine, folder = cluster.engine, cluster.folder
    print(f"DYNASTATE_SEED={SEED}")  # noqa: T201  # shown with a failure
    chance = random.Random(SEED)  # noqa: S311  # a test, no secret
    source = make_source(folder / "files", seed=21, files=FILES_MOST)
    chance.shuffle(victims)
    in_mid_batch: Counter[str] = Counter()
    start_s = time.monotonic()
    cluster.start()
    try:
        for victim in victims:
            wait_for_progress(cluster, source)
            time.sleep(chance.uniform(0, PAUSE_MOST_S))
            is_under_way = cluster.in_mid_batch()
            in_mid_batch[victim] += is_under_way
            moment = f"{time.monotonic() - start_s:.1f} s, batches {cluster.committed()}"
            print(f"{moment}: {victim} killed {'in mid-batch' if is_under_way else 'between batches'}")  # noqa: T201
            cluster.kill(victim, chance)
        files = wait_for_progress(cluster, source)
        cluster.finish()
    finally:
        cluster.close()

    wait_until(lambda: not cluster.outlived(), "a process outlived its parent")
    text = "".join((folder / name).read_text(errors="replace") for name in ("log", "executors"))
    assert [line for line in text.splitlines() if any(kind in line for kind in NEVER)] == []
    assert text.count("sidecar started pid=") > victims.count("sidecar")
    reference = quiet_rows(sessions, source, folder, cluster.names)
    for name in cluster.names:
        rows_by_batch: dict[int, set[str]] = {}
        for file in rows_folder(folder, name).glob("*.rows"):
            rows_by_batch.setdefault(int(file.name.split("-")[0]), set()).add(file.read_text())
        assert rows_by_batch == {batch: {repr(rows)} for batch, rows in reference[name].items()}
        assert sorted(rows_by_batch) == list(range(files))
        if SPARK == "3.5":  # it has no readers of state
            continue
        last = range(files - 1, files)
        at_engine = sessions({f"{CONF}.dynastate.endpoint": engine.settings.endpoint, **FILE_SYSTEM_CONF})
        ours = read_states(at_engine, checkpoint_of(folder, name), last)
        theirs = read_states(sessions(ON_ROCKSDB), folder / "quiet" / name, last)
        assert ours == theirs
        assert len(ours) > 5
    assert in_mid_batch.total() > len(victims) / 4
    return files


def wait_for_progress(cluster: Cluster, source: Source) -> int:
    """Wait until all queries have ended another batch, with more files released; the number of released files.

    Several queries always have a next file, so that those with two sources find it in both. One alone has none: if its
    driver dies when the source has logged a file, Spark reads this file and the next one in one batch.
    """
    counts = cluster.committed()
    deadline = time.monotonic() + PROGRESS_DEADLINE_S
    while True:
        current = cluster.committed()
        count = max(current) + (1 if len(current) == 1 else 2)
        assert count <= FILES_MOST
        source.release(count)
        if all(batches > start for batches, start in zip(current, counts, strict=True)):
            return count
        cluster.look()
        assert time.monotonic() < deadline, f"no progress: {current} after {counts}\n{cluster.log()}"
        time.sleep(0.1)


def quiet_rows(
    sessions: Sessions, source: Source, folder: Path, names: list[str]
) -> dict[str, dict[int, list[tuple[object, ...]]]]:
    session = sessions(ON_ROCKSDB | BATCH_BY_FILE)
    queries = {name: QUERIES[name].start(session, Sources(source, source), folder / "quiet" / name) for name in names}
    return {name: query.finish(300 + 5 * KILLS).rows for name, query in queries.items()}
