"""The command `dynastate` in a process of its own: what only a process shows. Its commands: tests/unit/cli."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from dynastate.cli.app import COMMANDS
from dynastate.dynamodb.admin import create_tables
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.embedded import BUCKET, REGION, EmbeddedDynamoDB, credentials
from dynastate.format.checkpoint import Checkpoint
from dynastate.settings import Settings
from dynastate.spark import session
from dynastate.spark.configure import plain_conf
from tests.support.command_line import command, of_schema, reported
from tests.support.engine_driver import make_engine
from tests.support.jvm import ROOT
from tests.support.store_builder import StoreBuilder, counted, user

#: An error at the start must not take longer: "within seconds, not minutes of retries".
ERROR_WITHIN_S = 30.0
NO_PYSPARK = "pyspark is not installed here; pip install 'pyspark>=3.5,!=4.0.0,<4.4'\n"
#: The command as pip installs it.
ENTRY_POINT = str(Path(sys.executable).with_name("dynastate"))


@pytest.fixture(scope="module", autouse=True)
def database() -> Iterator[EmbeddedDynamoDB]:
    """One server for all tests, with a store of two versions; its credentials are in the environment."""
    with EmbeddedDynamoDB() as dynamodb, pytest.MonkeyPatch.context() as patch:
        for variable, value in credentials().items():
            patch.setenv(variable, value)
        tables = BotoTables(dynamodb.settings)
        engine = make_engine(tables)
        builder = StoreBuilder(engine, "look/0/0/default")
        builder.commit((user("a"), counted(1)))
        builder.commit(*((user(str(number)), counted(number)) for number in range(2_000)))
        engine.close()
        tables.close()
        yield dynamodb


@pytest.fixture(scope="module")
def where(database: EmbeddedDynamoDB) -> list[str]:
    return ["--endpoint", database.endpoint, "--region", REGION]


def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=60, check=False, env=env)


def refused(*words: str, env: dict[str, str] | None = None) -> str:
    """Run a command that has to fail; return the one line it writes to standard error."""
    completed = run(*words, env=env)
    assert completed.returncode == 2, completed
    assert completed.stdout == ""
    assert completed.stderr.count("\n") == 1, completed.stderr
    assert completed.stderr.startswith("dynastate: ")
    return completed.stderr


def test_exit_codes(where: list[str]) -> None:
    """0: done; 1: the answer is no; 2: it could not be done; by the command as it is installed, and by its module."""
    lines = [
        (0, command("stores", *where)),
        (0, [ENTRY_POINT, "stores", *where]),
        (1, [ENTRY_POINT, "get", "look/0", '{"user": "missing"}', *where]),
        (2, [ENTRY_POINT, "show", "look", *where]),
        (2, [ENTRY_POINT, "show"]),
    ]
    for code, line in lines:
        completed = subprocess.run(line, capture_output=True, timeout=30, check=False)
        assert completed.returncode == code, completed


@pytest.mark.slow
@pytest.mark.parametrize("env", [{"LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "latin-1"}])
def test_any_encoding(where: list[str], env: dict[str, str]) -> None:
    """Without a locale, and where output has not every letter: words are read as UTF-8, and nothing is a traceback."""
    environment = os.environ | env
    lines: list[tuple[int, list[Any]]] = [
        (0, ["sql", "look/0", "select 'é鍵' as letters"]),
        (0, ["sql", "look/0", "select 'é鍵' as letters", "--json"]),
        (1, ["get", "look/0", '{"user": "é鍵"}']),
        (2, ["get", "look/0", '{"é鍵": "a"}']),
        (2, ["sql", "look/0", "select é鍵 from state"]),
        (2, ["sql", "look/0", b"select '\xff'"]),
    ]
    for code, words in lines:
        line = [*command(), *words, *where]
        completed = subprocess.run(line, capture_output=True, timeout=30, check=False, env=environment)
        assert completed.returncode == code, completed
        assert b"Traceback" not in completed.stderr, completed
        if "--json" in words:
            assert json.loads(completed.stdout.decode(errors="replace")) == [{"letters": "é鍵"}]


def test_a_closed_pipe_ends_quietly(where: list[str]) -> None:
    """As of `head`: exit code 141, and no trace; also where little output is left when the command ends."""
    for words in (["export", "look/0", "--format", "ndjson"], ["versions", "look/0/0/default"]):
        reader, writer = os.pipe()
        os.close(reader)
        with open(writer, "wb") as pipe:  # noqa: PTH123  # a descriptor
            completed = subprocess.run(
                command(*words, *where), stdout=pipe, stderr=subprocess.PIPE, timeout=30, check=False
            )
        assert (completed.returncode, completed.stderr) == (141, b"")


def test_ctrl_c_is_one_line(where: list[str]) -> None:
    """Exit code 130, and no trace; `top` ends with 0 by it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hangs = ["--endpoint", f"http://127.0.0.1:{silent.getsockname()[1]}", "--region", REGION]
        words = command("stores", *hangs)
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
            with silent.accept()[0]:
                process.send_signal(signal.SIGINT)
                assert process.communicate(timeout=20)[1] == "dynastate: interrupted\n"
            assert process.returncode == 130
    words = command("top", "look", "--json", *where)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["look"] == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_completion_in_bash() -> None:
    """What --show-completion prints completes commands and options in bash."""
    script = f"""
        source <({ENTRY_POINT} --show-completion; :)
        complete_words() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _dynastate_completion {ENTRY_POINT}; }}
        complete_words dynastate to; echo "${{COMPREPLY[@]}}"
        complete_words dynastate top --look; echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["top", "--looks"], done


def completed(shell: str, line: str, **variables: str) -> list[str]:
    """The lines that a shell's script gets for a line, which ends where the cursor is."""
    words = line.split()
    asked = {"_DYNASTATE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line, "COMP_WORDS": line}
    asked["COMP_CWORD"] = str(len(words) - (not line.endswith(" ")))
    asked["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    done = subprocess.run(
        command(), capture_output=True, text=True, timeout=60, check=False, env=os.environ | asked | variables
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_completion_in_zsh_fish_and_powershell() -> None:
    """With help texts, and without Rich; zsh completes files where there is nothing else."""
    assert completed("fish", "dynastate top --look") == ["--looks\tHow often to look; 0: until Ctrl-C."]
    assert completed("fish", "dynastate top --sort v") == ["version"]
    assert completed("fish", "dynastate top --sort=v") == ["--sort=version"]
    (line,) = completed("zsh", "dynastate tables ch")
    start = '_arguments \'*: :(("check":"List how the tables differ from what dynastate needs\\\\:'
    assert line.startswith(start)
    assert completed("zsh", "dynastate import ") == ["_files"]
    # PowerShell gives the line without the space at its end.
    looks = completed("powershell", "dynastate top --looks", _TYPER_COMPLETE_WORD_TO_COMPLETE="--looks")
    assert [each.partition(":::")[0] for each in looks] == ["--looks"]
    orders = completed("powershell", "dynastate top --sort", _TYPER_COMPLETE_WORD_TO_COMPLETE="")
    assert "version" in [each.partition(":::")[0] for each in orders]


def test_completion_of_names(database: EmbeddedDynamoDB) -> None:
    """Namespaces, operators, stores and checkpoints are from the tables that options, variables and file name."""
    where = {"DYNASTATE_ENDPOINT": database.endpoint, "DYNASTATE_REGION": REGION}
    assert completed("bash", "dynastate stores l", **where) == ["look"]
    assert completed("bash", "dynastate get look/", **where) == ["look/0"]
    assert completed("fish", "dynastate show --json look/0/", **where) == ["look/0/0/default"]
    assert completed("fish", f"dynastate verify look/ --region {REGION} ", **where) == []
    tables = BotoTables(database.settings)
    engine = make_engine(tables)
    engine.checkpoint_files().put(Checkpoint("look", "query"), "offsets/0", b"v1\n{}", overwrites=False)
    engine.close()
    tables.close()
    assert completed("bash", "dynastate rollback dynastate : //look/", **where) == ["//look/query"]
    assert completed("fish", "dynastate rollback dynastate://", **where) == ["dynastate://look/query"]


def test_completion_without_an_answer_is_silent() -> None:
    """No table, no Region: no words, and no error within the line that is typed."""
    assert completed("fish", "dynastate stores ", DYNASTATE_REGION="", AWS_REGION="", AWS_DEFAULT_REGION="") == []


@pytest.mark.parametrize(
    ("line", "expected", "modules"),
    [
        ("dynastate export", ["export", "export-checkpoint"], 0),
        ("dynastate export --form", ["--format"], 1),
        ("dynastate exp --form", [], 0),
    ],
)
def test_completion_behind_a_command_imports_its_module_only(line: str, expected: list[str], modules: int) -> None:
    """The name of a command itself needs none."""
    script = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from dynastate.cli.__main__ import main
main()
"""
    count = len(line.split()) - 1
    variables = {"COMP_WORDS": line, "COMP_CWORD": str(count), "_DYNASTATE_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=os.environ | variables, check=False
    )
    assert done.stdout.split() == expected
    imported = set(done.stderr.splitlines()[-1].split())
    assert len([name for name in COMMANDS if f"dynastate.cli.{name}" in imported]) == modules


#: Imports that take longer than all others, and the words of commands that do without them.
_SLOW_IMPORTS = {"boto3", "botocore", "duckdb", "pandas", "pyarrow", "pydantic", "pyspark", "rich"}


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("--version", set()),
        ("jar", {"typer"}),
        ("config --region us-east-1", {"typer"}),
        ("get --help", {"typer"}),
        ("tables check", {"typer", "botocore"}),
        ("show no/0/0/store", {"typer", "botocore"}),
    ],
)
def test_a_command_imports_little(words: str, needed: set[str], where: list[str]) -> None:
    """A command imports its own module, botocore if it sends requests, and nothing else that takes long."""
    script = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from dynastate.cli.__main__ import main
main()
"""
    options = where if "botocore" in needed else []
    line = [sys.executable, "-c", script, *words.split(), *options]
    completed = subprocess.run(line, capture_output=True, text=True, check=False)
    modules = set(completed.stderr.splitlines()[-1].split())
    assert modules & (_SLOW_IMPORTS | {"typer"}) == needed
    assert len([name for name in COMMANDS if f"dynastate.cli.{name}" in modules]) == ("typer" in needed)


@pytest.mark.parametrize("after_s", [0.01, 0.05, 0.2])
def test_ctrl_c_while_it_starts_is_quiet(after_s: float) -> None:
    """From its first line on: one line, no trace, and 130."""
    script = f"""
import os, signal, sys, threading
sys.argv = ["dynastate", "top", "look", "--endpoint", "http://127.0.0.1:9"]
from dynastate.cli.__main__ import main
os.environ["AWS_REGION"] = "{REGION}"
timer = threading.Timer({after_s}, os.kill, (os.getpid(), signal.SIGINT))
timer.daemon = True
signal.signal(signal.SIGINT, signal.SIG_IGN)
timer.start()
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert "Traceback" not in completed.stderr
    assert (completed.returncode, completed.stderr) in [(130, "dynastate: interrupted\n"), (0, "")]  # `top` ends so


def test_ctrl_c_leaves_no_jvm_that_starts() -> None:
    """Ctrl-C counts once Spark's JVM is there, so that it can be ended; a JVM whose start is cut off stays for good."""
    steps: list[str] = []

    def start() -> None:
        with session._interrupts_deferred():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("started")

    with pytest.raises(KeyboardInterrupt):
        start()
    assert steps == ["started"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_in_a_call_of_spark_is_quiet() -> None:
    """py4j logs the trace of a Ctrl-C, and of what follows; other errors that it logs stay."""
    interrupt, pipe_error = KeyboardInterrupt(), BrokenPipeError()
    pipe_error.__context__ = interrupt
    for error, is_shown in ((interrupt, False), (pipe_error, False), (OSError(), True), (None, True)):
        record = logging.LogRecord("", logging.ERROR, "", 1, "", (), (type(error), error, None) if error else None)
        assert session._is_of_no_interrupt(record) is is_shown


def test_a_transfer_is_checked_before_spark_starts(tmp_path: Path) -> None:
    """A missing checkpoint, a missing Region: within seconds, whichever command it is."""
    (tmp_path / "old" / "offsets").mkdir(parents=True)
    spark_never_starts = {"PYSPARK_GATEWAY_PORT": "1", "PYSPARK_GATEWAY_SECRET": "none"}
    for words, message in {
        ("import", "missing", "new", "--region", REGION): "there is no checkpoint in this folder checkpoint=missing",
        ("recover", "orders", "missing", "new", "--region", REGION): "there is no checkpoint in this folder",
        ("repartition", str(tmp_path / "old"), "new", "--partitions", "2"): "no AWS Region is known",
    }.items():
        assert message in refused(*words, env=os.environ | spark_never_starts)


def test_a_region_that_the_embedded_dynamodb_lacks(database: EmbeddedDynamoDB) -> None:
    """It has no tables there, at the first try; the server does not fail."""
    message = refused("stores", "--endpoint", database.endpoint, "--region", "us-east-99")
    assert "does not exist in the Region us-east-99" in message


def test_progress_reports_from_a_pipe(tmp_path: Path) -> None:
    """`-` is standard input."""
    with open(reported(tmp_path, 4)) as lines:  # noqa: PTH123  # a child's standard input
        completed = subprocess.run(
            command("cost", "--progress", "-", "--json"), stdin=lines, capture_output=True, timeout=30, check=True
        )
    assert json.loads(completed.stdout)["queries"][0]["batches"] == 4


@pytest.mark.slow
def test_an_unreachable_endpoint_is_reported_within_seconds() -> None:
    start_s = time.monotonic()
    message = refused("tables", "check", "--endpoint", "http://127.0.0.1:9", "--region", REGION)
    assert time.monotonic() - start_s < ERROR_WITHIN_S
    assert "cannot be reached at http://127.0.0.1:9" in message
    assert "--endpoint" in message


def without_pyspark(folder: Path) -> dict[str, str]:
    """An environment in which it cannot be imported."""
    (folder / "pyspark.py").write_text("raise ImportError('no Spark here')")
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def without_java(folder: Path) -> dict[str, str]:
    return {"JAVA_HOME": str(folder)}


JAVA = "install a JRE 17, 21 or, with Spark 4.3, 25 (Debian: apt-get install openjdk-17-jre-headless)"
#: What a command lacks, as the environment that it gets in an empty folder, and the message.
MISSING: dict[str, tuple[str, Callable[[Path], dict[str, str]], str]] = {
    "credentials": (
        f"tables check --endpoint http://dynamodb.invalid --region {REGION}",
        lambda _: dict.fromkeys(credentials(), ""),
        "no AWS credentials",
    ),
    "pyspark, for import": ("import old new", without_pyspark, NO_PYSPARK),
    "pyspark, for jar": ("jar", without_pyspark, NO_PYSPARK),
    "Java, for import": ("import old new", without_java, f"import needs Java; {JAVA}"),
    "Java, for demo": ("demo", without_java, f"the demo needs Java; {JAVA}"),
    "a value": ("import old new --conf spark.x", lambda _: {}, "--conf takes KEY=VALUE got='spark.x'"),
}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.slow] * (what == "credentials")) for what in MISSING]
)
def test_what_is_missing_is_one_line(what: str, tmp_path: Path) -> None:
    """It is said before anything starts, with exit code 2."""
    words, environment, message = MISSING[what]
    assert refused(*words.split(), env=os.environ | environment(tmp_path)).startswith(f"dynastate: {message}")


