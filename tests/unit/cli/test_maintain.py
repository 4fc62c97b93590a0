"""Commands that maintain state: compact, clean, fork, adopt, drop."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from dynastate.engine.checkpoint import ORPHAN_AGE, CheckpointFiles
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, UnavailableError
from dynastate.format.checkpoint import Checkpoint, file_key, file_parts
from dynastate.format.keys import Attempt, meta_key, version_list_key
from dynastate.operations.lifecycle import adopt, compact, drop
from dynastate.settings import SNAPSHOT_TABLE
from tests.support.command_line import refused, run, shown
from tests.support.engine_driver import make_engine, now
from tests.support.memory_tables import MemoryTables
from tests.support.processes import press_ctrl_c
from tests.support.samples import noise
from tests.support.store_builder import StoreBuilder, counted, user
from tests.unit.cli.conftest import NamedTables

JOINED = ("left-keyToNumValues", "right-keyToNumValues")


def test_compact_and_clean(engine: Engine) -> None:
    builder = StoreBuilder(engine, "keep/0/0/default").count_to(7)
    (report,) = shown("compact", "keep/0")
    assert (report["made"], report["version"], report["rows"]) == (True, 7, 1)
    reason = "version 7, the newest, has a snapshot"
    (report,) = shown("compact", builder.store)
    assert (report["made"], report["version"], report["reason"]) == (False, None, reason)
    assert run("compact", builder.store).out == f"{builder.store}: {reason}\n"
    output = run("clean", builder.store, "--retain", "2", "--wide").out
    assert "0 items deleted" in output
    assert (
        "versions from 1 on stay: version 6, the oldest to retain, needs them, as no snapshot lies between\n" in output
    )
    builder.commit((user("a"), counted(8)))
    (cleaned,) = shown("clean", builder.store, "--retain", "2")
    assert (cleaned["oldest"], cleaned["held_by"]) == (7, None)
    assert cleaned["items"] > 0
    builder.commit((user("a"), counted(9)))
    assert shown("get", builder.store, '{"user": "a"}')["count"] == 9
    assert shown("verify", builder.store)[0]["whole"]
    assert "no state of this store is in the tables" in refused("compact", "keep/0/7/default")
    assert "no state of this store is in the tables" in refused("clean", "keep/0/7/default")
    assert run("clean", builder.store, "--retain", "1").code == 2


def test_compact_with_a_codec(engine: Engine, tables: NamedTables) -> None:
    builder = StoreBuilder(engine, "packed/0/0/default").count_to(3)
    assert "compression must be lz4 or zstd" in refused("compact", builder.store, "--compression", "gzip")
    builder.commit(*((user(f"user {number}"), counted(number)) for number in range(99)))
    assert shown("compact", builder.store, "--compression", "zstd")[0]["made"]
    buckets = [
        item
        for key, item in tables.items.items()
        if key.sort.startswith("bucket/") and key.store_shard.startswith(builder.store)
    ]
    assert {item["codec"] for item in buckets} == {"zstd"}


def test_all_stores_of_a_namespace(engine: Engine, tables: NamedTables) -> None:
    """Commands work on every store; one that fails does not hide the others, and the exit code says so."""
    stores = [
        f"whole.join/{operator}/{partition}/{name}" for operator in (0, 1) for partition in (0, 1) for name in JOINED
    ]
    builders = [StoreBuilder(engine, store) for store in stores]
    for each in builders:
        each.count_to(3)
    result = run("compact", "whole.join/1/0")
    assert (result.code, result.err) == (0, "")
    assert [line.split() for line in result.lines[:2]] == [["write"], ["store", "version", "rows", "units"]]
    assert result.lines[-1].startswith("2 stores: 2 snapshots made, ")
    assert [each["made"] for each in shown("compact", f"whole.join/1/*/{JOINED[0]}")] == [False, True]
    broken = version_list_key(stores[5], 1)
    tables.items[broken] |= {"versions": [b"broken"]}
    result = run("compact", "whole.join")
    assert result.code == 2
    assert result.lines[-1].startswith("8 stores, 1 failed: 5 snapshots made, ")
    assert result.err.startswith(f"{stores[5]}: ")
    assert f"table={SNAPSHOT_TABLE} " in result.err
    assert result.err.endswith("\ndynastate: 1 of 8 stores failed\n")
    for each in builders:
        if each.store != stores[5]:
            each.count_to(5)
    cleaned = shown("clean", "whole.join", "--retain", "2", code=2)
    assert [each["store"] for each in cleaned] == [*stores[:5], *stores[6:], stores[5]]
    assert [each["oldest"] for each in cleaned[:-1]] == [4] * 7
    assert "version entry has format 98" in cleaned[-1]["error"]
    (other,) = shown("clean", "whole.join/0/0/left-keyToNumValues")
    assert other["items"] == 0
    assert shown("verify", "whole.join", code=1)[5]["whole"] is False
    assert max(map(len, run("clean", "whole.join").lines)) <= 80


def test_ctrl_c_says_what_was_done(engine: Engine, tables: NamedTables, monkeypatch: pytest.MonkeyPatch) -> None:
    for partition in range(40):
        StoreBuilder(engine, f"cut/0/{partition}/default").count_to(1)
    stopped, in_time = threading.Event(), list[bool]()
    monkeypatch.setattr(tables, "stop", stopped.set)
    compacted = compact.compact_store

    def until_ctrl_c(engine: Engine, on: MemoryTables, store: str, *rest: Any) -> Any:
        if store != "cut/0/9/default":
            return compacted(engine, on, store, *rest)
        in_time.append(press_ctrl_c(stopped))
        raise UnavailableError("stopped")

    monkeypatch.setattr(compact, "compact_store", until_ctrl_c)
    result = run("compact", "cut", "--wide")
    assert (result.code, result.err, in_time) == (130, "dynastate: interrupted\n", [True])
    counts = re.fullmatch(
        r"40 stores, (\d+) not done when it was interrupted: (\d+) snapshots made,.*", result.lines[-1]
    )
    assert counts is not None
    assert int(counts[1]) + int(counts[2]) == 40
    assert int(counts[1]) > 0


def test_counts_of_one_are_singular(engine: Engine, tmp_path: Path) -> None:
    """In every text for people: of one store, one row and one item, there is nothing in the plural."""
    for query, store in (("first", "one/0/1/default"), ("second", "one/0/0/default")):
        builder = StoreBuilder(engine, store, run=f"run of {query}", query=query)
        for number in range(3):
            builder.commit((user("a"), counted(number)), by=Attempt(uuid4().bytes))
    commands = [
        "compact one",
        "stores one",
        "show one/0/0/default",
        "versions one/0",
        f"export one/0 --format ndjson -o {tmp_path / 'one.ndjson'}",
        "verify one/0/0/default",
        "cost one --every 60 --partitions 1",
        "clean one/0/0/default --retain 2",
        "clean one --retain 2 --yes",
        "fork one other",
        "adopt one --checkpoint /there --yes",
        "drop other --yes",
        "drop one --yes",
    ]
    results = [run(*command.split()) for command in commands]
    assert [each.code for each in results] == [0] * len(commands)
    text = "\n".join(each.out + each.err for each in results)
    assert re.findall(r"(?<![\d.,])1 (?:[a-z]+ )?[a-z]{2,}s\b", text) == []
    for each in ("1 store", "1 row", "1 snapshot", "1 partition"):
        assert re.search(rf"\b{each}\b", text), each


def test_compact_beside_a_snapshot_says_so(engine: Engine) -> None:
    """A snapshot that another executor is making is another reason than one that is there."""
    builder = StoreBuilder(engine, "compacting/0/0/default").count_to(1)
    snapshot, _ = engine.maintenance.snapshot(builder.store, builder.run, *builder.version, 100, 1)
    assert snapshot is not None
    assert "another executor is making a snapshot of version 1, " in str(shown("compact", builder.store)[0])
    snapshot.abort()


def test_fork(engine: Engine) -> None:
    first, second = (StoreBuilder(engine, f"whole/0/{partition}/default") for partition in range(2))
    first.count_to(3)
    for number in range(1, 3):
        second.commit((user("b"), counted(number)))
    output = refused("fork", "whole", "part", "--version", "3")
    assert "versions=1-2" in output
    assert f"table={SNAPSHOT_TABLE} " in output
    output = shown("fork", "whole", "part")
    assert [output[name] for name in ("namespace", "fork", "version", "stores")] == ["whole", "part", 2, 2]
    assert min(output["items"], output["shared_bytes"], output["write_units"]) > 0
    assert shown("show", "part/0/0/default")["origin"] == "whole/0/0/default"
    assert shown("show", "whole/0/0/default")["forks"] == ["part/0/0/default"]
    assert shown("get", "part/0/0/default", '{"user": "a"}')["count"] == 2
    assert [(each["version"], each["rows"]) for each in shown("stores", "part")] == [(2, 1)] * 2
    assert shown("history", "part/0/0/default", '{"user": "a"}')[-1]["version"] == 2
    exported = run("export", "part/0/1/default", "--format", "ndjson")
    assert json.loads(exported.out)["count"] == 2
    assert run("cost", "part").code == 0
    assert shown("compact", "part/0/0/default")[0]["made"]
    assert shown("clean", "part/0/0/default")[0]["oldest"] == 1
    assert shown("verify", "part/0/0/default")[0]["whole"]
    assert "has state already" in refused("fork", "whole", "part")
    assert "namespace must be" in refused("fork", "whole", "a/b")
    assert "no store of this namespace" in refused("fork", "missing", "other")
    assert "forks depend on this state: part;" in refused("drop", "whole")
    words = run("fork", "part", "part-of-part")
    assert (words.code, "version 2 of 2 stores" in words.out) == (0, True)
    for namespace in ("part-of-part", "part", "whole"):
        assert shown("drop", namespace, "--yes")["stores"] == 2


def test_stores_of_an_earlier_query(engine: Engine) -> None:
    for query, partitions in (("first", 3), ("second", 1)):
        for partition in range(partitions):
            builder = StoreBuilder(engine, f"again/0/{partition}/default", run=f"run of {query}", query=query)
            for number in range(2):
                by = Attempt(f"{query}-{partition}-{number}".encode().ljust(16))
                builder.commit((user(f"{query}-{partition}"), counted(number)), by=by)
    assert [each["is_earlier"] for each in shown("stores", "again")] == [False, True, True]
    assert run("stores", "again").lines[-1].startswith("Stores of an earlier query: ")
    assert "query        an earlier one, whose checkpoint was deleted" in run("show", "again/0/1/default").lines
    assert shown("get", "again/0", '{"user": "second-0"}')["count"] == 1
    assert shown("get", "again/0", '{"user": "first-1"}', code=1) is None
    assert shown("get", "again/0/1/default", '{"user": "first-1"}')["count"] == 1
    assert shown("compact", "again/0")[0]["store"] == "again/0/0/default"
    assert "again/0/2/default: of an earlier query, is deleted, with " in run("clean", "again/0/2/default", "--yes").out
    result = run("clean", "again/0", typed="n\n")
    assert (result.code, result.out.strip()) == (1, "")
    assert result.err.startswith("query first, last commit 2025-01-01 00:00:00 UTC: again/0/1/default\nDelete 1 store")
    assert len(shown("stores", "again")) == 2
    cleaned = {each["store"]: each["is_earlier"] for each in shown("clean", "again/0", "--yes")}
    assert cleaned == {"again/0/0/default": False, "again/0/1/default": True}
    assert [each["store"] for each in shown("stores", "again")] == ["again/0/0/default"]


def test_adopt_asks(engine: Engine) -> None:
    StoreBuilder(engine, "moved/0/0/default").count_to(1)
    for wrong in ("", "moved/checkpoint"):
        assert "give the checkpoint's URL, or its absolute path" in refused("adopt", "moved", "--checkpoint", wrong)
    result = run("adopt", "moved", "--checkpoint", "/there", typed="n\n")
    assert (result.code, result.out.strip()) == (1, "")
    assert result.err.startswith(
        "moved, 1 store, belongs to file:/tmp/ck. From now on only a query with the checkpoint"
    )
    assert shown("adopt", "moved", "--checkpoint", "/there", "--yes")["stores"] == 1
    assert shown("show", "moved/0/0/default")["checkpoint"] == "file:/there/state"


def test_adopt_beside_another_adoption(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store belonged to the checkpoint when the command looked, and not when the command adopted it."""
    StoreBuilder(engine, "raced/0/0/default", location="file:/there/state").count_to(1)
    monkeypatch.setattr(adopt, "locations_of", lambda *_: ("file:/here/state",))
    lines = [run("adopt", "raced", "--checkpoint", "/here", "--yes").lines[-1] for _ in range(2)]
    assert [each.endswith("no adoption was needed") for each in lines] == [False, True]


