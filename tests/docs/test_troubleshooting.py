"""Messages of docs/troubleshooting.md against those of the source."""

from __future__ import annotations

import ast
import importlib
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark
import pytest

from dynastate import errors
from dynastate.settings import PREFIX
from tests.support.pages import DOCS, ROOT

#: The varying part of a message, on the page and in a template from the source.
VARIES = "…"
#: Errors that need an action: each must be on the page, which has only the usual ones of the others.
QUOTED_CLASSES = {"ConfigurationError", "UnavailableError", "UnknownOutcomeError", "VersionMissingError"}
QUOTED_KINDS = {"Configuration", "Unavailable", "Missing"}


def template(node: ast.expr) -> str | None:
    """The text that an expression makes, its varying parts replaced. Returns None if it is not text."""
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
    """The same with one mark for each run of varying parts, those of log formats included."""
    return re.sub(f"{VARIES}+", VARIES, re.sub(r"%[sd]|%\.\df", VARIES, text))


def python_texts() -> Iterator[tuple[str, str]]:
    """Every text in the package, and the class of the error whose message it is, or an empty name."""
    for file in sorted((ROOT / "src" / "dynastate").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        for node in nodes:
            if isinstance(node, ast.expr) and (text := template(node)) is not None:
                yield "", one_open(text)
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.args
                and node.func.id in QUOTED_CLASSES
            ):
                for message in messages(node.args[0], nodes):
                    yield node.func.id, one_open(message)


def messages(expression: ast.expr, nodes: Sequence[ast.AST]) -> list[str]:
    """Messages of an error: a text, or every text that is assigned to that name in its file."""
    values = [expression]
    if isinstance(expression, ast.Name):
        values = [
            node.value
            for node in nodes
            if isinstance(node, ast.Assign)
            and any(isinstance(target, ast.Name) and target.id == expression.id for target in node.targets)
        ]
    return [text for each in values if (text := template(each)) is not None]


_LITERAL = r's?"(?:[^"\\\n]|\\.)*"'


def scala_texts() -> Iterator[tuple[str, str]]:
    """Every text in Scala, and the kind of the error whose message it is, or an empty name."""
    texts = re.compile(rf"(?:ErrorKind\.(\w+),\s*)?({_LITERAL}(?:\s*\+\s*{_LITERAL})*)")
    for file in sorted((ROOT / "jvm-bridge").rglob("*.scala")):
        for kind, literal_texts in texts.findall(file.read_text()):
            literals = re.findall(_LITERAL, literal_texts)
            text = "".join(one.removeprefix("s")[1:-1] for one in literals)
            yield kind, one_open(re.sub(r"\$\{[^}]*\}|\$\w+", VARIES, text))


SOURCE = [*python_texts(), *scala_texts()]
TEXTS = {text for _, text in SOURCE}
PAGE = (DOCS / "troubleshooting.md").read_text()


def quoted() -> list[str]:
    """Every message on the page: the quoted texts in the first column of a table of messages."""
    texts: list[str] = []
    for section in PAGE.split("\n| message |")[1:]:
        rows = section.split("\n\n")[0].splitlines()[2:]
        for row in rows:
            texts += re.findall(r"`([^`]+)`", row.split(" | ")[0])
    return texts


MESSAGES = quoted()


def begins(text: str, message: str) -> bool:
    return text.startswith(message.removesuffix(VARIES))


@pytest.mark.parametrize("message", MESSAGES)
def test_every_message_on_the_page_is_in_the_source(message: str) -> None:
    assert len(re.findall(r"\w+", message)) > 1, "too short to find it in a log"
    assert any(begins(text, message) for text in TEXTS)


