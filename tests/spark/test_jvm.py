"""The checks within the JVM (tests/spark/scala), each under its own name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from dynastate.format.keys import namespace_of
from dynastate.format.meta import parse_schema
from tests.spark.conftest import Database, Items
from tests.support.jvm import ROOT, java_command
from tests.support.processes import wait_until

pytestmark = pytest.mark.timeout(900)

SCALA = Path(__file__).parent / "scala"
SOURCES = [file.read_text() for file in sorted(SCALA.glob("*.scala"))]
NAMES = [name for source in SOURCES for name in re.findall(r'check\("([^"]+)"\)', source)]
BOTH_WAYS = [name for source in SOURCES for name in re.findall(r'checkBothWays\("([^"]+)"\)', source)]
NAMES += [f"{name}, by {writes}" for name in BOTH_WAYS for writes in ("puts", "appends")]
LONG_FOLDER = "a sidecar starts where the folder for temporary files has a long name"
BOUND_ON_DISK = (
    "on disk, state ten times the bound: every row is right, and the heap stays within the bound and a fifth"
)
BOUND = "state ten times the bound: every row is right, and the heap stays within the bound and a fifth"
#: Long checks (one waits 20 s for a sidecar that is stopped), and those of random examples, by words of their names.
LONG, RANDOM = "a history with restarts|a stopped sidecar is killed", "lists: |buckets: |held changes: |overlay: "
SEED = 20_240_501
#: Less than the test's timeout; a busy machine needs a multiple of the time of an idle one.
WITHIN_S = 800

Verdicts = dict[str, tuple[str, str]]


def run_checks(
    database: Database,
    environment: dict[str, str],
    folder: Path,
    temporary: Path,
    *arguments: str,
    options: Sequence[str] = (),
) -> tuple[Verdicts, str]:
    """Run the checks in a JVM of their own, with options of `java`; the verdict on each, and the log."""
    temporary.mkdir(parents=True)
    words = [f"endpoint={database.endpoint}", f"python={sys.executable}", f"vectors={ROOT / 'tests' / 'vectors'}"]
    words += [f"scratch={folder}", f"seed={SEED}", *arguments]
    command = java_command("io.dynastate.tests.Main", temporary, words, *options)
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=WITHIN_S)
    # It ends when it notices the end of its JVM.
    wait_until(lambda: not list(temporary.glob("dynastate-*")), "a sidecar left its socket behind")
    lines = [line.split("\t") for line in completed.stdout.splitlines() if "\t" in line]
    verdicts = {name: (verdict, reason) for verdict, name, reason in lines}
    return verdicts, f"exit code {completed.returncode}\n{completed.stdout}\n{completed.stderr}"


def is_one_of(name: str, words: str) -> bool:
    return any(each in name for each in words.split("|"))


def assert_ok(name: str, verdicts: tuple[Verdicts, str]) -> None:
    verdict_by_name, log = verdicts
    verdict, reason = verdict_by_name.get(name, ("not run", log))
    assert verdict == "ok", f"{reason}\n{log}"
    if reason.startswith("this Spark has no "):
        pytest.skip(reason)


@pytest.fixture(scope="module")
def verdicts(tests_jar: Path, database: Database, environment: dict[str, str], scratch: Path) -> tuple[Verdicts, str]:
    """Verdicts on all checks except long ones and those that need a JVM to themselves, with a sixth of examples."""
    folder = scratch / "checks"
    return run_checks(database, environment, folder, folder / "tmp", f"without={LONG}", "share=6")


@pytest.mark.every_spark
@pytest.mark.slow
def test_long_checks(tests_jar: Path, database: Database, environment: dict[str, str], folder: Path) -> None:
    verdicts, log = run_checks(database, environment, folder, folder / "tmp", f"named={LONG}|{RANDOM}")
    expected = {name for name in NAMES if is_one_of(name, LONG) or is_one_of(name, RANDOM)}
    assert expected <= set(verdicts), log
    assert {name for name, (verdict, _) in verdicts.items() if verdict != "ok"} == set(), log


@pytest.mark.every_spark
@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in (LONG_FOLDER, BOUND, BOUND_ON_DISK) and not is_one_of(name, LONG)]
)
def test_check(name: str, verdicts: tuple[Verdicts, str]) -> None:
    assert_ok(name, verdicts)


def test_the_executors_log_has_what_a_sidecar_logs(verdicts: tuple[Verdicts, str]) -> None:
    """A line of the sidecar's comes with its level, and says store, version and attempt; so does its start."""
    _, log = verdicts
    context = r"store=\S+/0/\d+/default version=\d+ attempt=\w+"
    assert re.search(rf" WARN Sidecar: ERROR dynastate\.sidecar: open failed {context}: ", log), log
    assert re.search(r" INFO Sidecar: sidecar started pid=\d+ python=\S+ ms=\d+\n", log), log