def test_the_build_names_the_javas_to_install(tmp_path: Path) -> None:
    """Those of the README, where there is none."""
    command_line = [sys.executable, "jvm-bridge/build.py", "--check-java"]
    variables = os.environ | without_java(tmp_path)
    completed = subprocess.run(command_line, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert completed.returncode == 1
    assert completed.stderr.startswith(f"dynastate: no Java in {tmp_path}; install a JDK or JRE 17, 21 or 25 (Debian")
    assert "Java 17, 21 or 25" in (ROOT / "README.md").read_text()


def test_local_reports_a_port_in_use(database: EmbeddedDynamoDB) -> None:
    port = database.endpoint.rpartition(":")[2]
    assert f"choose another port, or 0 for a free one port={port}" in refused("local", "--port", port)


def test_local_runs_until_it_is_stopped() -> None:
    """`local` prints what Spark needs, serves both tables, and at SIGTERM ends with its server."""
    with subprocess.Popen(command("local", "--port", "0"), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("export AWS_SECRET_ACCESS_KEY"):
            lines.append(process.stdout.readline().rstrip("\n"))
            assert process.poll() is None, lines
        conf = dict(line.split("=", 1) for line in lines if line.startswith("spark."))
        endpoint = conf["spark.sql.streaming.stateStore.dynastate.endpoint"]
        objects = ["--objects", "s3://dynastate-objects", "--objects-endpoint", endpoint]
        check = run("tables", "check", "--endpoint", endpoint, "--region", REGION, *objects)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0

    assert endpoint in lines[0]
    ours = Settings(endpoint=endpoint, objects_endpoint=endpoint, region=REGION, python=sys.executable)
    assert conf == plain_conf() | ours.to_spark()
    assert [line for line in lines if line.startswith("export ")] == [
        f"export {name}={value}" for name, value in credentials().items()
    ]
    assert check.returncode == 0, check.stderr
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(endpoint.rpartition(":")[2]))) != 0


