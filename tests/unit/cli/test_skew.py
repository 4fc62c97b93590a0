"""The command `skew`: tables for people, JSON for programs, and what a wrong argument says."""

from __future__ import annotations

import pytest

from dynastate.engine.engine import Engine
from tests.support.command_line import refused, run, shown
from tests.support.store_builder import StoreBuilder, counted, user


@pytest.fixture(scope="module", autouse=True)
def uneven(engine: Engine) -> None:
    """Two partitions, one of which has most rows, and a heavy one."""
    now_ms = [1_700_000_000_000]
    stores = [StoreBuilder(engine, f"uneven/0/{partition}/default") for partition in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.commits, "now_ms", lambda: now_ms[0])
        for batch in range(6):
            now_ms[0] += 180_000
            for store, rows in zip(stores, (30, 10), strict=True):
                store.commit(*((user(f"{batch}-{number}"), counted(1)) for number in range(rows)))
        stores[1].commit((user("whale"), counted(1, "x" * 1_000)))


def test_skew() -> None:
    result = run("skew", "uneven")
    assert (result.code, result.err) == (0, "")
    assert max(map(len, result.lines)) <= 80
    assert result.lines[0].startswith("uneven/0/*/default: 241 rows, ")
    words = [line.split() for line in result.lines]
    partitions = [each[:2] for each in words if len(each) == 5 and each[0] in "01"]
    assert partitions == [["0", "180"], ["1", "61"]]
    assert any('{"user": "whale"}' in line for line in result.lines)
    assert result.lines[-1].startswith("reading this took ")
    assert result.lines[-3].startswith("busiest partition key: 0.0")
    assert result.lines[-3].endswith(" of 1,000 write units a second")
    assert result.lines[-2] == "it is one of uneven/0/1/default"


def test_skew_as_json() -> None:
    report = shown("skew", "uneven/0", "--keys", "1")
    (group,) = report["operators"]
    assert (group["partitions"], group["rows"], group["largest"][0]["store"]) == (2, 241, "uneven/0/0/default")
    assert group["rows_ratio"] == pytest.approx(1.49)
    assert [each["key"] for each in report["keys"]["heaviest"]] == [{"user": "whale"}]
    assert report["keys"]["is_whole"]
    assert (report["busiest"]["store"], report["busiest"]["most"]) == ("uneven/0/1/default", 1000)
    cheap = shown("skew", "uneven", "--keys", "0")
    assert (cheap["keys"], cheap["busiest"]) == (None, report["busiest"])
    assert cheap["read_units"] < report["read_units"]


def test_wrong_arguments() -> None:
    assert "no store of this namespace" in refused("skew", "missing")
    assert "no store of this scope" in refused("skew", "uneven/7")
    for option, value in (("--keys", "-1"), ("--read-mb", "0")):
        assert f"Invalid value for '{option}'" in refused("skew", "uneven", option, value)
