"""The command `retention`: tables for people, JSON for programs, and what a wrong argument says."""

from __future__ import annotations

import pytest

from dynastate.engine.engine import Engine
from tests.support.command_line import refused, run, shown
from tests.support.store_builder import StoreBuilder, counted, user


@pytest.fixture(scope="module", autouse=True)
def running(engine: Engine) -> None:
    """Two operators with a batch every 20 seconds; the second one changes its only row."""
    now_ms = [1_700_000_000_000]
    stores = [StoreBuilder(engine, f"running/{operator}/0/default") for operator in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine.commits, "now_ms", lambda: now_ms[0])
        for batch in range(12):
            now_ms[0] += 20_000
            stores[0].commit(*((user(f"{batch}-{number}"), counted(1)) for number in range(10)))
            stores[1].commit((user("a"), counted(batch)))


def test_retention() -> None:
    result = run("retention", "running")
    assert (result.code, result.err) == (0, "")
    assert max(map(len, result.lines)) <= 80
    words = [line.split() for line in result.lines]
    assert [each[:2] for each in words if len(each) == 6 and each[0] in "01"] == [["0", "20.0"], ["1", "20.0"]]
    assert ["retained", "versions", "100", "100", "minBatchesToRetain"] in words
    assert "what it waits for: running/0/0/default" in result.lines
    assert result.lines[-1].startswith("reading this took ")


def test_retention_as_json() -> None:
    report = shown("retention", "running", "--retain", "20", "--extra", "0", "--snapshot-threshold", "0")
    first, second = report["operators"]
    assert (first["operator"], first["stores"], first["slowest"]) == (0, 1, "running/0/0/default")
    assert (first["batch_s"], first["batches"], first["batches_max"]) == (20, 35, 35)
    assert first["minutes"] == pytest.approx((35 * 20 + 60) / 60)
    assert sum(each["batches"] for each in second["steps"]) == second["batches"]
    slower = shown("retention", "running", "--every", "60")
    assert [each["batch_s"] for each in slower["operators"]] == [60, 60]
    assert slower["operators"][0]["batches"] > slower["operators"][1]["batches"]
    assert slower["operators"][0]["batches_max"] == slower["operators"][1]["batches_max"] == 10_168


def test_retention_by_settings_alone() -> None:
    (operator,) = shown("retention", "--every", "10")["operators"]
    assert (operator["operator"], operator["batches"], operator["batches_max"]) == (None, None, 10_178)
    assert "10,178" in run("retention", "--every", "10").out


def test_what_holds_rows_longer() -> None:
    words = ("retention", "running", "--most", "1")
    assert [each["held_by"][0]["stores"] for each in shown(*words)["operators"]] == [1, 1]
    text = " ".join(run(*words).out.split())
    reason = "longer, because maxVersionsToDeletePerMaintenance is not above the versions that are made meanwhile"
    assert f"operator 0, 1 store: {reason}" in text
    by_settings = ("retention", "--every", "10", "--most")
    assert any(line.startswith(reason[:60]) for line in run(*by_settings, "6").lines)
    assert "longer" not in run(*by_settings, "7").out


def test_wrong_arguments() -> None:
    assert "give a namespace, or --every SECONDS" in refused("retention")
    assert "no store of this namespace" in refused("retention", "missing")
    for option, value in (("--every", "0"), ("--retain", "1"), ("--extra", "-1")):
        assert f"Invalid value for '{option}'" in refused("retention", "running", option, value)
