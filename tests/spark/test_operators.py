"""Every stateful operator: the same query on RocksDB's provider and on ours, with restarts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

import pytest
from _pytest.mark import ParameterSet

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.engine import Engine
from dynastate.engine.namespaces import read_namespace
from dynastate.operations.inspection.operator_names import operator_name
from dynastate.settings import PREFIX, Settings
from tests.spark.conftest import ON_ROCKSDB, Sessions
from tests.spark.operators import CASES, NEEDS_40, NEEDS_43, Case
from tests.spark.state_reader import read_metadata, read_states
from tests.spark.streams import Outcome, Source, Sources, make_flights, make_sources, make_wide_rows
from tests.support.jvm import ALSO_ON_35, SINCE_40, SINCE_43, SPARK

NOTHING: Mapping[str, str] = MappingProxyType({})
FILES = 4
#: Files up to which each run goes, one a batch: two restarts, then a batch on rows that are in memory.
RUNS = (1, 2, FILES)
#: One of each way to use a store: gets and puts, a scan of all, scans by prefix, lists, families with timers.
WITH_LITTLE_MEMORY = (
    "aggregation in update mode",
    "dropDuplicates with a watermark",
    "stream-stream join, full outer",
    "session windows",
    "transformWithState, row by row",
)
#: Run on every minor of Spark, and by `make test`.
ON_EVERY_SPARK = (
    "aggregation in append mode",
    "stream-stream join, left outer",
    "session windows",
    "transformWithStateInPandas",
    "transformWithState in Scala",
)


#: Names of operators that store the same columns as another one.
SEVERAL = ("applyInPandasWithState", "flatMapGroupsWithState", "transformWithState")
#: An operator that stores the columns of another one, whose name the page gives it.
STORES_AS = {"StatefulStreamlineAggregate": "stateStoreSave"}


def of_each_operator(names: Sequence[str] = ON_EVERY_SPARK) -> list[ParameterSet]:
    """The names of all cases, of which some run on every Spark. On Spark 3.5 no case is left out that it can run."""
    every, slow = pytest.mark.every_spark, pytest.mark.slow
    marks = {name: [every] if name in names else [slow, every] if SPARK == "3.5" else [slow] for name in CASES}
    needs = [(SINCE_40, NEEDS_40), (SINCE_43, NEEDS_43)]
    return [
        pytest.param(name, marks=[*marks[name], *(mark for mark, needing in needs if name in needing)])
        for name in CASES
    ]


@pytest.mark.parametrize("name", of_each_operator())
def test_same_as_rocksdb(name: str, sessions: Sessions, tables: BotoTables, folder: Path) -> None:
    """On made-up data, which comes late, repeats itself and has nulls."""
    case, conf = CASES[name], {f"{PREFIX}namespace": folder.name}
    compare(case, make_sources(folder, seed=1, files=FILES), sessions, folder, conf)
    assert names_by_columns(tables, folder.name) == {
        number: "" if operator.startswith(SEVERAL) else STORES_AS.get(operator, operator)
        for number, operator in enumerate(case.operators)
    }


def names_by_columns(tables: BotoTables, namespace: str) -> dict[int, str]:
    """The names that the page gives the operators of a namespace: by what they store."""
    names = {}
    with closing(Engine(tables, Settings())) as engine:
        for store in read_namespace(tables, namespace).listed:
            lineage = engine.lineage(store, None)
            _, operator, _, store_name = store.split("/")
            names[int(operator)] = operator_name(store_name, lineage.schema(lineage.newest))
    return names


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SINCE_40 if name in NEEDS_40 else ALSO_ON_35) for name in WITH_LITTLE_MEMORY]
)
def test_same_as_rocksdb_with_rows_read_as_they_are_asked_for(name: str, sessions: Sessions, folder: Path) -> None:
    """With a bound on memory, on flights: after each restart no row is in memory, and rows are read by buckets."""
    left = Source(folder / "departures", make_flights(FILES))
    right = Source(folder / "arrivals", make_flights(FILES, arrivals=True))
    compare(CASES[name], Sources(left, right), sessions, folder, {f"{PREFIX}memoryMb": "1", f"{PREFIX}diskMb": "0"})


@pytest.mark.slow
@pytest.mark.every_spark
@pytest.mark.skipif(SPARK != "3.5", reason="histories of the newest Spark have the disk tier")
def test_same_as_rocksdb_with_rows_on_disk(sessions: Sessions, folder: Path) -> None:
    """With a bound on memory that one file of rows exceeds, and two sidecars for each executor."""
    source = Source(folder / "files", [make_wide_rows(file, 100, 40_000) for file in range(FILES)])
    conf = {f"{PREFIX}memoryMb": "1", f"{PREFIX}diskPath": str(folder), f"{PREFIX}sidecars": "2"}
    ours = compare(CASES["aggregation in update mode"], Sources(source, source), sessions, folder, conf)
    assert all(metrics["dynastateDiskBytes"] > 1_000_000 for metrics in ours.metrics.values())


def compare(
    case: Case,
    sources: Sources,
    sessions: Sessions,
    folder: Path,
    conf: Mapping[str, str] = NOTHING,
    checkpoint: str = "",
) -> Outcome:
    """Run a query on both stores, each run up to a number of files: at every batch all that can be seen is equal.

    Ours has a `conf` of its own, and its `checkpoint`, or one in the folder. Returns our outcome.
    """
    confs = {"ours": {**case.everywhere, **case.conf, **conf}, "rocksdb": {**case.everywhere, **ON_ROCKSDB}}
    checkpoints = {"ours": checkpoint or folder / "ours", "rocksdb": folder / "rocksdb"}
    outcomes = {store: Outcome() for store in confs}
    first_batches = []
    for files in RUNS:
        sources.release(files)
        queries = {
            store: case.start(sessions(options), sources, checkpoints[store]) for store, options in confs.items()
        }
        turns = {store: query.finish() for store, query in queries.items()}
        for store, turn in turns.items():
            outcomes[store].add(turn)
        first_batches.append(min(turns["ours"].rows))

    operators = case.operators
    if SPARK == "3.5":  # it gives this operator no name of its own
        operators = tuple("defaultName" if name.startswith("sessionWindow") else name for name in operators)
    ours, rocksdb = outcomes["ours"], outcomes["rocksdb"]
    batches = range(len(ours.rows))
    assert len(batches) >= FILES
    assert ours.rows == rocksdb.rows
    assert ours.state == rocksdb.state
    for states in ours.state.values():
        assert tuple(state.operator for state in states) == operators
    # Memory is cold in the first batch of each run except the first run, and never otherwise.
    cold = [batch for batch, metrics in ours.metrics.items() if metrics["dynastateCacheMisses"]]
    assert cold == first_batches[1:]

    if SPARK == "3.5":  # it has no readers
        return ours
    # Only the last two versions: Spark's reader takes as long for one as the query for its batch.
    last = batches[-2:]
    state_rows = [read_states(sessions(options), checkpoints[store], last) for store, options in confs.items()]
    assert state_rows[0] == state_rows[1]
    assert bool(state_rows[0]) == any(state.total for batch in last for state in ours.state[batch])
    metadata = [read_metadata(sessions(options), checkpoints[store]) for store, options in confs.items()]
    assert metadata[0] == metadata[1]
    # Progress has the operators in the order of their ids, which `dynastate top` goes by.
    names = {int(str(row["operatorId"])): row["operatorName"] for row in metadata[0]}
    assert names == dict(enumerate(case.operators))
    return ours
