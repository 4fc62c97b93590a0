"""Commands that show stores and their rows, each with a wrong argument, too."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyarrow import parquet

from dynastate.cli.inspect import _asked
from dynastate.engine.engine import Engine
from dynastate.format.checkpoint import Checkpoint, file_key
from dynastate.format.keys import EMPTY, meta_key
from dynastate.format.namespace import namespace_key
from dynastate.operations.lifecycle.fork import fork_namespace
from tests.support.command_line import refused, run, shown
from tests.support.contents import parts_of
from tests.support.memory_tables import MemoryTables
from tests.support.samples import CHECKPOINT, SCHEMA, attempt, query_run
from tests.support.store_builder import StoreBuilder, counted, family, struct, user
from tests.unit.cli.conftest import NamedTables
from tests.unit.operations.lifecycle.test_rollback import make_checkpoint

MAP = {"type": "map", "keyType": "string", "valueType": "long"}
JOINED = ("left-keyToNumValues", "right-keyToNumValues")
DIGEST = "9f2c0c64c9d2a24f3d2d7f3e6f0b8a11"


def test_stores(engine: Engine, store: str) -> None:
    for partition in (2, 10):
        StoreBuilder(engine, f"many/0/{partition}/default").count_to(1)
    StoreBuilder(engine, "many/1/0/default", family(), family(1, "$timers", internal=True)).commit(
        (user("a"), counted(1)), of=1
    )
    (mine,) = shown("stores", "look")
    assert (mine["store"], mine["version"], mine["rows"], mine["oldest"], mine["deltas"]) == (store, 3, 2, 1, 3)
    assert mine["bytes"] > 500
    by_store = {each["store"]: each for each in shown("stores")}
    assert {store, "many/0/2/default", "many/0/10/default", "many/1/0/default"} <= set(by_store)
    assert [each for each in by_store if each.startswith("many/0")] == ["many/0/2/default", "many/0/10/default"]
    assert by_store["many/1/0/default"]["rows"] == 0
    assert run("stores", "look").lines[2].startswith(f"{store} ")
    assert "no store of this namespace" in refused("stores", "missing")
    assert "namespace must be" in refused("stores", "first/0")


def test_stores_without_a_checkpoint(engine: Engine, tmp_path: Path) -> None:
    """Those whose checkpoint is gone, with the price of a month; not that of a checkpoint that is there.

    A folder that is not on this machine may be on another, so that there is no advice to drop.
    """
    gone, elsewhere = "dynastate://left/query/state", f"file:{tmp_path}/gone"
    for namespace, location in (("left", gone), ("kept", f"file:{tmp_path}"), ("laptop", elsewhere)):
        run_there = query_run(location=location)
        engine.begin(f"{namespace}/0/0/default", run_there, *EMPTY, attempt(1)).commit({0: 0}, SCHEMA)
    by_namespace = {each["namespace"]: each for each in shown("stores", "--abandoned")}
    assert "kept" not in by_namespace
    entry = by_namespace["left"]
    assert (entry["location"], entry["stores"], entry["problem"]) == (gone, 1, None)
    assert entry["storage_dollars_a_month"] == pytest.approx((entry["bytes"] + 100 * entry["items"]) * 0.25 / 2**30)
    lines = run("stores", "left", "--abandoned").lines
    assert lines[2].split()[:2] == ["left", "1"]
    assert "".join(lines[3:]).replace(" ", "").startswith(f"left:{gone}wasnotfound;")
    assert by_namespace["laptop"]["location"] == elsewhere
    rest = run("stores", "laptop", "--abandoned").lines
    assert "".join(rest).startswith("laptop: this machine has no such folder")
    assert "'dynastate drop" not in "".join(rest)
    assert run("stores", "kept", "--abandoned").lines == ["no namespace whose checkpoint is gone"]


def test_the_endpoint_that_was_asked_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket of another endpoint is not found at the one of this machine."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    assert (_asked("s3://bucket/ck/state"), _asked("hdfs://far/ck/state")) == (" at AWS", "")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://minio:9000")
    assert _asked("s3://bucket/ck/state") == " at http://minio:9000"


def test_show(store: str) -> None:
    details = shown("show", store)
    (default,) = details["families"]
    assert (details["version"], default["rows"], default["key"]) == (3, 2, [{"name": "user", "type": "string"}])
    assert details["checkpoint"] == CHECKPOINT
    lines = run("show", store).lines
    assert {"  key        user string", "  value      count long, note string"} < set(lines)
    assert "the tables hold nothing of this store" in refused("show", f"{store}-none")


@pytest.mark.parametrize(
    ("seconds_ago", "active", "age"),
    [((9_000, 300), "yes", "5 min ago"), ((7_400, 3_665), "yes", "61 min ago"), ((150, 140, 130), "no", "2 min ago")],
)
def test_the_time_of_the_last_commit(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, seconds_ago: Sequence[int], active: str, age: str
) -> None:
    """It is recent by how long the run took from one to the next before, and for a minute; pauses do not count."""
    builder = StoreBuilder(engine, f"timed{seconds_ago[0]}/0/0/default")
    for each in (900_000, *seconds_ago):
        builder.run = "before" if each == 900_000 else "run-1"
        now_ms = (int(time.time()) - each) * 1000
        monkeypatch.setattr(engine.commits, "now_ms", lambda now_ms=now_ms: now_ms)
        builder.commit((user("a"), counted(1)))
    details = shown("show", builder.store)
    assert details["is_active"] == (active == "yes")
    assert datetime.fromisoformat(details["committed"]).timestamp() * 1000 == now_ms
    lines = run("show", builder.store).lines
    assert any(line.startswith(f"is active    {active}") for line in lines)
    assert age in run("stores", builder.store.split("/", maxsplit=1)[0]).out


def test_a_fork_without_runs_is_not_active(engine: Engine, tables: NamedTables) -> None:
    """It has the commits of its origin; those of its own count."""
    builder = StoreBuilder(engine, "ran/0/0/default").count_to(2)
    with patch.object(engine.commits, "now_ms", lambda: int(time.time() * 1000)):
        builder.count_to(3)
        fork_namespace(tables, "ran", "forked", None)
        assert shown("show", builder.store)["is_active"]
        assert not shown("show", "forked/0/0/default")["is_active"]
        forked = StoreBuilder(engine, "forked/0/0/default", run="of the fork", location="file:/copy/state")
        forked.version = builder.version
        forked.count_to(4)
    details = shown("show", "forked/0/0/default")
    assert details["is_active"]
    assert details["active_until"] > details["committed"]


def test_nested_columns_are_shown_and_copied(engine: Engine) -> None:
    """As map and list state have them: 'show' has the fields, and the error for a wrong key one to copy."""
    inner: dict[str, Any] = {"key": [("user", "string")], "userKey": [("k", {"type": "array", "elementType": "date"})]}
    keys = [(name, struct(columns)) for name, columns in inner.items()]
    builder = StoreBuilder(engine, "tws/0/0/default", family(1, "by", key=keys, value=[("m", MAP)]))
    builder.commit()
    assert (
        "  key        key struct<user: string>, userKey struct<k: array<date>>"
        in run("show", builder.store, "--wide").lines
    )
    assert "  value      m map<string, long>" in run("show", builder.store, "--wide").lines
    for wrong in ('{"user": "u1", "k": "odd"}', '{"key": {"user": "a"}, "userKey": {"k": ["odd"]}}'):
        message = refused("get", "tws/0", wrong, "--family", "by")
        key = re.search("a key looks like '(.*?)'", message)[1]  # type: ignore[index]
        assert key == '{"key": {"user": "a"}, "userKey": {"k": ["2024-05-01"]}}'
    assert run("get", "tws/0", key, "--family", "by").code == 1


def test_versions(store: str) -> None:
    versions = shown("versions", store)
    assert [(each["version"], each["rows"], each["changes"], each["is_current"]) for each in versions] == [
        (1, 2, 2, True),
        (2, 3, 2, True),
        (3, 2, 1, True),
    ]
    assert run("versions", store).out.count("yes") == 3
    assert {each["committed"] for each in versions} == {"2025-01-01T00:00:00+00:00"}
    assert "the tables hold nothing of this store" in refused("versions", f"{store}-none")


def test_versions_without_a_change_are_counted(engine: Engine) -> None:
    """Batches without input make them; the oldest, the newest and the first of a run are listed, and JSON has all."""
    builder = StoreBuilder(engine, "idle/0/0/default")
    for change in (1, None, 2, None, None, None):
        builder.run = "after" if builder.version.version >= 4 else "run-1"
        builder.commit(*([(user("a"), counted(change))] if change else []))
    lines = run("versions", builder.store).lines
    assert [line.split()[0] for line in lines[2:-1]] == ["1", "3", "5", "6"]
    assert lines[-1] == "left out: 2 versions without a change; --all lists them"
    assert [line.split()[0] for line in run("versions", builder.store, "--all").lines[2:]] == list("123456")
    assert len(shown("versions", builder.store)) == 6


@pytest.mark.parametrize("command", ["show", "versions"])
def test_an_operator_is_not_one_store(engine: Engine, command: str) -> None:
    """The stores of the operator are named, of a join too; so is what a name has to look like."""
    for partition in range(6):
        StoreBuilder(engine, f"first/0/{partition}/default").count_to(1)
    for partition in range(2):
        for name in JOINED:
            StoreBuilder(engine, f"first/1/{partition}/{name}").count_to(1)
    message = refused(command, "first/0")
    stores = ", ".join(f"first/0/{partition}/default" for partition in range(4))
    assert f"this takes one store, and the operator has 6: {stores}, …\n" in message
    for pattern, count in (("first/1", 4), ("first/1/*/left-keyToNumValues", 2)):
        message, names = (
            refused(command, pattern).strip().split(f"this takes one store, and the operator has {count}: ")
        )
        assert len(names.split(", ")) == count
        assert all(run(command, name).code == 0 for name in names.split(", "))
    # The four names of a join's stores are easily mistyped: the right ones are listed.
    message = "no store of this operator has this name; it has left-keyToNumValues, right-keyToNumValues"
    for words in (("get", "first/1/*/leftkeyToNumValues", "{}"), (command, "first/1/*/leftkeyToNumValues")):
        assert message in refused(*words)
    assert "no store of this operator is in the tables" in refused(command, "first/7")
    assert "a store is namespace/operator/partition/name" in refused(command, "first")


def test_numbers_of_a_key_lose_no_digit(engine: Engine) -> None:
    """A number in JSON is a decimal: one of 38 digits is found, one beside it is not; floats are found as well."""
    key = [("d", "decimal(38,18)"), ("x", "double"), ("f", "float")]
    digits = "12345678901234567890.123456789012345678"
    builder = StoreBuilder(engine, "digits/0/0/default", family(key=key))
    builder.commit(({"d": Decimal(digits), "x": 0.1, "f": 0.1}, counted(1)))
    assert shown("get", "digits/0", f'{{"d": {digits}, "x": 0.1, "f": 0.1}}')["d"] == digits
    assert shown("history", "digits/0", f'{{"d": {digits}, "x": 1e-1, "f": 0.1}}')[0]["version"] == 1
    beside = f"{digits[:-1]}9"
    assert run("get", "digits/0", f'{{"d": {beside}, "x": 0.1, "f": 0.1}}').code == 1
    assert "column x of the key must be of type double, such as 1.5: not a number" in refused(
        "get", "digits/0", '{"d": 1, "x": [1.5], "f": 1}'
    )
    assert "a key is an object of JSON" in refused("get", "digits/0", "1.5")


def test_get(store: str) -> None:
    assert shown("get", store, '{"user": "a"}') == {"user": "a", "count": 2, "note": "ä"}
    assert shown("get", store, '{"user": "a"}', "--version", "1")["count"] == 1
    assert shown("get", "look/0", '{"user": "c"}')["count"] == 1
    assert shown("get", store, '{"user": "b"}', code=1) is None
    result = run("get", store, '{"user": "b"}')
    assert result[:3] == (1, "", "not there at version 3\n")
    assert "the key is not JSON" in refused("get", store, "a")
    shape = """a key looks like '{"user": "a"}'"""
    assert f"a key is an object of JSON; {shape} got=[1]" in refused("get", store, "[1]")
    assert f"the columns are user; unknown are name; {shape}" in refused("get", store, '{"name": "a"}')
    assert f'column user of the key must be of type string, such as "a": not a text; {shape} value=1' in refused(
        "get", store, '{"user": 1}'
    )
    assert "versions=1-3" in refused("get", store, '{"user": "a"}', "--version", "9")
    assert "no column family x" in refused("get", store, '{"user": "a"}', "--family", "x")


def test_history(store: str) -> None:
    history = shown("history", store, '{"user": "b"}')
    committed = "2025-01-01T00:00:00+00:00"
    assert history == [
        {"version": 1, "committed": committed, "row": {"user": "b", "count": 1, "note": ""}, "changed": None},
        {"version": 3, "committed": committed, "row": None, "changed": None},
    ]
    lines = run("history", store, '{"user": "b"}').lines
    assert lines[:3] == [
        "version   committed, UTC       row",
        '       1  2025-01-01 00:00:00  {"user": "b", "count": 1, "note": ""}',
        "       3  2025-01-01 00:00:00  removed",
    ]
    assert lines[3].startswith("1 is the oldest version that can be read")
    assert [each["changed"] for each in shown("history", store, '{"user": "a"}')] == [None, ["count"]]
    assert run("history", store, '{"user": "a"}').lines[2].endswith("  count: 1 -> 2")
    assert len(run("history", store, '{"user": "c"}').lines) == 2
    assert shown("history", store, '{"user": "d"}', code=1) == []
    assert "the key is not JSON" in refused("history", store, "{")


def test_tables_are_named_in_the_environment(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option that says where the tables are has a variable; the option counts first, and an empty one is none."""
    assert shown("versions", store)
    monkeypatch.setenv("DYNASTATE_DELTA_TABLE", "wrong/name")
    assert "DYNASTATE_DELTA_TABLE must be 3 to 255 characters" in refused("versions", store)
    assert shown("versions", store, "--delta-table", "right-name")
    monkeypatch.setenv("DYNASTATE_DELTA_TABLE", "")
    assert shown("versions", store)
    for name in ("ENDPOINT", "REGION", "SNAPSHOT_TABLE", "OBJECTS", "OBJECTS_ENDPOINT"):
        with monkeypatch.context() as patch:
            patch.setenv(f"DYNASTATE_{name}", "a/b")
            assert "must be" in refused("versions", store)


