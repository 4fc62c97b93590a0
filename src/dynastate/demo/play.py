"""The whole demo: write files, run Spark, kill and restart it, compare the results, show the figures."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from dynastate.demo import contents, flights, verify
from dynastate.demo.contents import Figures
from dynastate.demo.process import QUERIES, Checkpoint, Layout, SparkProcess
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.embedded import EmbeddedDynamoDB, credentials
from dynastate.dynamodb.tables import Tables
from dynastate.errors import InternalError

_POLL_S: Final = 0.07
#: A batch takes about a second; the first one, with a Spark that has yet to start, ten of them.
_STALL_S: Final = 120.0
#: How long to wait for a batch that only some stores have committed; after that, any batch will do.
_PICKY_S: Final = 20.0
_DIFFERENCES_SHOWN: Final = 20
#: Prefixes of environment variables that are removed: the demo uses no AWS account and no other Spark.
_ENVIRONMENT_REMOVED: Final = ("AWS_", "PYSPARK_", "SPARK_")


def run(days: int, days_per_file: int, *, stderr: bool = False) -> dict[str, Figures]:
    """Run the demo in a new work folder, which is kept only if the demo fails."""
    started = time.monotonic()
    console = Console(highlight=False, stderr=stderr)
    # SIGTERM ends the demo as Ctrl-C does, through every `with`.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    data = flights.load(days)
    work = Layout(Path(tempfile.mkdtemp(prefix="dyn-")))
    try:
        played = play(work, data, days_per_file, console)
        report(played, console)
    except Exception:
        console.print(f"[yellow]kept for a look:[/] {work.root}, with Spark's log in {work.log.name}", soft_wrap=True)
        raise
    except BaseException:
        shutil.rmtree(work.root, ignore_errors=True)
        raise
    shutil.rmtree(work.root, ignore_errors=True)
    console.print(f"[bold green]all values are equal[/], in {time.monotonic() - started:.0f} s")
    return played


def play(work: Layout, data: flights.Input, days_per_file: int, console: Console) -> dict[str, Figures]:
    """1. Write files. 2. Start the queries. 3. Kill them in mid-batch. 4. Start them again. 5. Count. 6. Compare.

    Raises:
        InternalError: Spark failed, or a value differs.
    """
    files = flights.write(data, work.input, days_per_file)  # 1
    console.print(
        f"{len(data.flights):,} flights and {len(data.weather):,} hours of weather,"
        f" {files} files of {days_per_file} days"
    )
    with (
        _environment(),
        EmbeddedDynamoDB() as database,
        closing(BotoTables(database.settings)) as tables,
        _Bars(work, files, console) as bars,
    ):
        with SparkProcess(work, database.settings) as spark:  # 2
            bars.say(f"embedded DynamoDB at {database.endpoint}, Spark in process {spark.pid}")
            bars.follow(spark, until=files // 2)  # of two queries: a quarter of all batches
            for line in kill_in_mid_batch(spark, bars, tables):  # 3
                bars.say(f"[red]{line}[/]")
        with SparkProcess(work, database.settings) as spark:  # 4
            bars.say(f"[green]Spark starts again from the checkpoint, in process {spark.pid}[/]")
            bars.follow(spark)
        found = {
            query: contents.figures(tables, checkpoint.stores(), work.progress(query))
            for query, checkpoint in bars.checkpoints.items()
        }  # 5
    compare(work, data, console)  # 6
    return found


@dataclass(frozen=True)
class _Moment:
    """The batch of a query that is under way, and how many of its stores have committed it."""

    query: str
    batch: int | None
    stores: int
    committed: int

    @property
    def is_split(self) -> bool:
        return 0 < self.committed < self.stores

    def __str__(self) -> str:
        if self.batch is None:
            return f"{self.query}: between two batches"
        return f"{self.query}: batch {self.batch} under way, committed by {self.committed} of its {self.stores} stores"


def kill_in_mid_batch(spark: SparkProcess, bars: _Bars, tables: Tables) -> list[str]:
    """Kill Spark at the worst moment: some stores have committed the batch that is under way, others have not.

    1. Wait until a query's batch is under way. 2. Stop Spark, so that nothing changes meanwhile. 3. Kill it if some
    stores have committed the batch and others have not, else resume it. 4. Read the checkpoints of the killed Spark.

    Returns:
        What was killed, in lines to show.

    Raises:
        InternalError: Spark ended before there was such a moment, or no batch was under way when it was killed.
    """
    picky_until = time.monotonic() + _PICKY_S
    while bars.update(spark):
        if any(checkpoint.under_way() is not None for checkpoint in bars.checkpoints.values()):  # 1
            spark.stop()  # 2
            moments = _moments(bars, tables)
            is_split = any(moment.is_split for moment in moments)
            is_late = time.monotonic() > picky_until and any(moment.batch is not None for moment in moments)
            if (is_split or is_late) and bars.all_recorded():
                spark.kill()  # 3
                moments = _moments(bars, tables)  # 4
                if all(moment.batch is None for moment in moments):
                    raise InternalError("no batch was under way when Spark died; run the demo again")
                return [f"Spark (process group {spark.pid}) was killed with SIGKILL in mid-batch", *map(str, moments)]
            spark.resume()
        time.sleep(_POLL_S)
    raise InternalError("Spark had taken all files before it could be killed")


def _moments(bars: _Bars, tables: Tables) -> list[_Moment]:
    return [_moment(query, checkpoint, tables) for query, checkpoint in bars.checkpoints.items()]


def _moment(query: str, checkpoint: Checkpoint, tables: Tables) -> _Moment:
    batch, stores = checkpoint.under_way(), checkpoint.stores()
    if batch is None:
        return _Moment(query, None, len(stores), 0)
    # Batch 0 makes version 1.
    committed = sum(any(entry.version == batch + 1 for entry in contents.version_entries(tables, s)) for s in stores)
    return _Moment(query, batch, len(stores), committed)


@final
class _Bars:
    """A progress bar for each query, by its checkpoint."""

    def __init__(self, work: Layout, files: int, console: Console) -> None:
        self._work = work
        self._files = files
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("batches"),
            TimeElapsedColumn(),
            console=console,
        )
        self.checkpoints = {query: Checkpoint(work.checkpoint(query)) for query in QUERIES}
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> _Bars:
        self._tasks = {query: self._progress.add_task(query, total=self._files) for query in QUERIES}
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, line: str) -> None:
        self._progress.console.print(line, soft_wrap=True)

    def update(self, spark: SparkProcess) -> bool:
        """Show the progress of the queries; return whether Spark still runs."""
        runs = spark.is_running()
        for query, task in self._tasks.items():
            committed = self.checkpoints[query].committed()
            # A batch without data may follow the last file, to close hours; and a kill between Spark's log of files and
            # its log of offsets joins two files in one batch. The number of batches is known at the end only.
            total = max(committed, self._files) if runs else committed
            self._progress.update(task, completed=committed, total=total)
        return runs

    def follow(self, spark: SparkProcess, until: int | None = None) -> None:
        """Show the progress until so many batches have ended; None: until Spark ends.

        Raises:
            InternalError: Spark failed, or no batch ended for two minutes.
        """
        before, since = 0, time.monotonic()
        while self.update(spark):
            done = sum(checkpoint.committed() for checkpoint in self.checkpoints.values())
            if until is not None and done >= until:
                return
            if done != before:
                before, since = done, time.monotonic()
            if time.monotonic() - since > _STALL_S:
                raise InternalError(f"no batch has ended for {_STALL_S:.0f} s", log=self._work.log)
            time.sleep(_POLL_S)

    def all_recorded(self) -> bool:
        """Whether the progress of every batch that has ended is recorded, so that killing Spark loses none."""
        return all(
            len(list(self._work.progress(query).glob("*.json"))) == checkpoint.committed()
            for query, checkpoint in self.checkpoints.items()
        )


@contextmanager
def _environment() -> Iterator[None]:
    """Set the environment of this process and its children: no AWS account, no other Spark, and dummy credentials."""
    before = dict(os.environ)
    for name in before:
        if name.startswith(_ENVIRONMENT_REMOVED):
            del os.environ[name]
    os.environ.update(credentials())
    os.environ.update(AWS_CONFIG_FILE=os.devnull, AWS_SHARED_CREDENTIALS_FILE=os.devnull, SPARK_LOCAL_IP="127.0.0.1")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def compare(work: Layout, data: flights.Input, console: Console) -> None:
    """Compare every value with the batch computation, and show the result.

    Raises:
        InternalError: some differ; they are shown.
    """
    comparisons = verify.check(work, data)
    for each in comparisons:
        verdict = "[bold red]DIFFER[/]" if each.differences else "[green]equal[/]"
        console.print(f"{each.what}: {each.rows:,} rows, {each.values:,} values: {verdict}")
    differing = [(each.what, difference) for each in comparisons for difference in each.differences]
    if differing:
        table = Table("where", "row", "column", "expected", "found", title="not what a batch computation gives")
        for what, difference in differing[:_DIFFERENCES_SHOWN]:
            key = ", ".join(map(str, difference.key))
            cells = (what, key, difference.column or "(row)", difference.expected, difference.found)
            table.add_row(*(escape(str(cell)) for cell in cells))
        console.print(table)
        raise InternalError(
            "results differ from the batch computation of the same data; please report it with the work folder",
            differences=len(differing),
            first=f"{differing[0][0]}: {differing[0][1]}",
        )


def report(found: dict[str, Figures], console: Console) -> None:
    """Show the figures of each query and of both."""
    columns = [*found.values(), sum(found.values(), Figures())]
    table = Table("", title="what is in the tables, and what the batches that ended took", title_justify="left")
    for name in (*found, "together"):
        table.add_column(name, justify="right")
    for label, cells in {
        "rows of state": [f"{each.state_rows:,}" for each in columns],
        "stores": [f"{each.stores:,}" for each in columns],
        "versions": [f"{each.versions:,}" for each in columns],
        "versions made twice": [f"{each.made_twice:,}" for each in columns],
        "delta table: items": [f"{each.delta_items:,}" for each in columns],
        "delta table: bytes": [f"{each.delta_bytes:,}" for each in columns],
        "snapshot-group table: items": [f"{each.snapshot_items:,}" for each in columns],
        "snapshot-group table: bytes": [f"{each.snapshot_bytes:,}" for each in columns],
        "batches": [f"{each.batches:,}" for each in columns],
        "requests": [f"{each.requests:,}" for each in columns],
        "write units": [f"{each.write_units:,}" for each in columns],
        "read units": [f"{each.read_units:,}" for each in columns],
        "dollars on demand, us-east-1": [f"{each.dollars:.4f}" for each in columns],
    }.items():
        table.add_row(label, *cells)
    console.print(table)
