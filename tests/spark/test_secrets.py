"""A real query with recognizable credentials: they occur only in the requests to DynamoDB."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyspark
import pytest

from dynastate.dynamodb.client import make_client
from dynastate.settings import DELTA_TABLE, PREFIX, SNAPSHOT_TABLE
from tests.spark.conftest import Database, Sessions, interpreter, only
from tests.spark.operators import sums
from tests.spark.streams import Source, first_error, make_rows, make_source
from tests.support.fault_proxy import FaultProxy, Forward, Reply, Request, error
from tests.support.jvm import ROOT
from tests.support.policies import accesses, allows, render
from tests.support.processes import arguments, descendants, is_alive, wait_until

pytestmark = pytest.mark.slow

SECRET = "SeCrEtAcCeSsKeY" + "7f" * 10
SESSION_TOKEN = "SeSsIoNtOkEn" + "3b" * 60
FILES = 3
WITHIN_S = 120
#: In the key of every row.
ROW = "RoWoFsTaTe"
#: Not secret: in all places with a query's settings or the names of its stores.
NAMESPACE = "found-everywhere"
PAGES = (
    "/jobs/",
    "/stages/",
    "/storage/",
    "/environment/",
    "/executors/",
    "/executors/threadDump/?executorId=driver",
    "/executors/threadDump/?executorId=0",
    "/SQL/",
    "/StreamingQuery/",
    *(
        f"/api/v1/applications/APPLICATION/{view}"
        for view in (
            "environment",
            "allexecutors",
            "jobs",
            "stages?details=true",
            "sql?details=true&planDescription=true",
        )
    ),
)


class Program:
    """programs/keeps_secrets.py, in a working folder of its own."""

    def __init__(self, folder: Path, endpoint: str, environment: dict[str, str]) -> None:
        self.log = folder / "driver.log"
        words = [sys.executable, str(ROOT / "tests" / "spark" / "programs" / "keeps_secrets.py")]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*words, str(folder), endpoint, NAMESPACE],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def listen(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, checkpoint: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(checkpoint + "\n")
        self.process.stdin.flush()
        return self.listen()

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(WITHIN_S)


def files_of(folder: Path) -> dict[str, bytes]:
    """Contents of all files, but those that are deleted meanwhile."""
    contents: dict[str, bytes] = {}
    for parent, _, names in os.walk(folder):
        for file in (Path(parent, name) for name in names):
            with suppress(FileNotFoundError):
                if file.is_file():
                    contents[f"file {file.relative_to(folder)}"] = file.read_bytes()
    return contents


def commands(pid: int) -> bytes:
    return b"\n".join(map(arguments, descendants(pid)))


def read_page(ui: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(urlsplit(ui).netloc, timeout=WITHIN_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200, f"{path}: {answer.status}"
        return answer.read()
    finally:
        connection.close()


def refuse_signatures(request: Request, _: Forward) -> Reply:
    """Refuse as AWS does: the message repeats what was signed, including the session token."""
    token = request.headers["x-amz-security-token"]
    return error(
        "InvalidSignatureException",
        "The request signature we calculated does not match the signature you provided.\n\nThe Canonical String for "
        f"this request should have been\n'POST\n/\n\nx-amz-security-token:{token}\n'",
    )


@dataclass
class Found:
    """Everything that a query leaves or shows, by place, while it runs and afterwards."""

    places: dict[str, bytes] = field(repr=False)
    tokens: list[str] = field(repr=False)
    processes: int
    first: dict[str, Any] = field(repr=False)
    refused: dict[str, Any] = field(repr=False)
    proxy: FaultProxy = field(repr=False)

    def has(self, text: str, *, beginning: str = "") -> list[str]:
        """Places that contain this text, of those whose names begin so."""
        return sorted(name for name, raw in self.places.items() if name.startswith(beginning) and text.encode() in raw)


@pytest.fixture(scope="module")
def found(database: Database, environment: dict[str, str], scratch: Path, tests_jar: Path) -> Found:
    """A query of some batches, and one whose requests AWS refuses as wrongly signed."""
    folder = scratch / "secrets"
    folder.mkdir()
    rows = [[{**row, "key": f"{ROW}-{row['id']}-{row['key']}"} for row in make_rows(21, file)] for file in range(FILES)]
    Source(folder, rows).release()
    # Spark writes an executor's log below its own home, so it gets one here.
    (folder / "home").mkdir()
    for part in ("bin", "jars"):
        (folder / "home" / part).symlink_to(Path(pyspark.__file__).parent / part)
    # A user's file, which Spark puts into the executor's working folder: not to be taken in place of the package.
    (folder / "lz4.py").write_text("raise RuntimeError('taken from the working folder')")
    # What the sidecars get through standard input.
    orders = scratch / "orders"
    variables = {
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": SESSION_TOKEN,
        "PYSPARK_PYTHON": interpreter(scratch, command=f'tee -a "{orders}" | {sys.executable} "$@"'),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "SPARK_HOME": str(folder / "home"),
    }
    places: dict[str, bytes] = {}
    with FaultProxy(database.endpoint) as proxy:
        program = Program(folder, proxy.endpoint, environment | variables)
        try:
            addresses = program.listen()
            # An executor in a process of its own has the plugin, too, though the jar comes by `spark.jars`.
            wait_until(lambda: b"dynastate.sidecar" in commands(program.process.pid), "no sidecar before a task")
            first = program.run("checkpoint")
            proxy.rule = refuse_signatures
            failure = program.run("refused")
            pids = descendants(program.process.pid)
            for pid in (program.process.pid, *pids):
                places[f"arguments {pid}"] = arguments(pid)
            places |= files_of(folder)  # Spark removes the executor's log at its end
            for page in PAGES:
                places[f"ui {page}"] = read_page(addresses["ui"], page.replace("APPLICATION", addresses["application"]))
            assert program.end() == 0, program.log.read_text()
            wait_until(lambda: not any(map(is_alive, pids)), "a process outlived the program")
        finally:
            program.process.kill()
            program.process.wait()
            for stream in (program.process.stdin, program.process.stdout):
                assert stream is not None
                stream.close()
    places["progress"] = json.dumps([first, failure]).encode()
    places |= files_of(folder)
    with only(environment):
        client = make_client(database.settings)
    for table in (database.settings.delta_table, database.settings.snapshot_table):
        for page in client.get_paginator("scan").paginate(TableName=table):
            for item in page["Items"]:
                if item["store_shard"]["S"].startswith(NAMESPACE):
                    places[f"item {table} {item}"] = repr(item).encode()
    client.close()
    tokens = [json.loads(line)["token"] for line in orders.read_text().splitlines()]
    return Found(places, tokens, len(pids), first, failure, proxy)


def test_the_search_is_not_blind(found: Found) -> None:
    """Text that is not secret is found in every kind of place that is searched."""
    for kind in ("arguments", "ui", "progress"):
        assert found.has("dynastate", beginning=kind), kind
    assert found.has(NAMESPACE, beginning="ui /api/")
    assert found.has(NAMESPACE, beginning="item dynastate-delta")
    assert found.has(NAMESPACE, beginning="item dynastate-snapshot-group")
    for file in ("file events/", "file checkpoint/", f"file {Path('home', 'work')}/", "file driver.log"):
        assert found.has(NAMESPACE, beginning=file), file
    assert found.has("dynastate.sidecar", beginning="arguments")
    assert found.processes >= 3  # driver's JVM, executor, sidecar


def test_the_queries_ran(found: Found) -> None:
    """The first one ran, with these credentials, which its requests carry; the second one says what AWS refused."""
    assert found.first["failed"] == ""
    assert len(found.first["progress"]) == FILES
    assert {request.headers["x-amz-security-token"] for request in found.proxy.requests} == {SESSION_TOKEN}
    assert "AWS refuses the credentials: The request signature we calculated does not match" in found.refused["failed"]


@pytest.mark.parametrize("secret", [SECRET, SESSION_TOKEN], ids=["secret access key", "session token"])
def test_no_secret_is_shown(found: Found, secret: str) -> None:
    """Neither occurs in a log, an argument, a page of Spark's UI, an event log, a checkpoint, an item, or an error."""
    assert found.has(secret) == []


