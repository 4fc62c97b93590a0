"""Spark's own suites on our provider: which run, how a JVM runs them, and what became of each test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from dynastate.settings import PREFIX, Settings
from dynastate.spark.configure import EXTENSION_CLASS, LAG_REPORTS, PROVIDER, PROVIDER_CLASS
from dynastate.spark.connect import EXTENSIONS
from tests.support.jvm import LOG4J, MODULE_OPTIONS, ROOT
from tests.upstream.maven import BUILD, jars, unpacked

#: The profile of the POM that has the jars of each Spark: the newest whose tests are published, and the oldest.
PROFILES: Final = {"4.2": "spark", "3.5": "spark-3.5"}
SUBCLASSES: Final = Path(__file__).parent / "scala"
PACKAGE: Final = "org.apache.spark.sql."
OURS: Final = "org.apache.spark.sql.dynastate.upstream."
#: Until a JVM counts as hanging; several times what the longest takes on two cores.
DEADLINE_S: Final = 1_800


@dataclass(frozen=True)
class Suite:
    """Classes of tests that one JVM runs.

    Args:
        name: of the group.
        classes: without `org.apache.spark.sql.`; of ours, without their package.
        only: run tests whose name contains it; empty: all.
        fast: whether it is in `make test-upstream-fast`.
        spark: the minor of Spark whose suites they are.
    """

    name: str
    classes: tuple[str, ...]
    only: str = ""
    fast: bool = False
    spark: str = "4.2"


#: Of a suite that runs each test with RocksDB's provider and with HDFS's, the half that `OnDynamoDB` makes ours.
ONCE: Final = "RocksDBStateStoreProvider"
#: Of a suite that runs each test with both encodings of state, the half whose schemas may change.
AVRO: Final = "encoding = avro"

SUITES: Final = (
    Suite("store", ("DynamoDBStateStoreSuite",), fast=True),
    Suite("list-state-avro", ("TransformWithListState",), only=AVRO, fast=True),
    Suite("row-checksum", ("RowChecksumSuite",), fast=True),
    Suite("store-row-checksum", ("DynamoDBStateStoreSuiteWithRowChecksum",)),
    Suite(
        "transform-with-state-row-checksum",
        (
            "TransformWithListStateWithRowChecksum",
            "TransformWithMapStateWithRowChecksum",
            "TransformWithStateChainingWithRowChecksum",
            "TransformWithStateInitialStateWithRowChecksum",
            "TransformWithStateReaderWithRowChecksum",
        ),
    ),
    Suite("aggregation", ("streaming.StreamingAggregationSuite",)),
    Suite("session-window", ("SessionWindow",), only=ONCE),
    Suite("several-operators", ("streaming.MultiStatefulOperatorsSuite",)),
    Suite("inner-join", ("InnerJoin",), only=ONCE),
    Suite("outer-join", ("OuterJoin",), only=ONCE),
    Suite("full-outer-join", ("FullOuterJoin",), only=ONCE),
    Suite("left-semi-join", ("LeftSemiJoin",), only=ONCE),
    Suite("join-format-4", ("InnerJoinV4", "OuterJoinV4", "FullOuterJoinV4", "LeftSemiJoinV4")),
    Suite("watermark", ("streaming.EventTimeWatermarkSuite",)),
    Suite("query", ("streaming.StreamingQuerySuite",)),
    Suite("stream", ("streaming.StreamSuite",)),
    Suite(
        "deduplication",
        ("streaming.StreamingDeduplicationSuite", "streaming.StreamingDeduplicationWithinWatermarkSuite"),
    ),
    Suite("group-state", ("GroupState",)),
    Suite("group-state-initial", ("streaming.FlatMapGroupsWithStateWithInitialStateSuite",)),
    Suite("transform-with-state", ("TransformWithState",)),
    Suite("list-state", ("TransformWithListState",)),
    Suite("map-state", ("TransformWithMapState",)),
    Suite("state-ttl", ("TransformWithValueStateTTL", "TransformWithListStateTTL", "TransformWithMapStateTTL")),
    Suite("state-chaining", ("TransformWithStateChaining",)),
    Suite("state-initial", ("TransformWithStateInitialState",)),
    Suite("state-reader", ("StateReader",)),
    Suite("state-reader-transform", ("TransformWithStateReader",)),
    Suite("change-feed", ("ChangeFeed",)),
    *(
        Suite(f"{name}-3.5", classes, only, spark="3.5")
        for name, classes, only in (
            ("store", ("DynamoDBStateStoreSuite",), ""),
            ("aggregation", ("streaming.StreamingAggregationSuite",), ""),
            ("session-window", ("SessionWindow",), ONCE),
            ("several-operators", ("streaming.MultiStatefulOperatorsSuite",), ""),
            ("inner-join", ("streaming.StreamingInnerJoinSuite",), ""),
            ("outer-join", ("streaming.StreamingOuterJoinSuite",), ""),
            ("full-outer-join", ("streaming.StreamingFullOuterJoinSuite",), ""),
            ("left-semi-join", ("streaming.StreamingLeftSemiJoinSuite",), ""),
            ("watermark", ("streaming.EventTimeWatermarkSuite",), ""),
            ("query", ("streaming.StreamingQuerySuite",), ""),
            ("stream", ("streaming.StreamSuite",), ""),
            (
                "deduplication",
                ("streaming.StreamingDeduplicationSuite", "streaming.StreamingDeduplicationWithinWatermarkSuite"),
                "",
            ),
            ("group-state", ("streaming.FlatMapGroupsWithStateSuite",), ""),
            ("group-state-initial", ("streaming.FlatMapGroupsWithStateWithInitialStateSuite",), ""),
        )
    ),
)


@dataclass(frozen=True)
class Outcome:
    """What became of one test; `failure` is empty when it passed."""

    suite: str
    test: str
    failure: str = ""


@cache
def classpath(spark: str) -> list[Path]:
    """Everything a JVM needs: Spark's tests, unpacked and first, our subclasses of them, the bridge, and the jars."""
    folder = jars(PROFILES[spark])
    (tests,) = folder.glob("spark-sql_*-tests.jar")
    # Its classes are empty, and have the names of Spark's.
    others = sorted(each for each in folder.glob("*.jar") if each != tests and "-connect-shims_" not in each.name)
    libraries = [
        each for each in others if each.name.endswith("-tests.jar") or each.name.startswith(("scalat", "scalac"))
    ]
    classes, ours = unpacked(tests), BUILD / f"suites-{spark}.jar"
    build = [str(ROOT / "build" / f"spark-{spark}" / "bin" / "python"), "jvm-bridge/build.py", "--jar", str(ours)]
    sources = str(SUBCLASSES / f"spark-{spark}")
    _run([sys.executable, "jvm-bridge/build.py", "--fetch", spark])
    _run([*build, "--sources", sources, "--classpath", str(classes), *map(str, libraries)])
    (bridge,) = (ROOT / "src" / "dynastate" / "jars").glob(f"dynastate-spark-{spark}_*.jar")
    return [classes, ours, bridge, *others]


