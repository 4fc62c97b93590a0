"""Commands and programs of the documentation, run as they are written."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import boto3
import pytest
import typer
from botocore import xform_name
from botocore.validate import ParamValidator
from moto import mock_aws
from typer.testing import CliRunner

import dynastate
from dynastate.cli.app import make_app
from dynastate.dynamodb.admin import create_tables
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.operations.lifecycle import drop as dropping
from dynastate.settings import Settings
from tests.support.command_line import LEAVES, reported
from tests.support.command_line import command as command_line
from tests.support.engine_driver import make_engine
from tests.support.pages import DOCS, PAGES, ROOT, code
from tests.support.processes import free_port, wait_until
from tests.support.store_builder import StoreBuilder, family, user


def lines(page: Path) -> list[str]:
    """Lines of a page's blocks, other than Python, without a prompt."""
    return [line.removeprefix("$ ") for kind, body in code(page) if kind != "python" for line in body.splitlines()]


def commands(first: str) -> list[tuple[str, list[str]]]:
    """The page and the words of each line that begins with a command, up to a pipe."""
    return [
        (page.name, shlex.split(line.split(" | ")[0].replace("…", ""), comments=True)[1:])
        for page in PAGES
        for line in lines(page)
        if line.startswith(f"{first} ")
    ]


