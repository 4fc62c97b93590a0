"""Our state store provider beside Spark's own, each driven through Spark's trait in a fresh JVM.

    python benchmarks/provider.py                                  everything, as the targets ask for it
    python benchmarks/provider.py --rows 100000 --providers hdfs,rocksdb-changelog

Prints the figures of each provider and the ratios that have a target, keeps them in build/benchmarks/provider.json,
and exits 1 when a target is missed. See benchmarks/README.md for what each figure means.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from database import REGION, database
from rich.console import Console
from rich.table import Table
from targets import RESULTS, ROOT, Target, console, save, show

JAR = ROOT / "build" / "benchmarks.jar"
SPARK_STATE = "org.apache.spark.sql.execution.streaming.state"
CONF = "spark.sql.streaming.stateStore"
OURS = "ours"
#: The state that open at the full size is compared with.
SMALL_ROWS = 10_000
SMALL = f"{OURS} ({SMALL_ROWS:,} rows)"
#: One process. A million rows take half a minute on two cores; this is for slow machines and larger states.
RUN_TIMEOUT_S = 1800
#: What Spark's launcher passes (org.apache.spark.launcher.JavaModuleOptions), as far as state stores need it.
MODULE_OPTIONS = [
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            "java.lang",
            "java.lang.invoke",
            "java.lang.reflect",
            "java.io",
            "java.net",
            "java.nio",
            "java.util",
            "java.util.concurrent",
            "java.util.concurrent.atomic",
            "jdk.internal.ref",
            "sun.nio.ch",
            "sun.nio.cs",
            "sun.security.action",
            "sun.util.calendar",
        )
    ),
    "-Dio.netty.tryReflectionSetAccessible=true",
]
#: What the table shows of what the JVM found: key, text, digits after the point.
SHOWN = [
    ("load_s", "initial load, s", 2),
    ("open_ms", "open, ms", 3),
    ("get_ns", "get, ns", 0),
    ("put_ns", "put, ns", 0),
    ("commit_ms", "commit, ms", 1),
    ("batch_ms", "whole batch, ms", 1),
    ("batch_p95_ms", "whole batch, 95th percentile, ms", 1),
    ("iterate_ns", "iterate, ns a row", 0),
    ("state_heap_mb", "heap of the state, MB", 0),
    ("process_heap_mb", "heap of the process, MB", 0),
    ("process_rss_mb", "resident memory of the process, MB", 0),
    ("maintenance_ms", "snapshot maintenance, ms", 0),
    ("cold_open_ms", "cold open, same process, ms", 0),
    ("restart_open_ms", "cold open, fresh process, ms", 0),
    ("sidecar_rss_load_mb", "sidecar's peak memory in the load, MB", 0),
    ("sidecar_rss_max_mb", "sidecar's peak memory, MB", 0),
    ("sidecar_cpu_ms", "sidecar's CPU time, ms", 0),
]

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Contender:
    """A provider class, and the conf that makes it the variant that is meant."""

    provider: str
    conf: Mapping[str, str]


CONTENDERS = {
    OURS: Contender("io.dynastate.spark.DynamoDBStateStoreProvider", {}),
    "hdfs": Contender(f"{SPARK_STATE}.HDFSBackedStateStoreProvider", {}),
    "rocksdb": Contender(
        f"{SPARK_STATE}.RocksDBStateStoreProvider", {f"{CONF}.rocksdb.changelogCheckpointing.enabled": "false"}
    ),
    "rocksdb-changelog": Contender(
        f"{SPARK_STATE}.RocksDBStateStoreProvider", {f"{CONF}.rocksdb.changelogCheckpointing.enabled": "true"}
    ),
}


@dataclass(frozen=True)
class Plan:
    """What every provider is put through: rows of state, keys a batch, batches, the seed of their choice."""

    rows: int
    updates: int
    batches: int
    warmup: int
    seed: int
    heap: str


def build() -> None:
    """Bring the bridge and the benchmark's jar up to date."""
    sources = ROOT / "benchmarks" / "scala"
    command = [sys.executable, str(ROOT / "jvm-bridge" / "build.py"), "--sources", str(sources), "--jar", str(JAR)]
    subprocess.run(command, check=True, stdout=sys.stderr)


