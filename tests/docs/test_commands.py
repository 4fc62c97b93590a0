"""What the documentation says of the code: messages of docs/troubleshooting.md, commands and settings, and links."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import boto3
import pytest
import typer
from botocore import xform_name
from moto import mock_aws
from typer.testing import CliRunner

import dynastate
from dynastate import errors
from dynastate.admin import create_tables
from dynastate.cli import app
from dynastate.local import EmbeddedDynamoDB
from dynastate.settings import PREFIX, Settings
from dynastate.tables import BotoTables
from tests.processes import descendants, is_alive, wait_until
from tests.states import engine
from tests.test_cli import command as command_line
from tests.test_cli import reported
from tests.test_settings import changed
from tests.written import Written, family, user

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
#: What varies in a message, on the page as in what is taken from the source.
VARIES = "…"
#: Errors that a user has to act on, each of which must be on the page. Of the others it names the usual ones.
TOLD = {"ConfigurationError", "UnavailableError", "UnknownOutcomeError", "VersionMissingError"}
TOLD_IN_SCALA = {"Configuration", "Unavailable", "Missing"}


def template(node: ast.expr) -> str | None:
    """The text that an expression makes, with what varies left open; None: it is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(map(piece, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = template(node.left), template(node.right)
        return None if left is None and right is None else (left or VARIES) + (right or VARIES)
    return None


def piece(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.FormattedValue)
    return PREFIX if isinstance(node.value, ast.Name) and node.value.id == "PREFIX" else VARIES


def one_open(text: str) -> str:
    """The same with what varies spelt in one way: of a log format too, and of several things in a row as one."""
    return re.sub(f"{VARIES}+", VARIES, re.sub(r"%[sd]|%\.\df", VARIES, text))


def python_texts() -> Iterator[tuple[str, str]]:
    """Every text in the package, and the name of the error that it is the message of (none: it may still be told)."""
    for file in sorted((ROOT / "src" / "dynastate").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        for node in nodes:
            if isinstance(node, ast.expr) and (said := template(node)) is not None:
                yield "", one_open(said)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args and node.func.id in TOLD:
                for message in messages(node.args[0], nodes):
                    yield node.func.id, one_open(message)


def messages(given: ast.expr, nodes: Sequence[ast.AST]) -> list[str]:
    """What an error is given for a message: a text, or any that is assigned to that name in its file."""
    made = [given]
    if isinstance(given, ast.Name):
        made = [
            node.value
            for node in nodes
            if isinstance(node, ast.Assign)
            and any(isinstance(to, ast.Name) and to.id == given.id for to in node.targets)
        ]
    return [said for each in made if (said := template(each)) is not None]


_LITERAL = r's?"(?:[^"\\\n]|\\.)*"'


def scala_texts() -> Iterator[tuple[str, str]]:
    """Kind of each error that is made in Scala (none for other texts), and its text."""
    texts = re.compile(rf"(?:ErrorKind\.(\w+),\s*)?({_LITERAL}(?:\s*\+\s*{_LITERAL})*)")
    for file in sorted((ROOT / "jvm-bridge").rglob("*.scala")):
        for kind, found in texts.findall(file.read_text()):
            literals = re.findall(_LITERAL, found)
            joined = "".join(one.removeprefix("s")[1:-1] for one in literals)
            yield kind, one_open(re.sub(r"\$\{[^}]*\}|\$\w+", VARIES, joined))


SOURCE = [*python_texts(), *scala_texts()]
TEXTS = {said for _, said in SOURCE}
PAGE = (DOCS / "troubleshooting.md").read_text()


def quoted() -> list[str]:
    """Every message on the page: what stands in back-quotes in the first column of a table of messages."""
    found: list[str] = []
    for section in PAGE.split("\n| message |")[1:]:
        rows = section.split("\n\n")[0].splitlines()[2:]
        for row in rows:
            found += re.findall(r"`([^`]+)`", row.split(" | ")[0])
    return found


MESSAGES = quoted()


def begins(text: str, message: str) -> bool:
    """Whether a text of the source begins as the page says."""
    return text.startswith(message.removesuffix(VARIES))


@pytest.mark.parametrize("message", MESSAGES)
def test_every_message_on_the_page_is_in_the_source(message: str) -> None:
    """Whoever changes a message changes the page."""
    assert len(re.findall(r"\w+", message)) > 1, "too short to find it in a log"
    assert any(begins(text, message) for text in TEXTS)


def test_every_error_that_asks_for_something_is_on_the_page() -> None:
    """Errors that a user is to act on: settings, tables, permissions, versions, and DynamoDB that is away."""
    assert len(MESSAGES) == len(set(MESSAGES))
    made = {said for kind, said in SOURCE if kind in TOLD | TOLD_IN_SCALA and re.search(r"\w", said)}
    assert len(made) > 90
    assert {said for said in made if not any(begins(said, message) for message in MESSAGES)} == set()


def test_kinds_are_those_of_the_errors() -> None:
    """The table of kinds has each kind's name in the JVM beside its class in Python, in the order of their numbers."""
    scala = (ROOT / "jvm-bridge/src/main/scala/io/dynastate/core/DynastateException.scala").read_text()
    numbers = {name: int(number) for name, number in re.findall(r"val (\w+) = (\d)", scala)}
    names = {numbers[name]: said for name, said in re.findall(r'(\w+) -> "([^"]+)"', scala)}
    classes = {kind: each.__name__ for kind, each in errors.BY_KIND.items()}
    table = re.findall(r"^\| `([^`]+)` \| `(\w+Error)` \|", PAGE, re.MULTILINE)
    assert table == [(names[kind], classes[kind]) for kind in sorted(names)]


PAGES = sorted(
    [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "infra" / "README.md", ROOT / "benchmarks" / "README.md"]
)


def anchors(page: Path) -> set[str]:
    """What links into a page may name, as GitHub makes it from headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    """Links inside of the repository name files that exist, and headings in them."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?://", target):
            continue
        name, _, heading = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not heading or heading in anchors(file), target


def test_every_page_is_linked_from_the_readme() -> None:
    """A page that nobody finds helps nobody."""
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in DOCS.glob("*.md") if f"(docs/{page.name})" not in readme] == []


# ------------------------------------------------------------------------------------------------------------- commands


def code(page: Path) -> list[tuple[str, str]]:
    """Blocks of code of a page, with their language, without what they are indented by; lines that go on are joined."""
    found = re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [(language, textwrap.dedent(body).replace("\\\n", " ")) for _, language, body in found]


def lines(page: Path) -> list[str]:
    """Lines of a page's blocks that are no Python, without a prompt."""
    return [
        line.removeprefix("$ ") for language, body in code(page) if language != "python" for line in body.splitlines()
    ]


def commands(first: str) -> list[tuple[str, list[str]]]:
    """The page and the words of each command line that begins with a word; of a pipe, up to it."""
    return [
        (page.name, shlex.split(line.split(" | ")[0].replace(VARIES, ""), comments=True)[1:])
        for page in PAGES
        for line in lines(page)
        if line.startswith(f"{first} ")
    ]


def in_text() -> list[tuple[str, list[str]]]:
    """The page and the words of each command in running text, and of each line of the tables of docs/cli.md.

    These say how commands are spelt: one for each choice, and with all that may be left out.
    """
    found = []
    for page in PAGES:
        text = re.sub(r"^( *)```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        told = re.findall(r"`(?:[^`|]+ \| )?dynastate ([a-z-][^`]*)`", text)
        if page.name == "cli.md":
            for cell in re.findall(r"^\| (`[a-z].*?) \| ", text, re.MULTILINE):
                told += re.findall(r"`([^`]+)`", cell)
        for command in told:
            words = shlex.split(re.sub(r"[\[\]\\…]", "", command))
            found += [(page.name, list(chosen)) for chosen in itertools.product(*(word.split("|") for word in words))]
    return found


def command_of(words: Sequence[str]) -> tuple[Any, list[str]]:
    """The command that words begin with, and the rest of them."""
    command, rest = typer.main.get_command(app), list(words)
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]  # type: ignore[attr-defined]
    return command, rest


def test_every_command_of_dynastate_is_one() -> None:
    """Commands on all pages exist, and have the options that are given."""
    found = commands("dynastate")
    assert len(found) > 8
    told = in_text()
    assert len(told) > 60
    for page, words in found + told:
        command, rest = command_of(words)
        known = {spelt for each in command.params for spelt in each.opts} | {"--help"}
        given = {word.partition("=")[0] for word in rest if word.startswith("-") and word != "-"}
        assert given <= known, (page, words)
        if hasattr(command, "commands"):  # text may speak of a group, or of them all
            assert (page, words) in told, (page, words)
            assert given == set(rest), (page, words)


def test_every_command_of_aws_is_one() -> None:
    """Operations exist in AWS's interface, as boto3 knows it, and have the parameters that are given, and must be."""
    found = commands("aws")
    assert found
    for page, (service, operation, *words) in found:
        client = boto3.session.Session().client(service, region_name="us-east-1")
        name = {xform_name(each, "-"): each for each in client.meta.service_model.operation_names}[operation]
        shape = client.meta.service_model.operation_model(name).input_shape
        client.close()
        given = {word.removeprefix("--") for word in words if word.startswith("--")}
        assert given <= {xform_name(each, "-") for each in shape.members}, (page, operation)
        assert {xform_name(each, "-") for each in shape.required_members} <= given, (page, operation)


#: The Region of the documentation's examples, and what a row of its state is.
THERE = "eu-west-1"
COUNTED = family(value=(("count", "long"),))
#: What stands for a name in running text and in tables, after an option or anywhere.
STAND_FOR = {
    "NAMESPACE": "orders",
    "STORE": "orders/0/0/default",
    "STORES": "orders/0",
    "NEW": "orders-test",
    "KEY": '{"user": "a"}',
    "V": "2",
    "V1": "1",
    "V2": "3",
    "N": "2",
    "S": "0.1",
}
#: Commands that are not run here.
ELSEWHERE = {
    "import": "it starts a Spark: tests/spark/test_spark_import.py",
    "local": "it runs until it is stopped: tests/test_cli.py",
    "drop": "it comes last: in a test of its own",
}


@pytest.fixture
def state(dummy_credentials: None) -> Iterator[None]:
    """Moto in this process, with the tables and stores that the pages speak of: of three versions."""
    mock = mock_aws()
    mock.start(reset=False)
    usual = Settings(region=THERE)
    other = replace(usual, delta_table="streaming-state-delta", snapshot_table="streaming-state-snapshot-group")
    for settings in (usual, other):
        create_tables(settings)
        tables = BotoTables(settings)
        at = engine(tables)
        for store in ("orders/0/0/default", "9f2c0c64c9d2a24f3d2d7f3e6f0b8a11/0/17/default"):
            made = Written(at, store, COUNTED)
            for count in (1, 2, 3):
                made.commit((user("a"), {"count": count}))
        at.close()
        tables.close()
    yield
    client = boto3.session.Session(region_name=THERE).client("dynamodb")
    for settings in (usual, other):
        for table in (settings.delta_table, settings.snapshot_table):
            client.delete_table(TableName=table)
    client.close()
    mock.stop(remove_data=False)


@pytest.fixture
def account(state: None) -> Iterator[dict[str, str]]:
    """The same with what else an account has; and the names that stand for what has none there."""
    session = boto3.session.Session(region_name=THERE)
    iam, ec2 = session.client("iam"), session.client("ec2")
    iam.create_role(RoleName="ROLE_OF_THE_EXECUTORS", AssumeRolePolicyDocument="{}")
    allowed = {"Effect": "Allow", "Action": "dynamodb:Query", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    yield {
        "ARN_OF_THE_WRITER_POLICY": iam.create_policy(PolicyName="writer", PolicyDocument=policy)["Policy"]["Arn"],
        "VPC": vpc,
        "ROUTE_TABLE": ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"],
    }
    iam.close()
    ec2.close()


def test_commands_for_an_account_run(account: dict[str, str]) -> None:
    """Those of aws, by their operations, and those of dynastate in that Region, on an AWS that moto plays."""
    for _, (service, operation, *words) in commands("aws"):
        given = {
            name.removeprefix("--"): account.get(value, value) for name, value in zip(*[iter(words)] * 2, strict=True)
        }
        client = boto3.session.Session().client(service, region_name=THERE)
        name = {xform_name(each, "-"): each for each in client.meta.service_model.operation_names}[operation]
        members = client.meta.service_model.operation_model(name).input_shape.members
        arguments: dict[str, Any] = {
            each: [given[xform_name(each, "-")]] if shape.type_name == "list" else given[xform_name(each, "-")]
            for each, shape in members.items()
            if xform_name(each, "-") in given
        }
        getattr(client, xform_name(name))(**arguments)
        client.close()
    ran = [words for _, words in commands("dynastate") if THERE in words and "--endpoint" not in words]
    assert len(ran) > 6
    for words in ran:
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, (words, done.output, done.exception)


def test_commands_in_running_text_run(state: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are more than a name, as they stand there, but for what stands for a name; a reader does so, too."""
    monkeypatch.chdir(tmp_path)
    after = {"--progress": reported(tmp_path, 3), "-o": "rows"}
    ran = 0
    for page, told in in_text():
        command, rest = command_of(told)
        if not rest or told[0] in ELSEWHERE:
            continue
        words = [
            after.get(before, word) if word == "FILE" else STAND_FOR.get(word, word)
            for before, word in itertools.pairwise(["", *told])
        ]
        spelt = {each for param in command.params for each in param.opts}
        if "--region" in spelt and "--region" not in words:
            words += ["--region", THERE]
        if told[0] == "top" and "--looks" not in words:
            words += ["--looks", "1"]
        if "-" in words:  # what comes through a pipe needs a process
            with open(after["--progress"]) as piped:  # noqa: PTH123  # a child's standard input
                subprocess.run(command_line(*words), stdin=piped, capture_output=True, timeout=60, check=True)
        else:
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, (page, words, done.output, done.exception)
        ran += 1
    assert ran > 25


def test_drop_is_as_the_pages_say(state: None) -> None:
    """A query is refused while its fork stands; the fork goes after a yes, and then the query, without being asked."""
    told = [words for _, words in in_text() if words[0] == "drop"]
    for words in (["drop", "orders"], ["drop", "orders-test"], ["drop", "NAMESPACE", "--yes"]):
        assert words in told

    def run(*words: str, answer: str = "") -> tuple[int, str]:
        done = CliRunner().invoke(app, [*words, "--region", THERE], input=answer)
        return done.exit_code, f"{done.output}{done.exception}"

    assert run("fork", "orders", "orders-test")[0] == 0
    code, said = run("drop", "orders")
    assert code != 0
    assert "forks stand on this state: orders-test" in said
    assert run("drop", "orders-test", answer="n\n")[0] == 1
    assert run("drop", "orders-test", answer="y\n")[0] == 0
    assert run("drop", "orders", "--yes")[0] == 0
    code, said = run("stores", "orders")
    assert code != 0
    assert "no store of this namespace" in said


def test_what_get_prints_on_the_page(state: None) -> None:
    """The row of the example in docs/cli.md is what the command gives for such a store."""
    (block,) = [body for _, body in code(DOCS / "cli.md") if body.startswith("$ dynastate get ")]
    command, shown = re.fullmatch(r"\$ dynastate (.*)\n(\{\n(?: .*\n)*\}\n)(?:\$ .*\n)*", block).groups()  # type: ignore[union-attr]
    assert CliRunner().invoke(app, shlex.split(command)).output == shown


def reading(page: Path) -> list[str]:
    """Programs on a page that open state, or go on with one that is open."""
    return [body for language, body in code(page) if language == "python" and re.search(r"\bstate\b", body)]


@pytest.mark.parametrize("page", [ROOT / "README.md", DOCS / "reading-state.md"], ids=lambda page: page.name)
def test_programs_that_read_state_run(state: None, page: Path) -> None:
    """As they stand there; a row that a comment tells is the one that comes."""
    program = reading(page)[0]
    exec(program, {"dynastate": dynastate})  # noqa: S102  # our own documentation
    told = re.findall(r"^ +(state\.\w+\(.*\))  # (\{.*?\})", program, re.MULTILINE)
    assert told
    with dynastate.open_state("orders/0", region=THERE) as opened:
        for called, row in told:
            assert eval(called, {"state": opened}) == ast.literal_eval(row)  # noqa: S307  # the same


def test_the_program_that_follows_a_query_runs(state: None) -> None:
    """It prints each change once, of versions that came while it slept; it is stopped when it sleeps a third time."""
    (program,) = [each for each in reading(DOCS / "reading-state.md") if "state.refresh()" in each]
    tables = BotoTables(Settings(region=THERE))
    at = engine(tables)
    query = Written(at, "followed/0/0/default", COUNTED)
    query.commit((user("a"), {"count": 1}))
    printed: list[tuple[Any, ...]] = []
    slept: list[float] = []

    class Time:
        @staticmethod
        def sleep(seconds: float) -> None:
            slept.append(seconds)
            if len(slept) == 3:
                raise KeyboardInterrupt
            if len(slept) == 1:
                query.commit((user("a"), {"count": 2}), (user("b"), {"count": 1}))
                query.commit((user("b"), None))

    with dynastate.open_state("followed/0", region=THERE) as opened, pytest.raises(KeyboardInterrupt):
        exec(program, {"state": opened, "time": Time, "print": lambda *words: printed.append(words)})  # noqa: S102  # the same
    assert sorted(printed[:2], key=str) == [
        (2, "put", {"user": "a", "count": 2}),
        (2, "put", {"user": "b", "count": 1}),
    ]
    assert [(version, kind) for version, kind, _ in printed[2:]] == [(3, "remove")]
    at.close()
    tables.close()


def test_every_command_of_terraform_fits_the_example() -> None:
    """Variables and outputs that are named are those of the example of that page."""
    example = (ROOT / "infra" / "examples" / "production" / "main.tf").read_text()
    found = [words for page, words in commands("terraform") if page == "getting-started.md"]
    variables = {words[at + 1].partition("=")[0] for words in found for at, word in enumerate(words) if word == "-var"}
    outputs = {words[-1] for words in found if words[0] == "output"}
    assert variables
    assert outputs
    assert variables <= set(re.findall(r'^variable "(\w+)"', example, re.MULTILINE))
    assert outputs <= set(re.findall(r'^output "(\w+)"', example, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_setting_is_one(page: Path) -> None:
    """Settings that are written out on a page exist."""
    known = {name.removeprefix(PREFIX) for name in changed().to_spark()}
    assert len(known) == len(fields(Settings))
    assert set(re.findall(rf"{re.escape(PREFIX)}(\w+)", page.read_text())) <= known


def test_programs_are_python_with_settings_that_exist() -> None:
    """Python on the page that begins compiles, and gives `configure` settings that exist."""
    programs = [body for language, body in code(DOCS / "getting-started.md") if language == "python"]
    assert programs
    for program in programs:
        given = [
            word.arg
            for node in ast.walk(ast.parse(program))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "dynastate.configure"
            for word in node.keywords
        ]
        assert set(given) <= {field.name for field in fields(Settings)}


def test_getting_started_on_this_machine_runs(
    embedded: EmbeddedDynamoDB, environment: dict[str, str], tmp_path: Path
) -> None:
    """Its commands and its program, as they stand there, but for the endpoint and the checkpoint's path."""
    page = (DOCS / "getting-started.md").read_text().replace("http://127.0.0.1:8000", embedded.endpoint)
    section = page.replace("/tmp/first", str(tmp_path / "first")).split("\n## ")[1]  # noqa: S108  # it is replaced
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert [language for language, _ in blocks] == ["sh", "python", "sh"]
    (_, before), (_, program), (_, beside) = blocks
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shell = environment | {"PATH": paths, "NO_COLOR": "1", "COLUMNS": "200", "PYSPARK_PYTHON": sys.executable}

    def run(block: str) -> subprocess.CompletedProcess[str]:
        words = ["bash", "-eu", "-c", block]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=shell, cwd=tmp_path)

    checked = run(before)
    assert checked.returncode == 0, checked.stderr
    assert "dynastate-delta and dynastate-snapshot-group: fit" in checked.stdout
    assert checked.stdout.endswith(".jar\n")
    log = tmp_path / "log"
    with log.open("w") as out:
        running = subprocess.Popen(
            [sys.executable, "-c", program], env=shell, cwd=tmp_path, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: "Batch: 1" in log.read_text() or running.poll() is not None, "no second batch", 120)
        listed = run(beside)
        assert listed.returncode == 0, log.read_text()[-5_000:]
        assert "first/0/0/default" in listed.stdout
    finally:
        started = descendants(running.pid)
        running.terminate()
        running.wait(20)
        wait_until(lambda: not any(map(is_alive, started)), "a process of the program is left", 60)
