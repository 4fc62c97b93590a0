"""Tests of Spark that fail on dynastate, each with its reason. All are from real runs.

A test that is named here and passes fails the run, and so does one that fails and is not named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tests.upstream.spark_suites import Outcome


@dataclass(frozen=True)
class Difference:
    """Tests of one suite that fail for one reason.

    Args:
        suite: the class, without its package.
        tests: their names; `*` stands for anything.
        reason: why they fail.
        to_fix: whether dynastate is to change; else the difference is wanted, or the test is about another store.
    """

    suite: str
    tests: tuple[str, ...]
    reason: str
    to_fix: bool = False

    def outcomes(self, name: str, among: list[Outcome]) -> list[Outcome]:
        """The outcomes that one of the names is about."""
        pattern = re.compile(".*".join(map(re.escape, name.split("*"))), re.DOTALL)
        return [each for each in among if each.suite == self.suite and pattern.fullmatch(each.test)]


AVRO: Final = "the provider refuses Avro as the encoding of state"
LAST_WRITE: Final = (
    "by decision 14 the change feed gives the last write of a key in a batch, where Spark's stores give every write"
)
OLD_CHECKPOINT: Final = "the checkpoint was begun on HDFS's store, where a session on dynastate refuses to continue it"

DIFFERENCES: Final = (
    *(
        Difference(suite, (test,), reason)
        for suite in ("DynamoDBStateStoreSuite", "DynamoDBStateStoreSuiteWithRowChecksum")
        for test, reason in (
            ("getStore with invalid versions - with codec *", "the expected error names a delta file of HDFS"),
            (
                "SPARK-38320 - state store iterator behavior differences - with codec *",
                "of every class but RocksDB's, the test wants the weaker iterators of HDFS, which show later writes",
            ),
            ("SPARK-18342: commit fails when rename fails", "a commit renames no file"),
        )
    ),
    *(
        Difference(suite, ("*(encoding = avro)*",), AVRO)
        for suite in (
            "TransformWithState",
            "TransformWithListState",
            "TransformWithValueStateTTL",
            "TransformWithListStateTTL",
            "TransformWithMapStateTTL",
            "TransformWithStateReader",
        )
    ),
    # Tests of these suites that open no store pass with Avro.
    Difference(
        "TransformWithMapState",
        ("Test *(encoding = avro)", "MapState schema evolution *(encoding = avro)"),
        AVRO,
    ),
    Difference(
        "TransformWithStateChaining",
        (
            "chaining multiple transformWithState operators *(encoding = avro)",
            "query fails if the output dataset contains rows older than current watermark *(encoding = avro)",
            "ensure that watermark delay is resolved from a view *(encoding = avro)",
        ),
        AVRO,
    ),
    Difference(
        "TransformWithStateInitialState",
        (
            "transformWithStateWithInitialState - correctness test, *(encoding = avro)",
            "transformWithStateWithInitialState - streaming with *(encoding = avro)",
            "state data source reader dataframe as initial state *(encoding = avro)",
        ),
        AVRO,
    ),
    *(
        Difference(
            suite,
            ("snapshotStartBatchId with transformWithState (* (encoding = unsaferow)",),
            "the test waits for RocksDB's snapshot file, and reads its changelog file",
        )
        for suite in ("TransformWithStateReader", "TransformWithStateReaderWithRowChecksum")
    ),
    Difference(
        "StreamSuite",
        ("recover from a Spark v2.1 checkpoint",),
        "the state of that checkpoint is in files of HDFS; the test fails on RocksDB, too",
    ),
    *(
        Difference(suite, tests, OLD_CHECKPOINT)
        for suite, tests in (
            (
                "StreamingAggregationSuite",
                ("simple count, update mode - recovery from checkpoint uses state format version 1*",),
            ),
            (
                "StreamingDeduplicationSuite",
                (
                    "SPARK-39650: recovery from checkpoint having all columns as value schema with sparkVersion=*",
                    "SPARK-39650: recovery from checkpoint with changes on key schema are not allowed with *",
                ),
            ),
            (
                "InnerJoin",
                (
                    "SPARK-26187 restore the stream-stream inner join query from Spark 2.4 *",
                    "SPARK-48687 - restore the stream-stream inner join query from Spark 3.5 *",
                ),
            ),
            ("OuterJoin", ("SPARK-26187 restore the stream-stream outer join query from Spark 2.4 *",)),
            ("GroupState", ("flatMapGroupsWithState - recovery from checkpoint uses state format version 1",)),
            ("StreamingQuerySuite", ("SPARK-53942: stateful shuffle partitions are retained from old checkpoint",)),
            (
                "EventTimeWatermarkSuite",
                ("recovery from Spark ver 2.3.1 commit log without commit metadata (SPARK-24699)",),
            ),
        )
    ),
    Difference(
        "FlatMapGroupsWithStateWithInitialStateSuite",
        ("flatMapGroupsWithState - initial state - processing time timeout - state format version 1",),
        "a row of state format 1 has a long where its schema has an int, and is refused; it fails on RocksDB, too",
    ),
    Difference(
        "InnerJoinV4",
        (
            "SPARK-51779 Restart streaming join query with virtual column families *",
            "SPARK-51779 Restart the join query and changing state format versions should reuse the version *",
        ),
        "the test reads metrics of RocksDB by their names",
    ),
    Difference(
        "ChangeFeed",
        ("read stream-stream join state change feed",),
        LAST_WRITE,
    ),
)


def unlisted(outcomes: list[Outcome]) -> list[Outcome]:
    """Failures that are no known difference."""
    listed = {about for known in DIFFERENCES for name in known.tests for about in known.outcomes(name, outcomes)}
    return [each for each in outcomes if each.failure and each not in listed]


def stale(outcomes: list[Outcome], *, complete: bool) -> list[str]:
    """Known differences that are none: of a test that passed or, when all tests of the suite ran, is not there."""
    ran = {each.suite for each in outcomes}
    found = []
    for known in DIFFERENCES:
        for name in known.tests if known.suite in ran else ():
            about = known.outcomes(name, outcomes)
            found += [f"passed: {each.suite}: {each.test}" for each in about if not each.failure]
            found += [f"no such test: {known.suite}: {name}"] if complete and not about else []
    return found
