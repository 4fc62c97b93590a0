"""The whole demo: write files, run Spark, kill and restart it, compare the results, show the figures."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, final
from unittest.mock import patch

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dynastate.demo import contents, flights, verify
from dynastate.demo.contents import Figures
from dynastate.demo.process import QUERIES, Layout, QueryProgress, SparkProcess, location
from dynastate.dynamodb.boto_tables import open_tables
from dynastate.dynamodb.embedded import EmbeddedDynamoDB, credentials
from dynastate.engine.namespaces import read_namespace
from dynastate.errors import InternalError
from dynastate.operations.checkpoints import StoredCheckpoint
from dynastate.operations.inspection.inspect import read_lists
from dynastate.storage.tables import Tables
from dynastate.ui.server import serve

#: How often progress is read, which takes a request to DynamoDB for each query.
_POLL_S: Final = 0.5
#: The same while Spark is to be killed at a moment that lasts for some tenths of a second.
_MOMENT_S: Final = 0.07
#: A batch takes about a second; the first one, with a Spark that has yet to start, ten of them.
_STALL_S: Final = 120.0
#: How long to wait for a batch that only some stores have committed; after that, any batch will do.
_PICKY_S: Final = 20.0
_DIFFERENCES_SHOWN: Final = 20
#: Prefixes of environment variables that are removed: the demo uses no AWS account and no other Spark.
_ENVIRONMENT_REMOVED: Final = ("AWS_", "PYSPARK_", "SPARK_")


def run(days: int, days_per_file: int, *, stderr: bool = False, with_page: bool = False) -> dict[str, Figures]:
    """Run the demo in a new work folder, which is kept only if the demo fails."""
    started = time.monotonic()
    console = Console(highlight=False, stderr=stderr)
    # SIGTERM ends the demo as Ctrl-C does, through every `with`.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    data = flights.load(days)
    work = Layout(Path(tempfile.mkdtemp(prefix="dyn-")))
    try:
        played = play(work, data, days_per_file, console, with_page=with_page)
    except Exception:
        console.print(f"[yellow]kept for a look:[/] {work.root}, with Spark's log in {work.log.name}", soft_wrap=True)
        raise
    except BaseException:
        shutil.rmtree(work.root, ignore_errors=True)
        raise
    shutil.rmtree(work.root, ignore_errors=True)
    console.print(f"[bold green]all values are equal[/], in {time.monotonic() - started:.0f} s")
    return played


def play(
    work: Layout, data: flights.Input, days_per_file: int, console: Console, *, with_page: bool = False
) -> dict[str, Figures]:
    """Run it.

    1. Write files. 2. Start the queries. 3. Kill them in mid-batch. 4. Start them again. 5. Count. 6. Compare. 7. Show
    the page, if requested.
    """
    files = flights.write(data, work.input, days_per_file)  # 1
    console.print(
        f"{len(data.flights):,} flights and {len(data.weather):,} hours of weather,"
        f" {files} files of {days_per_file} days"
    )
    with _environment(), EmbeddedDynamoDB() as database, open_tables(database.settings) as tables:
        bars = _Bars(work, files, tables, console)
        with bars.progress:
            with SparkProcess(work, database.settings) as spark:  # 2
                bars.say(f"embedded DynamoDB at {database.endpoint}, Spark in process {spark.pid}")
                bars.follow(spark, until=files // 2)  # of two queries: a quarter of all batches
                for line in kill_in_mid_batch(spark, bars):  # 3
                    bars.say(f"[red]{line}[/]")
            with SparkProcess(work, database.settings) as spark:  # 4
                bars.say(f"[green]Spark starts again from the checkpoint, in process {spark.pid}[/]")
                bars.follow(spark)
            figures = {
                query: contents.figures(tables, read_namespace(tables, query).listed, work.progress / query)
                for query in QUERIES
            }  # 5
        compare(work, data, console)  # 6
        report(figures, console)
        if with_page:  # 7
            serve(
                database.settings, [], 0, say=lambda url: console.print(f"[bold]{url}[/]  until Ctrl-C", soft_wrap=True)
            )
        else:
            console.print("[dim]'dynastate demo --ui' shows this state on a web page[/]")
    return figures


@dataclass(frozen=True)
class _Moment:
    """The batch of a query that is under way, and how many of its stores have committed it."""

    query: str
    batch: int | None
    stores: int
    committed: int

    def __str__(self) -> str:
        if self.batch is None:
            return f"{self.query}: between two batches"
        return f"{self.query}: batch {self.batch} under way, committed by {self.committed} of its {self.stores} stores"


def kill_in_mid_batch(spark: SparkProcess, bars: _Bars) -> list[str]:
    """Kill Spark at the worst moment: some stores have committed the batch that is under way, others have not.

    1. Wait until a query's batch is under way. 2. Stop Spark, so that nothing changes meanwhile. 3. Kill it if some
    stores have committed the batch and others have not, else resume it. 4. Read the checkpoints of the killed Spark,
    and return what was killed, in lines to show.
    """
    picky_until = time.monotonic() + _PICKY_S
    while bars.update(spark):
        if any(each.under_way is not None for each in bars.progresses.values()):  # 1
            spark.stop()  # 2
            moments = bars.moments()
            is_split = any(0 < moment.committed < moment.stores for moment in moments)
            is_late = time.monotonic() > picky_until and any(moment.batch is not None for moment in moments)
            if (is_split or is_late) and bars.all_recorded():
                spark.kill()  # 3
                moments = bars.moments()  # 4
                if all(moment.batch is None for moment in moments):
                    raise InternalError("no batch was under way when Spark died; run the demo again")
                return [f"Spark (process group {spark.pid}) was killed with SIGKILL in mid-batch", *map(str, moments)]
            spark.resume()
        time.sleep(_MOMENT_S)
    raise InternalError("Spark had taken all files before it could be killed")


def _moment(query: str, batch: int | None, tables: Tables) -> _Moment:
    stores = read_namespace(tables, query).listed
    if batch is None:
        return _Moment(query, None, len(stores), 0)
    # Batch 0 makes version 1.
    committed = sum(batch + 1 in read_lists(tables, store)[0].versions() for store in stores)
    return _Moment(query, batch, len(stores), committed)


@final
class _Bars:
    """A progress bar for each query, by its checkpoint."""

    def __init__(self, work: Layout, files: int, tables: Tables, console: Console) -> None:
        self._work = work
        self._files = files
        self._tables = tables
        self._checkpoints = {query: StoredCheckpoint(tables, location(query)) for query in QUERIES}
        #: By query, as read last.
        self.progresses: dict[str, QueryProgress] = {}
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("batches"),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks = {query: self.progress.add_task(query, total=files) for query in QUERIES}

    def say(self, line: str) -> None:
        self.progress.console.print(line, soft_wrap=True)

    def read(self) -> None:
        """Read the progress of the queries."""
        self.progresses = {query: QueryProgress.read(checkpoint) for query, checkpoint in self._checkpoints.items()}

    def moments(self) -> list[_Moment]:
        """Read what each query has under way, while nothing changes."""
        self.read()
        return [_moment(query, progress.under_way, self._tables) for query, progress in self.progresses.items()]

    def update(self, spark: SparkProcess) -> bool:
        """Show the progress of the queries; return whether Spark still runs."""
        runs = spark.is_running()
        self.read()
        for query, task in self._tasks.items():
            committed = self.progresses[query].committed
            # A batch without data may follow the last file, to close hours. A kill between Spark's log of files and
            # its log of offsets joins two files in one batch. The number of batches is known at the end only.
            total = max(committed, self._files) if runs else committed
            self.progress.update(task, completed=committed, total=total)
        return runs

    def follow(self, spark: SparkProcess, until: int | None = None) -> None:
        """Show the progress until so many batches have ended, or until Spark ends. Refuse to wait for ever."""
        previous, since = 0, time.monotonic()
        while self.update(spark):
            count = sum(progress.committed for progress in self.progresses.values())
            if until is not None and count >= until:
                return
            if count != previous:
                previous, since = count, time.monotonic()
            if time.monotonic() - since > _STALL_S:
                raise InternalError(f"no batch has ended for {_STALL_S:.0f} s", log=self._work.log)
            time.sleep(_POLL_S)

    def all_recorded(self) -> bool:
        """Whether the progress of every batch that has ended is recorded, so that killing Spark loses none."""
        return all(
            len(list((self._work.progress / query).glob("*.json"))) == progress.committed
            for query, progress in self.progresses.items()
        )


def _environment() -> AbstractContextManager[object]:
    """Set the environment of this process and its children: no AWS account, no other Spark, and dummy credentials."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_ENVIRONMENT_REMOVED)}
    no_files = dict.fromkeys(("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"), os.devnull)
    return patch.dict(os.environ, variables | credentials() | no_files | {"SPARK_LOCAL_IP": "127.0.0.1"}, clear=True)