def test_diff(store: str) -> None:
    changes = {each["key"]["user"]: each for each in shown("diff", store, "1", "3")}
    assert (changes["a"]["before"]["count"], changes["a"]["after"]["count"]) == (1, 2)
    assert (changes["b"]["after"], changes["c"]["before"]) == (None, None)
    lines = run("diff", store, "1", "3").lines
    assert sorted(line[0] for line in lines) == ["+", "+", "-", "-"]
    assert '- {"user": "b", "count": 1, "note": ""}' in lines
    assert shown("diff", store, "2", "2") == []
    assert "versions=1-3" in refused("diff", store, "1", "4")
    assert run("diff", store, "1", "x").code == 2


def test_export(store: str, tmp_path: Path) -> None:
    rows = [{"user": "a", "count": 2, "note": "ä"}, {"user": "c", "count": 1, "note": ""}]
    lines = run("export", store, "--format", "ndjson")
    assert lines.code == 0, lines.err
    assert sorted(map(json.loads, lines.lines), key=str) == sorted(rows, key=str)
    file = tmp_path / "rows.json"
    report = shown("export", store, "--format", "ndjson", "--output", str(file), "--version", "1")
    assert report == {"store": store, "version": 1, "rows": 2, "file": str(file)}
    assert {json.loads(line)["count"] for line in file.read_text().splitlines()} == {1}

    file = tmp_path / "rows.parquet"
    assert run("export", store, "--format", "parquet", "--output", str(file)).code == 0
    assert sorted(parquet.read_table(file).to_pylist(), key=str) == sorted(rows, key=str)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rows.json", "rows.parquet"]
    piped = run("export", store, "--format", "parquet").raw
    assert sorted(parquet.read_table(BytesIO(piped)).to_pylist(), key=str) == sorted(rows, key=str)
    (tmp_path / "rows.json.part").write_text("mine")
    assert run("export", store, "--format", "ndjson", "-o", str(tmp_path / "rows.json")).code == 0
    assert (tmp_path / "rows.json.part").read_text() == "mine"
    for wrong in ("", ".", "/"):
        assert "--output is not a file" in refused("export", store, "--format", "ndjson", "-o", wrong)
    assert "give a file with --output" in refused("export", store, "--format", "parquet", "--json")
    assert run("export", store, "--format", "csv").code == 2
    assert "cannot be written" in refused("export", store, "--format", "ndjson", "--output", str(tmp_path / "no/file"))