def test_drop_asks(engine: Engine, store: str) -> None:
    for partition in range(2):
        for name in JOINED:
            StoreBuilder(engine, f"gone/0/{partition}/{name}").count_to(1)
    for answer in ("n\n", ""):
        result = run("drop", "gone", typed=answer)
        assert (result.code, result.out.strip()) == (1, "")
        assert result.err.startswith("Delete all state of gone, 4 stores? The query must not run. [y/N]:")
        forced = run("drop", "gone", "--force", typed=answer)
        assert forced.err.startswith("Delete all state of gone, 4 stores? A query that runs fails, and cannot be rest")
        assert result.err.endswith("dynastate: not confirmed, nothing was done\n")
    assert len(shown("stores", "gone")) == 4
    assert run("drop", "gone", "--yes").err == "looking for 0 s whether a query writes to gone\n"
    assert "no store of this namespace" in refused("drop", "gone", "--yes")
    assert shown("stores", "look")[0]["store"] == store
    assert "namespace must be" in refused("drop", "a/b", "--yes")


def test_objects_of_other_tables_are_named(engine: Engine, tables: NamedTables) -> None:
    """Of restored tables, verify says whose objects they need, and clean and drop say which they left."""
    old = MemoryTables("old-groups", tables.objects)
    old.items = tables.items  # restored at once
    old_engine = make_engine(old, objects="s3://bucket/state", objects_threshold_kb=0)
    builder = StoreBuilder(old_engine, "restored/0/0/default").count_to(3)
    old_engine.close()
    objects = dict(tables.objects.objects)
    place = "s3://bucket/state/old-groups"
    assert shown("verify", builder.store)[0]["other_locations"] == [place]
    assert f"objects of other tables are needed: {place}\n" in run("verify", builder.store, "--wide").out
    builder._engine = engine
    builder.count_to(4)
    assert shown("compact", builder.store)[0]["made"]
    builder.count_to(6)
    message = f"objects of other tables were left: {place}\n"
    assert message in run("clean", builder.store, "--retain", "2", "--wide").out
    assert shown("clean", builder.store, "--retain", "2")[0]["other_locations"] == []
    assert shown("verify", builder.store)[0]["other_locations"] == []
    assert message in run("drop", "restored", "--yes", "--wide").out
    assert tables.objects.objects == objects


