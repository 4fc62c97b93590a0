"""Commands that look inside and keep stores, run as their users run them; each with a wrong argument, too."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from dynastate import snapshots
from dynastate.local import REGION, EmbeddedDynamoDB, credentials
from dynastate.store import Engine
from dynastate.tables import BotoTables, make_client
from tests.states import engine
from tests.test_cli import command, environment, refused, reported, run
from tests.written import Written, counted, family, user

JOINED = ("left-keyToNumValues", "right-keyToNumValues")


@pytest.fixture(scope="module")
def database() -> Iterator[EmbeddedDynamoDB]:
    """A server of its own, so that all stores in it are known."""
    with EmbeddedDynamoDB() as running:
        yield running


@pytest.fixture(scope="module")
def at(database: EmbeddedDynamoDB) -> Iterator[Engine]:
    """An engine on it."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in credentials().items():
            patch.setenv(variable, value)
        patch.setattr(snapshots, "REST_MAX_S", 0.0)
        tables = BotoTables(database.settings)
        made = engine(tables)
        yield made
        made.close()
        tables.close()


@pytest.fixture(scope="module")
def where(database: EmbeddedDynamoDB) -> list[str]:
    """The options that reach it."""
    return ["--endpoint", database.endpoint, "--region", REGION]


@pytest.fixture(scope="module")
def store(at: Engine) -> str:
    """A store of three versions: of a and b, a is changed, c comes, b goes."""
    made = Written(at, "look/0/0/default")
    made.commit((user("a"), counted(1, "ä")), (user("b"), counted(1)))
    made.commit((user("a"), counted(2, "ä")), (user("c"), counted(1)))
    made.commit((user("b"), None))
    return made.store


def shown(*words: str, code: int = 0) -> Any:
    """Run a command with --json; what it printed."""
    done = run(*words, "--json")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_stores(at: Engine, store: str, where: list[str]) -> None:
    """Those of a namespace, and all there are: with version, rows and bytes."""
    for partition in (2, 10):
        Written(at, f"many/0/{partition}/default").commit((user("a"), counted(1)))
    Written(at, "many/1/0/default", family(), family(1, "$timers", internal=True)).commit((user("a"), counted(1)), of=1)
    (mine,) = shown("stores", "look", *where)
    assert (mine["store"], mine["version"], mine["rows"], mine["oldest"], mine["deltas"]) == (store, 3, 2, 1, 3)
    assert mine["bytes"] > 500
    found = {each["store"]: each for each in shown("stores", *where)}
    assert {store, "many/0/2/default", "many/0/10/default", "many/1/0/default"} <= set(found)
    assert [each for each in found if each.startswith("many/0")] == ["many/0/2/default", "many/0/10/default"]
    assert found["many/1/0/default"]["rows"] == 0
    lines = run("stores", "look", *where).stdout
    assert store in lines
    assert "no store of this namespace" in refused("stores", "nobody", *where)


def test_show(store: str, where: list[str]) -> None:
    """Its version, checkpoint and columns; a store that is not there is an error."""
    found = shown("show", store, *where)
    (default,) = found["families"]
    assert (found["version"], default["rows"], default["key"]) == (3, 2, [{"name": "user", "type": "string"}])
    assert found["checkpoint"]
    lines = run("show", store, *where).stdout
    assert "user string" in lines
    assert "count long, note string" in lines
    assert "the tables hold nothing of this store" in refused("show", f"{store}-none", *where)


def test_versions(store: str, where: list[str]) -> None:
    """Every committed attempt."""
    found = shown("versions", store, *where)
    assert [(each["version"], each["rows"], each["changes"], each["is_current"]) for each in found] == [
        (1, 2, 2, True),
        (2, 3, 2, True),
        (3, 2, 1, True),
    ]
    assert run("versions", store, *where).stdout.count("yes") == 3
    assert "the tables hold nothing of this store" in refused("versions", "look", *where)


