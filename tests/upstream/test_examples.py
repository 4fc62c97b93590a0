"""Spark's own examples of stateful queries run unchanged: conf of spark-submit is all that names dynastate."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark
import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.catalog import find_stores
from dynastate.settings import Settings
from dynastate.spark.configure import plain_conf
from tests.spark.conftest import CONF, spark_conf
from tests.support.processes import wait_until

HOME = Path(pyspark.__file__).parent
EXAMPLES = HOME / "examples" / "src" / "main" / "python" / "sql" / "streaming"
LINES = ("to be or not to be", "that is the question", "to be is to do")
COUNTS = Counter(word for line in LINES for word in line.split())
NAMESPACE = "examples"
SHOWN_WITHIN_S = 240
#: The first line of what the console sink prints of a batch.
BATCH = "Batch: "


@dataclass(frozen=True)
class Example:
    """A program, its arguments after host and port, and how the rows that it prints become counts of words."""

    program: str
    counts: Callable[[Sequence[Sequence[str]]], Counter[str]]
    arguments: tuple[str, ...] = ()


def last_of_each(rows: Sequence[Sequence[str]], word: int = 0) -> Counter[str]:
    """The count in the last column of the newest row of each word."""
    return Counter({row[word]: int(row[-1]) for row in rows})


def sums_of_sessions(rows: Sequence[Sequence[str]]) -> Counter[str]:
    """Each row is a session that has ended: its word, count, start and end. A word may have several."""
    counts: Counter[str] = Counter()
    for word, count, _, _ in rows:
        counts[word] += int(count)
    return counts


#: Not among them: one that needs Kafka, one without state, and structured_sessionization.py, whose output mode Spark
#: refuses for sessions with any store.
EXAMPLE_CASES = [
    Example("structured_network_wordcount.py", last_of_each),
    # One window has all that comes in years.
    Example(
        "structured_network_wordcount_windowed.py", lambda rows: last_of_each(rows, word=1), ("999999999", "999999999")
    ),
    Example("structured_network_wordcount_session_window.py", sums_of_sessions),
]


@contextmanager
def running(example: Example, port: int, database: Settings, folder: Path) -> Iterator[Path]:
    """The program by spark-submit, until the end of the block; the file that has what it prints."""
    conf = (
        spark_conf(folder)
        | plain_conf()
        | {
            f"{CONF}.dynastate.endpoint": database.endpoint,
            f"{CONF}.dynastate.region": database.region,
            f"{CONF}.dynastate.namespace": NAMESPACE,
        }
    )
    words = [str(HOME / "bin" / "spark-submit"), "--master", "local[2]"]
    words += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    words += [str(EXAMPLES / example.program), "127.0.0.1", str(port), *example.arguments]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(HOME)}
    shown = folder / "shown"
    with shown.open("w") as output, (folder / "log").open("w") as log:
        program = subprocess.Popen(words, cwd=folder, env=environment, stdout=output, stderr=log)
        try:
            yield shown
            assert program.poll() is None, (folder / "log").read_text()[-4_000:]
        finally:
            program.terminate()
            program.wait(60)


def rows_of(shown: str) -> list[list[str]]:
    """The cells of all rows that the console sink has printed, without headings."""
    rows = []
    for batch in shown.split(BATCH)[1:]:
        table = [line.strip("|").split("|") for line in batch.splitlines() if line.startswith("|")]
        rows += [[cell.strip() for cell in cells] for cells in table[1:]]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLE_CASES, ids=lambda example: example.program.removesuffix(".py"))
def test_example_of_spark_runs_unchanged(example: Example, database: Settings, tmp_path: Path) -> None:
    """The words of three lines are counted, in more than one batch, and the state is in DynamoDB."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(SHOWN_WITHIN_S)
        with running(example, server.getsockname()[1], database, tmp_path) as shown, server.accept()[0] as source:
            for number, line in enumerate(LINES, start=1):
                batches = shown.read_text().count(BATCH)
                source.sendall(f"{line}\n".encode())
                wait_until(
                    lambda batches=batches: shown.read_text().count(BATCH) > batches,  # type: ignore[misc]
                    f"line {number} was in no batch",
                    SHOWN_WITHIN_S,
                )
            wait_until(lambda: example.counts(rows_of(shown.read_text())) == COUNTS, "counts differ", SHOWN_WITHIN_S)
    tables = BotoTables(database)
    try:
        assert find_stores(tables, NAMESPACE)
    finally:
        tables.close()
