"""The demo on two weeks of January, with its kill; it fails when a result is wrong."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner

from dynastate import demo
from dynastate.cli.app import make_app
from dynastate.demo import flights, play, verify
from dynastate.demo.contents import Figures
from dynastate.demo.flights import Input
from dynastate.demo.process import Layout, SparkProcess
from dynastate.errors import ConfigurationError, InternalError
from dynastate.settings import Settings
from tests.support.command_line import of_schema
from tests.support.processes import wait_until

DAYS = 14
DAYS_PER_FILE = 2
FILES = 7
ENDED_WITHIN_S = 60.0


@dataclass(frozen=True)
class Played:
    """A completed demo: its input, its work folder, its output and figures."""

    data: Input
    work: Layout
    shown: str
    figures: dict[str, Figures]


@pytest.fixture(scope="module")
def played() -> Iterator[Played]:
    """Run the demo once, for all tests that check its results."""
    folder = Path(tempfile.mkdtemp(prefix="dyn-"))
    output = io.StringIO()
    data, work = flights.load(DAYS), Layout(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(play, "_PICKY_S", 3.0)  # there are few batches: kill in the next one
        figures = play.play(work, data, DAYS_PER_FILE, Console(file=output, width=200))
    yield Played(data, work, output.getvalue(), figures)
    shutil.rmtree(folder)


@pytest.fixture
def tampered(played: Played, tmp_path: Path) -> Layout:
    for part in ("out", "state"):
        shutil.copytree(played.work.root / part, tmp_path / part)
    return Layout(tmp_path)


def is_alive(pid: int) -> bool:
    """Whether a process of this group runs; a zombie, which waits for its parent's `wait`, does not."""
    output = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout
    return any(group == str(pid) and not stat.startswith("Z") for group, stat in map(str.split, output.splitlines()))


def wait_until_ended(pid: int) -> None:
    wait_until(lambda: not is_alive(pid), f"process group {pid} outlived the demo", ENDED_WITHIN_S)


@pytest.mark.slow
def test_every_value_is_equal_after_a_kill_in_mid_batch(played: Played) -> None:
    """Spark is killed with a batch under way and restarts, and all results are those of the batch computation."""
    assert "was killed with SIGKILL in mid-batch" in played.shown
    assert re.search(r"batch \d+ under way, committed by \d+ of its \d+ stores", played.shown)
    assert "Spark starts again from the checkpoint" in played.shown
    assert list(played.work.root.rglob("commits")) == []
    comparisons = verify.check(played.work, played.data)
    assert [each.differences for each in comparisons] == [()] * 4
    assert played.shown.count(": equal") == 4
    hours = played.data.flights.groupby(["origin", "at"]).ngroups
    assert [each.rows for each in comparisons[:2]] == [played.data.flights["tailnum"].nunique(dropna=False)] * 2
    assert comparisons[2].rows + comparisons[3].rows == hours
    assert comparisons[3].rows > 0


@pytest.mark.slow
def test_stores_that_had_committed_the_killed_batch_made_it_twice(played: Played) -> None:
    """Exactly the stores whose commit Spark did not record have two attempts at that version."""
    commits = sum(map(int, re.findall(r"committed by (\d+) of its", played.shown)))
    assert sum(each.made_twice for each in played.figures.values()) == commits


@pytest.mark.slow
def test_figures_are_those_of_the_tables(played: Played) -> None:
    aircraft, hours = played.figures["aircraft"], played.figures["airport_hours"]
    assert aircraft.state_rows == played.data.flights["tailnum"].nunique(dropna=False)
    # The last batch of hours has no data, and closes some. A kill between the logs of files and of offsets joins two.
    assert FILES - 1 <= aircraft.batches <= FILES
    assert FILES <= hours.batches <= FILES + 1
    assert (aircraft.stores, hours.stores) == (2, 10)
    for figures in (aircraft, hours):
        assert figures.versions == figures.batches * figures.stores
        assert figures.write_units >= figures.delta_bytes / 1024
        assert figures.requests > figures.versions
        assert figures.dollars > 0

    output = io.StringIO()
    play.report(played.figures, Console(file=output, width=80))
    assert f"{aircraft.state_rows + hours.state_rows:,}" in output.getvalue()