def test_get(store: str, where: list[str]) -> None:
    """A row as JSON; exit code 1 where it is not there; 2 where the key cannot be one."""
    assert shown("get", store, '{"user": "a"}', *where) == {"user": "a", "count": 2, "note": "ä"}
    assert shown("get", store, '{"user": "a"}', "--version", "1", *where)["count"] == 1
    assert shown("get", "look/0", '{"user": "c"}', *where)["count"] == 1
    assert shown("get", store, '{"user": "b"}', *where, code=1) is None
    gone = run("get", store, '{"user": "b"}', *where)
    assert (gone.returncode, gone.stdout, gone.stderr) == (1, "", "not there at version 3\n")
    assert "the key is no JSON" in refused("get", store, "a", *where)
    assert "a key is an object of JSON with the columns user" in refused("get", store, "[1]", *where)
    assert "the columns are user; unknown are name" in refused("get", store, '{"name": "a"}', *where)
    assert "column user has a value that is none of its type" in refused("get", store, '{"user": 1}', *where)
    assert "versions=1-3" in refused("get", store, '{"user": "a"}', "--version", "9", *where)
    assert "no column family x" in refused("get", store, '{"user": "a"}', "--family", "x", *where)


def test_history(store: str, where: list[str]) -> None:
    """Version by version; exit code 1 where the key never was there."""
    found = shown("history", store, '{"user": "b"}', *where)
    assert found == [{"version": 1, "row": {"user": "b", "count": 1, "note": ""}}, {"version": 3, "row": None}]
    assert run("history", store, '{"user": "b"}', *where).stdout.splitlines()[1].split() == ["3", "removed"]
    assert shown("history", store, '{"user": "d"}', *where, code=1) == []
    assert "the key is no JSON" in refused("history", store, "{", *where)


def test_diff(store: str, where: list[str]) -> None:
    """What differs, as objects and as lines; nothing between equal versions."""
    found = {each["key"]["user"]: each for each in shown("diff", store, "1", "3", *where)}
    assert (found["a"]["before"]["count"], found["a"]["after"]["count"]) == (1, 2)
    assert (found["b"]["after"], found["c"]["before"]) == (None, None)
    lines = run("diff", store, "1", "3", *where).stdout.splitlines()
    assert sorted(line[0] for line in lines) == ["+", "+", "-", "-"]
    assert '- {"user": "b", "count": 1, "note": ""}' in lines
    assert shown("diff", store, "2", "2", *where) == []
    assert "versions=1-3" in refused("diff", store, "1", "4", *where)
    assert run("diff", store, "1", "x", *where).returncode == 2


def test_export(store: str, where: list[str], tmp_path: Path) -> None:
    """All rows into a file of Parquet, of lines, or to standard output."""
    rows = [{"user": "a", "count": 2, "note": "ä"}, {"user": "c", "count": 1, "note": ""}]
    lines = run("export", store, "--format", "ndjson", *where)
    assert lines.returncode == 0, lines.stderr
    assert sorted(map(json.loads, lines.stdout.splitlines()), key=str) == sorted(rows, key=str)
    file = tmp_path / "rows.json"
    said = shown("export", store, "--format", "ndjson", "--output", str(file), "--version", "1", *where)
    assert said == {"store": store, "version": 1, "rows": 2, "file": str(file)}
    assert {json.loads(line)["count"] for line in file.read_text().splitlines()} == {1}

    file = tmp_path / "rows.parquet"
    assert run("export", store, "--format", "parquet", "--output", str(file), *where).returncode == 0
    assert sorted(parquet.read_table(file).to_pylist(), key=str) == sorted(rows, key=str)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rows.json", "rows.parquet"]
    words = command("export", store, "--format", "parquet", *where)
    piped = subprocess.run(words, capture_output=True, env=environment(), timeout=30, check=True)
    assert sorted(parquet.read_table(BytesIO(piped.stdout)).to_pylist(), key=str) == sorted(rows, key=str)
    (tmp_path / "rows.json.part").write_text("mine")
    assert run("export", store, "--format", "ndjson", "-o", str(tmp_path / "rows.json"), *where).returncode == 0
    assert (tmp_path / "rows.json.part").read_text() == "mine"
    for wrong in ("", ".", "/"):
        assert "--output is no file" in refused("export", store, "--format", "ndjson", "-o", wrong, *where)
    assert "give a file with --output" in refused("export", store, "--format", "parquet", "--json", *where)
    assert run("export", store, "--format", "csv", *where).returncode == 2
    assert "cannot be written" in refused(
        "export", store, "--format", "ndjson", "--output", str(tmp_path / "no" / "folder"), *where
    )


