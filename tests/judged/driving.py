"""The runs of the query of a history, one after the other and side by side, with its forks."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Final

from dynastate.format.keys import EMPTY, NO_ATTEMPT
from tests.judged.clients import Host
from tests.judged.commands import Commands
from tests.judged.history import NAMESPACE, History, Query, Size
from tests.judged.runs import Run

#: The next run begins when a run has made so many batches, and they go on side by side.
BATCHES_BEFORE_NEXT: Final = 4
#: The usual size of a history, and the smallest one.
USUAL, SMALL = Size(runs=3, batches=10), Size(runs=2, batches=BATCHES_BEFORE_NEXT + 1)
#: Probabilities: the driver of the run before is killed. A run is from another location than the one before. The host
#: of the one before is stopped meanwhile. A run cleans up only when the next one has replaced it.
KILLS, ADOPTIONS, STOPS, LATE_CLEAN_UPS = 0.25, 0.2, 0.8, 0.4
#: A run begins so many versions before the last one; the most only where no clean-up may have deleted that.
BACK: Final = (1, 2, BATCHES_BEFORE_NEXT)
#: A sidecar of a replaced run continues when the new run has passed the old one, or has made so many batches, and after
#: these seconds at the latest. A commit that it was stopped in is late then, but its version is retained; or everything
#: that it knew is gone.
MANY, STOPPED_S = 10, 4.0
#: How often the version that was passed is read then.
READS: Final = 5
#: A driver is killed at most so long after its first batch.
UNTIL_KILL_S: Final = 1.0
#: So long a sidecar may take to append a version or to write rows, at which it is stopped; the share of the first.
UNTIL_REQUEST_S, APPENDS = 1.0, 0.7


def drive_all(history: History, pool: ThreadPoolExecutor, commands: Commands) -> Run:
    """Run the query again and again: each run begins beside the one before, at a version that this one has chosen.

    Or the driver of the run before is killed, and its batches end. Then the next one begins at what it chose last.
    Meanwhile the host of the run before may be stopped. A run may be from another location, which is adopted before.
    The query is forked when the first run has made some versions. Returns the last run.
    """
    chance = history.chance("runs")
    names_attempts, batches = chance.random() < 0.5, history.size.batches
    query = Query(NAMESPACE, "file:/tmp/1/state")
    bases = dict.fromkeys(query.stores, EMPTY)
    last = Run(history, 1, query, bases, names_attempts, pool, batches, chance.random() >= LATE_CLEAN_UPS)
    drivers = [pool.submit(last.drive)]
    for number in range(2, history.size.runs + 1):
        is_killed = chance.random() < KILLS
        _await_batches(last, 1 if is_killed else BATCHES_BEFORE_NEXT)
        if not last.chosen:
            break
        if number == 2:
            drivers += [pool.submit(commands.keep_a_fork), pool.submit(commands.drop_a_fork)]
        host = history.host_of(last.number)
        if is_killed:
            time.sleep(chance.uniform(0, UNTIL_KILL_S))
        if is_stopped := chance.random() < STOPS:
            _stop(host, chance)
        if is_killed:
            last.kill()
            host.network.counts["kill of a driver"] += 1
        back = 1 if is_killed else chance.choice(BACK[:2] if last.cleans_up else BACK)
        bases = dict(last.chosen[-min(back, len(last.chosen))])
        if chance.random() < ADOPTIONS:
            query = query._replace(location=f"file:/tmp/{number}/state")
            commands.adopt(query, number)
        run = Run(history, number, query, bases, names_attempts, pool, batches, chance.random() >= LATE_CLEAN_UPS)
        drivers.append(pool.submit(run.drive))
        if is_stopped:
            passed = _await_commits(run, last, chance)
            host.go_on()
            drivers.append(pool.submit(_read_passed, run, passed))
        drivers.append(pool.submit(_clean_up_late, last, run))
        last = run
    for driver in drivers:
        driver.result()
    return last


def _await_batches(run: Run, batches: int) -> None:
    while not run.is_over and len(run.chosen) < batches:
        time.sleep(0.02)


def _clean_up_late(replaced: Run, by: Run) -> None:
    """Clean up behind the last version of a run when the next one has replaced it."""
    _await_batches(by, 1)
    for store, version in replaced.chosen[-1].items():
        replaced.clean_up(store, version, replaced.history.chance("late clean-up", store, by.number))


def _stop(host: Host, chance: random.Random) -> None:
    """Stop a host while it appends a version, or while it writes rows: what these are for, it does when it continues.

    The version is appended when the host continues.
    """
    if chance.random() < APPENDS:
        host.network.before_append = host.stop_and_wait
    else:
        host.network.after_rows = host.stop
    deadline = time.monotonic() + UNTIL_REQUEST_S
    while not host.is_stopped and time.monotonic() < deadline:
        time.sleep(0.01)
    host.network.before_append = host.network.after_rows = None
    host.stop()


def _await_commits(run: Run, replaced: Run, chance: random.Random) -> int:
    """Wait until a run has passed the one that it replaces, or has made many versions; return the version to pass."""
    passed = max(version.version for version in replaced.chosen[-1].values()) + 1
    is_long, deadline = chance.random() < 0.3, time.monotonic() + STOPPED_S
    while not run.is_over and time.monotonic() < deadline:
        versions = [version.version for version in run.chosen[-1].values()] if run.chosen else [0]
        if len(run.chosen) >= MANY if is_long else min(versions) >= passed:
            break
        time.sleep(0.02)
    counts = run.history.host_of(replaced.number).network.counts
    counts[f"stop until {len(run.chosen)} batches of the next run"] += 1
    return passed


def _read_passed(run: Run, version: int) -> None:
    """Open a version, of which a stopped sidecar may append an older attempt, by its number."""
    chance = run.history.chance("passed", run.number)
    for _ in range(READS):
        for store in run.query.stores:
            client = run.history.client(chance)
            if client is not None:
                with closing(client.talk):
                    client.open(store, version, NO_ATTEMPT)
        time.sleep(0.1)
