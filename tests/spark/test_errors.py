"""Mistakes of a user: one error at the query's first batch, within seconds, which says what to do."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pandas as pd
import pytest

import dynastate
from dynastate.dynamodb.client import make_client
from dynastate.settings import PREFIX
from tests.spark.conftest import Database, Sessions, interpreter, only
from tests.spark.operators import group_state
from tests.spark.streams import first_error, make_source
from tests.support.jvm import ROOT


def another_version(folder: Path) -> str:
    """An interpreter that finds a copy of the package with another version."""
    shutil.copytree(ROOT / "src" / "dynastate", folder / "other" / "dynastate")
    (folder / "other" / "dynastate" / "version.py").write_text('__version__ = "9.9.9"')
    return interpreter(folder, f"export PYTHONPATH={folder / 'other'}")


#: Mistakes that are found after some seconds only.
WAITS = ("unreachable endpoint", "no credentials")
#: An endpoint on no machine. One on this machine has a Region and keys.
ELSEWHERE = "http://dynamodb.invalid"
#: Settings of dynastate, made in a folder, and words of the error.
MISTAKES: dict[str, tuple[Callable[[Path], Mapping[str, str]], str]] = {
    "missing table": (lambda _: {"deltaTable": "not-there"}, r"not-there"),
    "wrong key schema": (lambda _: {"snapshotTable": "wrong-keys"}, r"wrong-keys"),
    "unreachable endpoint": (
        lambda _: {"endpoint": "http://127.0.0.1:9"},
        r"http://127\.0\.0\.1:9.*dynastate\.endpoint",
    ),
    "no region": (
        lambda folder: {"region": "", "endpoint": ELSEWHERE, "python": interpreter(folder)},
        r"dynastate\.region",
    ),
    "no credentials": (
        lambda folder: {
            "endpoint": ELSEWHERE,
            "python": interpreter(folder, "unset AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY"),
        },
        r"credentials",
    ),
    "interpreter that does not exist": (lambda _: {"python": "/no/such/python"}, r"dynastate\.python.*/no/such/python"),
    "interpreter without the package": (
        lambda folder: {"python": interpreter(folder, command=f'{sys.executable} -S "$@"')},
        rf"install dynastate {dynastate.__version__} there, from the driver's wheel.*No module named",
    ),
    "package of another version": (
        lambda folder: {"python": another_version(folder)},
        rf"{dynastate.__version__}.*9\.9\.9.*install dynastate=={dynastate.__version__}",
    ),
    "unknown setting": (lambda _: {"tabel": "x"}, r"unknown setting .*dynastate\.tabel; known are .*deltaTable"),
    "setting that is no number": (lambda _: {"shards": "many"}, r"dynastate\.shards must be a whole number"),
}


@pytest.fixture(scope="module")
def _wrong_keys(database: Database, environment: dict[str, str]) -> None:
    with only(environment):
        client = make_client(database.settings)
    client.create_table(
        TableName="wrong-keys",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    client.close()


@pytest.mark.usefixtures("_wrong_keys")
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in WAITS)) for name in MISTAKES])
def test_mistake_in_the_settings(name: str, sessions: Sessions, folder: Path) -> None:
    """The query fails within 15 s, though tasks may fail three times, and its error says what to do."""
    source = make_source(folder / "files", seed=10, files=1)
    source.release()
    settings, pattern = MISTAKES[name]
    session = sessions({f"{PREFIX}{setting}": value for setting, value in settings(folder).items()})
    message = first_error(source.stream(session).select("key").dropDuplicates(), folder / "checkpoint")
    assert re.search(pattern, message), message


def test_a_mistake_is_reported_before_the_first_batch_is_computed(sessions: Sessions, folder: Path) -> None:
    """A missing table is reported before any work: a first batch may take hours."""
    source = make_source(folder / "files", seed=10, files=1)
    source.release()
    session = sessions({f"{PREFIX}deltaTable": "not-there"})
    mark = folder / "computed"

    def touch(frame: pd.DataFrame) -> None:
        mark.touch()

    first_error(group_state(source.stream(session), look=touch), folder / "checkpoint")
    assert not mark.exists()
