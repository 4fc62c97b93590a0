"""The command `copy`: it shows the cost, asks, and compares."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from dynastate.dynamodb import boto_tables
from dynastate.engine.engine import Engine
from dynastate.settings import Settings
from tests.support.command_line import refused, run, shown
from tests.support.store_builder import StoreBuilder
from tests.unit.cli.conftest import NamedTables

NAMESPACE = "to-be-copied"


class OtherTables(NamedTables):
    """Those that are copied to."""

    names = {"delta": "other-delta", "snapshot": "other-snapshot"}  # noqa: RUF012  # as those of BotoTables


@pytest.fixture
def opened(tables: NamedTables, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, str]]:
    """The settings and profiles of tables that are opened: any other than the default settings are of the target."""
    calls: list[tuple[Settings, str]] = []
    other = OtherTables()

    def open_tables(settings: Settings, profile: str = "") -> NamedTables:
        calls.append((settings, profile))
        return other if (settings, profile) not in ((Settings(), ""), (Settings(), "old")) else tables

    monkeypatch.setattr(boto_tables, "open_tables", open_tables)
    return calls


def test_it_shows_the_cost_and_asks(engine: Engine, opened: list[tuple[Settings, str]]) -> None:
    for partition in range(2):
        StoreBuilder(engine, f"{NAMESPACE}/0/{partition}/default").count_to(5)
    words = ("copy", NAMESPACE, "--to-delta-table", "other-delta", "--to-snapshot-table", "other-snapshot")
    result = run(*words, typed="n\n")
    assert result.code == 1
    text = " ".join(result.out.split())
    assert f"{NAMESPACE}: 2 stores, " in text
    assert "to other-delta and other-snapshot it takes about" in text
    assert f"Copy {NAMESPACE}? The query must not run." in result.err
    counts: Mapping[str, int] = shown(*words, "--yes")
    assert counts["stores"] == 2
    assert counts["written"] == counts["items"] > 4
    assert min(counts["write_units"], counts["read_units"], counts["dollars"]) > 0
    second = run(*words, typed="y\n")
    assert second.code == 0
    assert "are equal at both ends; 0 written" in " ".join(second.out.split())
    assert {(settings.delta_table, profile) for settings, profile in opened} == {
        (Settings().delta_table, ""),
        ("other-delta", ""),
    }


def test_profiles_of_both_ends(engine: Engine, opened: list[tuple[Settings, str]]) -> None:
    """Each end has its own; without one, the target has the source's."""
    StoreBuilder(engine, f"{NAMESPACE}-2/0/0/default").count_to(2)
    shown("copy", f"{NAMESPACE}-2", "--aws-profile", "old", "--to-aws-profile", "new", "--yes")
    shown("copy", f"{NAMESPACE}-2", "--aws-profile", "old", "--to-region", "eu-west-1", "--yes")
    assert [profile for _, profile in opened] == ["old", "new", "old", "old"]
    assert opened[-1][0].region == "eu-west-1"


def test_the_source_is_no_target(opened: list[tuple[Settings, str]]) -> None:
    assert "the target is the source" in refused("copy", NAMESPACE, "--yes")
    assert "the target is the source" in refused(
        "copy", NAMESPACE, "--aws-profile", "a", "--to-aws-profile", "a", "--yes"
    )
    assert "no store of this namespace" in refused("copy", "nothing", "--to-region", "eu-west-1", "--yes")
