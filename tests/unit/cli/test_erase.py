"""The command erase: what it shows, its question, its receipt."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from dynastate.cli.key_files import keys_of
from dynastate.dynamodb import identity
from dynastate.engine.engine import Engine
from dynastate.errors import UnavailableError
from dynastate.operations.lifecycle import drop
from tests.support.command_line import refused, run, shown
from tests.support.store_builder import StoreBuilder, counted, family, user
from tests.unit.cli.conftest import NamedTables

KEY = '{"user": "a"}'


def build(engine: Engine, namespace: str) -> StoreBuilder:
    """Make a store with a row of user a in two of three versions, and a family without users."""
    builder = StoreBuilder(engine, f"{namespace}/0/0/default", family(), family(1, "scores", (("score", "long"),)))
    builder.commit((user("a"), counted(1)), (user("b"), counted(1)))
    builder.commit((user("b"), counted(2)))
    builder.commit((user("a"), counted(3)))
    return builder


def test_it_asks_and_says_what_it_did(engine: Engine) -> None:
    """Nothing is done without a yes; a second time there is nothing to erase, and nothing is asked."""
    build(engine, "asks")
    asked = run("erase", "asks", "--key", KEY, typed="n\n")
    assert asked.code == 1
    assert "asks, 1 store: 1 row of 1 key, in 2 versions and 0 snapshots" in asked.out
    assert "keys lack these columns, so that nothing is erased: scores" in " ".join(asked.out.split())
    assert "it takes about" in asked.out
    assert "Erase these rows? The query must not run." in asked.err
    assert shown("get", "asks/0", KEY, "--family", "default")["count"] == 3
    done = run("erase", "asks", "--key", KEY, typed="y\n")
    assert done.code == 0
    assert "looking for 0 s whether a query writes to asks" in done.err
    assert "asks: 1 row erased" in done.out
    assert run("get", "asks/0", KEY, "--family", "default").code == 1
    again = run("erase", "asks", "--key", KEY)
    assert "nothing is to be erased" in again.out
    assert "?" not in again.err


def test_the_receipt(engine: Engine, tables: NamedTables, tmp_path: Path) -> None:
    """Its keys are hashed, and it says who erased, what, and what is left to others."""
    store = build(engine, "receipt").store
    file = tmp_path / "keys.ndjson"
    file.write_text(f'{KEY}\n\n{{"user": "z"}}\n')
    receipt = shown("erase", "receipt/0", "--keys", str(file), "--yes")
    assert receipt["keys"] == [hashlib.sha256(f'{{"user":"{name}"}}'.encode()).hexdigest() for name in "az"]
    assert receipt["principal"].startswith("arn:aws:sts::")
    assert receipt["tables"] == list(tables.names.values())
    (erased,) = receipt["stores"]
    assert (erased["store"], erased["rows"], receipt["rows"]) == (store, 1, 1)
    assert [each["version"] for each in erased["versions_rewritten"]] == [1, 3]
    assert [each["version"] for each in erased["versions_without_the_keys"]] == [1, 2, 3]
    assert len(erased["items_deleted"]) == 2
    assert receipt["families_without_the_columns"] == ["scores"]
    # The mark and its removal; three requests for two lists that refuse runs; a part, the list; two deleted parts.
    assert receipt["write_units"] == 9
    assert any("point-in-time recovery" in each for each in receipt["not_covered"])
    assert any("forks that were dropped" in each for each in receipt["not_covered"])
    assert '"a"' not in json.dumps(receipt)
    empty = shown("erase", "receipt/0", "--key", KEY, "--yes")
    assert (empty["rows"], empty["write_units"]) == (0, 0)


def test_a_file_of_keys(tmp_path: Path) -> None:
    """It may begin with a byte order mark; only a line feed ends a line, with a carriage return or not."""
    file = tmp_path / "keys.ndjson"
    file.write_bytes('\ufeff{"user":"a\u2028b"}\r\n\n{"user":"c"}'.encode())
    assert keys_of(None, [file]).keys == [{"user": "a\u2028b"}, {"user": "c"}]


def test_keys_by_the_values_of_their_rows(engine: Engine, tmp_path: Path) -> None:
    """SQL finds the keys: in the oldest version, and in the changes since. All their rows go, others with them not."""
    builder = StoreBuilder(engine, "values/0/0/default")
    builder.commit((user("a"), counted(1, "Smith")), (user("b"), counted(1)), (user("c"), counted(1)))
    builder.commit((user("a"), None), (user("b"), counted(2, "Smith & Co")))
    builder.commit((user("b"), counted(3)), (user("c"), counted(2)))
    searches = {
        "state": ("select distinct user from state where note like '%Smith%'", "--version", "1"),
        "changes": ("select distinct user from changes where note like '%Smith%'", "--after", "1"),
    }
    files = [word for name in searches for word in ("--keys", str(tmp_path / name))]
    for name, words in searches.items():
        (tmp_path / name).write_text(run("sql", "values/0", *words, "--json").out)
    absent_files = [word.replace("--keys", "--absent-keys") for word in files]
    assert not shown("verify", "values/0", *absent_files, code=1)[0]["absent"]
    receipt = shown("erase", "values/0", *files, "--yes")
    assert shown("verify", "values/0", *absent_files)[0]["absent"]
    assert receipt["keys"] == [hashlib.sha256(f'{{"user":"{name}"}}'.encode()).hexdigest() for name in "ab"]
    assert [row["user"] for row in shown("sql", "values/0", "from changes", "--after", "0")] == ["c", "c"]
    (tmp_path / "state").write_text("[1]")
    assert "a key to erase is an object of JSON" in refused("erase", "values/0", *files)


def test_absence_with_a_key_of_each_operator(engine: Engine) -> None:
    """Some operator must have the columns, and not each one."""
    build(engine, "several")
    StoreBuilder(engine, "several/1/0/default", family(key=(("score", "long"),))).commit(({"score": 1}, counted(1)))
    words = ("verify", "several", "--absent", KEY, "--absent", '{"score": 1}')
    assert [answer["rows"] for answer in shown(*words, code=1)] == [1, 1]


def test_without_sts_it_erases_all_the_same(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network may have no route to STS; the receipt then has no principal, and standard error says why."""
    build(engine, "unnamed")

    def fail(*_: object) -> str:
        raise UnavailableError("AWS STS does not say whose credentials these are: no route")

    monkeypatch.setattr(identity, "caller_of", fail)
    result = run("erase", "unnamed", "--key", KEY, "--yes", "--json")
    assert json.loads(result.out)["principal"] is None
    assert "the receipt will not name who erased: AWS STS does not say" in result.err


