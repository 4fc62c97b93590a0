"""Queries with Avro as the encoding of state, whose schemas change from run to run: as on RocksDB's provider."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from dynastate.reader.json_rows import row_to_json
from dynastate.spark.transfer import jvm
from dynastate.spark.transfer.export import export_checkpoint
from dynastate.spark.transfer.importing import import_checkpoint
from dynastate.spark.transfer.repartition import repartition
from tests.spark.conftest import CONF, ON_ROCKSDB, Open, Sessions, only
from tests.spark.processors import SCHEMAS, with_schemas
from tests.spark.state_reader import States, read_state, read_states
from tests.spark.streams import Outcome, make_source, run
from tests.spark.test_open_state import flat, namespace_of, of_spark, of_state
from tests.support.jvm import SINCE_40, SPARK

AVRO = {f"{CONF}.encodingFormat": "avro"}
STORES = {"ours": AVRO, "rocksdb": {**ON_ROCKSDB, **AVRO}}
VARIABLES = ("value", "list", "map")


@pytest.mark.slow
@pytest.mark.every_spark
@SINCE_40
def test_rows_of_every_schema_are_read_by_the_newest(sessions: Sessions, opened: Open, folder: Path) -> None:
    """After each change, sink and state are those of RocksDB's provider, and `open_state` has the same rows."""
    source = make_source(folder / "files", seed=17, files=2 * len(SCHEMAS))
    outcomes = {store: Outcome() for store in STORES}
    states: dict[str, States] = {}
    for turn in range(len(SCHEMAS)):
        source.release(2 * (turn + 1))
        for store, conf in STORES.items():
            session = sessions(conf)
            outcomes[store].add(run(with_schemas(source.stream(session), turn), folder / store, "append"))
            states[store] = read_states(session, folder / store, range(2 * turn, 2 * turn + 2))
        assert outcomes["ours"].rows == outcomes["rocksdb"].rows
        assert states["ours"] == states["rocksdb"] != []
        namespace, session = namespace_of(folder / "ours"), sessions(AVRO)
        for name in VARIABLES:
            state = opened(f"{namespace}/0/*/default", family=name)
            rows = of_state(list(state), state.list_column if state.has_lists else "")
            assert flat(rows) == flat(of_spark(session, folder / "ours", {"stateVarName": name}))
            with closing(state.to_duckdb()) as connection:
                assert connection.sql("SELECT count(*) FROM state").fetchall() == [(len(state),)]
                changes = [each.row for each in state.changes(0)]
                assert connection.sql("SELECT count(*) FROM changes").fetchall() == [(len(changes),)]
            assert all(row_to_json(state.columns, row) for row in (*state, *changes))
            key = {column: value for column, value in changes[0].items() if column in state.key_columns.names}
            history = [each.row for each in state.history(key)]
            assert all(row_to_json(state.columns, row) for row in history if row)
            first = state.at(state.versions()[0])
            differences = list(first.diff(first.version, state.version))
            assert {each.after and tuple(each.after) for each in differences} <= {None, tuple(state.columns.names)}
    # What the first run wrote was read in the second.
    assert any("Row(note='é', new=None, low=" in str(row[3]) for row in outcomes["ours"].rows[2])


@pytest.mark.slow
@pytest.mark.skipif(SPARK != jvm.SPARK, reason=f"transfers need Spark {jvm.SPARK}")
def test_rows_of_every_schema_are_moved(sessions: Sessions, folder: Path, environment: dict[str, str]) -> None:
    """Imported between two schemas, with other partitions between the next two, and exported: as a query that stays."""
    source = make_source(folder / "files", seed=18, files=len(SCHEMAS) + 1)
    rocksdb = sessions(STORES["rocksdb"])

    def step(files: int, checkpoint: str, conf: Mapping[str, str]) -> None:
        source.release(files)
        turn, session = min(files, len(SCHEMAS)) - 1, sessions({**conf, **AVRO})
        outcome = run(with_schemas(source.stream(session), turn), folder / checkpoint, "append")
        reference = run(with_schemas(source.stream(rocksdb), turn), folder / "stays", "append")
        assert outcome.rows == reference.rows
        last = range(files - 1, files)
        states = read_states(session, folder / checkpoint, last, partitions=False)
        assert states == read_states(rocksdb, folder / "stays", last, partitions=False)
        assert states

    step(1, "before", ON_ROCKSDB)
    with only(environment):
        arrival = import_checkpoint(sessions({}), str(folder / "before"), str(folder / "here"))
    step(2, "here", arrival.confs)
    with only(environment):
        distribution = repartition(sessions({}), str(folder / "here"), str(folder / "spread"), 3, folder.name)
    step(3, "spread", distribution.confs)
    with only(environment):
        export_checkpoint(sessions({}), str(folder / "spread"), str(folder / "after"), "rocksdb")
    step(4, "after", ON_ROCKSDB)


@pytest.mark.slow
def test_rows_are_not_read_by_a_schema_that_is_not_theirs(sessions: Sessions, folder: Path) -> None:
    """A checkpoint that was changed by hand, so that Spark gives no schemas, is an error."""
    source, session = make_source(folder / "files", seed=19, files=2), sessions(AVRO)
    for turn in range(2):
        source.release(turn + 1)
        run(with_schemas(source.stream(session), turn), folder / "checkpoint", "append")
    offsets = folder / "checkpoint" / "offsets" / "1"
    offsets.write_text(offsets.read_text().replace('"avro"', '"unsaferow"'))
    with pytest.raises(Exception, match="a row was written with a schema that the query does not have family=value"):
        read_state(sessions({}), folder / "checkpoint", stateVarName="value").collect()