def compare(work: Layout, data: flights.Input, console: Console) -> None:
    """Compare every value with the batch computation, and show the result."""
    comparisons = verify.check(work, data)
    for comparison in comparisons:
        verdict = "[bold red]DIFFER[/]" if comparison.differences else "[green]equal[/]"
        console.print(f"{comparison.subject}: {comparison.rows:,} rows, {comparison.values:,} values: {verdict}")
    differing = [(each.subject, difference) for each in comparisons for difference in each.differences]
    if differing:
        table = Table("where", "row", "column", "expected", "found", title="not what a batch computation gives")
        for subject, difference in differing[:_DIFFERENCES_SHOWN]:
            key = ", ".join(map(str, difference.key))
            cells = (subject, key, difference.column or "(row)", difference.expected, difference.actual)
            table.add_row(*(escape(str(cell)) for cell in cells))
        console.print(table)
        raise InternalError(
            "results differ from the batch computation of the same data; please report it with the work folder",
            differences=len(differing),
            first=f"{differing[0][0]}: {differing[0][1]}",
        )


def report(by_query: dict[str, Figures], console: Console) -> None:
    columns = [*by_query.values(), sum(by_query.values(), Figures())]
    table = Table("", title="what is in the tables, and what the batches that ended took", title_justify="left")
    for name in (*by_query, "together"):
        table.add_column(name, justify="right")
    for figure in fields(Figures):
        table.add_row(figure.metadata["label"], *(f"{getattr(each, figure.name):,}" for each in columns))
    table.add_row("dollars on demand, us-east-1", *(f"{each.dollars:.4f}" for each in columns))
    console.print(table)
