"""Tests of Spark that fail on dynastate, each with its reason. All are from real runs.

A test that is named here and passes fails the run, and so does one that fails and is not named.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tests.upstream.spark_suites import Outcome

STORE_SUITES: Final = ("DynamoDBStateStoreSuite", "DynamoDBStateStoreSuiteWithRowChecksum")


class Difference(NamedTuple):
    """Tests of one suite, a class without its package, that fail for one reason; `*` stands for anything."""

    suite: str
    tests: tuple[str, ...]
    reason: str

    def outcomes(self, name: str, among: list[Outcome]) -> list[Outcome]:
        """The outcomes that one of the names is about."""
        pattern = re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)
        return [each for each in among if each.suite == self.suite and pattern.fullmatch(each.test)]


#: Names of tests by suite and by reason. Where a fix is to come, the reason says so.
Reasons = dict[str, dict[str, tuple[str, ...]]]
NEWEST: Final[Reasons] = {
    "the expected error names a delta file of HDFS": dict.fromkeys(
        STORE_SUITES, ("getStore with invalid versions - with codec *",)
    ),
    "of every class but RocksDB's, the test wants the weaker iterators of HDFS, which show later writes": dict.fromkeys(
        STORE_SUITES, ("SPARK-38320 - state store iterator behavior differences - with codec *",)
    ),
    "a commit renames no file": dict.fromkeys(STORE_SUITES, ("SPARK-18342: commit fails when rename fails",)),
    "the test waits for RocksDB's snapshot file, and reads its changelog file": dict.fromkeys(
        ("TransformWithStateReader", "TransformWithStateReaderWithRowChecksum"),
        ("snapshotStartBatchId with transformWithState (*",),
    ),
    "the state of that checkpoint is in files of HDFS; the test fails on RocksDB, too": {
        "StreamSuite": ("recover from a Spark v2.1 checkpoint",)
    },
    "the checkpoint was begun on HDFS's store, where a session on dynastate refuses to continue it": {
        "StreamingAggregationSuite": (
            "simple count, update mode - recovery from checkpoint uses state format version 1*",
        ),
        "StreamingDeduplicationSuite": (
            "SPARK-39650: recovery from checkpoint having all columns as value schema with sparkVersion=*",
            "SPARK-39650: recovery from checkpoint with changes on key schema are not allowed with *",
        ),
        **dict.fromkeys(
            ("InnerJoin", "InnerJoinV4"),
            (
                "SPARK-26187 restore the stream-stream inner join query from Spark 2.4 *",
                "SPARK-48687 - restore the stream-stream inner join query from Spark 3.5 *",
            ),
        ),
        **dict.fromkeys(
            ("OuterJoin", "OuterJoinV4"), ("SPARK-26187 restore the stream-stream outer join query from Spark 2.4 *",)
        ),
        "GroupState": ("flatMapGroupsWithState - recovery from checkpoint uses state format version 1",),
        "StreamingQuerySuite": ("SPARK-53942: stateful shuffle partitions are retained from old checkpoint",),
        "EventTimeWatermarkSuite": ("recovery from Spark ver 2.3.1 commit log without commit metadata (SPARK-24699)",),
    },
    "a row of state format 1 has a long where its schema has an int, and is refused; it fails on RocksDB, too": {
        "FlatMapGroupsWithStateWithInitialStateSuite": (
            "flatMapGroupsWithState - initial state - processing time timeout - state format version 1",
        )
    },
    "the test reads metrics of RocksDB by their names": {
        "InnerJoinV4": (
            "SPARK-51779 Restart streaming join query with virtual column families *",
            "SPARK-51779 Restart the join query and changing state format versions should reuse the version *",
        )
    },
    "by decision 14 the change feed gives the last write of a key in a batch, where Spark's stores give every write": {
        "ChangeFeed": ("read stream-stream join state change feed",)
    },
}
SPARK_35: Final[Reasons] = {
    "of every class but RocksDB's, the test wants the weaker iterators of HDFS, which show later writes": {
        "DynamoDBStateStoreSuite": ("SPARK-38320 - state store iterator behavior differences - with codec *",)
    },
    "the checkpoint was begun on HDFS's store, where a session on dynastate refuses to continue it": {
        "StreamingAggregationSuite": (
            "simple count, update mode - recovery from checkpoint uses state format version 1",
        ),
        "StreamingDeduplicationSuite": ("SPARK-39650: recovery from checkpoint having all columns as value schema",),
        "StreamingInnerJoinSuite": ("SPARK-26187 restore the stream-stream inner join query from Spark 2.4",),
        "StreamingOuterJoinSuite": ("SPARK-26187 restore the stream-stream outer join query from Spark 2.4",),
        "EventTimeWatermarkSuite": ("recovery from Spark ver 2.3.1 commit log without commit metadata (SPARK-24699)",),
        "FlatMapGroupsWithStateSuite": (
            "flatMapGroupsWithState - recovery from checkpoint uses state format version 1",
        ),
    },
    "the state of that checkpoint is in files of HDFS": {"StreamSuite": ("recover from a Spark v2.1 checkpoint",)},
    "a row of state format 1 has a long where its schema has an int, and is refused": {
        "FlatMapGroupsWithStateWithInitialStateSuite": (
            "flatMapGroupsWithState - initial state - processing time timeout - state format version 1",
        )
    },
}
#: By the minor of Spark whose suites they are of.
DIFFERENCES: Final = {
    spark: [Difference(suite, tests, reason) for reason, suites in reasons.items() for suite, tests in suites.items()]
    for spark, reasons in {"4.2": NEWEST, "3.5": SPARK_35}.items()
}


def unlisted(outcomes: list[Outcome], spark: str) -> list[Outcome]:
    """Failures that are no known difference."""
    expected = {
        outcome
        for difference in DIFFERENCES[spark]
        for name in difference.tests
        for outcome in difference.outcomes(name, outcomes)
    }
    return [each for each in outcomes if each.failure and each not in expected]


def stale(outcomes: list[Outcome], spark: str, *, complete: bool) -> list[str]:
    """Known differences that are none: of a test that passed or, when all tests of the suite ran, is not there."""
    suite_names = {each.suite for each in outcomes}
    messages = []
    for difference in DIFFERENCES[spark]:
        for name in difference.tests if difference.suite in suite_names else ():
            matches = difference.outcomes(name, outcomes)
            messages += [f"passed: {each.suite}: {each.test}" for each in matches if not each.failure]
            messages += [f"no such test: {difference.suite}: {name}"] if complete and not matches else []
    return messages
