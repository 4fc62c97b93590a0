"""The parts of the page that need no request: cursors, texts, charts, parameters, checks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing

import pytest

from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.errors import ConfigurationError, VersionMissingError
from dynastate.format.checkpoint import Checkpoint, file_key, listed_item
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from dynastate.ui.app import HERE
from dynastate.ui.charts import SPARK_HEIGHT, SPARK_POINTS, SPARK_WIDTH, spark
from dynastate.ui.check import Check
from dynastate.ui.cursor import KEPT, PAGE_ROWS, Cursor
from dynastate.ui.page import Ask
from dynastate.ui.site import with_versions
from dynastate.ui.texts import DAY_MS, clock_text, has_days, shown, visible
from tests.support.engine_driver import make_engine
from tests.support.memory_tables import MemoryTables
from tests.support.pages import ROOT
from tests.support.processes import wait_until
from tests.support.samples import attempt
from tests.support.store_builder import StoreBuilder, user


def numbers(count: int, *, gaps: bool = False) -> Iterator[int | None]:
    for number in range(count):
        yield number
        if gaps:
            yield None


def test_a_reader_of_another_run_is_refused_and_closed() -> None:
    """A run may make the versions of a view again before its rows are read."""
    tables = MemoryTables()
    with closing(make_engine(tables)) as engine:
        builder = StoreBuilder(engine, "q/0/0/default").count_to(2)
        base = builder.version, dict(builder.state)
        builder.count_to(4)
        with StateReader(tables, Settings(), "q/0") as reader:
            versions = {version: reader.made_by(version) for version in (0, 2, 3)}
            assert with_versions(reader, versions) is reader
            assert len(reader) == 1
        builder.run, (builder.version, builder.state) = "run-2", base
        builder.commit((user("a"), None), by=attempt(103))
    new_reader = StateReader(tables, Settings(), "q/0")
    with pytest.raises(VersionMissingError, match=r"open this view again store=q/0 version=3"):
        with_versions(new_reader, versions)
    with pytest.raises(ConfigurationError, match="the state is closed"):
        new_reader.get(user("a"))


def test_a_cursor_reads_as_far_as_it_is_paged() -> None:
    """A page back takes nothing; the end is known when it is reached."""
    read = Cursor((each for each in numbers(120, gaps=True)), lambda: None)
    read.advance(PAGE_ROWS + 1)
    assert (read.count, read.is_done, read.has_page(2), read.has_page(3)) == (51, False, True, False)
    read.advance(3 * PAGE_ROWS)
    assert (read.count, read.is_done, read.page(3)) == (120, True, list(range(100, 120)))
    read.advance(1)
    assert read.page(1) == list(range(50))


def test_a_cursor_keeps_so_many_rows_and_counts_all() -> None:
    read = Cursor((each for each in numbers(KEPT + 7)), lambda: None)
    read.advance(float("inf"), budget_s=60)
    assert (len(read.rows), read.count, read.is_done) == (KEPT, KEPT + 7, True)


def test_a_cursor_keeps_so_many_bytes_and_counts_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dynastate.ui.cursor.KEPT_BYTES", 100)
    read = Cursor((each for each in numbers(50)), lambda: None, lambda _: 30)
    read.advance(float("inf"), budget_s=60)
    assert (read.rows, read.count, read.is_full, read.is_done) == ([0, 1, 2], 50, True, True)


def test_a_cursor_stops_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds nothing goes on at the next request, where it was."""
    now_s = iter(range(1_000))
    monkeypatch.setattr("dynastate.ui.cursor.time.monotonic", lambda: float(next(now_s)))
    read = Cursor((each for each in [None] * 5 + [1]), lambda: None)
    read.advance(1, budget_s=3)
    assert (read.count, read.is_done) == (0, False)
    read.advance(1, budget_s=100)
    assert (read.count, read.page(1)) == (1, [1])


def test_closing_a_cursor_closes_what_it_reads() -> None:
    closed = []
    read = Cursor((each for each in numbers(3)), lambda: closed.append(1))
    read.advance(1)
    read.close()
    assert closed == [1]
    read.advance(3)
    assert (read.count, read.is_done) == (1, True)


@pytest.mark.parametrize(
    ("text", "seen"),
    [("a\nb\tc", "a\nb\tc"), ("\u202egnp", "\\u202egnp"), ("\x00\x1b[1m", "\\u0000\\u001b[1m"), ("ß 鍵 👍", "ß 鍵 👍")],
)
def test_characters_that_hide_are_shown(text: str, seen: str) -> None:
    assert visible(text) == seen


def test_values_are_cut() -> None:
    assert shown(None, 3) is None
    assert shown("abc", 3) == "abc"
    assert shown("abcdef", 3) == "abc … and 3 characters more"
    assert shown([1, None], 20) == "[1, null]"