def test_local_for_programs() -> None:
    """With --json it writes one line as soon as it serves, with all that the other lines have; at Ctrl-C it ends."""
    words = command("local", "--port", "0", "--json")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        answer = of_schema(words[3:], json.loads(process.stdout.readline()))
        check = run("tables", "check", "--endpoint", answer["endpoint"], "--region", answer["region"])
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == ""
        assert process.wait(10) == 0
    assert check.returncode == 0, check.stderr
    endpoint = answer["endpoint"]
    ours = Settings(endpoint=endpoint, objects_endpoint=endpoint, region=REGION, python=sys.executable)
    assert answer["spark"] == plain_conf() | ours.to_spark()
    assert answer["environment"] == credentials()


def test_local_without_a_spark(tmp_path: Path) -> None:
    """Where PySpark cannot be imported it serves all the same, and says on standard error why conf is missing."""
    words, pipe = command("local", "--port", "0"), subprocess.PIPE
    environment = os.environ | without_pyspark(tmp_path)
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = list(takewhile(lambda line: not line.startswith("export AWS_SECRET_ACCESS_KEY"), process.stdout))
        process.terminate()
        message = process.stderr.read()
    assert message.count("\n") == 1
    assert "not all that Spark needs: pyspark is not installed here" in message
    names = [line.partition("=")[0].rpartition(".")[2] for line in lines if line.startswith("spark.")]
    assert names == ["region", "endpoint", "python", "objectsEndpoint"]


