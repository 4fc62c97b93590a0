"""A day in an hour: a query with the rhythm of a day, whose executors are replaced, and what it takes in the meantime.

    python benchmarks/day.py
    python benchmarks/day.py --batches 40 --rows 1000 --replace 30                                 to try it

One query drops duplicates and counts sessions of users, who come and go; there are ten times as many rows at noon and
midnight as between. Every few minutes its oldest executor is killed, and Spark starts another one. Memory, disk, files,
threads, connections, items and units must not grow from the first half of the day to the same hours of the second.
Prints the figures, draws them into build/benchmarks/day.png, keeps them in day.json, and exits 1 when one has grown.
See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import pyspark
from database import REGION, add_arguments, database
from matplotlib.figure import Figure
from rich.table import Table
from targets import RESULTS, ROOT, Target, console, finish

import dynastate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DAY_S = 86_400
CORES = 2
EXECUTORS = 2
SAMPLE_S = 5
#: A day begins before there are clean-ups: this part of it is not judged, nor are the same hours of its second half.
WARMUP = 0.15
#: The most that a figure of the second half's hours may be, in that of the same hours of the first half.
AT_MOST = 1.15
#: What a word of its command line makes a process.
ROLES = {"CoarseGrainedExecutorBackend": "executors", "dynastate.sidecar": "sidecars", "SparkSubmit": "driver"}
#: By sample: the figure, and what it is.
SAMPLED = {
    "executors_mb": "memory of executors, MB",
    "sidecars_mb": "memory of sidecars, MB",
    "driver_mb": "memory of the driver, MB",
    "disk_mb": "disk tier, MB",
    "checkpoint_mb": "checkpoint, MB",
    "files": "open files of executors and sidecars",
    "threads": "threads of executors and sidecars",
    "connections": "sockets of executors and sidecars",
}
#: By batch: the names in the query's progress, and what their sum is.
REPORTED = {
    "items": (("dynastateStoredItems",), "items"),
    "stored_mb": (("dynastateStoredBytes",), "items, MB"),
    "units": (
        ("dynastateWriteUnits", "dynastateMaintenanceWriteUnits", "dynastateDeleteUnits"),
        "write units a batch, ten batches",
    ),
}
#: Of these a batch alone says little.
MEANS = ("units",)
SMOOTHED = 10
Series = Sequence[tuple[float, float]]


def spark_session(folder: Path, endpoint: str, options: argparse.Namespace) -> SparkSession:
    """A Spark with executors in processes of their own; all of its files are below a folder."""
    from pyspark.sql import SparkSession

    home = folder / "home"
    home.mkdir()
    for part in ("bin", "jars"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    os.environ["SPARK_HOME"] = str(home)
    conf: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"-Dspark.test.home={home}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "1g",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.streaming.numRecentProgressUpdates": str(2 * options.batches),
        # 100, as by default, of a whole day.
        "spark.sql.streaming.minBatchesToRetain": str(max(2, options.batches // 10)),
        "spark.ui.enabled": "false",
        # Executors that are killed are no reason to end the application, or a task.
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.stage.maxConsecutiveAttempts": "20",
        "spark.task.maxFailures": "20",
        # Their shuffle files are lost, and not worth a wait.
        "spark.shuffle.io.maxRetries": "1",
        "spark.shuffle.io.retryWait": "1s",
    }
    builder = SparkSession.builder.master(f"local-cluster[{EXECUTORS},{CORES // EXECUTORS},1024]").config(map=conf)
    settings: Mapping[str, Any] = {"memory_mb": options.memory_mb}
    return dynastate.configure(builder, endpoint=endpoint, region=REGION, **settings).getOrCreate()


def start(spark: SparkSession, folder: Path, options: argparse.Namespace) -> StreamingQuery:
    """Users of one of three generations, each of six hours; a session ends after twenty minutes."""
    from pyspark.sql import functions as sql

    rows = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", options.rows)
        .option("numPartitions", CORES)
        .option("advanceMillisPerBatch", DAY_S * 1000 // options.batches)
        .load()
    )
    second = sql.unix_timestamp("timestamp")
    share = 0.55 + 0.45 * sql.cos(4 * sql.pi() * (second % DAY_S) / DAY_S)
    dice = [sql.pmod(sql.xxhash64("value", sql.lit(number)), sql.lit(size)) for number, size in enumerate((1000, 3))]
    generation = sql.floor(second / 7200) - dice[1]
    user = sql.concat_ws("-", generation, sql.pmod(sql.xxhash64("value"), sql.lit(options.users)))
    counted = (
        rows.where(dice[0] < 1000 * share)
        .select("value", "timestamp", user.alias("user"))
        .withWatermark("timestamp", "10 minutes")
        .dropDuplicatesWithinWatermark(["value"])
        .groupBy(sql.session_window("timestamp", "20 minutes"), "user")
        .count()
    )
    return (
        counted.writeStream.format("noop")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime=f"{options.interval} seconds")
        .start()
    )


def processes() -> dict[int, str]:
    """Those below this one that have a role, by number."""
    parents, roles = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text().replace("\0", " ")
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        role = next((role for word, role in ROLES.items() if word in words), None)
        if role:
            roles[int(folder.name)] = role
    return {number: role for number, role in roles.items() if is_below(number, parents)}


def start_ticks(number: int) -> int:
    """When a process began, in clock ticks since the machine did. A process that has ended began last."""
    try:
        return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return sys.maxsize


def is_below(number: int, parents: Mapping[int, int]) -> bool:
    while number > 1 and number != os.getpid():
        number = parents.get(number, 0)
    return number == os.getpid()


def sample(folder: Path) -> dict[str, float]:
    """What the processes take now."""
    figures = dict.fromkeys(SAMPLED, 0.0)
    for number, role in processes().items():
        process = Path(f"/proc/{number}")
        try:
            status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
            links = [(file, str(file.readlink())) for file in (process / "fd").iterdir()]
            deleted = sum(file.stat().st_blocks * 512 for file, link in links if link.endswith(" (deleted)"))
            figures[f"{role}_mb"] += int(status["VmRSS"].split()[0]) / 1024
        except (OSError, KeyError):  # it has ended meanwhile
            continue
        if role != "driver":
            figures["disk_mb"] += deleted / 2**20
            figures["files"] += len(links)
            figures["threads"] += int(status["Threads"])
            figures["connections"] += sum(link.startswith("socket:") for _, link in links)
    checkpoint = (file.stat().st_size for file in (folder / "checkpoint").rglob("*") if file.is_file())
    return figures | {"checkpoint_mb": sum(checkpoint) / 2**20}


def run_day(options: argparse.Namespace, folder: Path, endpoint: str) -> dict[str, Any]:
    """Run the query until its day ends; its samples, its reports, and how many executors were killed."""
    spark = spark_session(folder, endpoint, options)
    query = start(spark, folder, options)
    begin = time.monotonic()
    samples, killed = [], 0
    while (query.lastProgress or {"batchId": 0})["batchId"] < options.batches:
        time.sleep(SAMPLE_S)
        if not query.isActive:
            sys.exit(f"benchmark: the query has ended: {query.exception()}")
        seconds = time.monotonic() - begin
        try:
            samples.append({"s": seconds} | sample(folder))
        except FileNotFoundError:  # a file of the checkpoint was deleted meanwhile; the next sample comes soon
            continue
        if seconds > options.replace * (killed + 1):
            executors = [number for number, role in processes().items() if role == "executors"]
            # As if its machine was lost, and as if it was stopped.
            os.kill(min(executors, key=start_ticks), (signal.SIGKILL, signal.SIGTERM)[killed % 2])
            killed += 1
    reports = [report_of(json.loads(progress.json)) for progress in query.recentProgress]
    query.stop()
    spark.stop()
    return {"samples": samples, "batches": reports, "killed": killed, "seconds": time.monotonic() - begin}


def report_of(progress: Mapping[str, Any]) -> dict[str, float]:
    """One batch, with all its operators."""
    operators = progress["stateOperators"]
    sums = {
        key: float(sum(each["customMetrics"].get(name, 0) for each in operators for name in names))
        for key, (names, _) in REPORTED.items()
    }
    rows = sum(each["numRowsTotal"] for each in operators)
    return sums | {
        "stored_mb": sums["stored_mb"] / 2**20,
        "batch": progress["batchId"],
        "rows": rows,
        "ms": progress["durationMs"]["triggerExecution"],
    }


def series(day: Mapping[str, Any]) -> Mapping[str, Series]:
    """Each figure by the hour of its day."""
    last = day["samples"][-1]["s"]
    sampled = {key: [(24 * each["s"] / last, each[key]) for each in day["samples"]] for key in SAMPLED}
    batches = day["batches"]
    by_batch = {key: [(24 * at / len(batches), each[key]) for at, each in enumerate(batches)] for key in REPORTED}
    for key in MEANS:
        values = [value for _, value in by_batch[key]]
        by_batch[key] = [
            (hour, sum(values[max(0, at + 1 - SMOOTHED) : at + 1]) / min(at + 1, SMOOTHED))
            for at, (hour, _) in enumerate(by_batch[key])
        ]
    return sampled | by_batch


def halves(points: Series, *, is_mean: bool) -> tuple[float, float]:
    """The most, or the mean, of each half of the day without its beginning: the same hours of two equal rhythms."""
    parts = [[value for hour, value in points if start + 24 * WARMUP <= hour < start + 12] for start in (0, 12)]
    first, second = (sum(part) / len(part) if is_mean else max(part) for part in parts)
    return first, second


def labels() -> dict[str, str]:
    return {**SAMPLED, **{key: text for key, (_, text) in REPORTED.items()}}


def targets(day: Mapping[str, Any]) -> list[Target]:
    """No figure grows."""
    by_figure = series(day)
    judged = []
    for key, text in labels().items():
        first, second = halves(by_figure[key], is_mean=key in MEANS)
        what = "mean" if key in MEANS else "most"
        judged.append(
            Target(f"a day, {what} of {text}: second half / first half", second / first if first else 0, AT_MOST)
        )
    return judged


def draw(day: Mapping[str, Any], file: Path) -> None:
    """One picture for each figure, by the hour of the day."""
    mpl.use("Agg")
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    panels = figure.subplots(4, 3).flat
    rows = [(24 * at / len(day["batches"]), each["rows"]) for at, each in enumerate(day["batches"])]
    shown = [("rows of state", rows), *((labels()[key], points) for key, points in series(day).items())]
    for panel, (text, points) in zip(panels, shown, strict=True):
        panel.plot(*zip(*points, strict=True), linewidth=1)
        panel.set_title(text, fontsize=9)
        panel.set(ylim=(0, None), xlim=(0, 24), xticks=range(0, 25, 6))
        panel.grid(visible=True, alpha=0.3)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=110)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1000, help="of the day (default: %(default)s)")
    parser.add_argument(
        "--interval", type=float, default=3.6, help="seconds from one to the next (default: %(default)s)"
    )
    parser.add_argument("--rows", type=int, default=10_000, help="of a batch at noon (default: %(default)s)")
    parser.add_argument("--users", type=int, default=5_000, help="of a generation (default: %(default)s)")
    parser.add_argument("--replace", type=int, default=240, help="seconds between two executors (default: %(default)s)")
    parser.add_argument("--memory-mb", type=int, default=2, help="of rows on an executor's heap (default: %(default)s)")
    add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    out = console()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with (
        tempfile.TemporaryDirectory(prefix="dynastate-bench-") as folder,
        database(options.endpoint, options.engine) as running,
    ):
        os.environ.update(running.environment)
        day = run_day(options, Path(folder), running.endpoint)
    by_figure = series(day)
    table = Table("most of, and the mean of units", "first half", "second half")
    for key, text in labels().items():
        table.add_row(text, *(f"{most:,.0f}" for most in halves(by_figure[key], is_mean=key in MEANS)))
    out.print(table)
    picture = RESULTS / "day.png"
    draw(day, picture)
    out.print(
        f"{len(day['batches'])} batches in {day['seconds']:,.0f} s, {day['killed']} executors killed; "
        f"drawn in {picture.relative_to(ROOT)}"
    )
    finish(out, "day", vars(options), day, targets(day))


if __name__ == "__main__":
    main()
