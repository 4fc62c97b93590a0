"""Every stateful operator: the same query on RocksDB's provider and on ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.conftest import ON_ROCKSDB, Sessions
from tests.spark.operators import CASES
from tests.spark.streams import Outcome, Running, make_source

FILES = 6
BEFORE_RESTART = 3


@pytest.mark.parametrize("name", CASES)
def test_same_as_rocksdb_through_a_restart(name: str, sessions: Sessions, folder: Path) -> None:
    """Output and rows of state are RocksDB's at every batch, before and after a restart from the checkpoint."""
    case = CASES[name]
    left = make_source(folder / "left", seed=1, files=FILES)
    right = make_source(folder / "right", seed=2, files=FILES)
    outcomes = {"ours": Outcome(), "rocksdb": Outcome()}
    loads = []
    for files in (BEFORE_RESTART, FILES):
        left.release(files)
        right.release(files)
        running = {}
        for store, conf in (("ours", {}), ("rocksdb", ON_ROCKSDB)):
            session = sessions(conf)
            frame = case.build(left.stream(session), right.stream(session))
            running[store] = Running(frame, folder / store, case.mode)
        turns = {store: query.finish() for store, query in running.items()}
        loads += [metrics["dynastateCacheMisses"] for metrics in turns["ours"].metrics.values()]
        for store, turn in turns.items():
            outcomes[store].add(turn)

    ours, rocksdb = outcomes["ours"], outcomes["rocksdb"]
    assert len(ours.rows) >= FILES
    assert ours.rows == rocksdb.rows
    assert ours.state == rocksdb.state
    for states in ours.state.values():
        assert tuple(state.operator for state in states) == case.operators
    # Memory is cold once: in the first batch after the restart.
    assert sum(load > 0 for load in loads) == 1
