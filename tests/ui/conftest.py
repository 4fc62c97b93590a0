"""One DynamoDB with state, one `dynastate ui` in a process of its own, and one browser, for all tests here."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.embedded import EmbeddedDynamoDB, credentials
from tests.support.browser import chromium
from tests.support.command_line import command, of_schema
from tests.support.dynoxide import Dynoxide, fast_dynamodb
from tests.ui.dataset import make_state

Database = EmbeddedDynamoDB | Dynoxide


@pytest.fixture(scope="module")
def credentials_of_the_module() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in credentials().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def database(credentials_of_the_module: None) -> Iterator[Database]:
    with tempfile.TemporaryDirectory(prefix="dyn-") as folder, fast_dynamodb(Path(folder) / "tables") as dynamodb:
        with closing(BotoTables(dynamodb.settings)) as tables:
            make_state(tables)
        yield dynamodb


@contextmanager
def served(endpoint: str, environment: dict[str, str], *words: str) -> Iterator[str]:
    """A `dynastate ui` on a free port; its URL. Ctrl-C ends it, with exit code 0."""
    options = ("--port", "0", "--no-browser", "--json", "--endpoint", endpoint, "--region", "us-east-1")
    pipe = subprocess.PIPE
    with subprocess.Popen(command("ui", *words, *options), env=environment, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            text = ""
            while "}" not in text:
                line = process.stdout.readline()
                assert line, "it ended"
                text += line
            yield of_schema(("ui",), json.loads(text))["url"]
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url(database: Database, environment: dict[str, str]) -> Iterator[str]:
    with served(database.endpoint, environment) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as program:
        yield program