def test_an_earlier_query_had_objects_of_other_tables(engine: Engine, tables: NamedTables) -> None:
    """Its stores are deleted without those objects, which are named."""
    old = MemoryTables("old-groups", tables.objects)
    old.items = tables.items
    old_engine = make_engine(old, objects="s3://bucket/state", objects_threshold_kb=0)
    for partition in range(2):
        StoreBuilder(old_engine, f"earlier/0/{partition}/default", run="run of first", query="first").count_to(2)
    old_engine.close()
    objects = dict(tables.objects.objects)
    second = StoreBuilder(engine, "earlier/0/0/default", run="run of second", query="second")
    for number in range(2):
        second.commit((user("a"), counted(number)), by=Attempt(b"second-%d" % number + bytes(8)))
    cleaned = shown("clean", "earlier/0/1/default", "--yes")
    assert [(each["is_earlier"], each["other_locations"]) for each in cleaned] == [
        (True, ["s3://bucket/state/old-groups"])
    ]
    assert tables.objects.objects == objects


def test_drop_refuses_while_a_query_writes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = StoreBuilder(engine, "written/0/0/default", run=str(uuid4())).count_to(1)
    look = drop.look

    def committing(*arguments: Any) -> drop.Look:
        report = look(*arguments)
        builder.commit((user("a"), counted(builder.version.version)))
        return report

    monkeypatch.setattr(drop, "look", committing)
    result = run("drop", "written", "--yes")
    assert (result.code, result.out) == (2, "")
    assert "a query writes to this namespace: stop it, and drop again. With --force" in result.err
    assert shown("drop", "written", "--yes", "--force")["stores"] == 1
    with pytest.raises(ConfigurationError, match="may not commit any more"):
        builder.commit((user("a"), counted(9)))
    assert "no store of this namespace" in refused("stores", "written")