def test_a_spark_is_of_the_last_hour() -> None:
    """Its x is always the hour, so that a query that has stopped ends early; a peak is in it, however thin."""
    assert spark([(0, 1), (3_000, 1)], 10_000, "batch", from_zero=True) is None
    line = spark([(7_000, 0), (8_200, 5), (9_000, 10)], 10_000, "rows", from_zero=False)
    assert line is not None
    assert line.title == "rows in the last hour: 0 to 10"
    places = [tuple(map(float, each.split(","))) for each in line.line.split()]
    assert [y for _, y in places] == [SPARK_HEIGHT - 3, SPARK_HEIGHT / 2, 3]
    assert places[-1][0] == line.last[0] < SPARK_WIDTH * 0.75
    long = spark([(9_000 + each, 1 + 99 * (each == 501)) for each in range(1_000)], 10_000, "batch", from_zero=True)
    assert long is not None
    assert (long.title, len(long.line.split())) == ("batch in the last hour: 1 to 100", SPARK_POINTS + 1)
    assert long.area


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "²", "0"])
def test_what_is_no_number_is_refused(text: str) -> None:
    ask = Ask({}, {"n": text})
    with pytest.raises(ConfigurationError, match="n must be a whole number, at least 1"):
        ask.number("n", 3, least=1)
    assert Ask({}, {}).number("n", 3) == 3


@pytest.mark.parametrize("text", ["x", "-1", "0", "nan", "inf"])
def test_what_is_not_above_0_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="n must be a number above 0"):
        Ask({}, {"n": text}).positive("n", 1.0)
    assert Ask({}, {"n": "0.5"}).positive("n", 1.0) == 0.5


def test_links_into_the_documentation_lead_somewhere() -> None:
    """Each page, and the heading in it, is there."""
    text = (HERE / "templates" / "health.html").read_text()
    anchors = re.findall(r"{{ troubleshooting }}#([\w-]+)", text)
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    headings = {each.lower().replace(" ", "-") for each in re.findall(r"^## (.*)$", page, re.MULTILINE)}
    assert len(anchors) == 2
    assert set(anchors) <= headings
    assert "## Export" in (ROOT / "docs" / "metrics.md").read_text()


def test_a_check_is_done_or_cancelled() -> None:
    """It reports each store; one that is not there fails; after `cancel` no further store is read."""
    tables = MemoryTables()
    with closing(make_engine(tables)) as engine:
        stores = [StoreBuilder(engine, f"a/0/{number}/default").count_to(2).store for number in range(3)]
    check = Check(tables, "a", [*stores, "a/0/9/default"]).start()  # type: ignore[arg-type]
    wait_until(lambda: not check.is_running, "it did not end")
    assert [each.is_whole for each in check.reports] == [True] * 3
    assert ("hold nothing of this store" in check.failed["a/0/9/default"], check.checked, check.is_cancelled) == (
        True,
        4,
        False,
    )
    assert check.spent.read_units > 0
    cancelled = Check(tables, "a", stores)  # type: ignore[arg-type]
    cancelled.cancel()
    cancelled.start()
    wait_until(lambda: not cancelled.is_running, "it did not end")
    assert (cancelled.checked, cancelled.is_cancelled) == (0, True)


def test_a_check_reads_checkpoints() -> None:
    """They come last, and where there is no store; of one that cannot be read the namespace is named."""
    tables = MemoryTables()
    files, checkpoint = CheckpointFiles(tables, set()), Checkpoint("files", "query")
    for name in ("metadata", "offsets/0", "commits/0"):
        files.put(checkpoint, name, b"{}", overwrites=False)
    tables.items[file_key(checkpoint, "commits/0")]["crc32"] = 1
    check = Check(tables, "files", []).start()  # type: ignore[arg-type]
    wait_until(lambda: not check.is_running, "it did not end")
    assert [(each.checkpoint, each.is_whole) for each in check.checkpoints] == [(checkpoint.location, False)]
    assert (check.failed, check.spent.requests > 0) == ({}, True)
    tables.items[listed_item(checkpoint)[0]]["format"] = 99
    check = Check(tables, "files", []).start()  # type: ignore[arg-type]
    wait_until(lambda: not check.is_running, "it did not end")
    assert list(check.failed) == ["files"]


def test_times_of_more_than_a_day_have_it() -> None:
    assert not has_days([])
    assert not has_days([0, DAY_MS])
    assert has_days([5, DAY_MS + 6])
    assert clock_text(DAY_MS + 1_000, has_day=True) == "02 Jan 00:00:01"
    assert clock_text(DAY_MS + 1_000, has_day=False) == "00:00:01"


def test_the_notice_names_what_the_page_has_of_others() -> None:
    """Each script or style that is not our own, in its version, with its licence beside it."""
    notice = (ROOT / "NOTICE").read_text()
    static = HERE / "static"
    others = {each.name.split(".")[0] for each in static.glob("*.min.js")}
    assert others == {"htmx", "uplot"}
    for name in others:
        assert f"{name}.license.txt" in notice
        assert (static / f"{name}.license.txt").exists()
    assert "uPlot 1.6.32, MIT" in notice
    assert "(v1.6.32)" in (static / "uplot.min.js").read_text()
    assert "htmx 2.0.11, Zero-Clause BSD" in notice
    assert 'version:"2.0.11"' in (static / "htmx.min.js").read_text()