def test_an_export_that_fails_leaves_no_file(engine: Engine, tables: MemoryTables) -> None:
    """Also at the other end of a pipe: a file of Parquet that ends with the rows so far would be taken for whole."""
    corrupt = StoreBuilder(engine, "corrupt/0/0/default").count_to(1)
    for key in [key for key in tables.items if key.role == "delta" and key.store_shard.startswith(corrupt.store)]:
        del tables.items[key]
    message = refused("export", corrupt.store, "--format", "parquet")
    assert "a part that a version list or a manifest names is not in its table" in message


def test_text_that_is_not_utf_8_is_escaped(engine: Engine, tmp_path: Path) -> None:
    """Bytes that no file of UTF-8 takes come as JSON escapes, on every way; as such a key is given."""
    StoreBuilder(engine, "bytes/0/0/default").commit((user("\udcfaä"), counted(1, "\udcff")))
    row = {"user": "\udcfaä", "count": 1, "note": "\udcff"}
    assert shown("get", "bytes/0/0/default", '{"user": "\\udcfaä"}') == row
    file = tmp_path / "rows.json"
    for words in (["export", "--format", "ndjson"], ["export", "--format", "ndjson", "--output", str(file)]):
        assert run(words[0], "bytes/0/0/default", *words[1:]).code == 0
    assert '"\\udcfaä"' in file.read_text(encoding="utf-8")
    assert json.loads(file.read_text(encoding="utf-8")) == row
    assert "\\udcfaä" in run("diff", "bytes/0/0/default", "0", "1").out


