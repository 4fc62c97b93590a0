"""The same cases on Spark's own state stores and on ours, through Spark's traits, without a session or a query.

The cases are in `scala/*Cases.scala`. Where a provider differs from them, `scala/Differences.scala` says so and why.
One JVM plays all cases of a kind of provider, each case in a checkpoint of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.provider.conftest import Programs
from tests.support.jvm import SPARK

pytestmark = [pytest.mark.every_spark, pytest.mark.timeout(900)]
HERE = Path(__file__).parent
#: Whether stores have column families, and so lists, and ids of checkpoint format 2.
HAS_FAMILIES = SPARK != "3.5"
OURS = ("dynastate", "dynastate-v2", "dynastate-bounded") if HAS_FAMILIES else ("dynastate", "dynastate-bounded")
PROVIDERS = {"hdfs": "hdfs", "rocksdb": "rocksdb"} | dict.fromkeys(OURS, "dynastate")
#: `make test` plays the cases on this one only, which has the checkpoint format of `configure`.
QUICK = "dynastate" if SPARK in ("3.5", "4.0") else "dynastate-v2"
SLOW = {name: [pytest.mark.slow] * (name != QUICK) for name in PROVIDERS}
RUN_DEADLINE_S = 800
BEFORE_43 = {"a-family-registered-by-a-reader", "an-iterator-that-is-moved", "an-iterator-that-is-moved-by-timers"}
BEFORE_42 = BEFORE_43 | {
    "an-unknown-family",
    "a-snapshot-is-asked-for",
    "an-empty-store-above-the-last-version",
    "keys-that-begin-with-a-time",
    "keys-that-end-with-a-time",
    "list-calls-on-single-values",
    "lists-of-keys-with-a-time",
    "removal-of-a-range",
    "removal-of-a-range-the-wrong-way-round",
    "scans-that-are-refused",
}
#: Cases with a call that a Spark does not have; what they check before it is checked.
BEFORE_41 = BEFORE_42 | {"empty-lists", "nulls-in-lists-are-refused", "upgraded-at-another-version"}
BEFORE_40 = BEFORE_41 | {
    "change-feed",
    "change-feed-left-early",
    "checkpoint-info-before-commit",
    "families-off",
    "replay-from-a-snapshot",
}
ABSENT = {"3.5": BEFORE_40, "4.0": BEFORE_41, "4.1": BEFORE_42, "4.2": BEFORE_43}
CASE = re.compile(r'^ +test(BothWays|EachWay|WithAppends)?\("([^"]+)"((?:, \w+)*)\)', re.MULTILINE)
WITH_APPENDS = "-with-appends"
#: What the names of cases end with, by how they are registered.
FORMS = {
    "": [""],
    "BothWays": ["", "-in-families"],
    "EachWay": ["", "-in-families", WITH_APPENDS],
    "WithAppends": ["", WITH_APPENDS],
}


def cases(provider: str, *without: str) -> list[str]:
    """Names of the cases that are played on a provider, as the sources list them, without those with some needs."""
    names: list[str] = []
    for source in sorted((HERE / "scala").glob("*Cases.scala")):
        for group, name, needs in CASE.findall(source.read_text()):
            # Checkpoint ids belong to checkpoint format v2, in which ours plays all cases.
            if (provider != "dynastate" or "Ids" not in needs) and not any(need in needs for need in without):
                names += [name + form for form in ([""] if "Families" in without else FORMS[group])]
    return names


@pytest.fixture(scope="module")
def outcomes(
    programs: Programs, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], dict[str, str]]]:
    """`outcomes(provider)` by case. The providers that any test asks for are played at once, a JVM for each kind."""
    tmp_path_factory.getbasetemp()  # pytest makes it at its first use, and not in two threads at once

    def play(kind: str) -> dict[str, dict[str, str]]:
        folder = tmp_path_factory.mktemp(kind)
        names = ",".join(name for name in providers if PROVIDERS[name] == kind)
        for_kind = programs if kind == "dynastate" else replace(programs, conf={})
        command = for_kind.command("Conformance", f"kind={kind}", f"providers={names}", f"root={folder}")
        completed = programs.run(command, folder / "log", RUN_DEADLINE_S)
        assert completed.returncode == 0, (
            f"the JVM ended with {completed.returncode}:\n{(folder / 'log').read_text()[-4000:]}"
        )
        outcomes_: dict[str, dict[str, str]] = {}
        for line in completed.stdout.splitlines():
            outcome = json.loads(line)
            outcomes_.setdefault(outcome["provider"], {})[outcome["case"]] = outcome["outcome"]
        return outcomes_

    tests = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    providers = {params["provider"] for params in tests if "provider" in params}
    futures: dict[str, Future[dict[str, dict[str, str]]]] = {}
    with ThreadPoolExecutor(2) as pool:
        for kind in sorted({PROVIDERS[name] for name in providers}):
            futures[kind] = pool.submit(play, kind)
        yield lambda provider: futures[PROVIDERS[provider]].result()[provider]


@pytest.mark.parametrize(
    ("provider", "case"),
    [pytest.param(*each, marks=SLOW[each[0]]) for each in ((name, case) for name in PROVIDERS for case in cases(name))],
)
def test_conformance(outcomes: Callable[[str], dict[str, str]], provider: str, case: str) -> None:
    """A provider does what Spark's operators rely on, or differs as the table of differences says."""
    outcome = outcomes(provider)[case]
    verdict, _, reason = outcome.partition(": ")
    assert verdict in ("ok", "differs", "unsupported", "absent"), f"{provider}, {case}: {reason}"


@pytest.mark.parametrize("provider", [pytest.param(name, marks=SLOW[name]) for name in PROVIDERS])
def test_every_case_is_named(outcomes: Callable[[str], dict[str, str]], provider: str) -> None:
    """The cases that were played are those that the tests above are named after."""
    assert sorted(outcomes(provider)) == sorted(cases(provider))


@pytest.mark.parametrize(
    "provider", [pytest.param(name, marks=SLOW[name]) for name in PROVIDERS if "dynastate" in name]
)
def test_ours_differ_in_no_case(outcomes: Callable[[str], dict[str, str]], provider: str) -> None:
    """Nothing is unsupported by ours; what is absent an older Spark cannot ask."""
    others = {case for case, outcome in outcomes(provider).items() if outcome != "ok"}
    absent = {case for case, outcome in outcomes(provider).items() if outcome.startswith("absent: ")}
    with_families = set() if HAS_FAMILIES else set(cases(provider)) - set(cases(provider, "Families", "Ids"))
    expected = {case for case in cases(provider) if case.removesuffix(WITH_APPENDS) in ABSENT.get(SPARK, set())}
    assert absent == expected | with_families
    assert others == absent
