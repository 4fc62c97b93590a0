"""The command `cost`."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.engine.engine import Engine
from dynastate.format.checkpoint import Checkpoint
from dynastate.format.keys import EMPTY, VersionId
from dynastate.settings import SNAPSHOT_TABLE, Settings
from tests.support.command_line import Done, refused, reported, run, shown
from tests.support.engine_driver import begin, save_snapshot, write
from tests.support.memory_tables import MemoryTables
from tests.support.samples import SCHEMA, attempt, noise


@pytest.fixture(scope="module")
def namespace(engine: Engine) -> str:
    newest = EMPTY
    for number in range(1, 4):
        rows = {b"%d" % row: b"value" for row in range(10)}
        newest = write(engine, "spent/0/0/default", attempt(number), rows, base=newest)
    return "spent"


def figures(result: Done) -> dict[str, str]:
    """The rows of a table of one column."""
    assert result.code == 0, result
    assert max(map(len, result.lines)) <= 80
    return dict(re.findall(r"^(\S.*?)  +(\S.*)$", result.out, re.MULTILINE))


def test_cost_of_a_namespace(namespace: str) -> None:
    rows = figures(run("cost", namespace))
    cost = shown("cost", namespace, "--storage-price", "1000000")
    (operator,) = cost["operators"]
    assert cost["queries"] == []
    assert (operator["operator"], operator["stores"], operator["versions"], operator["write_units"]) == (0, 1, 3, 6)
    assert (rows["stores"], rows["versions listed"], rows["items"]) == ("1", "3", str(operator["items"]))
    assert rows["storage, $ a month"] == "< 0.0001"
    assert operator["items"] == 6  # three parts, a version list, a schema and a meta item
    assert operator["storage_dollars_a_month"] == pytest.approx((operator["bytes"] + 600) * 1e6 / 2**30)
    assert operator["workload"]["changed_rows"] == 10


def test_cost_of_the_log(engine: Engine) -> None:
    """What a checkpoint in DynamoDB takes a batch, deletes included, and what a day of it costs."""
    write(engine, "counted/0/0/default", attempt(1), {b"1": b"value"})
    assert shown("cost", "counted")["checkpoints"] == []
    state = shown("cost", "counted", "--every", "10")["predicted"][0]
    files, checkpoint = engine.checkpoint_files(), Checkpoint("counted", "query")
    names = {"metadata": 30, "state/0/_metadata/metadata": 900}
    for batch in range(10):
        names |= {f"offsets/{batch}": 1_500, f"commits/{batch}": 20, f"sources/0/{batch}": 300}
    names.pop("sources/0/9")
    names |= {"sources/0/9.compact": 900_000, "sources/0/10": 300, "offsets/10": 300}
    for name, length in names.items():
        files.put(checkpoint, name, noise(length, name), overwrites=False)
    (log,) = shown("cost", "counted")["checkpoints"]
    # The large file has three fragments, and a batch that is not committed has two files.
    compact = 1 + -(-900_000 // 1024)
    assert (log["checkpoint"], log["batches"], log["items"]) == ("counted/query", 10, len(names) + 3)
    assert log["requests_a_batch"] == 3.2
    assert log["write_units_a_batch"] == pytest.approx((10 * 2 + 10 + 9 + 2 + compact) / 10, abs=0.6)
    assert log["dollars_a_day"] is None
    (priced,) = shown("cost", "counted", "--every", "10", "--write-price", "1")["checkpoints"]
    predicted = shown("cost", "counted", "--every", "10")["predicted"][0]
    units = 8_640 * log["write_units_a_batch"]
    assert predicted["write_units"] - state["write_units"] == pytest.approx(units, rel=0.01)
    assert predicted["delete_units"] - state["delete_units"] == pytest.approx(units, rel=0.01)
    assert priced["dollars_a_day"] == pytest.approx(2 * log["write_units_a_batch"] * 8_640 / 1e6, rel=0.01)
    lines = run("cost", "counted", "--every", "10").lines
    assert any(line.startswith("price of a day, $") for line in lines)
    assert max(map(len, lines)) <= 80


def test_cost_of_a_log_in_objects(engine: Engine, tables: MemoryTables) -> None:
    """A large file in S3 takes a unit for its head, and one PUT."""
    write(engine, "objects-counted/0/0/default", attempt(1), {b"1": b"value"})
    files = CheckpointFiles(tables, set(), location=f"s3://bucket/{SNAPSHOT_TABLE}")
    for name, length in {"commits/0": 20, "offsets/0": 30, "sources/0/9.compact": 900_000}.items():
        files.put(Checkpoint("objects-counted", "query"), name, noise(length, name), overwrites=False)
    words = ("cost", "objects-counted", "--every", "10", "--write-price", "1", "--put-price", "1000")
    (log,) = shown(*words)["checkpoints"]
    assert (log["write_units_a_batch"], log["puts_a_batch"], log["object_bytes"]) == (3, 1, 900_000)
    assert log["dollars_a_day"] == pytest.approx(8_640 * (1000 + 2 * 3) / 1e6)


def test_cost_of_other_settings(namespace: str, tmp_path: Path) -> None:
    words = ("cost", namespace, "--every", "10", "--trigger", "60", "--partitions", "4")
    current, slower, wider, rows = shown(*words)["predicted"]
    names = ["as it runs now", "a batch every 60 s", "4 partitions", "an item for each row"]
    assert [each["way"] for each in (current, slower, wider, rows)] == names
    assert slower["write_units"] < current["write_units"] / 3
    assert wider["write_units"] > current["write_units"] * 2
    assert rows["write_units"] == 2 * rows["delete_units"] == 2 * 10 * 8_640
    lines = run(*words).lines
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.startswith("write units  ")][-1].split()[2:] == [
        f"{each['write_units']:,}" for each in (current, slower, wider, rows)
    ]
    result = run("cost", namespace, "--progress", reported(tmp_path, 3), "--trigger", "60")
    assert "a day in the long run, predicted" in result.lines
    assert "a prediction needs a namespace, and --every" in refused("cost", namespace, "--trigger", "60")
    assert "a prediction needs a namespace" in refused("cost", "--progress", reported(tmp_path, 3), "--trigger", "60")


def test_cost_of_other_snapshot_thresholds(engine: Engine) -> None:
    """What each would save a month, and what a restart would read; the best of those that keep restarts short."""
    store, newest = "thresholds/0/0/default", EMPTY
    for number in range(1, 61):
        rows = {b"%06d" % row: b"value %d" % (row * number) for row in range(6_000 if number == 1 else 20)}
        write_attempt = begin(engine, store, attempt(number), rows, base=newest)
        newest = VersionId(number, write_attempt.attempt)
        write_attempt.commit({0: 6_000}, SCHEMA)
        if number == 1:
            save_snapshot(engine, store, newest, rows)
    words = ("cost", "thresholds", "--every", "10")
    thresholds = {each["snapshot_threshold"]: each for each in shown(*words)["thresholds"]}
    default = float(Settings().snapshot_threshold)
    assert [each for each, its in thresholds.items() if its["is_own"]] == [default]
    assert thresholds[default]["saved_dollars_a_month"] == 0
    assert thresholds[default]["dollars_a_day"] == shown(*words)["predicted"][0]["dollars_a_day"]
    for less, more in pairwise(sorted(thresholds)):
        assert thresholds[less]["dollars_a_day"] >= thresholds[more]["dollars_a_day"]
        assert (
            thresholds[less]["restart_bytes"]
            <= thresholds[more]["restart_bytes"]
            <= thresholds[more]["restart_bytes_max"]
        )
    by_threshold = {
        each["snapshot_threshold"]: each for each in shown(*words, "--snapshot-threshold", "0.6")["thresholds"]
    }
    assert by_threshold[0.6]["is_own"]
    saved = 30 * (by_threshold[0.6]["dollars_a_day"] - thresholds[default]["dollars_a_day"])
    assert by_threshold[default]["saved_dollars_a_month"] == pytest.approx(saved)
    lines = run(*words, "--snapshot-threshold", "0.6").lines
    assert max(map(len, lines)) <= 80
    pattern = r"snapshotThreshold=([\d.]+) saves \$([\d.]+) a month; restarts read ([\d.]+) snapshots at most"
    (advice,) = filter(None, (re.fullmatch(pattern, line) for line in lines))
    best = by_threshold[float(advice[1])]
    assert best["restart_snapshots_max"] <= 2.5
    assert float(advice[2]) == pytest.approx(best["saved_dollars_a_month"], abs=0.01)
    assert "no other snapshotThreshold saves" in run(*words, "--snapshot-threshold", "5").out
    assert "snapshotThreshold must be a decimal number" in refused(*words, "--snapshot-threshold", "half")


def test_cost_of_one_other_choice(namespace: str) -> None:
    words = ("cost", namespace, "--every", "10")
    choices = shown(*words)["choices"]
    by_kind = {each["kind"]: each for each in choices}
    expected = {"trigger", "codec", "objects", "retention", "provisioned capacity", "table class"}
    assert set(by_kind) - {"threshold"} == expected
    saved = [each["saved_dollars_a_month"] for each in choices]
    assert saved == sorted(saved, reverse=True)
    (current, *_) = shown(*words)["predicted"]
    dollars = 30 * current["dollars_a_day"] + current["storage_dollars_a_month"]
    for each in choices:
        assert each["dollars_a_month"] + each["saved_dollars_a_month"] == pytest.approx(dollars)
    assert by_kind["trigger"]["what"] == "a batch every 20 s"
    assert by_kind["retention"]["what"] == "minBatchesToRetain=50"
    other_choices = {each["kind"]: each for each in shown(*words, "--retain", "7")["choices"]}
    assert other_choices["retention"]["what"] == "minBatchesToRetain=3"
    lines = run(*words).lines
    assert max(map(len, lines)) <= 80
    at = lines.index("what one other choice would save, predicted")
    advised = [each["what"] for each in choices if each["saved_dollars_a_month"] >= 0.01]
    assert [line.split("  ")[0] for line in lines[at + 3 : at + 3 + len(advised)]] == advised
    assert lines[at + 3 + len(advised)] == f"{len(choices) - len(advised)} other choices would save nothing"
    assert shown("cost", namespace)["choices"] == []


def test_cost_of_batches(tmp_path: Path) -> None:
    file = reported(tmp_path, 4)
    rows = figures(run("cost", "--progress", file))
    assert (rows["batches"], rows["requests"], rows["write units"]) == ("4", "40", "400")
    assert (rows["price, $"], rows["price of a day, $"]) == ("0.004000", "1.4400")
    (query,) = shown("cost", "--progress", file, "--write-price", "1")["queries"]
    assert (query["name"], query["batches"], query["interval_s"]) == ("flights", 4, 60)
    assert query["dollars"] == pytest.approx(400e-6)


def test_cost_refuses_wrong_arguments(namespace: str, tmp_path: Path) -> None:
    assert "give a namespace, --progress FILE, or both" in refused("cost")
    assert "no store of this namespace is in the tables" in refused("cost", "missing")
    assert "namespace must be 1 to 128 characters" in refused("cost", "a/b")
    assert "--write-price must be a decimal number" in refused("cost", namespace, "--write-price", "$1")
    for content in (b"no JSON\n", bytes.fromhex("28b52ffd") + b"\xff\xfe\x00"):
        file = tmp_path / "broken"
        file.write_bytes(content)
        assert f"line 1 of {file} is not JSON" in refused("cost", "--progress", str(file))
    assert "missing" in refused("cost", "--progress", str(tmp_path / "missing"))