def _run(command: Sequence[str]) -> None:
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr


def java_command(classes: Sequence[Path], database: Settings, conf: Mapping[str, str]) -> list[str]:
    """The command of a JVM whose sessions keep state in a database, without its main class."""
    conf = {
        PROVIDER: PROVIDER_CLASS,
        EXTENSIONS: EXTENSION_CLASS,
        **dict.fromkeys(LAG_REPORTS, "false"),
        f"{PREFIX}endpoint": database.endpoint,
        f"{PREFIX}region": database.region,
        f"{PREFIX}python": sys.executable,
        "spark.ui.enabled": "false",
        "log4j2.configurationFile": str(LOG4J),
        **conf,
    }
    # Spark's build runs its tests with assertions (argLine of its POM), and some of them expect one to fail.
    command = ["java", "-ea", "-Xmx3g", "-Xss4m", "-XX:-UsePerfData", "-XX:ReservedCodeCacheSize=512m"]
    command += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command += [f"-D{name}={value}" for name, value in conf.items()]
    return [*command, f"@{MODULE_OPTIONS}", "-cp", ":".join(map(str, classes))]


def run(
    suite: Suite, classes: Sequence[Path], database: Settings, scratch: Path, failures: Sequence[Outcome] = ()
) -> list[Outcome]:
    """Run a suite, or some tests of it alone, in a JVM of its own. It writes its log to build/upstream/logs/.

    Raises:
        AssertionError: it hung, or ended without a report of each class.
    """
    reports, temporary = scratch / "reports", scratch / "tmp"
    temporary.mkdir(parents=True)
    log = BUILD / "logs" / f"{suite.name}{'-again' if failures else ''}.log"
    log.parent.mkdir(exist_ok=True)
    conf = {"spark.testing": "true", "spark.test.home": str(scratch), "java.io.tmpdir": str(temporary)}
    command = [*java_command(classes, database, conf), "org.scalatest.tools.Runner"]
    command += ["-R", str(classes[0]), "-oW", "-u", str(reports)]
    names = [(PACKAGE if "." in each else OURS) + each for each in suite.classes]
    for name in names:
        tests = [outcome.test for outcome in failures if outcome.suite == _short(name)]
        if tests or not failures:
            command += ["-s", name, *(word for test in tests for word in ("-t", test))]
    command += ["-z", suite.only] if suite.only and not failures else []
    with log.open("wb") as output:
        try:
            subprocess.run(
                command, cwd=scratch, stdout=output, stderr=subprocess.STDOUT, check=False, timeout=DEADLINE_S
            )
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{suite.name} did not end within {DEADLINE_S} s, see {log}") from None
    report_files = {name: reports / f"TEST-{name}.xml" for name in names if name in command}
    gaps = [name for name, report in report_files.items() if not report.is_file()]
    assert not gaps, f"no report of {', '.join(gaps)}, see {log}"
    return [outcome for name, report in report_files.items() for outcome in _outcomes(_short(name), report)]


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _outcomes(suite: str, report: Path) -> list[Outcome]:
    outcomes = []
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314  # written by scalatest, a moment ago
        if case.find("skipped") is None:
            failures = [each for each in case if each.tag in {"failure", "error"}]
            reason = "".join(each.get("message") or each.get("type") or "failed" for each in failures)
            outcomes.append(Outcome(suite, case.get("name", ""), " ".join(reason.split())[:300]))
    return outcomes