@pytest.mark.slow
def test_figures_for_programs(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    def play_again(_: Layout, __: Input, ___: int, console: Console, *, with_page: bool) -> dict[str, Figures]:
        console.print("printed")
        assert not with_page
        return played.figures

    monkeypatch.setattr(play, "play", play_again)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        result = CliRunner().invoke(make_app(), ["demo", "--json"])
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert result.exit_code == 0, result.output
    figures = of_schema(("demo",), json.loads(result.stdout))
    assert sorted(figures) == ["aircraft", "airport_hours"]
    assert figures["aircraft"]["state_rows"] == played.figures["aircraft"].state_rows
    assert figures["aircraft"]["dollars"] == played.figures["aircraft"].dollars
    assert result.stderr.startswith("printed\n")
    assert "all values are equal" in result.stderr


@pytest.mark.slow
def test_no_process_of_spark_is_left(played: Played) -> None:
    """Both Spark processes have ended, with their JVMs and sidecars."""
    pids = [int(pid) for pid in re.findall(r"in process (\d+)", played.shown)]
    assert len(pids) == 2
    for pid in pids:
        wait_until_ended(pid)


def change_file(folder: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    for file in sorted(folder.rglob("*.parquet")):
        rows = pd.read_parquet(file)
        if len(rows):
            change(rows).to_parquet(file, index=False)
            return
    raise AssertionError(folder)


def one_late(rows: pd.DataFrame) -> pd.DataFrame:
    first = rows["max_delay"].notna().cumsum().eq(1) & rows["max_delay"].notna()
    return rows.assign(max_delay=rows["max_delay"] + first)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "change", "column"),
    [
        ("out/airport_hours", one_late, "max_delay"),
        ("out/airport_hours", lambda rows: rows[1:], ""),
        ("out/airport_hours", lambda rows: pd.concat([rows, rows[:1]]), ""),
        ("out/airport_hours", lambda rows: rows.assign(temp=[None, *rows["temp"][1:]]), "temp"),
        ("state/aircraft", one_late, "max_delay"),
        ("state/aircraft", lambda rows: rows[1:], ""),
        ("state/airport_hours", one_late, "max_delay"),
    ],
    ids=["value", "row lost", "row twice", "null", "value in state", "row lost in state", "value of an open hour"],
)
def test_one_wrong_value_is_found(
    played: Played, tampered: Layout, part: str, change: Callable[[pd.DataFrame], pd.DataFrame], column: str
) -> None:
    change_file(tampered.root / part, change)
    differences = [difference for each in verify.check(tampered, played.data) for difference in each.differences]
    assert [difference.column for difference in differences] == [column]

    output = io.StringIO()
    with pytest.raises(InternalError, match="differences=1 "):
        play.compare(tampered, played.data, Console(file=output, width=200))
    assert output.getvalue().count("DIFFER") == 1
    assert ", ".join(map(str, differences[0].key)) in output.getvalue()


@pytest.mark.slow
def test_a_batch_that_is_lost_at_the_sink_is_found(played: Played, tampered: Layout) -> None:
    """Without the last batch's rows, aircraft have older values: many differences, of which some are shown."""
    shutil.rmtree(max((tampered.outputs / "aircraft").glob("batch=*")))
    output = io.StringIO()
    with pytest.raises(InternalError, match="please report it"):
        play.compare(tampered, played.data, Console(file=output, width=200))
    assert output.getvalue().count("DIFFER") == 1


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_a_demo_that_is_ended_leaves_no_process(end: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C ends everything and removes the work folder; even a demo that is killed leaves no process."""
    with tempfile.TemporaryDirectory() as temporary:
        environment = os.environ | {"TMPDIR": temporary, "NO_COLOR": "1"}
        command = [sys.executable, "-m", "dynastate.cli", "demo"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            first_line = next(line for line in process.stdout if "Spark in process" in line)
            log = next(Path(temporary).glob("dyn-*")) / "spark.log"
            wait_until(lambda: "WARN" in log.read_text(), "the JVM is not at work", 120)
            process.send_signal(end)
            process.communicate(timeout=ENDED_WITHIN_S)
        wait_until_ended(int(first_line.split()[-1]))
        assert process.returncode == (130 if end is signal.SIGINT else -end)
        files = list(Path(temporary).iterdir())
        assert not files or end is signal.SIGKILL, files


def test_a_failed_spark_is_reported_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    work = Layout(tmp_path)
    with SparkProcess(work, Settings(endpoint="http://127.0.0.1:9", region="us-east-1")) as spark:
        wait_until(lambda: spark._process.poll() is not None, "Spark runs", ENDED_WITHIN_S)
        with pytest.raises(InternalError, match=rf"JAVA_GATEWAY_EXITED.* exit_code=1 log={work.log}"):
            spark.is_running()
    assert "nowhere" in work.log.read_text()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_MODULES", (*demo._MODULES, "no_such_module"))
    with pytest.raises(ConfigurationError, match=r"the demo needs no_such_module; pip install no_such_module"):
        demo.run_demo()


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"needs Java 17 or newer; install .* found=11"):
        demo.check_requirements()
