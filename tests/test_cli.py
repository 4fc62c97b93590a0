"""The command `dynastate`, run as its users run it: in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import dynastate
from dynastate.local import REGION, EmbeddedDynamoDB, credentials
from dynastate.tables import make_client

#: An error at the start must not take longer: "within seconds, not minutes of retries".
ERROR_WITHIN_S = 12.0


@pytest.fixture(scope="module")
def database() -> Iterator[EmbeddedDynamoDB]:
    """One server for all tests; each uses tables of its own."""
    with EmbeddedDynamoDB() as running:
        yield running


def command(*words: str) -> list[str]:
    """Spell a command line of dynastate."""
    return [sys.executable, "-m", "dynastate.cli", *words]


def environment() -> dict[str, str]:
    """Take ours with the dummy credentials, without a Region, and with lines that rich does not break or colour."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("AWS_REGION", "AWS_DEFAULT_REGION", "FORCE_COLOR")
    }
    return kept | credentials() | {"NO_COLOR": "1", "AWS_CONFIG_FILE": os.devnull}


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(command(*words), capture_output=True, text=True, env=environment(), timeout=30, check=False)


def refused(*words: str) -> str:
    """Run a command that has to fail; return the one line it writes to standard error."""
    done = run(*words)
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("dynastate: ")
    return done.stderr


def at(running: EmbeddedDynamoDB, delta: str, snapshot: str) -> list[str]:
    """Spell the options that reach two tables of the embedded DynamoDB."""
    return ["--endpoint", running.endpoint, "--region", REGION, "--delta-table", delta, "--snapshot-table", snapshot]


def test_version() -> None:
    """`--version` prints name and version of the package."""
    assert run("--version").stdout == f"dynastate {dynastate.__version__}\n"


def test_create_check_and_create_again(database: EmbeddedDynamoDB) -> None:
    """Tables made by `tables create` fit by `tables check`, and a second `tables create` leaves them as they are."""
    made = run("tables", "create", *at(database, "new-delta", "new-snapshot"))
    assert (made.returncode, made.stdout) == (0, "new-delta: made\nnew-snapshot: made\n"), made.stderr

    fits = run("tables", "check", *at(database, "new-delta", "new-snapshot"))
    assert (fits.returncode, fits.stdout) == (0, "new-delta and new-snapshot: fit\n"), fits.stderr

    again = run("tables", "create", *at(database, "new-delta", "new-snapshot"))
    assert again.returncode == 0
    assert again.stdout == "new-delta: there already, left as it is\nnew-snapshot: there already, left as it is\n"


def test_check_tells_which_keys_differ(database: EmbeddedDynamoDB) -> None:
    """A table with other keys is named with the keys it has and those it needs, and the exit code is 1."""
    make_wrong_table(database, "wrong")
    found = run("tables", "check", *at(database, "wrong", "dynastate-snapshot-group"))
    assert found.returncode == 1, found.stderr
    assert (
        found.stdout == "differs table wrong has keys id (HASH, N), needed are store_shard (HASH, S), part (RANGE, S)\n"
    )


def make_wrong_table(running: EmbeddedDynamoDB, name: str) -> None:
    """Make a table whose one key is a number."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in credentials().items():
            patch.setenv(variable, value)
        make_client(running.settings).create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "N"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        )


def test_check_names_a_missing_table_and_what_to_do(database: EmbeddedDynamoDB) -> None:
    """A missing table is an error that names the table, its setting and the command that makes it."""
    said = refused("tables", "check", *at(database, "dynastate-delta", "nowhere"))
    assert "table nowhere (spark.sql.streaming.stateStore.dynastate.snapshotTable) does not exist" in said
    assert "dynastate tables create" in said


def test_an_unreachable_endpoint_is_said_within_seconds() -> None:
    """An endpoint that does not answer is an error within seconds that names it and its setting."""
    since = time.monotonic()
    said = refused("tables", "check", "--endpoint", "http://127.0.0.1:9", "--region", REGION)
    assert time.monotonic() - since < ERROR_WITHIN_S
    assert "cannot be reached at http://127.0.0.1:9" in said
    assert "dynastate.endpoint" in said


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--endpoint", "localhost"], "dynastate.endpoint must be a URL"),
        (["--region", "Frankfurt"], "dynastate.region must be an AWS Region"),
        (["--delta-table", "a b"], "dynastate.deltaTable must be 3 to 255 characters"),
        (["--delta-table", "one", "--snapshot-table", "one"], "must differ"),
        (["--endpoint", "http://127.0.0.1:9"], "no AWS Region is known"),
    ],
)
def test_a_bad_value_is_one_line(options: list[str], part: str) -> None:
    """A value that cannot be right is refused at once, in one line that names the setting."""
    assert part in refused("tables", "check", *options)


def test_no_credentials_is_one_line(database: EmbeddedDynamoDB) -> None:
    """Where boto3's standard chain finds no credentials, that is said at once."""
    without = {name: value for name, value in environment().items() if name not in credentials()}
    without |= {"AWS_SHARED_CREDENTIALS_FILE": os.devnull, "AWS_EC2_METADATA_DISABLED": "true"}
    words = command("tables", "check", "--endpoint", database.endpoint, "--region", REGION)
    done = subprocess.run(words, capture_output=True, text=True, env=without, timeout=30, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("dynastate: no AWS credentials")
    assert done.stderr.count("\n") == 1


def test_a_port_out_of_range_is_refused() -> None:
    """A number that is no port is refused by the command line itself."""
    done = run("local", "--port", "65536")
    assert done.returncode == 2
    assert "65535" in done.stderr


def test_local_says_that_its_port_is_taken(database: EmbeddedDynamoDB) -> None:
    """A second embedded DynamoDB on one port is an error that names the port."""
    port = database.endpoint.rpartition(":")[2]
    assert f"choose another port, or 0 for a free one port={port}" in refused("local", "--port", port)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_local_runs_until_it_is_stopped(end: signal.Signals) -> None:
    """`local` prints what Spark needs, serves both tables, and at SIGTERM or Ctrl-C is gone with its server."""
    with subprocess.Popen(
        command("local", "--port", "0"), stdout=subprocess.PIPE, text=True, env=environment()
    ) as running:
        assert running.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("export AWS_SECRET_ACCESS_KEY"):
            lines.append(running.stdout.readline().rstrip("\n"))
            assert running.poll() is None, lines
        conf = dict(line.split("=", 1) for line in lines if line.startswith("spark."))
        endpoint = conf["spark.sql.streaming.stateStore.dynastate.endpoint"]
        check = run(
            "tables",
            "check",
            "--endpoint",
            endpoint,
            "--region",
            conf["spark.sql.streaming.stateStore.dynastate.region"],
        )
        running.send_signal(end)
        assert running.wait(10) == 0

    assert endpoint in lines[0]
    assert conf["spark.sql.streaming.stateStore.providerClass"] == "io.dynastate.spark.DynamoDBStateStoreProvider"
    assert conf["spark.jars"]
    assert [line for line in lines if line.startswith("export ")] == [
        f"export {name}={value}" for name, value in credentials().items()
    ]
    assert check.returncode == 0, check.stderr
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(endpoint.rpartition(":")[2]))) != 0


def test_an_unexpected_exception_shows_its_trace() -> None:
    """What is not an error of dynastate is not hidden: Python's trace is shown."""
    program = """
import sys
from dynastate import admin, cli

admin.check_tables = None
sys.argv = ["dynastate", "tables", "check"]
cli.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), timeout=30, check=False
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "TypeError" in done.stderr