def test_the_log_says_that_no_sidecar_is_ready(verdicts: tuple[Verdicts, str]) -> None:
    """An executor whose sidecar does not start says so in one line, with the reason."""
    _, log = verdicts
    lines = re.findall(r" WARN Sidecar: sidecar was not made ready with the driver or executor; who first .*\n", log)
    assert len(lines) == 1, log
    assert "/no/such/python" in lines[0]
    assert "Exception in thread" not in log


def test_the_log_says_that_rows_are_loaded_again(verdicts: tuple[Verdicts, str]) -> None:
    """After an error within a fold: once for each version that was in memory, of four checks."""
    _, log = verdicts
    versions = re.findall(
        r" WARN Provider: rows in memory were left half changed by an error, .* version=(\d+)/\w+\n", log
    )
    assert versions == ["1"] * 4, log


def test_the_log_says_that_the_limit_is_too_small(verdicts: tuple[Verdicts, str]) -> None:
    """If the index takes more than `memoryMb`: with a number that suffices."""
    _, log = verdicts
    pattern = r" WARN Provider: memoryMb is too small for .*set it to \d+ or more memoryMb=\d+ indexMb=\d+\n"
    assert re.search(pattern, log), log


def test_one_attempt_is_found_in_both_logs(verdicts: tuple[Verdicts, str]) -> None:
    """The provider and the sidecar spell attempts in the same way, and as the tables do."""
    _, log = verdicts
    pattern = re.compile(r"[0-9a-f]{32}")
    for message in (
        "INFO Provider: loaded",
        "INFO Store: aborted",
        "WARN Sidecar: ERROR dynastate.sidecar: open failed",
    ):
        attempts = re.findall(rf" {re.escape(message)} store=\S+ version=\d+ attempt=(\w\S*)", log)
        assert attempts, message
        assert [each for each in attempts if not pattern.fullmatch(each.rstrip(":")) and each != "any:"] == []


@pytest.mark.parametrize(
    ("only", "name", "temporary"),
    [
        # YARN's folder for temporary files has a longer name than a socket may have.
        ("sidecar", LONG_FOLDER, f"yarn-usercache-appcache-application-container/{'x' * 100}"),
        # With it the socket's path is one or two bytes too long.
        ("sidecar", LONG_FOLDER, "of-70-bytes-"),
        pytest.param("bound", BOUND, "tmp", marks=pytest.mark.slow),
        pytest.param("disk", BOUND_ON_DISK, "tmp", marks=pytest.mark.slow),
    ],
    ids=["long folder", "folder of 70 bytes", "bound", "bound on disk"],
)
def test_check_in_a_jvm_of_its_own(
    only: str, name: str, temporary: str, tests_jar: Path, database: Database, environment: dict[str, str], folder: Path
) -> None:
    """A check that needs another folder, or all of the heap."""
    if temporary.startswith("of-70"):
        temporary = temporary.ljust(70 - len(f"{folder}/"), "x")
    assert_ok(name, run_checks(database, environment, folder, folder / temporary, f"only={only}"))


@pytest.mark.slow
def test_another_collector(tests_jar: Path, database: Database, environment: dict[str, str], folder: Path) -> None:
    """Checks of rows on disk, and of what is released as garbage, pass under ParallelGC; all run under G1."""
    arguments, options = ("only=memory", "named=disk|garbage"), ("-XX:+UseParallelGC",)
    verdicts, log = run_checks(database, environment, folder, folder / "tmp", *arguments, options=options)
    assert len(verdicts) > 20, log
    assert {name for name, (verdict, _) in verdicts.items() if verdict != "ok"} == set(), log


def test_schema_item(verdicts: tuple[Verdicts, str], scratch: Path, items: Items) -> None:
    """The schema item that a provider wrote is as the storage format has it, and its digest names it."""
    namespace = namespace_of(f"{(scratch / 'checks' / 'checkpoint').as_uri()}/state")
    ((key, item),) = [pair for pair in items(f"{namespace}/0/2/default") if pair[0].sort.startswith("schema/")]
    text = parse_schema(key, item)
    assert text == json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))
    (family,) = json.loads(text)["families"]
    assert list(family) == ["id", "internal", "key", "key_encoder", "multiple", "name", "value"]
    assert (family["id"], family["internal"], family["multiple"], family["name"]) == (0, False, False, "default")
    assert [column["name"] for column in family["key"]["fields"]] == ["name", "id"]
    assert [column["name"] for column in family["value"]["fields"]] == ["count", "note"]
    assert family["key_encoder"]["keyStateEncoderType"] == "NoPrefixKeyStateEncoderSpec"