def test_verify(engine: Engine, tables: MemoryTables) -> None:
    builder = StoreBuilder(engine, "lost/0/0/default").count_to(3)
    whole = run("verify", builder.store)
    assert (whole.code, whole.err) == (0, "")
    assert whole.lines[:2] == [f"store {builder.store}", "versions 1-3 can be read; 0 abandoned attempts"]
    assert whole.lines[-1] == "whole: 0 missing, 0 corrupt, 0 orphaned"
    lost = parts_of(tables, builder.store)[1][0]
    del tables.items[lost]
    why = "list/0000000000000000 names it"
    corrupt = run("verify", builder.store, "--wide")
    assert corrupt.code == 1, corrupt
    where = f"table=dynastate-delta store_shard={lost.store_shard} item={lost.sort}"
    assert corrupt.lines[0] == f"missing  1 item: {why} {where}"
    assert f"cannot be read: version=3 attempt={attempt(3).hex()}" in corrupt.out
    (report,) = shown("verify", builder.store, code=1)
    assert report["whole"] is False
    place = {"table": "dynastate-delta", "store_shard": lost.store_shard, "item": lost.sort}
    assert report["findings"] == [{"what": "missing", **place, "items": 1, "why": why}]
    assert [(each["version"], each["readable"]) for each in report["versions"]] == [(1, True), (2, False), (3, False)]
    message = refused("verify", "no/0/0/default")
    assert message.startswith("dynastate: the tables hold nothing of this store")
    assert "tables=dynastate-delta,dynastate-snapshot-group" in message


