"""The commands `tables create`, `tables check` and `jar`, and wrong options."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynastate.dynamodb.client import make_client
from dynastate.settings import Settings
from dynastate.spark import jar
from tests.support.command_line import refused, run, shown

NEW = ("--delta-table", "new-delta", "--snapshot-table", "new-snapshot")
WRONG = ("--delta-table", "wrong")


def test_create_check_and_create_again() -> None:
    assert run("tables", "create", *NEW)[:2] == (0, "new-delta: made\nnew-snapshot: made\n")
    assert run("tables", "check", *NEW)[:2] == (0, "new-delta and new-snapshot: fit\n")
    assert shown("tables", "check", *NEW) == {"fit": True, "differs": []}
    assert shown("tables", "create", *NEW) == {"new-delta": {"made": False}, "new-snapshot": {"made": False}}
    result = run("tables", "create", *NEW)
    assert result[:2] == (0, "new-delta: there already, left as it is\nnew-snapshot: there already, left as it is\n")


def test_check_reports_which_keys_differ() -> None:
    client = make_client(Settings())
    client.create_table(
        TableName="wrong",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "N"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    client.close()
    (difference,) = shown("tables", "check", *WRONG, code=1)["differs"]
    assert difference == "table wrong has keys id (HASH, N), needed are store_shard (HASH, S), part (RANGE, S)"
    result = run("tables", "check", *WRONG)
    assert (result.code, " ".join(result.out.split())) == (1, f"differs {difference}")


def test_a_missing_table_is_named_with_what_to_do() -> None:
    message = refused("tables", "check", "--snapshot-table", "nowhere")
    assert "table nowhere (--snapshot-table) does not exist" in message
    assert "dynastate tables create" in message


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["tables", "check", "--endpoint", "localhost"], "--endpoint must be a URL"),
        (["tables", "check", "--region", "Frankfurt"], "--region must be an AWS Region"),
        (["tables", "check", "--delta-table", "a b"], "--delta-table must be 3 to 255 characters"),
        (["tables", "check", "--delta-table", "one", "--snapshot-table", "one"], "must differ"),
        (["local", "--port", "65536"], "'--port': Input should be less than or equal to 65535; 'dynastate local"),
        (["stores", "--frob"], "No such option: --frob; 'dynastate stores --help' shows"),
        (["show"], "Missing argument 'STORE'; 'dynastate show --help' shows"),
        (["shwo"], "No such command 'shwo'. Did you mean 'show'? 'dynastate --help' shows"),
        (["drop", "a/b"], "dynastate: namespace must be 1 to 128 characters"),
        (["drop", ""], "Invalid value for 'NAMESPACE': it is empty; 'dynastate drop --help' shows"),
        (["fork", "a", ""], "Invalid value for 'NEW': it is empty; 'dynastate fork --help' shows"),
        (["import", "", "new"], "Invalid value for 'OLD': it is empty; 'dynastate import --help' shows"),
        (["import", "old", ""], "Invalid value for 'NEW': it is empty; 'dynastate import --help' shows"),
        (["import", "old", "new", "--namespace", ""], "Invalid value for '--namespace': it is empty; 'dynastate imp"),
    ],
)
def test_a_bad_value_is_one_line(words: list[str], part: str) -> None:
    assert part in refused(*words)


def test_jar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jar, "jar_path", lambda: Path("/there/dynastate.jar"))
    assert run("jar").out == "/there/dynastate.jar\n"
    assert shown("jar") == {"jar": "/there/dynastate.jar"}