def test_an_export_that_fails_leaves_no_file(at: Engine, database: EmbeddedDynamoDB, where: list[str]) -> None:
    """Also at the other end of a pipe: a file of Parquet that ends with the rows so far would be taken for whole."""
    broken = Written(at, "broken/0/0/default")
    broken.commit((user("a"), counted(1)))
    client = make_client(database.settings)
    for item in client.scan(TableName=database.settings.delta_table)["Items"]:
        if item["store_shard"]["S"].startswith(broken.store):
            keys = {name: item[name] for name in ("store_shard", "part")}
            client.delete_item(TableName=database.settings.delta_table, Key=keys)
    client.close()
    words = command("export", broken.store, "--format", "parquet", *where)
    piped = subprocess.run(words, capture_output=True, env=environment(), timeout=30, check=False)
    assert (piped.returncode, piped.stdout) == (2, b"")
    assert b"a part that a version list or a directory names is not in its table" in piped.stderr


def on_a_terminal(*words: str) -> tuple[str, str]:
    """Run a command to its end with a terminal for standard error: its standard output, and what the terminal got."""
    ours, theirs = pty.openpty()
    try:
        try:
            running = subprocess.Popen(
                command(*words), stdout=subprocess.PIPE, stderr=theirs, env=environment() | {"TERM": "xterm"}
            )
        finally:
            os.close(theirs)
        with running:
            shown = b"".join(read_to_the_end(ours))
            assert running.stdout is not None
            said = running.stdout.read()
            assert running.wait(30) == 0, shown
    finally:
        os.close(ours)
    return said.decode(), shown.decode()


def read_to_the_end(terminal: int) -> Iterator[bytes]:
    with suppress(OSError):  # on Linux, a terminal ends with one
        while True:
            yield os.read(terminal, 4_096)


@pytest.mark.parametrize(
    "words",
    [
        ("stores", "look"),
        ("history", "look/0", '{"user": "a"}'),
        ("diff", "look/0", "1", "3"),
        ("cost", "look"),
        ("verify", "look/0/0/default"),
    ],
    ids=lambda words: words[0],
)
def test_progress_is_shown_on_a_terminal_only(words: tuple[str, ...], store: str, where: list[str]) -> None:
    """There a bar comes to its end on standard error, and standard output is the same JSON; elsewhere there is none."""
    quiet = run(*words, "--json", *where)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    said, shown = on_a_terminal(*words, "--json", *where)
    assert json.loads(said) == json.loads(quiet.stdout)
    assert "━" in shown
    assert "100%" in shown


def test_text_that_is_no_utf_8_is_escaped(at: Engine, where: list[str], tmp_path: Path) -> None:
    """Bytes that no file of UTF-8 takes come as JSON escapes, on every way; as such a key is given."""
    Written(at, "bytes/0/0/default").commit((user("\udcfaä"), counted(1, "\udcff")))
    row = {"user": "\udcfaä", "count": 1, "note": "\udcff"}
    assert shown("get", "bytes/0/0/default", '{"user": "\\udcfaä"}', *where) == row
    file = tmp_path / "rows.json"
    for words in (["export", "--format", "ndjson"], ["export", "--format", "ndjson", "--output", str(file)]):
        assert run(words[0], "bytes/0/0/default", *words[1:], *where).returncode == 0
    assert '"\\udcfaä"' in file.read_text(encoding="utf-8")
    assert json.loads(file.read_text(encoding="utf-8")) == row
    assert "\\udcfaä" in run("diff", "bytes/0/0/default", "0", "1", *where).stdout