def classpath() -> str:
    """The benchmark, the bridge as far as it is built, and Spark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        sys.exit("benchmark: pyspark is missing; run 'make setup'")
    bridges = sorted((ROOT / "src" / "dynastate" / "jars").glob("*.jar"))
    return os.pathsep.join([str(JAR), *map(str, bridges), str(Path(spec.origin).parent / "jars" / "*")])


def java_command(plan: Plan, contender: Contender, folder: Path, *, reopen: bool) -> list[str]:
    """The one JVM command line: the same heap and collector for every provider."""
    scratch = folder / "tmp"
    scratch.mkdir(parents=True, exist_ok=True)
    jvm = ["java", f"-Xms{plan.heap}", f"-Xmx{plan.heap}", "-XX:+UseG1GC", *MODULE_OPTIONS]
    # RocksDB's working copy goes where java.io.tmpdir says: into the folder that is removed at the end.
    jvm += [f"-Djava.io.tmpdir={scratch}", f"-Dlog4j2.configurationFile={ROOT / 'benchmarks' / 'log4j2.properties'}"]
    own = {
        "provider": contender.provider,
        "checkpoint": (folder / "state").as_uri(),
        "rows": plan.rows,
        "updates": plan.updates,
        "batches": plan.batches,
        "warmup": plan.warmup,
        "seed": plan.seed,
        "reopen": str(reopen).lower(),
    }
    arguments = [f"{name}={value}" for name, value in (own | dict(contender.conf)).items()]
    return [*jvm, "-cp", classpath(), "io.dynastate.benchmarks.ProviderBenchmark", *arguments]


def run_jvm(command: list[str], environment: Mapping[str, str], log: Path) -> Figures:
    """One process of the benchmark; its last line is the figures, its log goes to a file that failure shows."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as errors:
        done = subprocess.run(
            command,
            env=dict(environment) | {"SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_S,
        )
    if done.returncode != 0:
        tail = "\n".join(log.read_text().splitlines()[-40:])
        sys.exit(f"benchmark: the JVM ended with {done.returncode}; the end of {log.relative_to(ROOT)}:\n{tail}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(plan: Plan, name: str, contender: Contender, environment: Mapping[str, str], folder: Path) -> Figures:
    """The whole run in one fresh JVM, then the restart in another."""
    log = RESULTS / f"provider-{name}-{plan.rows}"
    whole = run_jvm(java_command(plan, contender, folder, reopen=False), environment, log.with_suffix(".log"))
    restart = run_jvm(java_command(plan, contender, folder, reopen=True), environment, log.with_suffix(".restart.log"))
    return dict(whole) | {"restart_open_ms": restart["restart_open_ms"]}


@contextmanager
def prepared(name: str, endpoint: str | None) -> Iterator[tuple[Contender, Mapping[str, str]]]:
    """A contender with all conf it needs, and the environment of its JVM; ours with a database of its own."""
    contender = CONTENDERS[name]
    if name != OURS:
        yield contender, os.environ
        return
    with database(endpoint) as (url, environment):
        ours = {"endpoint": url, "region": REGION, "python": sys.executable}
        conf = {f"{CONF}.dynastate.{setting}": value for setting, value in ours.items()}
        yield replace(contender, conf=dict(contender.conf) | conf), environment


def measure_all(plan: Plan, names: list[str], endpoint: str | None, out: Console) -> dict[str, Figures]:
    """Every provider asked for, one after the other; ours at the small size too."""
    runs = [(name, name, plan) for name in names]
    if OURS in names:
        runs.insert(names.index(OURS) + 1, (SMALL, OURS, replace(plan, rows=SMALL_ROWS)))
    found: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory(prefix="dynastate-bench-") as scratch:
        for number, (label, name, its_plan) in enumerate(runs):
            with out.status(f"{label}: {its_plan.rows:,} rows"), prepared(name, endpoint) as (contender, environment):
                found[label] = measure(its_plan, name, contender, environment, Path(scratch) / str(number))
    return found


def targets(found: Mapping[str, Figures]) -> list[Target]:
    """The targets that what was measured allows to judge."""
    if OURS not in found:
        return []
    ours = found[OURS]
    others = [figures["batch_ms"] for name, figures in found.items() if name not in (OURS, SMALL)]
    small = found[SMALL]
    # 0 means that no sidecar was seen: not a number passes no target.
    sidecar_mb = ours["sidecar_rss_max_mb"] or math.nan
    judged = [
        Target(f"open at {ours['rows']:,} rows / open at {SMALL_ROWS:,}", ours["open_ms"] / small["open_ms"], 2),
        Target("sidecar's peak memory, MB", sidecar_mb, 300),
    ]
    if others:
        judged.append(Target("whole batch: ours / the best of the others", ours["batch_ms"] / min(others), 0.2))
    if "hdfs" in found:
        hdfs = found["hdfs"]
        for key, text, limit in (
            ("get_ns", "get", 1),
            ("put_ns", "put", 1),
            ("state_heap_mb", "heap of the state", 0.75),
        ):
            judged.append(Target(f"{text}: ours / HDFS-backed", ours[key] / hdfs[key], limit))
    return judged


def show_figures(out: Console, plan: Plan, found: Mapping[str, Figures]) -> None:
    """One column for each provider."""
    title = f"{plan.rows:,} rows, {plan.updates:,} updates a batch, medians of {plan.batches} batches"
    table = Table()
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    for key, text, digits in SHOWN:
        cells = [f"{figures[key]:,.{digits}f}" for figures in found.values()]
        if any(figures[key] for figures in found.values()):
            table.add_row(text, *cells)
    out.print(title, table, sep="\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="keys in the state (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=20_000, help="keys got and put a batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=15, help="measured batches (default: %(default)s)")
    parser.add_argument("--warmup", type=int, default=5, help="batches before them (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of keys (default: %(default)s)")
    parser.add_argument("--providers", default=",".join(CONTENDERS), help="any of %(default)s")
    parser.add_argument("--heap", default="4g", help="of each JVM, least and most (default: %(default)s)")
    parser.add_argument("--endpoint", help="a DynamoDB with both tables; default: the embedded one, started afresh")
    parser.add_argument("--no-build", action="store_true", help="take the jars as they are")
    given = parser.parse_args()
    unknown = set(given.providers.split(",")) - set(CONTENDERS)
    if unknown:
        parser.error(f"unknown providers: {', '.join(sorted(unknown))}; known: {', '.join(CONTENDERS)}")
    return given


def main() -> None:
    given = arguments()
    if not given.no_build:
        build()
    plan = Plan(given.rows, given.updates, given.batches, given.warmup, given.seed, given.heap)
    out = console()
    found = measure_all(plan, given.providers.split(","), given.endpoint, out)
    show_figures(out, plan, found)
    judged = targets(found)
    if judged:
        show(out, judged)
    else:
        out.print("No target is judged: they all compare ours with something.")
    file = save("provider", vars(given), {name: dict(figures) for name, figures in found.items()}, judged)
    out.print(f"kept in {file.relative_to(ROOT)}")
    sys.exit(0 if all(target.met for target in judged) else 1)


if __name__ == "__main__":
    main()
