"""The command `failover`: both sides, the steps, and its exit code."""

from __future__ import annotations

import random
import shlex
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.exceptions import EndpointConnectionError
from pyarrow.fs import LocalFileSystem

from dynastate.dynamodb import boto_tables
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.retries import RetryPolicy
from dynastate.errors import ConfigurationError
from dynastate.settings import PREFIX, Settings
from tests.support.command_line import refused, run
from tests.support.pages import DOCS, code
from tests.unit.operations.lifecycle.test_rollback import BATCHES, NAMESPACE, make_checkpoint
from tests.unit.operations.regions.test_failover import (
    HERE,
    THERE,
    RegionTables,
    filled,
    filled_long_ago,
    lose_parts_of,
)

WORDS = ("failover", NAMESPACE, "--region", HERE, "--to-region", THERE)


@pytest.fixture
def regions(monkeypatch: pytest.MonkeyPatch) -> dict[str, RegionTables]:
    """Tables in two Regions, asynchronous replicas of each other. What is no Region here cannot be reached."""
    source = filled_long_ago()
    by_region = {HERE: source, THERE: source.replica(is_strong=False)}

    def open_tables(settings: Settings) -> RegionTables:
        if settings.region not in by_region:
            raise ConfigurationError(f"DynamoDB cannot be reached at {settings.region}")
        return by_region[settings.region]

    monkeypatch.setattr(boto_tables, "open_tables", open_tables)
    return by_region


def test_it_says_what_is_there_and_what_to_do(regions: dict[str, RegionTables], tmp_path: Path) -> None:
    """Versions that are missing there are counted, and so is what it read."""
    lose_parts_of(regions[THERE], f"{NAMESPACE}/0/0/default", BATCHES)
    result = run(*WORDS, "--checkpoint", str(make_checkpoint(tmp_path)))
    text = " ".join(result.out.split())
    assert (result.code, result.err) == (0, "")
    assert f"from {HERE}: asynchronous replicas with {THERE}; newest version {BATCHES}, committed 20" in text
    assert f"to {THERE}: asynchronous replicas with {HERE}; newest version {BATCHES - 1}, committed" in text
    assert f"1 version of {HERE} cannot be opened in {THERE}" in text
    assert f"the query continues with batch {BATCHES - 1}; 1 of the checkpoint's batches run again" in text
    assert "read units" in text
    assert [line[:2] for line in result.lines if line[:1].isdigit() and line[1:2] == "."] == ["1.", "2.", "3.", "4."]


def test_a_region_that_is_away_and_one_that_has_nothing(regions: dict[str, RegionTables]) -> None:
    """The first keeps nothing from being done; of the second the exit code is 1, or 2 if there is no store."""
    words = ("failover", NAMESPACE, "--region", "eu-west-1", "--to-region", THERE)
    result = run(*words)
    assert result.code == 0
    assert result.lines[0] == "from eu-west-1: DynamoDB cannot be reached at eu-west-1"
    regions[THERE].described["delta"]["TableStatus"] = "CREATING"
    result = run(*words)
    assert result.code == 1
    assert result.lines[-1] == "cannot continue: table dynastate-delta is CREATING, needed is ACTIVE"
    regions[THERE].items.clear()
    assert "no store of this namespace is in the tables; the namespace is the first part" in refused(*words)
    assert "cannot be reached at eu-west-1" in refused(*WORDS[:-1], "eu-west-1")