def test_no_token_is_shown(found: Found) -> None:
    """The token of each socket comes on standard input, and no other record contains it."""
    assert found.tokens
    for token in found.tokens:
        assert len(token) == 64
        assert found.has(token) == []


def test_no_row_of_state_is_shown(found: Found) -> None:
    """The state is in the table, and in no log, event log or page."""
    assert found.has(ROW, beginning="item dynastate-delta")
    for kind in ("arguments", "ui", "progress", "file driver.log", "file home/", "file events/", "file checkpoint/"):
        assert found.has(ROW, beginning=kind) == []


def test_the_writers_policy_is_enough(found: Found) -> None:
    """Every request of a real query is allowed by the policy that the Terraform module gives for its namespace."""
    policy = render("writer", delta=DELTA_TABLE, snapshot=SNAPSHOT_TABLE, namespace=NAMESPACE)
    requests = [access for request in found.proxy.requests for access in accesses(request)]
    assert {access.action for access in requests} >= {"dynamodb:BatchWriteItem", "dynamodb:UpdateItem"}
    assert [access for access in requests if not allows(policy, access)] == []


def test_the_secret_key_is_not_sent(found: Found) -> None:
    """Requests are signed with it but do not contain it; no body contains the session token."""
    for request in found.proxy.requests:
        assert SECRET not in repr(request)
        assert SESSION_TOKEN not in repr(request.body)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start a process of another user")
def test_another_users_process_in_the_sidecars_place_is_refused(sessions: Sessions, folder: Path) -> None:
    """A listener of another user than the executor's gets neither token nor state."""
    source = make_source(folder / "files", seed=22, files=1)
    source.release()
    output = folder / "output"
    impostor = folder / "impostor.py"
    impostor.write_text(
        f"""
import json, os, socket, sys, threading
order = json.loads(sys.stdin.readline())
output = open({str(output)!r}, "wb", buffering=0)
listener = socket.socket(socket.AF_UNIX)
listener.bind(order["socket"])
os.seteuid(65534)
listener.listen()
print("ready", flush=True)
def take():
    while True:
        peer, _ = listener.accept()
        output.write(b"accepted " + peer.recv(1000))
threading.Thread(target=take, daemon=True).start()
sys.stdin.read()
os.seteuid(0)
os.unlink(order["socket"])
os.rmdir(os.path.dirname(order["socket"]))
"""
    )
    session = sessions({f"{PREFIX}python": interpreter(folder, command=f"{sys.executable} {impostor}")})
    message = first_error(sums(source.stream(session), "key"), folder / "checkpoint", "update")
    assert "another user's process listens in the sidecar's place" in message
    assert "user=root" in message
    wait_until(lambda: bool(output.read_bytes()), "the impostor accepted no connection")
    assert set(output.read_bytes().split()) == {b"accepted"}  # and nothing after it