def test_stores_and_show_with_a_checkpoint(engine: Engine, tables: MemoryTables, store: str) -> None:
    """Files, bytes, and the last committed batch with its time; a corrupt one hides nothing."""
    StoreBuilder(engine, "files/0/0/default", location="dynastate://files/query/state").count_to(2)
    files, checkpoint = engine.checkpoint_files(), Checkpoint("files", "query")
    files.put(checkpoint, "offsets/0", b"v1\n{}", overwrites=False)
    summary = {"checkpoint": "dynastate://files/query", "files": 1, "bytes": 5, "batch": None}
    summary |= {"committed": None, "problem": None}
    assert [each["log"] for each in shown("stores", "files")] == [summary]
    assert run("stores", "files").lines[-1] == "dynastate://files/query: 1 file, 5 bytes; no batch committed"
    for batch in range(11):
        files.put(checkpoint, f"commits/{batch}", b"v1\n{}", overwrites=False)
    summary |= {"files": 12, "bytes": 60, "batch": 10, "committed": "2025-01-01T00:00:00+00:00"}
    assert shown("stores", "files")[0]["log"] == shown("show", "files/0/0/default")["log"] == summary
    assert [each["log"] for each in shown("stores") if each["store"].startswith("files/")] == [summary]
    text = "12 files, 60 bytes; batch 10 committed "
    assert run("stores", "files").lines[-1].startswith(f"dynastate://files/query: {text}")
    assert f"log          {text}" in run("show", "files/0/0/default").out
    assert shown("show", store)["log"] is None
    del tables.items[file_key(checkpoint, "commits/3")]["time"]
    assert "file/commits/00000000000000000003" in shown("stores", "files")[0]["log"]["problem"]
    assert run("stores", "files").code == 0