def test_absence_is_proved(engine: Engine, tables: NamedTables) -> None:
    """It reads only, names the store that has the rows, and its exit code is the answer."""
    store = build(engine, "proved").store
    calls = len(tables.calls)
    (answer,) = shown("verify", "proved", "--absent", KEY, code=1)
    assert {call.verb for call in tables.calls[calls:]} <= {"get", "query"}
    assert (answer["store"], answer["rows"], answer["versions"], answer["absent"]) == (store, 1, 2, False)
    assert f"{store}: 1 row, in 2 versions and 0 snapshots" in " ".join(
        run("verify", "proved", "--absent", KEY).out.split()
    )
    assert run("erase", "proved", "--key", KEY, "--yes").code == 0
    (proof,) = shown("verify", "proved", "--absent", KEY, "--absent", '{"user": "z"}')
    assert proof["absent"]
    assert "absent: 1 store" in run("verify", "proved", "--absent", KEY).out
    orphan = next(key for key in tables.items if key.role == "delta" and key.store_shard.startswith("proved/"))
    changed = orphan._replace(sort=orphan.sort.replace(orphan.sort.split("/")[1], "f" * 32))
    tables.items[changed] = dict(tables.items[orphan])
    (unsure,) = shown("verify", "proved", "--absent", KEY, code=1)
    assert (unsure["rows"], unsure["unsearched"]) == (0, 1)


def test_absence_in_stores_of_an_earlier_query(engine: Engine) -> None:
    """They are searched, as they are erased."""
    for partition in range(2):
        StoreBuilder(engine, f"before/0/{partition}/default", run="run of first", query="first").count_to(2)
    StoreBuilder(engine, "before/0/0/default", run="run of second", query="second").count_to(1)
    of_a = json.dumps(user("a"))
    answers = {each["store"]: each["rows"] for each in shown("verify", "before", "--absent", of_a, code=1)}
    assert set(answers) == {f"before/0/{partition}/default" for partition in range(2)}
    assert answers["before/0/1/default"] == 1


def test_what_is_refused(engine: Engine, tmp_path: Path) -> None:
    build(engine, "refuses")
    assert "give at least one key" in refused("erase", "refuses")
    assert "the key is not JSON" in refused("erase", "refuses", "--key", "user=a")
    assert "column user of the key must be of type string" in refused("erase", "refuses", "--key", '{"user": 5}')
    for words in (("erase", "refuses", "--key"), ("verify", "refuses", "--absent")):
        assert "no key of this state has these columns" in refused(*words, '{"customer": "a"}')
        assert "columns=customer" in refused(*words, '{"customer": "a"}', words[-1], KEY)
    file = tmp_path / "keys.ndjson"
    file.write_bytes(b'{"user":"\xff"}')
    assert "the file of keys is not UTF-8" in refused("erase", "refuses", "--keys", str(file))
    checkpoint = ("--checkpoint", "s3://bucket/checkpoint")
    assert "leave out --checkpoint" in refused("verify", "refuses", "--absent", KEY, *checkpoint)
    assert "erase whole operators" in refused("erase", "refuses/0/0", "--key", KEY)
    assert "no store of this namespace" in refused("erase", "nothing-there", "--key", KEY)
    assert "does not exist" in refused("erase", "refuses", "--keys", str(tmp_path / "none"))


def test_a_query_that_writes_is_refused(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked for after the question, as in a drop."""
    builder = build(engine, "written")
    look = drop.look

    def committing(*arguments: Any) -> drop.Look:
        first_look = look(*arguments)
        builder.commit()
        return first_look

    monkeypatch.setattr(drop, "look", committing)
    result = run("erase", "written", "--key", KEY, "--yes")
    assert result.code == 2
    assert "a query writes to this state: stop it" in result.err
    assert shown("get", "written/0", KEY, "--family", "default")["count"] == 3