def test_drop_says_what_a_query_made_meanwhile(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that runs makes a store after they were listed: drop fails, and another one deletes it."""
    StoreBuilder(engine, "growing/0/0/default", run=str(uuid4())).count_to(1)
    drop_stores = drop.drop_stores

    def making(*arguments: Any) -> int:
        deleted = drop_stores(*arguments)
        StoreBuilder(engine, "growing/0/0/default", run=str(uuid4())).count_to(1)
        return deleted

    monkeypatch.setattr(drop, "drop_stores", making)
    result = run("drop", "growing", "--yes", "--force")
    assert (result.code, result.out) == (2, "")
    assert "made stores of this namespace while the others were deleted: stop it, and drop again" in result.err
    monkeypatch.setattr(drop, "drop_stores", drop_stores)
    assert shown("drop", "growing", "--yes")["stores"] == 1
    assert "no store of this namespace" in refused("stores", "growing")


def put_files(engine: Engine, namespace: str, *files: str) -> CheckpointFiles:
    """Put files of the checkpoint `clicks` of a namespace."""
    result = engine.checkpoint_files()
    for file in files:
        assert result.put(Checkpoint(namespace, "clicks"), file, b"v1", overwrites=False)
    return result


def test_drop_deletes_checkpoint_files(engine: Engine, tables: MemoryTables) -> None:
    """Files of a checkpoint in the tables go with the state, also where there is no state; those of others stay."""
    StoreBuilder(engine, "with-files/0/0/default").count_to(1)
    put_files(engine, "with-files", "offsets/0", "commits/0")
    put_files(engine, "with-files-2", "offsets/0")
    asked = run("drop", "with-files", typed="n\n")
    assert "all state of with-files, 1 store, and the checkpoint with-files/clicks? The query must" in asked.err
    assert "with-files/clicks: 2 checkpoint files deleted" in run("drop", "with-files", "--yes").out
    assert "no store of this namespace" in refused("drop", "with-files", "--yes")
    put_files(engine, "with-files", "offsets/0")
    dropped = shown("drop", "with-files", "--yes")
    assert (dropped["stores"], dropped["items"], dropped["files"]) == (0, 0, 1)
    assert [key.sort for key in tables.items if key.store_shard == "with-files/checkpoint/clicks#0"] == []
    assert engine.checkpoint_files().get(Checkpoint("with-files-2", "clicks"), "offsets/0") is not None


def test_drop_refuses_while_files_are_written(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query without state that runs has written a file between two looks, or after the last one."""
    put_files(engine, "files-only", "offsets/0")
    refuse_written, drop_checkpoints = drop.refuse_written, drop.drop_checkpoints

    def writing(*arguments: Any, **options: Any) -> None:
        refuse_written(*arguments, **options)
        put_files(engine, "files-only", "commits/0")

    monkeypatch.setattr(drop, "refuse_written", writing)
    assert "a query writes to this namespace: stop it" in run("drop", "files-only", "--yes").err

    def dropping(*arguments: Any) -> int:
        files = drop_checkpoints(*arguments)
        put_files(engine, "files-only", "offsets/1")
        return files

    monkeypatch.setattr(drop, "drop_checkpoints", dropping)
    assert "has written files of its checkpoint while" in refused("drop", "files-only", "--yes", "--force")
    monkeypatch.setattr(drop, "drop_checkpoints", drop_checkpoints)
    assert shown("drop", "files-only", "--yes", "--force")["files"] == 1


def test_commands_beside_checkpoint_files(engine: Engine) -> None:
    """Other commands see the same stores, and succeed, where the namespace has files of a checkpoint."""
    StoreBuilder(engine, "beside/0/0/default").count_to(3)
    commands = (("stores", "beside"), ("verify", "beside"), ("clean", "beside"), ("compact", "beside"))
    for words in commands:
        shown(*words)
    before = [shown(*words) for words in commands]
    put_files(engine, "beside", "metadata", "offsets/0", "sources/0/0")
    after = [shown(*words) for words in commands]
    assert [each for each in after[1] if "store" in each] == before[1]
    assert [after[0], *after[2:]] == [before[0], *before[2:]]
    assert {each["store"] for each in shown("stores") if each["store"].startswith("beside")} == {"beside/0/0/default"}
    assert shown("fork", "beside", "beside-fork")["checkpoint"] is None
    assert shown("stores", "beside-fork")[0]["version"] == 3
    assert engine.checkpoint_files().list(Checkpoint("beside-fork", "clicks"), "") == []
    adoption = ("adopt", "beside", "--checkpoint")
    assert shown(*adoption, "dynastate://beside/clicks", "--yes")["stores"] == 1
    again = run(*adoption, "dynastate://beside/clicks", "--yes")
    assert again.lines[-1] == "it belonged to this checkpoint before: no adoption was needed"
    assert "give dynastate://beside/NAME" in refused(*adoption, "dynastate://other/clicks")
    missing = refused(*adoption, "dynastate://beside/new/")
    assert "dynastate checkpoint OLD dynastate://beside/new moves those" in missing
    assert shown("show", "beside/0/0/default")["checkpoint"] == "dynastate://beside/clicks/state"


def test_clean_deletes_what_failed_writes_left(engine: Engine, tables: MemoryTables) -> None:
    """In all checkpoints of the namespace, and only there: fragments that no file names."""
    StoreBuilder(engine, "torn/0/0/default").count_to(2)
    put_files(engine, "torn", "offsets/0")
    key, time = file_key(Checkpoint("torn", "clicks"), "sources/0/8"), int((now() - 2 * ORPHAN_AGE).timestamp() * 1000)
    _, fragments, _ = file_parts(key, noise(1_000_000, "torn"), Attempt(b"o" * 16), time)
    tables.write(fragments)
    assert len(shown("clean", "torn/0/0/default")) == 1
    (_, cleaned) = shown("clean", "torn")
    assert (cleaned["checkpoint"], cleaned["items"]) == ("dynastate://torn/clicks", len(fragments))
    assert cleaned["write_units"] > 900
    assert not any(fragment in tables.items for fragment, _ in fragments)
    assert len(shown("clean", "torn")) == 1
    tables.write(fragments)
    text = f"dynastate://torn/clicks: {len(fragments)} items of failed writes deleted, "
    assert any(line.startswith(text) for line in run("clean", "torn", "--wide").lines)
    assert engine.checkpoint_files().get(Checkpoint("torn", "clicks"), "offsets/0") is not None


def test_clean_shows_its_stores_where_a_checkpoint_fails(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    StoreBuilder(engine, "half/0/0/default").count_to(2)
    put_files(engine, "half", "offsets/0")

    def fail(*_: Any) -> int:
        raise UnavailableError("DynamoDB gave no answer")

    monkeypatch.setattr(CheckpointFiles, "delete_orphans", fail)
    result = run("clean", "half", "--wide")
    assert (result.code, result.out.startswith("half/0/0/default: 0 items deleted")) == (2, True)
    assert result.err == "dynastate: the checkpoints were not cleaned: DynamoDB gave no answer\n"
    result = run("clean", "half", "--json")
    assert (result.code, [each["store"] for each in json.loads(result.out)]) == (2, ["half/0/0/default"])


def test_fork_with_its_checkpoint(engine: Engine) -> None:
    builder = StoreBuilder(engine, "with-log/0/0/default", location="dynastate://with-log/clicks/state")
    builder.count_to(3)
    assert "no committed batch to resume after yet" in refused("fork", "with-log", "with-log-2")
    names = ["metadata", *(f"{log}/{batch}" for log in ("offsets", "commits") for batch in range(2)), "offsets/2"]
    for name in names:
        text = '{"id":"query"}' if name == "metadata" else "v1\n{}"
        engine.checkpoint_files().put(Checkpoint("with-log", "clicks"), name, text.encode(), overwrites=False)
    output = run("fork", "with-log", "with-log-fork", "--wide").out
    assert output.endswith("start it with the checkpoint dynastate://with-log-fork/clicks, after batch 1\n")
    files = {each.name for each in engine.checkpoint_files().list(Checkpoint("with-log-fork", "clicks"), "offsets")}
    assert files == {"0", "1"}
    assert shown("fork", "with-log", "with-log-other")["checkpoint"] == "dynastate://with-log-other/clicks"


def test_a_broken_store_hides_no_other(engine: Engine, tables: MemoryTables) -> None:
    for partition in range(3):
        StoreBuilder(engine, f"broken/0/{partition}/default", run=str(uuid4())).count_to(1)
    tables.delete([meta_key("broken/0/1/default")])
    for words in (("stores", "broken"), ("stores",)):
        problems = {each["store"]: each["problem"] for each in shown(*words) if each["store"].startswith("broken/")}
        assert [bool(problem) for problem in problems.values()] == [False, True, False]
    text = " ".join(run("stores", "broken").out.split())
    assert "broken/0/1/default: the store has versions, but its meta item is lost: restore the tables" in text
    assert "dynastate drop broken" in text
    assert "meta item is lost" in refused("show", "broken/0/1/default")
    assert shown("drop", "broken", "--yes")["stores"] == 3
    for words in (("stores", "broken"), ("show", "broken/0/1/default"), ("verify", "broken/0/1/default")):
        assert "no store of this namespace" in (text := refused(*words)) or "hold nothing of this store" in text
    assert not any(each["store"].startswith("broken/") for each in shown("stores"))