def test_stores_of_a_query_without_state(engine: Engine) -> None:
    """Its checkpoint is shown alone, and the scan of all stores leaves it out."""
    engine.checkpoint_files().put(Checkpoint("raw", "query"), "commits/0", b"v1\n{}", overwrites=False)
    (entry,) = shown("stores", "raw")
    assert (entry["checkpoint"], entry["log"]["batch"]) == ("dynastate://raw/query/state", 0)
    none, checkpoint = run("stores", "raw", "--wide").lines
    assert none.startswith("no stores of raw in ")
    assert checkpoint.startswith("dynastate://raw/query: 1 file, 5 bytes; batch 0 committed ")
    assert not any(each["checkpoint"] == entry["checkpoint"] for each in shown("stores"))
    assert run("stores", "raw", "--abandoned").lines == ["no namespace whose checkpoint is gone"]


def test_verify_of_a_namespace_with_a_checkpoint(engine: Engine, tables: MemoryTables, tmp_path: Path) -> None:
    """The checkpoint comes after the stores, and only with the whole namespace; one elsewhere is named."""
    StoreBuilder(engine, "logged/0/0/default", location="dynastate://logged/query/state").count_to(2)
    files, checkpoint = engine.checkpoint_files(), Checkpoint("logged", "query")
    for name in ("metadata", "offsets/0", "offsets/1", "commits/0", "commits/1"):
        files.put(checkpoint, name, b"{}" if name == "metadata" else b"v1\n{}", overwrites=False)
    result = run("verify", "logged", "--wide")
    assert result.code == 0
    text = "checkpoint dynastate://logged/query: 5 files, 22 bytes; batches compared with the state: 0-1"
    assert (result.lines[-3], result.lines[-1]) == (text, "whole: 0 missing, 0 corrupt, 0 orphaned")
    assert len(shown("verify", "logged/0")) == 1
    tables.items[file_key(checkpoint, "commits/1")]["crc32"] = 1
    report = shown("verify", "logged", code=1)[1]
    assert [report[name] for name in ("checkpoint", "whole", "files", "batches")] == [
        "dynastate://logged/query",
        False,
        5,
        "0-1",
    ]
    assert [(each["what"], each["item"]) for each in report["findings"]] == [
        ("corrupt", file_key(checkpoint, "commits/1").sort)
    ]
    StoreBuilder(engine, "elsewhere/0/0/default", location=f"file:{tmp_path}/checkpoint/state").count_to(6)
    folder = make_checkpoint(tmp_path, partitions=1)
    for marker in folder.rglob("dynastate"):
        marker.write_text(marker.read_text().replace("orders", "elsewhere"))
    reports = shown("verify", "elsewhere/0/0/default", "--checkpoint", str(folder))
    assert (reports[1]["checkpoint"], reports[1]["batches"]) == (str(folder), "0-5")
    tables.items[meta_key("elsewhere/0/0/default")]["format"] = 99  # it is not read
    assert "there is no checkpoint of a query" in refused("verify", "elsewhere", "--checkpoint", f"{folder}/state")
    assert "dynastate verify elsewhere compares" in refused("verify", "logged", "--checkpoint", str(folder))