def test_every_error_that_needs_an_action_is_on_the_page() -> None:
    """Errors that need an action: settings, tables, permissions, versions, and an unreachable DynamoDB."""
    assert len(MESSAGES) == len(set(MESSAGES))
    texts = {text for kind, text in SOURCE if kind in QUOTED_CLASSES | QUOTED_KINDS and re.search(r"\w", text)}
    assert len(texts) > 90
    assert {text for text in texts if not any(begins(text, message) for message in MESSAGES)} == set()


def test_messages_of_spark_are_its_own() -> None:
    """The page quotes texts of the Spark that is installed, and names of our classes and of settings."""
    table = PAGE.partition("\n| Spark says |")[2].partition("\n\n")[0].splitlines()[2:]
    jars = (Path(pyspark.__file__).parent / "jars").glob("spark-sql_*.jar")
    texts: list[bytes] = [b"ClassNotFoundException"]
    for jar in jars:
        with zipfile.ZipFile(jar) as archive:
            names = [
                name
                for name in archive.namelist()
                if re.search(
                    r"OffsetSeqMetadata\$|BackendNotSupported|RowChecksumVerificationFailed|/StateStoreWriter.class"
                    r"|RealTimeModeAllowlist\$|classic/StreamingQueryManager.class",
                    name,
                )
            ]
            texts += map(archive.read, names)
    quotes = [re.findall(r"`([^`]+)`", row.split(" | ")[0])[0] for row in table]
    assert len(quotes) == 7
    for message in quotes:
        piece = re.search(
            r"\w+Exception|STREAMING_REAL_TIME_MODE[.]\w+|[\w.]+NOT_SUPPORTED\w+|^\w+_FAILED$"
            r"|CheckpointInfo length: |^[A-Z][^']*'",
            message,
        )
        assert piece is not None
        assert any(piece[0].encode() in text for text in texts), message
    assert {f"{provider}.scala" for provider in re.findall(r"DynamoDB\w+Provider", quotes[0])} <= {
        file.name for file in (ROOT / "jvm-bridge").rglob("*.scala")
    }


def test_packages_to_install_are_published() -> None:
    """No message says to install dynastate, which is not published yet, but what its extras need."""
    texts = [text for text in TEXTS if "pip install" in text]
    assert not [text for text in texts if re.search(r"pip install '?dynastate", text)]
    extras = importlib.import_module("tomllib").loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for extra, pattern in (
        ("frames", r"\w+"),
        ("sql", r"\w+"),
        ("otlp", r"[\w-]+"),
        ("prometheus", r"[\w-]+"),
        ("local", r"[\w\[\],]+"),
        ("spark", "(?s).*"),
        ("ui", r"\w+"),
        ("zstd", r"\w+"),
    ):
        packages = sorted(re.match(pattern, each)[0] for each in extras[extra] if "python_version <" not in each)  # type: ignore[index]
        package_list = " ".join(each if re.fullmatch(r"[a-z0-9-]+", each) else f"'{each}'" for each in packages)
        assert [text for text in texts if text.endswith(f"pip install {package_list}")], package_list


def test_kinds_are_those_of_the_errors() -> None:
    """Both pages name each kind as the JVM does, by number; troubleshooting has its class in Python beside it."""
    scala = (ROOT / "jvm-bridge/src/main/scala/io/dynastate/DynastateException.scala").read_text()
    numbers = {name: int(number) for name, number in re.findall(r"val (\w+) = (\d)", scala)}
    names = {numbers[name]: label for name, label in re.findall(r'(\w+) -> "([^"]+)"', scala)}
    classes = {kind: each.__name__ for kind, each in errors.BY_KIND.items()}
    table = re.findall(r"^\| `([^`]+)` \| `(\w+Error)` \|", PAGE, re.MULTILINE)
    assert table == [(names[kind], classes[kind]) for kind in sorted(names)]
    protocol = (DOCS / "protocol.md").read_text().partition("\n## Errors\n")[2].partition("\n## ")[0]
    assert {int(kind): name for kind, name in re.findall(r"^\| (\d) \| ([^|]+) \|", protocol, re.MULTILINE)} == names