def test_an_error_of_the_target_names_its_option(
    regions: dict[str, RegionTables], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the variable or option that gave the source's value."""
    monkeypatch.setenv("DYNASTATE_REGION", HERE)

    def open_tables(settings: Settings) -> RegionTables:
        if settings.region == THERE:
            raise ConfigurationError(f"table t does not exist in {THERE}; correct {PREFIX}region")
        return regions[settings.region]

    monkeypatch.setattr(boto_tables, "open_tables", open_tables)
    assert refused("failover", NAMESPACE, "--to-region", THERE).endswith("correct --to-region\n")
    assert "--to-region must be" in refused("failover", NAMESPACE, "--to-region", "a/b")
    assert "--to-endpoint must be" in refused("failover", NAMESPACE, "--to-endpoint", "a/b")
    assert "--to-delta-table must be" in refused("copy", NAMESPACE, "--to-delta-table", "a/b")
    monkeypatch.setenv("DYNASTATE_REGION", "a/b")
    assert "DYNASTATE_REGION must be" in refused("failover", NAMESPACE, "--to-region", THERE)


@pytest.mark.parametrize("words", [[], ["--to-region", HERE], ["--to-endpoint", "http://one:1/"]])
def test_another_place_must_be_given(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same Region is refused, also where the environment names it, unless another endpoint is given."""
    message = f"the query would stay where it is; give another Region with --to-region region={HERE}\n"
    one = ("--endpoint", "http://one:1")
    assert refused("failover", NAMESPACE, "--region", HERE, *one, *words).endswith(message)
    monkeypatch.setenv("AWS_REGION", HERE)
    assert refused("failover", NAMESPACE, *one, *words).endswith(message)
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv("AWS_DEFAULT_REGION", HERE)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://one:1")
    assert refused("failover", NAMESPACE, *words).endswith(message)


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["--to-region", THERE], (THERE, "")),
        (["--to-region", THERE, "--to-endpoint", "http://two:2"], (THERE, "http://two:2")),
        (["--to-endpoint", "http://two:2"], (HERE, "http://two:2")),
    ],
)
def test_another_region_has_another_endpoint(
    regions: dict[str, RegionTables], monkeypatch: pytest.MonkeyPatch, words: Sequence[str], place: tuple[str, str]
) -> None:
    """The source's stays with the source."""
    opened: list[tuple[str, str]] = []

    def open_tables(settings: Settings) -> RegionTables:
        opened.append((settings.region, settings.endpoint))
        return regions[settings.region]

    monkeypatch.setattr(boto_tables, "open_tables", open_tables)
    run("failover", NAMESPACE, "--region", HERE, "--endpoint", "http://one:1", *words)
    assert opened == [place, (HERE, "http://one:1")]


def test_what_is_wrong_is_said_once(regions: dict[str, RegionTables]) -> None:
    """Beside what there is of a side, or as the reason why the query cannot continue."""
    for region, (replica,) in ((each, regions[HERE].described["delta"]["Replicas"]) for each in (HERE, THERE)):
        replica.update(RegionName=region, ReplicaStatus="CREATING")
        result = run(*WORDS, "--wide")
        assert result.code == (region == THERE)
        assert result.out.count("is CREATING") == 1
    message = f"the replica of table dynastate-delta in {THERE} is CREATING, needed is ACTIVE"
    assert result.lines[-1] == f"cannot continue: {message}"


class AwayClient:
    """The client of a Region that does not answer."""

    meta = SimpleNamespace(region_name=HERE)

    def describe_table(self, **_: str) -> None:
        raise EndpointConnectionError(endpoint_url=f"https://dynamodb.{HERE}.amazonaws.com/")

    def close(self) -> None:
        """There is nothing to close."""


def away(settings: Settings) -> BotoTables:
    """The tables of that Region; what is slept there takes no time."""
    slept = [0.0]
    policy = RetryPolicy(settings.request_deadline_s, lambda: sum(slept), slept.append, random.Random(1))  # noqa: S311
    tables = BotoTables(settings, retries=policy, client=AwayClient())
    tables._client.url = f"https://dynamodb.{HERE}.amazonaws.com"
    return tables


def test_the_example_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/second-region.md shows is what the command prints, in a terminal of 100 columns."""
    page = [body for _, body in code(DOCS / "second-region.md")]
    (words,) = (shlex.split(body)[1:] for body in page if body.startswith("dynastate failover"))
    checkpoint = str(make_checkpoint(tmp_path))
    files = SimpleNamespace(from_uri=lambda _: (LocalFileSystem(), checkpoint))
    monkeypatch.setattr("pyarrow.fs.FileSystem", files)
    monkeypatch.setenv("COLUMNS", "100")
    source = filled(lambda: datetime(2026, 11, 24, 16, 40, 12, tzinfo=timezone.utc), BATCHES + 2)
    target = source.replica(is_strong=True)
    monkeypatch.setattr(
        boto_tables,
        "open_tables",
        lambda region_settings: target if region_settings.region == THERE else away(region_settings),
    )
    result = run(*words)
    assert result.code == 0
    assert result.out in page, result.out