def test_a_query_without_state(engine: Engine) -> None:
    """Its namespace has the files of a checkpoint only."""
    assert "no store of this namespace" in refused("verify", "stateless")
    for name in ("metadata", "offsets/0", "commits/0"):
        engine.checkpoint_files().put(Checkpoint("stateless", "query"), name, b"{}\n{}", overwrites=False)
    (report,) = shown("verify", "stateless")
    assert (report["checkpoint"], report["files"], report["findings"]) == ("dynastate://stateless/query", 3, [])
    assert run("verify", "stateless").lines[-1] == "whole: 0 missing, 0 corrupt, 0 orphaned"
    assert shown("clean", "stateless") == []
    assert "no store of this namespace" in refused("compact", "stateless")
    assert "no store of this namespace" in refused("verify", "stateless/0")


def test_verify_of_a_namespace(engine: Engine, tables: MemoryTables) -> None:
    """What is wrong is listed, the rest counted, however many stores; one that fails does not hide the others."""
    stores = [StoreBuilder(engine, f"wide/0/{partition}/default") for partition in range(12)]
    for builder in stores:
        builder.commit((user("a"), counted(1)))
    whole = run("verify", "wide")
    assert (whole.code, whole.err) == (0, "")
    assert (whole.lines[0], whole.lines[-1]) == ("12 stores", "whole: 0 missing, 0 corrupt, 0 orphaned")
    assert [each["whole"] for each in shown("verify", "wide/0/7")] == [True]
    lost = parts_of(tables, stores[3].store)[0][0]
    del tables.items[lost]
    result = run("verify", "wide/0", "--wide")
    assert (result.code, result.err) == (1, "")
    assert result.lines[0].endswith(f"item={lost.sort}")
    assert f"store {stores[3].store}" in result.lines
    assert result.lines[-5:-3] == ["12 stores", "versions none can be read in all of them"]
    assert result.lines[-1] == "1 of them not whole: 1 missing, 0 corrupt, 0 orphaned"
    assert [line for line in result.lines if line.startswith("store ")] == [f"store {stores[3].store}"]
    reports = shown("verify", "wide", code=1)
    assert [each["store"] for each in reports if not each["whole"]] == [stores[3].store]
    assert "no store of this namespace" in refused("verify", "missing")


