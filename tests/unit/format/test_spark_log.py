"""What dynastate reads in the files of Spark's log, and what it refuses in them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dynastate.format.spark_log import (
    COMMITS,
    OFFSETS,
    SOURCES,
    STATE,
    batch_file,
    batch_of,
    parse_conf,
    parse_description,
    parse_ids,
    parse_object,
    parse_offsets,
)


@pytest.mark.parametrize(
    ("log", "path", "batch"),
    [
        (COMMITS, "commits/0", 0),
        (OFFSETS, "offsets/120", 120),
        (COMMITS, "offsets/120", None),
        (COMMITS, "commits/.120.crc", None),
        (COMMITS, "before-rollback-1/commits/120", None),
        (COMMITS, "commits/9.tmp", None),
        (COMMITS, "commits", None),
        (COMMITS, "commits/\u0663", None),
        (COMMITS, "commits/9.compact", None),
    ],
)
def test_files_of_batches(log: str, path: str, batch: int | None) -> None:
    assert batch_of(log, path) == batch


@pytest.mark.parametrize(
    ("path", "file"),
    [
        ("sources/0/7", (SOURCES, 7)),
        ("sources/12/9.compact", (SOURCES, 9)),
        ("state/0/_metadata/v2/5", (STATE, 5)),
        ("state/0/_metadata/metadata", None),
        ("state/0/5/dynastate", None),
        ("sources/0", None),
        ("sources/0/.7.crc", None),
        ("metadata", None),
    ],
)
def test_other_files_of_batches(path: str, file: tuple[str, int] | None) -> None:
    assert batch_file(path) == file


def test_contents() -> None:
    offsets = 'v1\n{"batchTimestampMs":17,"conf":{"spark.sql.shuffle.partitions":"4"}}\n{"a":1}\n7'
    assert parse_offsets(offsets) == (17, ('{"a":1}', "7"))
    assert parse_conf(offsets) == {"spark.sql.shuffle.partitions": "4"}
    assert parse_ids('v2\n{"stateUniqueIds":{"0":[["a","b"],[]]}}') == {"0": [["a", "b"], []]}
    assert parse_ids('v1\n{"nextBatchWatermarkMs":0}') == parse_ids("v1\n") == {}
    operator = 'v2\n{"operatorInfo":{"operatorId":0,"operatorName":"dedupe"},"stateStoreInfo":[{"numPartitions":4}]}'
    assert parse_description(operator) == ("dedupe", [4])
    assert parse_description("v1\n{}") == parse_description("v1") == ("", [])
    assert parse_object('{"id":"x"}') == {"id": "x"}


@pytest.mark.parametrize(
    ("parse", "line"),
    [
        (parse_offsets, "[]"),
        (parse_offsets, "{}"),
        (parse_offsets, '{"batchTimestampMs":"17"}'),
        (parse_offsets, '{"batchTimestampMs":true}'),
        (parse_conf, '{"conf":[]}'),
        (parse_conf, '{"conf":{"spark.sql.shuffle.partitions":4}}'),
        (parse_ids, "7"),
        (parse_ids, '{"stateUniqueIds":["a"]}'),
        (parse_ids, '{"stateUniqueIds":{"0":"a"}}'),
        (parse_ids, '{"stateUniqueIds":{"0":["a"]}}'),
        (parse_ids, '{"stateUniqueIds":{"0":[[1]]}}'),
        (parse_description, '{"operatorInfo":"dedupe"}'),
        (parse_description, '{"operatorInfo":{"operatorName":1}}'),
        (parse_description, '{"stateStoreInfo":[1]}'),
        (parse_description, '{"stateStoreInfo":[{"numPartitions":"4"}]}'),
    ],
)
def test_other_types_of_json(parse: Callable[[str], object], line: str) -> None:
    """They are refused where they are read, by a ValueError as other text that cannot be parsed."""
    for text in (f"v1\n{line}", "", "v1\n{"):
        with pytest.raises(ValueError, match=r".+"):
            parse(text)