def in_text() -> list[tuple[str, list[str]]]:
    """The page and the words of each command in running text, and of each line of the tables of docs/cli.md.

    These are templates: one for each choice, with every optional part.
    """
    templates = []
    for page in PAGES:
        text = re.sub(r"^( *)```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        texts = re.findall(r"`(?:[^`|]+ \| )?dynastate ([a-z-][^`]*)`", text)
        if page.name == "cli.md":
            for cell in re.findall(r"^\| (`[a-z].*?) \| ", text, re.MULTILINE):
                texts += re.findall(r"`([^`]+)`", cell)
        for command in texts:
            words = shlex.split(re.sub(r"[\[\]\\…]", "", command))
            templates += [
                (page.name, list(choice)) for choice in itertools.product(*(word.split("|") for word in words))
            ]
    return templates


def command_of(words: Sequence[str]) -> tuple[Any, list[str]]:
    command, rest = typer.main.get_command(make_app()), list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]  # type: ignore[attr-defined]
    return command, rest


def test_every_command_of_dynastate_is_one() -> None:
    examples = commands("dynastate")
    assert len(examples) > 8
    templates = in_text()
    assert len(templates) > 60
    for page, words in examples + templates:
        command, rest = command_of(words)
        known_options = {spelling for each in command.params for spelling in each.opts} | {"--help"}
        options = {word.partition("=")[0] for word in rest if word.startswith("-") and word != "-"}
        assert options <= known_options, (page, words)
        if hasattr(command, "commands"):  # text may name a group, or all commands
            assert (page, words) in templates, (page, words)
            assert options == set(rest), (page, words)


def test_the_page_of_commands_names_values_as_the_help() -> None:
    """Every command has a row on docs/cli.md; arguments and values of options have the names of --help there."""
    text = (DOCS / "cli.md").read_text()
    rows = re.findall(r"^\| `([a-z][^`]*)` \| ", text, re.MULTILINE)
    names = sorted(name for name in LEAVES for row in rows if f"{row} ".startswith(f"{name} "))
    assert names == sorted(LEAVES)
    for row in rows:
        command, rest = command_of(row.replace("\\", "").split())
        usage = " ".join(rest)
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        metavars = [each.metavar if each.required else f"[{each.metavar}]" for each in arguments]
        assert re.sub(r" ?\[-.*?\]…?| --.*", "", usage).split() == metavars, row
        for option, value in re.findall(r"(--?[a-z-]+)(?: ([A-Za-z=|]+))?", usage):
            (param,) = [each for each in command.params if option in each.opts]
            assert (value or None) == (None if param.is_flag else param.metavar), row


def test_every_command_of_aws_is_one() -> None:
    """Operations exist in boto3, and have the given parameters, of their types, and no other required ones."""
    examples = commands("aws")
    assert examples
    for page, (service, operation, *words) in examples:
        client = boto3.session.Session().client(service, region_name="us-east-1")
        name = {xform_name(each, "-"): each for each in client.meta.service_model.operation_names}[operation]
        model = client.meta.service_model.operation_model(name)
        client.close()
        options = {word.removeprefix("--") for word in words if word.startswith("--")}
        assert options <= {xform_name(each, "-") for each in model.input_shape.members}, (page, operation)
        # The command makes tokens itself, as boto3 does.
        arguments = dict.fromkeys(model.idempotent_members, "token") | parameters(page, model.input_shape, words)
        report = ParamValidator().validate(arguments, model.input_shape)
        assert not report.has_errors(), (page, operation, report.generate_report())


def parameters(page: str, shape: Any, words: Sequence[str]) -> dict[str, Any]:
    """The parameters of a command of aws, as boto3 takes them.

    A structure or a map is JSON, or a file with that of the page.
    """
    values: dict[str, Any] = {
        name.removeprefix("--"): True if value.startswith("--") else value
        for name, value in itertools.pairwise([*words, "--"])
        if name.startswith("--")
    }
    result: dict[str, Any] = {}
    for name, member in shape.members.items():
        value = values.get(xform_name(name, "-"))
        if value is not None and member.type_name in ("structure", "map"):
            value = json.loads(json_of(page) if value.startswith("file://") else value)
        if value is not None:
            result[name] = [value] if member.type_name == "list" else value
    return result


def json_of(page: str) -> str:
    (text,) = [body for each in PAGES if each.name == page for language, body in code(each) if language == "json"]
    return text


#: The Region of the documentation's examples, and the schema of their state.
REGION = "eu-west-1"
COUNTS = family(value=(("count", "long"),))
#: Values for the placeholders of running text and tables.
EXAMPLES = {
    "NAMESPACE": "orders",
    "STORE": "orders/0/0/default",
    "STORES": "orders/0",
    "SCOPE": "orders",
    "NEW": "orders-test",
    "URL": "file:/data/orders",
    "KEY": '{"user": "a"}',
    "QUERY": "from state",
    "MB": "64",
    "GB": "32",
    "COLUMN": "lag",
    "USD": "500",
    "V": "2",
    "V1": "1",
    "V2": "3",
    "N": "2",
    "S": "0.1",
}
#: Commands that are not run here.
ELSEWHERE = {
    "import": "it starts a Spark: tests/spark/test_import.py",
    **dict.fromkeys(
        ("repartition", "export-checkpoint", "migrate", "bootstrap", "recover"),
        "they start a Spark: tests/spark/test_changing_a_query.py",
    ),
    "local": "it does not end: tests/process/test_cli.py",
    "ui": "it does not end: tests/ui",
    "demo": "it starts a Spark: tests/spark/test_demo.py",
    "doctor": "moto in this process fails it: tests/process/test_doctor.py",
    "copy": "it needs two places: tests/unit/cli/test_copy.py",
    "failover": "it needs two places: tests/spark/test_failover.py",
    "checkpoint": "it needs a checkpoint: tests/spark/test_moved_checkpoint.py",
    "rollback": "it needs a checkpoint: tests/spark/test_rollback.py",
    "drop": "it has a test of its own",
    "erase": "it needs a stopped query with the key: tests/unit/cli/test_erase.py",
    "--install-completion": "it depends on the shell: tests/process/test_cli.py",
    "--show-completion": "the same",
}


@pytest.fixture
def state(dummy_credentials: None) -> Iterator[None]:
    """The tables and stores of the pages, with three versions, on moto in this process."""
    mock = mock_aws()
    mock.start(reset=False)
    boto3.session.Session(region_name=REGION).client("s3").create_bucket(
        Bucket="my-bucket", CreateBucketConfiguration={"LocationConstraint": REGION}
    )
    usual = Settings(region=REGION)
    other = replace(usual, delta_table="streaming-state-delta", snapshot_table="streaming-state-snapshot-group")
    for settings in (usual, other):
        create_tables(settings)
        with closing(BotoTables(settings)) as tables, closing(make_engine(tables)) as engine:
            for store in ("orders/0/0/default", "9f2c0c64c9d2a24f3d2d7f3e6f0b8a11/0/17/default"):
                builder = StoreBuilder(engine, store, COUNTS)
                for count in (1, 2, 3):
                    builder.commit((user("a"), {"count": count}))
    yield
    boto3.session.Session(region_name=REGION).client("s3").delete_bucket(Bucket="my-bucket")
    client = boto3.session.Session(region_name=REGION).client("dynamodb")
    for settings in (usual, other):
        for table in (settings.delta_table, settings.snapshot_table):
            client.update_table(TableName=table, DeletionProtectionEnabled=False)
            client.delete_table(TableName=table)
    client.close()
    mock.stop(remove_data=False)


@pytest.fixture
def account(state: None) -> Iterator[dict[str, str]]:
    """The same with the rest of an account; values for the placeholders of commands."""
    session = boto3.session.Session(region_name=REGION)
    iam, ec2 = session.client("iam"), session.client("ec2")
    iam.create_role(RoleName="ROLE_OF_THE_EXECUTORS", AssumeRolePolicyDocument="{}")
    statement = {"Effect": "Allow", "Action": "dynamodb:Query", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    yield {
        "ARN_OF_THE_WRITER_POLICY": iam.create_policy(PolicyName="writer", PolicyDocument=policy)["Policy"]["Arn"],
        "VPC": vpc,
        "ROUTE_TABLE": ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"],
    }
    iam.close()
    ec2.close()


@pytest.mark.slow
def test_commands_for_an_account_run(account: dict[str, str]) -> None:
    """Operations of aws, and commands of dynastate in that Region, on an AWS emulated by moto."""
    for page, (service, operation, *words) in commands("aws"):
        if service == "emr-serverless":  # moto knows no release of the kind emr-spark
            continue
        client = boto3.session.Session().client(service, region_name=REGION)
        name = {xform_name(each, "-"): each for each in client.meta.service_model.operation_names}[operation]
        shape = client.meta.service_model.operation_model(name).input_shape
        getattr(client, xform_name(name))(**parameters(page, shape, [account.get(word, word) for word in words]))
        client.close()
    command_words = [words for _, words in commands("dynastate") if REGION in words and "--endpoint" not in words]
    command_words = [words for words in command_words if words[0] not in ELSEWHERE]
    assert len(command_words) > 6
    for words in command_words:
        result = CliRunner().invoke(make_app(), words)
        assert result.exit_code == 0, (words, result.output, result.exception)


def test_conf_of_emr_serverless_is_that_of_getting_started() -> None:
    """It has every line of `spark-submit`, in checkpoint format 1, which Spark 4.0 needs, and the jar."""
    (submit,) = [words for page, words in commands("spark-submit") if page == "getting-started.md"]
    usual = dict(word.split("=", 1) for option, word in itertools.pairwise(submit) if option == "--conf")
    (conf,) = json.loads(json_of("emr-serverless.md"))["applicationConfiguration"]
    pairs = usual | {"spark.sql.streaming.stateStore.checkpointFormatVersion": "1"}
    assert len(pairs) > 8
    assert pairs.items() <= conf["properties"].items()
    assert "dynastate-spark-4.0_2.13" in conf["properties"]["spark.jars"]


@pytest.mark.slow
def test_commands_in_running_text_run(state: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"--progress": reported(tmp_path, 3), "-o": "rows"}
    count = 0
    for page, template in in_text():
        command, rest = command_of(template)
        if not rest or template[0] in ELSEWHERE:
            continue
        words = [
            files.get(option, word) if word == "FILE" else EXAMPLES.get(word, word)
            for option, word in itertools.pairwise(["", *template])
        ]
        options = {each for param in command.params for each in param.opts}
        if "--region" in options and "--region" not in words:
            words += ["--region", REGION]
        if template[0] == "top" and "--looks" not in words:
            words += ["--looks", "1"]
        if "-" in words:  # input through a pipe needs a process
            with open(files["--progress"]) as source:  # noqa: PTH123  # a child's standard input
                subprocess.run(command_line(*words), stdin=source, capture_output=True, timeout=60, check=True)
        else:
            result = CliRunner().invoke(make_app(), words)
            expected = 1 if "--absent" in words else 0  # the row is there
            assert result.exit_code == expected, (page, words, result.output, result.exception)
        count += 1
    assert count > 25


@pytest.mark.slow
def test_drop_is_as_the_pages_say(state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query with a fork is refused; the fork is dropped after a yes, then the query, without a question."""
    monkeypatch.setattr(dropping, "LOOK_MIN_S", 0)
    templates = [words for _, words in in_text() if words[0] == "drop"]
    for words in (["drop", "orders"], ["drop", "orders-test"], ["drop", "NAMESPACE", "--yes", "--force"]):
        assert words in templates

    def run(*words: str, answer: str = "") -> tuple[int, str]:
        result = CliRunner().invoke(make_app(), [*words, "--region", REGION], input=answer)
        return result.exit_code, f"{result.output}{result.exception}"

    assert run("fork", "orders", "orders-test")[0] == 0
    code, output = run("drop", "orders")
    assert code != 0
    assert "forks depend on this state: orders-test" in output
    assert run("drop", "orders-test", answer="n\n")[0] == 1
    assert run("drop", "orders-test", answer="y\n")[0] == 0
    assert run("drop", "orders", "--yes")[0] == 0
    code, output = run("stores", "orders")
    assert code != 0
    assert "no store of this namespace" in output


def test_output_of_get_is_as_on_the_page(state: None) -> None:
    (block,) = [body for _, body in code(DOCS / "cli.md") if body.startswith("$ dynastate get ")]
    command, output = re.fullmatch(r"\$ dynastate (.*)\n(\{\n(?: .*\n)*\}\n)(?:\$ .*\n)*", block).groups()  # type: ignore[union-attr]
    assert CliRunner().invoke(make_app(), shlex.split(command)).output == output


def test_sql_is_as_on_the_page(state: None) -> None:
    (block,) = [body for _, body in code(DOCS / "reading-state.md") if body.startswith("$ dynastate sql ")]
    command, _, output = block.removeprefix("$ dynastate ").partition("\n")
    assert CliRunner().invoke(make_app(), shlex.split(command)).stdout == output
    (program,) = [each for each in reading(DOCS / "reading-state.md") if "to_duckdb" in each]
    scope: dict[str, Any] = {"dynastate": dynastate}
    exec(program, scope)  # noqa: S102  # our own documentation
    assert scope["frame"].to_dict("records") == [{"partition_id": 0, "user": "a", "count": 3}]


def reading(page: Path) -> list[str]:
    return [body for language, body in code(page) if language == "python" and re.search(r"\bstate\b", body)]


def test_programs_that_read_state_run(state: None) -> None:
    program = reading(DOCS / "reading-state.md")[0]
    exec(program, {"dynastate": dynastate})  # noqa: S102  # our own documentation
    calls = re.findall(r"^ +(state\.\w+\(.*\))  # (\{.*?\})", program, re.MULTILINE)
    assert calls
    with dynastate.open_state("orders/0", region=REGION) as orders:
        for call, row in calls:
            assert eval(call, {"state": orders}) == ast.literal_eval(row)  # noqa: S307  # the same


@pytest.mark.slow
def test_the_program_that_follows_a_query_runs(state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It prints each change of later versions once; the third sleep stops it."""
    (program,) = [each for each in reading(DOCS / "reading-state.md") if "state.refresh()" in each]
    tables = BotoTables(Settings(region=REGION))
    engine = make_engine(tables)
    query = StoreBuilder(engine, "followed/0/0/default", COUNTS)
    query.commit((user("a"), {"count": 1}))
    calls: list[tuple[Any, ...]] = []
    pauses: list[float] = []

    def sleep(seconds: float, of_others: Callable[[float], None] = time.sleep) -> None:
        if threading.current_thread() is not threading.main_thread():
            of_others(seconds)  # of PySpark, which another test in this process may have started
            return
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt
        if len(pauses) == 1:
            query.commit((user("a"), {"count": 2}), (user("b"), {"count": 1}))
            query.commit((user("b"), None))

    monkeypatch.setattr("time.sleep", sleep)
    with dynastate.open_state("followed/0", region=REGION) as reader, pytest.raises(KeyboardInterrupt):
        exec(program, {"state": reader, "print": lambda *words: calls.append(words)})  # noqa: S102  # the same
    assert sorted(calls[:2], key=str) == [(2, "put", {"user": "a", "count": 2}), (2, "put", {"user": "b", "count": 1})]
    assert [(version, kind) for version, kind, _ in calls[2:]] == [(3, "remove")]
    engine.close()
    tables.close()


def test_every_command_of_terraform_fits_the_example() -> None:
    example = (ROOT / "infra" / "examples" / "production" / "main.tf").read_text()
    examples = [words for page, words in commands("terraform") if page == "getting-started.md"]
    variables = {
        words[index + 1].partition("=")[0] for words in examples for index, word in enumerate(words) if word == "-var"
    }
    outputs = {words[-1] for words in examples if words[0] == "output"}
    assert variables
    assert outputs
    assert variables <= set(re.findall(r'^variable "(\w+)"', example, re.MULTILINE))
    assert outputs <= set(re.findall(r'^output "(\w+)"', example, re.MULTILINE))


def test_programs_are_python_with_settings_that_exist() -> None:
    programs = [body for language, body in code(DOCS / "getting-started.md") if language == "python"]
    assert programs
    for program in programs:
        names = [
            word.arg
            for node in ast.walk(ast.parse(program))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "dynastate.configure"
            for word in node.keywords
        ]
        assert set(names) <= {"checkpoint", *(field.name for field in fields(Settings))}


@pytest.mark.slow
def test_getting_started_on_this_machine_runs(tmp_path: Path) -> None:
    """A shell with nothing of ours runs its blocks as they are written, on another port, for less time.

    Those of the front page are the same, and its last program reads the state of the query.
    `make setup` has been run: its environment is the one with these tests.
    """
    port = free_port()

    def blocks(page: Path) -> list[tuple[str, str]]:
        text = page.read_text().replace(":8000", f":{port}")
        section = text.split("\n## ")[1].replace("awaitTermination(60)", "awaitTermination(30)")
        return re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)

    steps = blocks(DOCS / "getting-started.md")
    assert [language for language, _ in steps] == ["sh", "sh", "sh", "python", "sh"]
    setup, local, check, program, inspection = (body for _, body in steps)
    assert setup == "make setup\n. .venv/bin/activate\n"
    installation, copy, reader = (body for _, body in blocks(ROOT / "README.md"))
    assert installation == setup + local
    assert copy == program
    reader += '    assert state.get({"digit": 3})["count"] > 0\n'
    (tmp_path / "read.py").write_text(f"import dynastate\n{reader}")
    (tmp_path / "first.py").write_text(program)
    activate = f". {ROOT}/.venv/bin/activate\ncd {tmp_path}\n"
    exports = check.splitlines()[0]
    variables = {name: os.environ[name] for name in ("JAVA_HOME", "PATH", "LANG") if name in os.environ}
    shell = variables | {"HOME": str(tmp_path), "COLUMNS": "200"}

    def start(block: str, path: Path) -> subprocess.Popen[bytes]:
        words = ["bash", "-eu", "-c", activate + block]
        with path.open("wb") as file:
            return subprocess.Popen(words, env=shell, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

    def finish(block: str) -> str:
        path = tmp_path / "out"
        process = start(block, path)
        assert process.wait(120) == 0, path.read_text()[-5_000:]
        return path.read_text()

    server = start(f"exec {local.rstrip()} --port {port}", tmp_path / "served")
    try:
        wait_until(lambda: "AWS_SECRET_ACCESS_KEY" in (tmp_path / "served").read_text(), "it did not start", 60)
        report = finish(check)
        assert "dynastate-delta and dynastate-snapshot-group: fit" in report
        assert report.endswith(".jar\n")
        output = finish(f"{exports}\npython first.py")
        assert "Batch: 1" in output
        assert "Traceback" not in output
        # Spark logs tasks that the stop of the query interrupts as errors.
        assert [line for line in output.splitlines() if "ERROR" in line and "dynastate" in line] == []
        assert "first/0/0/default" in finish(f"{exports}\n{inspection}")
        output = finish(f"{exports}\npython first.py")
        assert "Batch: 0" not in output
        assert "Traceback" not in output
        finish(f"{exports}\npython read.py")
    finally:
        server.terminate()
        server.wait(20)