@pytest.mark.parametrize("partition", range(3))
def test_commands_name_a_store_without_its_meta_item(engine: Engine, tables: MemoryTables, partition: int) -> None:
    """`verify` reports it, `compact` and `clean` do the others and fail at it, `cost` refuses."""
    namespace = f"unmarked-{partition}"
    stores = [f"{namespace}/0/{number}/default" for number in range(3)]
    for store in stores:
        StoreBuilder(engine, store).count_to(3)
    del tables.items[meta_key(stores[partition])]
    result = run("verify", namespace, "--wide")
    assert (result.code, result.lines[-1]) == (1, "1 of them not whole: 1 missing, 0 corrupt, 0 orphaned")
    assert result.lines[0].startswith("missing  1 item: the store's meta item, without which")
    assert result.lines[0].endswith(f"store_shard={stores[partition]}#0 item=meta")
    for command in ("compact", "clean"):
        result = run(command, namespace)
        assert (result.code, result.err.count("failed")) == (2, 1)
        assert result.err.startswith(f"{stores[partition]}: the store's meta item is lost")
        assert "3 stores, 1 failed" in result.out
    assert "the store has versions, but its meta item is lost" in refused("cost", namespace)


def test_no_command_breaks_a_word_at_80_columns(engine: Engine) -> None:
    """Of a join with a digest for a namespace, no line is longer, and all names and ids are whole or shortened."""
    for partition in (0, 199):
        for name in ("left-keyWithIndexToValue", "right-keyToNumValues"):
            builder = StoreBuilder(engine, f"{DIGEST}/0/{partition}/{name}")
            builder.commit((user("a"), counted(1, "words " * 30)))
            builder.commit((user("a"), counted(2)))
    name, groups = builder.store, f"{DIGEST}/0/*/{name.rpartition('/')[2]}"
    commands: list[tuple[str, ...]] = [
        ("stores", DIGEST),
        ("show", name),
        ("versions", name),
        ("cost", DIGEST),
        ("verify", name),
    ]
    commands += [("top", DIGEST, "--looks", "2", "--interval", "0.1"), ("history", name, '{"user": "a"}')]
    for words in [*commands, ("diff", name, "0", "1")]:
        narrow, wide = run(*words), run(*words, "--wide")
        assert (narrow.code, wide.code) == (0, 0), narrow
        assert max(map(len, narrow.lines)) <= 80, narrow.out
        whole = set(wide.out.split()) | {groups.replace("right", "left"), groups, "partition", "0", "199"}
        whole |= {group.replace("keyToNumValues", "keyWithIndexToValue") for group in whole}
        assert {word for word in narrow.out.split() if not any(each.startswith(word) for each in whole)} == set()


def test_no_stores_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tables: MemoryTables) -> None:
    monkeypatch.setattr(tables, "items", {})
    assert run("stores").out == "no stores in dynastate-delta and dynastate-snapshot-group\n"
    assert shown("stores") == []


def test_verify_names_a_corrupt_record_of_the_namespace_once(engine: Engine, tables: MemoryTables) -> None:
    """It is an item of the namespace, and not of each store."""
    for partition in range(3):
        StoreBuilder(engine, f"wide/0/{partition}/default").commit((user("a"), counted(1)))
    record = namespace_key("wide")
    tables.items[record] |= {"epoch": 7}
    result = run("verify", "wide", "--wide")
    assert [line for line in result.lines if "no run of the query can begin" in line] == result.lines[:1]
    listed = {each["store"]: each["problem"] for each in shown("stores")}
    corrupt = {store.split("/")[0] for store, problem in listed.items() if problem and "runs is corrupt" in problem}
    assert corrupt == {"wide"}
    del tables.items[record]