def test_compact_and_clean(at: Engine, where: list[str]) -> None:
    """A snapshot by hand, then only what two versions need; the query goes on from there."""
    made = Written(at, "keep/0/0/default")
    for number in range(1, 8):
        made.commit((user("a"), counted(number)))
    (found,) = shown("compact", "keep/0", *where)
    assert (found["made"], found["version"], found["rows"]) == (True, 7, 1)
    assert shown("compact", made.store, *where) == [{"store": made.store, "made": False}]
    made.commit((user("a"), counted(8)))
    (cleaned,) = shown("clean", made.store, "--retain", "2", *where)
    assert cleaned["oldest"] == 7
    assert cleaned["items"] > 0
    made.commit((user("a"), counted(9)))
    assert shown("get", made.store, '{"user": "a"}', *where)["count"] == 9
    assert json.loads(run("verify", made.store, *where, "--json").stdout)["whole"]
    assert "no state of this store is in the tables" in refused("compact", "keep/0/7/default", *where)
    assert "no state of this store is in the tables" in refused("clean", "keep/0/7/default", *where)
    assert run("clean", made.store, "--retain", "1", *where).returncode == 2


def test_fork(at: Engine, where: list[str]) -> None:
    """It reads as its origin, which is not dropped before it; versions that are not everywhere are refused."""
    first, second = (Written(at, f"whole/0/{partition}/default") for partition in range(2))
    for number in range(1, 4):
        first.commit((user("a"), counted(number)))
    for number in range(1, 3):
        second.commit((user("b"), counted(number)))
    assert "versions=1-2" in refused("fork", "whole", "part", "--version", "3", *where)
    said = shown("fork", "whole", "part", *where)
    assert {name: said[name] for name in ("namespace", "fork", "version", "stores")} == {
        "namespace": "whole",
        "fork": "part",
        "version": 2,
        "stores": 2,
    }
    assert min(said["items"], said["shared_bytes"], said["write_units"]) > 0
    assert shown("show", "part/0/0/default", *where)["origin"] == "whole/0/0/default"
    assert shown("show", "whole/0/0/default", *where)["forks"] == ["part/0/0/default"]
    assert shown("get", "part/0/0/default", '{"user": "a"}', *where)["count"] == 2
    assert [(each["version"], each["rows"]) for each in shown("stores", "part", *where)] == [(2, 1)] * 2
    assert shown("history", "part/0/0/default", '{"user": "a"}', *where)[-1]["version"] == 2
    exported = run("export", "part/0/1/default", "--format", "ndjson", *where)
    assert json.loads(exported.stdout)["count"] == 2
    assert run("cost", "part", *where).returncode == 0
    assert shown("compact", "part/0/0/default", *where)[0]["made"]
    assert shown("clean", "part/0/0/default", *where)[0]["oldest"] == 1
    assert json.loads(run("verify", "part/0/0/default", *where, "--json").stdout)["whole"]
    assert "has state already" in refused("fork", "whole", "part", *where)
    assert "needs a namespace of its own" in refused("fork", "whole", "whole", *where)
    assert "no store of this namespace" in refused("fork", "nobody", "part", *where)
    assert "dynastate.namespace must be" in refused("fork", "whole", "a/b", *where)
    assert "forks stand on this state: part;" in refused("drop", "whole", *where)
    words = run("fork", "part", "part-of-part", *where)
    assert (words.returncode, "version 2 of 2 stores" in words.stdout) == (0, True)
    for namespace in ("part-of-part", "part", "whole"):
        assert shown("drop", namespace, "--yes", *where)["stores"] == 2