def test_an_unexpected_exception_shows_its_trace() -> None:
    """What is not an error of dynastate is not hidden: Python's trace is shown."""
    program = """
import sys
from dynastate.dynamodb import admin
from dynastate.cli import app

admin.check_tables = None
sys.argv = ["dynastate", "tables", "check"]
app.main()
"""
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert completed.returncode == 2
    assert "Traceback" in completed.stderr
    assert "TypeError" in completed.stderr


def on_a_terminal(*words: str) -> tuple[str, str]:
    """Run a command to its end with a terminal for standard error: its standard output, and what the terminal got."""
    ours, theirs = pty.openpty()
    try:
        try:
            process = subprocess.Popen(
                command(*words), stdout=subprocess.PIPE, stderr=theirs, env=os.environ | {"TERM": "xterm"}
            )
        finally:
            os.close(theirs)
        with process:
            display = b"".join(read_to_the_end(ours))
            assert process.stdout is not None
            output = process.stdout.read()
            assert process.wait(30) == 0, display
    finally:
        os.close(ours)
    return output.decode(), display.decode()


def read_to_the_end(terminal: int) -> Iterator[bytes]:
    with suppress(OSError):  # on Linux, a terminal ends with one
        while True:
            yield os.read(terminal, 4_096)


def test_progress_is_shown_on_a_terminal_only(where: list[str]) -> None:
    """On a terminal, standard error shows a bar; standard output is the same JSON; elsewhere there is no bar."""
    words = ("verify", "look/0/0/default", "--json", *where)
    completed = run(*words)
    assert (completed.returncode, completed.stderr) == (0, "")
    output, display = on_a_terminal(*words)
    assert json.loads(output) == json.loads(completed.stdout)
    assert "━" in display
    assert "100%" in display


