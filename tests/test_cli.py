"""The command `dynastate`, run as its users run it: in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import dynastate
from dynastate import spending
from dynastate.cli import app
from dynastate.local import REGION, EmbeddedDynamoDB, credentials
from dynastate.settings import Settings
from dynastate.spark import jar_path, plain_conf
from dynastate.tables import BotoTables, make_client
from tests.states import EMPTY, attempt, engine, write

#: An error at the start must not take longer: "within seconds, not minutes of retries".
ERROR_WITHIN_S = 30.0


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


def commands_of(command: Any, *names: str) -> Iterator[tuple[str, Any]]:
    """Every command of an application, with its name."""
    if not hasattr(command, "commands"):
        yield " ".join(names), command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands_of(each, *names, name)


def test_every_command_is_for_programs_too() -> None:
    """Each takes --json; and where it reads or writes tables, all that says which."""
    found = {name: {spelt for each in one.params for spelt in each.opts} for name, one in commands_of(get_command(app))}
    assert len(found) > 18
    assert [name for name, options in found.items() if "--json" not in options] == []
    where = {"--endpoint", "--region", "--delta-table", "--snapshot-table"}
    assert [name for name, options in found.items() if not where <= options] == ["demo", "local", "jar"]


def test_create_check_and_create_again(database: EmbeddedDynamoDB) -> None:
    """Tables made by `tables create` fit by `tables check`, and a second `tables create` leaves them as they are."""
    made = run("tables", "create", *at(database, "new-delta", "new-snapshot"))
    assert (made.returncode, made.stdout) == (0, "new-delta: made\nnew-snapshot: made\n"), made.stderr

    fits = run("tables", "check", *at(database, "new-delta", "new-snapshot"))
    assert (fits.returncode, fits.stdout) == (0, "new-delta and new-snapshot: fit\n"), fits.stderr

    said = run("tables", "check", "--json", *at(database, "new-delta", "new-snapshot"))
    assert json.loads(said.stdout) == {"fit": True, "differs": []}
    said = run("tables", "create", "--json", *at(database, "new-delta", "new-snapshot"))
    assert json.loads(said.stdout) == {"new-delta": {"made": False}, "new-snapshot": {"made": False}}

    again = run("tables", "create", *at(database, "new-delta", "new-snapshot"))
    assert again.returncode == 0
    assert again.stdout == "new-delta: there already, left as it is\nnew-snapshot: there already, left as it is\n"


def test_check_tells_which_keys_differ(database: EmbeddedDynamoDB) -> None:
    """A table with other keys is named with the keys it has and those it needs, and the exit code is 1."""
    make_wrong_table(database, "wrong")
    found = run("tables", "check", *at(database, "wrong", "dynastate-snapshot-group"))
    assert found.returncode == 1, found.stderr
    said = run("tables", "check", "--json", *at(database, "wrong", "dynastate-snapshot-group"))
    assert said.returncode == 1
    assert not json.loads(said.stdout)["fit"]
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


@pytest.fixture(scope="module")
def namespace(database: EmbeddedDynamoDB) -> str:
    """A namespace in which a store has three versions of ten rows."""
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in credentials().items():
            patch.setenv(variable, value)
        tables = BotoTables(database.settings)
    at, made = engine(tables), EMPTY
    for number in range(1, 4):
        made = write(at, "spent/0/0/default", attempt(number), {b"%d" % row: b"value" for row in range(10)}, base=made)
    at.close()
    tables.close()
    return "spent"


def reported(tmp_path: Path, batches: int) -> str:
    """Write a file of progress reports: 10 requests, 100 write units and a tenth of a cent each, a minute apart."""
    names = [*spending.REQUESTS, *spending.WRITE_UNITS, *spending.READ_UNITS, *spending.DELETE_UNITS]
    metrics = dict.fromkeys([*names, *spending.NANODOLLARS], 0)
    metrics |= {"dynastateRequests": 10, "dynastateWriteUnits": 100, "dynastateNanodollars": 1_000_000}
    reports = [
        {
            "id": "the query's id",
            "runId": "r",
            "name": "flights",
            "batchId": number,
            "timestamp": f"2025-01-01T00:{number:02d}:00.000Z",
            "durationMs": {"addBatch": 1},
            "stateOperators": [{"customMetrics": metrics}],
        }
        for number in range(batches)
    ]
    file = tmp_path / "progress.json"
    file.write_text("".join(json.dumps(each) + "\n" for each in reports))
    return str(file)


def test_cost_of_a_namespace(database: EmbeddedDynamoDB, namespace: str) -> None:
    """For people a table, and for programs an object, of what its stores have; at the price that is given."""
    where = ["--endpoint", database.endpoint, "--region", REGION]
    shown = run("cost", namespace, *where)
    assert shown.returncode == 0, shown.stderr
    rows = dict(re.findall(r"│ (\S.*?) +│ +(\S+) │", shown.stdout))
    found = json.loads(run("cost", namespace, *where, "--json", "--storage-price", "1000000").stdout)
    (operator,) = found["operators"]
    assert found["queries"] == []
    assert (operator["operator"], operator["stores"], operator["versions"], operator["write_units"]) == (0, 1, 3, 6)
    assert (rows["stores"], rows["versions listed"], rows["items"]) == ("1", "3", str(operator["items"]))
    assert operator["items"] == 6  # three parts, a version list, a schema and a meta item
    assert operator["storage_dollars_a_month"] == pytest.approx((operator["bytes"] + 600) * 1e6 / 2**30)
    assert operator["workload"]["changed_rows"] == 10


def test_cost_of_another_way(database: EmbeddedDynamoDB, namespace: str, tmp_path: Path) -> None:
    """A day as it runs now, with another trigger, with other partitions, and with an item for each row."""
    where = ["--endpoint", database.endpoint, "--region", REGION]
    done = run("cost", namespace, *where, "--json", "--every", "10", "--trigger", "60", "--partitions", "4")
    now, slower, wider, rows = json.loads(done.stdout)["predicted"]
    assert [each["way"] for each in (now, slower, wider, rows)] == [
        "as it runs now",
        "a batch every 60 s",
        "4 partitions",
        "an item for each row",
    ]
    assert slower["write_units"] < now["write_units"] / 3
    assert wider["write_units"] > now["write_units"] * 2
    assert rows["write_units"] == 2 * rows["delete_units"] == 2 * 10 * 8_640
    shown = run("cost", namespace, *where, "--progress", reported(tmp_path, 3), "--trigger", "60")
    assert "a day in the long run, predicted" in shown.stdout, shown.stderr
    assert "a prediction needs a namespace, and --every" in refused("cost", namespace, *where, "--trigger", "60")
    assert "a prediction needs a namespace" in refused("cost", "--progress", reported(tmp_path, 3), "--trigger", "60")


def test_cost_of_batches(tmp_path: Path) -> None:
    """From a file and from standard input; no table is read for it."""
    file = reported(tmp_path, 4)
    shown = run("cost", "--progress", file)
    assert shown.returncode == 0, shown.stderr
    rows = dict(re.findall(r"│ (\S.*?) +│ +(\S+) │", shown.stdout))
    assert (rows["batches"], rows["requests"], rows["write units"]) == ("4", "40", "400")
    assert (rows["price, $"], rows["price of a day, $"]) == ("0.004000", "1.4400")
    with open(file) as lines:  # noqa: PTH123  # a child's standard input
        piped = subprocess.run(
            command("cost", "--progress", "-", "--json", "--write-price", "1"),
            stdin=lines,
            capture_output=True,
            text=True,
            env=environment(),
            timeout=30,
            check=True,
        )
    (query,) = json.loads(piped.stdout)["queries"]
    assert (query["name"], query["batches"], query["interval_s"]) == ("flights", 4, 60)
    assert query["dollars"] == pytest.approx(400e-6)


def test_cost_says_what_is_wrong(database: EmbeddedDynamoDB, namespace: str, tmp_path: Path) -> None:
    """Nothing to look at, a namespace without stores or that is none, a file that is none, a price that is none."""
    where = ["--endpoint", database.endpoint, "--region", REGION]
    assert "give a namespace, --progress FILE, or both" in refused("cost")
    assert "no store of this namespace is in the tables" in refused("cost", "nobody", *where)
    assert "dynastate.namespace must be 1 to 128 characters" in refused("cost", "a/b", *where)
    assert "dynastate.writePrice must be a decimal number" in refused("cost", namespace, *where, "--write-price", "$1")
    broken = tmp_path / "broken"
    broken.write_text("no JSON\n")
    assert f"line 1 of {broken} is no JSON" in refused("cost", "--progress", str(broken))
    binary = tmp_path / "binary"
    binary.write_bytes(bytes.fromhex("28b52ffd") + b"\xff\xfe\x00")
    assert f"line 1 of {binary} is no JSON" in refused("cost", "--progress", str(binary))
    missing = run("cost", "--progress", str(tmp_path / "missing"))
    assert missing.returncode == 2
    assert "missing" in missing.stderr


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
    ours = Settings(endpoint=endpoint, region=REGION, python=sys.executable)
    assert conf == plain_conf() | ours.to_spark()
    assert [line for line in lines if line.startswith("export ")] == [
        f"export {name}={value}" for name, value in credentials().items()
    ]
    assert check.returncode == 0, check.stderr
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(endpoint.rpartition(":")[2]))) != 0


def test_local_for_programs() -> None:
    """With --json it writes one line as soon as it serves, with all that the lines for people have; and serves on."""
    words = command("local", "--port", "0", "--json")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment()) as running:
        assert running.stdout is not None
        found = json.loads(running.stdout.readline())
        check = run("tables", "check", "--endpoint", found["endpoint"], "--region", found["region"])
        running.send_signal(signal.SIGINT)
        assert running.stdout.read() == ""
        assert running.wait(10) == 0
    assert check.returncode == 0, check.stderr
    ours = Settings(endpoint=found["endpoint"], region=REGION, python=sys.executable)
    assert found["spark"] == plain_conf() | ours.to_spark()
    assert found["environment"] == credentials()


def test_jar() -> None:
    """The path and nothing else, for people and as JSON."""
    assert run("jar").stdout == f"{jar_path()}\n"
    assert json.loads(run("jar", "--json").stdout) == {"jar": str(jar_path())}


def test_local_without_a_spark(tmp_path: Path) -> None:
    """Where PySpark cannot be imported it serves all the same, and says on standard error why conf is missing."""
    (tmp_path / "pyspark.py").write_text("raise ImportError('no Spark here')")
    without = environment() | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    words, pipe = command("local", "--port", "0"), subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=without) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        lines = list(takewhile(lambda line: not line.startswith("export AWS_SECRET_ACCESS_KEY"), running.stdout))
        running.terminate()
        said = running.stderr.read()
    assert said.count("\n") == 1
    assert "not all that Spark needs: pyspark is not installed here" in said
    names = [line.partition("=")[0].rpartition(".")[2] for line in lines if line.startswith("spark.")]
    assert names == ["region", "endpoint", "python"]


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