def test_drop_asks(at: Engine, store: str, where: list[str]) -> None:
    """Nothing goes without a yes; then all of the namespace, and nothing else."""
    for partition in range(2):
        for name in JOINED:
            Written(at, f"gone/0/{partition}/{name}").commit((user("a"), counted(1)))
    words = command("drop", "gone", *where)
    for answer in ("n\n", ""):
        asked = subprocess.run(
            words, input=answer, capture_output=True, text=True, env=environment(), timeout=30, check=False
        )
        assert (asked.returncode, asked.stdout.strip()) == (1, "")
        assert "Delete all state of gone, 4 stores?" in asked.stderr
    assert len(shown("stores", "gone", *where)) == 4
    said = shown("drop", "gone", "--yes", *where)
    assert (said["namespace"], said["stores"]) == ("gone", 4)
    assert "no store of this namespace" in refused("drop", "gone", "--yes", *where)
    assert shown("stores", "look", *where)[0]["store"] == store
    assert "dynastate.namespace must be" in refused("drop", "a/b", "--yes", *where)


def test_top(at: Engine, where: list[str], tmp_path: Path) -> None:
    """Look by look, what the partitions of an operator have done since; commit times from progress reports."""
    first, second = (Written(at, f"busy/0/{partition}/default") for partition in range(2))
    first.commit((user("a"), counted(1)))
    first.commit((user("a"), counted(2)))
    second.commit((user("b"), counted(1)))
    done = run("top", "busy", "--looks", "2", "--interval", "0.1", "--json", *where)
    assert done.returncode == 0, done.stderr
    looks = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["look"] for each in looks] == [1, 2]
    assert looks[0] | {"look": 2, "versions_s": 0, "write_units_s": 0, "changes_s": 0} == looks[1]
    assert (looks[0]["stores"], looks[0]["partitions"], looks[0]["version"]) == ("busy/0/*/default", 2, 1)
    assert (looks[0]["lag"], looks[0]["rows"], looks[0]["versions_s"]) == (1, 2, None)
    assert "no store of this namespace" in refused("top", "nobody", "--looks", "1", *where)
    missing = str(tmp_path / "missing")
    assert "cannot be read" in refused("top", "busy", "--looks", "1", "--progress", missing, *where)


def test_top_tells_operators_apart(at: Engine, where: list[str], tmp_path: Path) -> None:
    """Commit times and throttles are those of the row's own operator, and of this query; a join's are told once."""
    for partition in range(2):
        for place in (f"two/0/{partition}/default", *(f"two/1/{partition}/{name}" for name in JOINED)):
            Written(at, place, run="its-run").commit((user("a"), counted(1)))
    words = ("top", "two", "--looks", "1", *where)
    before = [json.loads(line) for line in run(*words, "--json").stdout.splitlines()]
    file = tmp_path / "progress.json"
    known = json.loads(Path(reported(tmp_path, 1)).read_text())
    (operator,) = known["stateOperators"]

    def of(run: str, *figures: tuple[int, int]) -> str:
        """A report of operators, of milliseconds in commits and requests throttled."""
        operators = [
            {"customMetrics": operator["customMetrics"] | {"dynastateCommitMs": ms, "dynastateThrottles": throttles}}
            for ms, throttles in figures
        ]
        return json.dumps(known | {"runId": run, "stateOperators": operators}) + "\n"

    file.write_text(of("its-run", (1, 1), (1, 1)) + of("its-run", (25, 0), (3_000, 7)) + of("another", (5, 5), (5, 5)))
    done = run(*words, "--progress", str(file), "--json")
    assert done.returncode == 0, done.stderr
    looked = [json.loads(line) for line in done.stdout.splitlines()]
    names = ["two/0/*/default", *(f"two/1/*/{name}" for name in JOINED)]
    figures = [(12.5, 0), (750.0, 7), (None, None)]
    assert [(each["stores"], each["commit_ms"], each["throttles"]) for each in looked] == [
        (name, *figure) for name, figure in zip(names, figures, strict=True)
    ]
    assert [each | {"commit_ms": None, "throttles": None} for each in looked] == before
    table = run(*words, "--progress", str(file))
    assert table.returncode == 0, table.stderr
    assert "commit ms" in table.stdout
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.stdout.splitlines() if "two/" in line]
    assert [row[-2:] for row in cells] == [["12.5", "0"], ["750.0", "7"], ["-", "-"]]
    file.write_text(of("another", (5, 5)))
    assert "commit ms" not in run(*words, "--progress", str(file)).stdout
