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
PATHS: Final = "the test opens a store by /path that the query wrote as file:/path, which is another namespace"

DIFFERENCES: Final = (
    Difference(
        "DynamoDBStateStoreSuite",
        ("getStore with invalid versions - with codec *",),
        "the expected error names a delta file of HDFS",
    ),
    Difference(
        "DynamoDBStateStoreSuite",
        ("SPARK-38320 - state store iterator behavior differences - with codec *",),
        "of every class but RocksDB's, the test wants the weaker iterators of HDFS, which show later writes",
    ),
    Difference(
        "DynamoDBStateStoreSuite",
        ("SPARK-18342: commit fails when rename fails",),
        "a commit renames no file",
    ),
    Difference(
        "DynamoDBStateStoreSuite",
        ("SPARK-54063: forceSnapshot metric populated when shouldForceSnapshotOnCommit is true",),
        "there is no metric that counts forced snapshots, as forceSnapshotCount of HDFS",
        to_fix=True,
    ),
    Difference("TransformWithState", ("*(encoding = avro)*",), AVRO),
    Difference("TransformWithListState", ("*(encoding = avro)*",), AVRO),
    Difference(
        "StreamingAggregationSuite",
        ("changing schema of state when restarting query - schema check off - state format version 1",),
        "with the schema check off, the test expects an error; the row of another schema is read; why is not known yet",
    ),
    Difference(
        "ChangeFeed",
        ("read stream-stream join state change feed",),
        "the change feed gives the last write of a key in a batch, and Spark's stores give every write",
        to_fix=True,
    ),
    Difference(
        "StreamingDeduplicationSuite",
        ("Partition key extraction - Dedupe",),
        PATHS,
        to_fix=True,
    ),
    Difference(
        "StreamingDeduplicationWithinWatermarkSuite",
        ("Partition key extraction - DedupeWithinWatermark",),
        PATHS,
        to_fix=True,
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