@pytest.mark.slow
def test_copy_with_objects_in_s3(where: list[str], database: EmbeddedDynamoDB, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and objects are copied over HTTP, and verify finds no error in the copy."""
    objects = f"s3://{BUCKET}/objects"
    settings = replace(database.settings, objects=objects, objects_threshold_kb=0)
    other = replace(settings, delta_table="copy-delta", snapshot_table="copy-snapshot")
    create_tables(other)
    tables = BotoTables(settings)
    engine = make_engine(tables, objects=objects, objects_threshold_kb=0)
    builder = StoreBuilder(engine, "wide/0/0/default")
    for version in range(2):
        builder.commit(*((user(f"{version}/{number}"), counted(number)) for number in range(5_000)))
    engine.close()
    tables.close()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", database.endpoint)
    target = ["--to-delta-table", other.delta_table, "--to-snapshot-table", other.snapshot_table, "--yes"]
    assert "give the copy another location there: --to-objects" in refused("copy", "wide", *where, *target)
    copy = run("copy", "wide", *where, *target, "--to-objects", f"s3a://{BUCKET}/copies/")
    assert copy.returncode == 0, copy.stderr
    assert re.search(r"items and 2 objects \([\d,]+ bytes\) of S3\s+are\s+equal", copy.stdout)
    at_the_copy = ["--delta-table", other.delta_table, "--snapshot-table", other.snapshot_table]
    verification = run("verify", "wide", *where, *at_the_copy)
    assert verification.returncode == 0, verification.stdout
