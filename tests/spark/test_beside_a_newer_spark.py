"""Queries that stay on Spark 3.5, with transfers by the newest Spark beside it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import CONF, ON_HDFS, ON_ROCKSDB, Database, Sessions
from tests.spark.operators import CASES, NEEDS_40, NEEDS_43
from tests.spark.streams import Outcome, Source, make_rows, make_source, make_sources, run
from tests.spark.test_migrate import totals
from tests.support.jvm import ROOT, SPARK

pytestmark = [
    pytest.mark.slow,
    pytest.mark.every_spark,
    pytest.mark.skipif(SPARK != "3.5", reason="the queries stay on Spark 3.5"),
]
NAMES = [name for name in CASES if name not in (*NEEDS_40, *NEEDS_43)]
#: Operators in one partition, whatever the number of partitions.
SINGLE = {"global aggregation", "global aggregation in complete mode", "limit"}
MANY = {*NAMES} - SINGLE
#: Without a prefix of keys, and with one.
FROM_HDFS = ["aggregation in append mode", "session windows"]
Transfer = tuple[str, dict[str, Any]]


class Beside:
    """Transfers by the newest Spark, which is not the one of this process."""

    def __init__(self, database: Database, environment: dict[str, str], folder: Path) -> None:
        interpreter = str(ROOT / ".venv" / "bin" / "python")
        self._command = [interpreter, "-m", "tests.spark.programs.transferred", str(folder), database.endpoint]
        self._variables = environment | {"PYSPARK_PYTHON": interpreter, "PYTHONPATH": str(ROOT)}

    def move(self, transfers: list[Transfer]) -> list[dict[str, Any]]:
        """Rows and confs of each, or its error."""
        completed = subprocess.run(
            [*self._command, json.dumps(transfers)],
            env=self._variables,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )
        assert completed.returncode == 0, completed.stderr[-4000:]
        answers: list[dict[str, Any]] = json.loads(completed.stdout.splitlines()[-1])
        return answers


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("store", "names"), [(ON_ROCKSDB, NAMES), (ON_HDFS, FROM_HDFS)], ids=["RocksDB", "HDFS"])
def test_a_query_comes_over_and_goes_back(
    store: Mapping[str, str],
    names: list[str],
    sessions: Sessions,
    database: Database,
    environment: dict[str, str],
    folder: Path,
) -> None:
    """Imported, then repartitioned, then exported, each operator has the rows of the query that stays where it was."""
    sources = [make_sources(folder / str(number), seed=11, files=4) for number in range(len(names))]
    beside = Beside(database, environment, folder)

    def run_all(files: int, checkpoints: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, Outcome]]:
        return {name: take_turn(name, number, files, checkpoints) for number, name in enumerate(names)}

    def take_turn(
        name: str, number: int, files: int, checkpoints: Mapping[str, Mapping[str, str]]
    ) -> dict[str, Outcome]:
        sources[number].release(files)
        queries = {
            checkpoint: CASES[name].start(sessions(conf), sources[number], folder / str(number) / checkpoint)
            for checkpoint, conf in checkpoints.items()
        }
        return {checkpoint: query.finish() for checkpoint, query in queries.items()}

    def move(function: str, of: Collection[str], old: str, new: str, **arguments: object) -> None:
        places = [folder / str(number) for number, name in enumerate(names) if name in of]
        folders = [{"old": str(place / old), "new": str(place / new)} for place in places]
        answers = beside.move([(function, each | arguments) for each in folders])
        assert [each["error"] for each in answers if "error" in each] == []

    run_all(2, {"old": store, "stays": store})
    move("import_checkpoint", names, "old", "imported")
    for outcomes in run_all(3, {"imported": {}, "stays": store}).values():
        assert outcomes["imported"].rows == outcomes["stays"].rows != {}
        assert outcomes["imported"].state == outcomes["stays"].state
    move("repartition", MANY, "imported", "wide", partitions=3)
    move("export_checkpoint", MANY, "wide", "exported", store="rocksdb")
    move("export_checkpoint", SINGLE, "imported", "exported", store="rocksdb")
    # They are one query, of which Spark runs one at a time.
    seen, exported = run_all(4, {"wide": {}, "stays": store}), run_all(4, {"exported": ON_ROCKSDB})
    for name in names:
        assert name in SINGLE or seen[name]["wide"].rows == seen[name]["stays"].rows
        assert exported[name]["exported"].rows == seen[name]["stays"].rows != {}


def test_a_checkpoint_that_does_not_describe_its_rows_is_refused(
    sessions: Sessions, database: Database, environment: dict[str, str], folder: Path
) -> None:
    """The error names the operator and the stores, and nothing is written."""
    missing = {
        "aggregation in append mode": {"default": "_metadata"},
        "stream-stream join, inner": {
            name: f"{name}/_metadata" for name in ("left-keyToNumValues", "right-keyWithIndexToValue")
        },
    }
    checkpoints = [CASES[name].stopped(sessions(ON_ROCKSDB), folder / name) for name in missing]
    for checkpoint, descriptions in zip(checkpoints, missing.values(), strict=True):
        for description in descriptions.values():
            shutil.rmtree(checkpoint / "state" / "0" / "0" / description)
    transfers = [("import_checkpoint", {"old": str(each), "new": f"{each}-new"}) for each in checkpoints]
    answers = Beside(database, environment, folder).move([*transfers])
    for checkpoint, descriptions, answer in zip(checkpoints, missing.values(), answers, strict=True):
        assert "the checkpoint does not describe the rows of a store" in answer["error"]
        assert f"operator=0 stores={','.join(descriptions)}" in answer["error"]
        assert not Path(f"{checkpoint}-new").exists()


def test_a_first_state_and_a_lost_checkpoint(
    sessions: Sessions, database: Database, environment: dict[str, str], folder: Path
) -> None:
    """A query begins with a frame, and another continues from its state alone; a migration is refused."""
    history, source = make_source(folder / "history", seed=13, files=5), make_source(folder / "all", seed=12, files=4)
    history.release()
    source.release(3)
    session, lost = sessions({}), f"{folder.name}-lost"
    first_rows = totals(history.read(session), "long").withColumnsRenamed({"rows": "count", "amount": "sum"})
    first_rows.write.parquet(str(folder / "frame"))
    run(totals(source.stream(sessions({f"{CONF}.dynastate.namespace": lost})), "long"), folder / "lost", "complete")
    end = Source(folder / "end", [make_rows(12, file) for file in (2, 3)])
    end.release(1)
    run(totals(end.stream(session), "long"), folder / "template", "complete")
    shutil.rmtree(folder / "lost")

    template, new = str(folder / "template"), str(folder / "new")
    transfers: list[Transfer] = [
        ("bootstrap", {"template": template, "new": f"{new}-0", "frame": str(folder / "frame")}),
        ("recover_checkpoint", {"lost": lost, "template": template, "new": f"{new}-1"}),
        ("migrate", {"old": template, "new": f"{new}-2", "schema": "count long, sum long"}),
    ]
    begun, recovered, migrated = Beside(database, environment, folder).move(
        [(function, {**arguments, "namespace": f"{folder.name}-{function}"}) for function, arguments in transfers]
    )
    end.release()
    source.release()
    batch = end.read(session).where("file = 3")
    for number, (moved, rows) in enumerate(
        [(begun, history.read(session).union(batch)), (recovered, source.read(session))]
    ):
        outcome = run(totals(end.stream(sessions(moved["confs"])), "long"), Path(f"{new}-{number}"), "complete")
        expected = sorted(map(tuple, totals(rows, "long").collect()), key=repr)
        assert outcome.rows[max(outcome.rows)] == expected
    assert "Spark 3.5 does not describe operators" in migrated["error"]
    assert not Path(f"{new}-2").exists()
