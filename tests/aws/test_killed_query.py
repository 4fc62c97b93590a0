"""A query that is killed after its state was committed, and before its batch was."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dynastate
from tests.aws.place import Place
from tests.aws.spending import PLANNED
from tests.support.jvm import ROOT
from tests.support.processes import descendants, is_alive, wait_until

#: A file a batch; the query is killed in the second.
FILES = ([("ann", 1), ("bob", 2)], [("ann", 3), ("cid", 4)], [("bob", -2), ("ann", 2**40)])
KILLED_IN = 1
DEADLINE_S = 180


@pytest.mark.timeout(600)
def test_a_killed_query_resumes_with_every_value(place: Place, folder: Path) -> None:
    """The batch that is run again counts its rows once, and so does the state that is read from outside."""
    (folder / "in").mkdir()
    for number, rows in enumerate(FILES):
        lines = [json.dumps({"user": user, "amount": amount}) for user, amount in rows]
        (folder / "in" / f"{number}.json").write_text("\n".join(lines))
    expected: dict[str, list[int]] = {}
    for user, amount in (row for rows in FILES for row in rows):
        count, total = expected.get(user, [0, 0])
        expected[user] = [count + 1, total + amount]

    settings = {
        "region": place.settings.region,
        "endpoint": place.settings.endpoint,
        "delta_table": place.settings.delta_table,
        "snapshot_table": place.settings.snapshot_table,
        "namespace": "killed",
    }
    place.ledger.add(PLANNED["test_killed_query"])  # its requests are not watched: they count as planned
    program = [sys.executable, "-m", "tests.aws.query", str(folder), json.dumps(settings)]
    with (folder / "log").open("wb") as log:
        first = subprocess.Popen([*program, str(KILLED_IN)], cwd=ROOT, env=os.environ, stdout=log, stderr=log)
        pids: list[int] = []
        try:
            wait_until(lambda: (folder / "mark").exists() or first.poll() is not None, "no second batch", DEADLINE_S)
            assert first.poll() is None, (folder / "log").read_text()[-4_000:]
        finally:
            pids = [first.pid, *descendants(first.pid)]
            for pid in pids:
                if is_alive(pid):
                    os.kill(pid, signal.SIGKILL)
            first.wait()
        wait_until(lambda: not any(map(is_alive, pids)), "a process outlived its kill")
    completed = subprocess.run(
        [*program, "-1"], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    totals = {user: [count, total] for user, count, total in json.loads((folder / "rows").read_text())}
    assert totals == expected
    reading: dict[str, Any] = {name: value for name, value in settings.items() if name != "namespace"}
    with dynastate.open_state("killed/0", **reading) as state:
        assert {row["user"]: [row["count"], row["sum"]] for row in state} == expected
