"""The page's requests without a browser: who is refused, what is not there, what the reader's policy permits."""

from __future__ import annotations

import http.client
import itertools
import json
import re
import shlex
import time
from contextlib import closing
from datetime import datetime, timedelta, timezone
from html import unescape
from pathlib import Path
from urllib.parse import urljoin, urlsplit
from uuid import uuid4

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.checkpoint import CheckpointFiles
from dynastate.format.checkpoint import Checkpoint
from dynastate.format.keys import Attempt
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.operations.monitoring.reports import METRICS, REPORTED
from dynastate.settings import DELTA_TABLE, SNAPSHOT_TABLE
from dynastate.ui.app import HEADERS
from dynastate.ui.watch import NO_STORES
from tests.support.command_line import refused, run
from tests.support.contents import parts_of
from tests.support.engine_driver import make_engine
from tests.support.fault_proxy import CutError, FaultProxy, Forward, Reply, Request, let_pass
from tests.support.policies import enforce, render
from tests.support.processes import free_port, wait_until
from tests.support.store_builder import StoreBuilder, counted, user
from tests.ui.conftest import Database, served


def ask(url: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    """Send one request, as it is; its status, its text, its headers."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.netloc, timeout=30)) as connection:
        place = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(method, place, headers={"Host": parts.netloc} | headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}


def test_who_has_no_token_sees_nothing(url: str) -> None:
    """Not a page, nor a file; and a wrong token is as good as none."""
    parts = urlsplit(url)
    token = parts.path.strip("/")
    for place in ("/", "/query/shop", "/static/style.css", f"/{token[:-1]}/", f"/{token}x/", "/%ff/"):
        status, text, _ = ask(f"http://{parts.netloc}{place}")
        assert (status, "shop" in text) == (403, False), place
    assert len(token) >= 20


def test_another_name_of_this_host_is_refused(url: str) -> None:
    """A page of the web whose name leads to 127.0.0.1 reads nothing."""
    assert ask(url, Host="evil.example")[0] == 400
    assert ask(url, Host="localhost")[0] == 200


def test_headers(url: str) -> None:
    for place in ("", "static/style.css", "nothing", "query/missing"):
        _, _, headers = ask(url + place, Origin="http://evil.example")
        assert {name.lower(): value for name, value in HEADERS.items()}.items() <= headers.items()
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_is_written(url: str, method: str) -> None:
    for place in ("", "query/shop", "rows/shop/0"):
        assert ask(url + place, method)[0] == 405


@pytest.mark.parametrize(
    ("place", "status", "words"),
    [
        ("query/missing", 200, NO_STORES),
        ("operator/missing/0", 400, "missing"),
        ("operator/shop/7", 400, "there is no such operator"),
        ("operator/shop/0?partition=99", 400, "there are 0 to 7"),
        ("operator/shop/0?partition=x", 400, "partition must be a whole number"),
        ("operator/shop/x", 404, "Not Found"),
        ("key/shop/0?k.user=a&version=99", 404, "this version cannot be read"),
        ("key/types/0?family=none", 400, "this store has no column family none"),
        ("rows/shop/0?page=0", 400, "page must be a whole number, at least 1"),
        ("compare/shop/0?before=1&after=99", 404, "this version cannot be read"),
        ("cost/shop?trigger=0", 400, "trigger must be a number above 0"),
        ("cost/shop?trigger=nan", 400, "trigger must be a number above 0"),
        ("cost/shop?partitions=-1", 400, "partitions must be a whole number"),
        ("rows/sh%2Fop/0", 404, "Not Found"),
    ],
)
def test_what_is_wrong_is_said(url: str, place: str, status: int, words: str) -> None:
    code, text, _ = ask(url + place)
    assert (code, words in text) == (status, True), text


def test_a_form_stays_as_it_was_filled(url: str) -> None:
    """Also where its answer is an error."""
    status, text, _ = ask(url + "key/shop/0?k.user=user-3-0&other=99")
    assert (status, "this version cannot be read" in text) == (404, True)
    assert ('name="k.user" value="user-3-0"' in text, 'name="other" inputmode="numeric" value="99"' in text) == (
        True,
        True,
    )


def test_health_shows_the_busiest_partition_key(url: str) -> None:
    assert "Write units a second of the busiest partition key: " in ask(url + "health/shop")[1]


def test_the_price_of_a_query_is_one(url: str) -> None:
    """It is the same on Queries and on Cost, which shows no advice that saves nothing."""
    (price,) = re.findall(r'id="cost-1" [^>]*><span class="unit">\$ </span>([\d.]+)<', ask(url + "query/shop")[1])
    cost = ask(url + "cost/shop")[1]
    (day,) = re.findall(r"<dt>A day, predicted</dt><dd>\$([\d.]+)</dd>", cost)
    assert float(price) == float(day)
    savings = re.findall(r'data-label="saves, \$ a month">(-?[\d.]+)</td>', cost.partition('id="advice"')[2])
    assert min(map(float, savings)) >= 0.01
    assert "would save nothing" in cost


def test_the_batches_of_a_query(url: str, database: Database) -> None:
    """The newest first, with times and offsets; what is corrupt is said, and a checkpoint elsewhere has none."""
    checkpoint = Checkpoint("logged", "query")
    moments = (datetime.now(timezone.utc) + timedelta(seconds=number) for number in itertools.count(-30))
    with (
        closing(BotoTables(database.settings)) as tables,
        closing(make_engine(tables, now=lambda: next(moments))) as engine,
    ):
        StoreBuilder(engine, "logged/0/0/default", location="dynastate://logged/query/state").count_to(30)
        files = CheckpointFiles(tables, set())
        for batch in range(31):
            offsets = f'v1\n{{"batchTimestampMs":{1_735_689_600_000 + batch * 1000}}}\n{{"logOffset":"<b>{batch}"}}'
            files.put(checkpoint, f"offsets/{batch}", offsets.encode(), overwrites=False)
        for batch in range(30):
            files.put(checkpoint, f"commits/{batch}", b"v1\n{}", overwrites=False)
        files.put(checkpoint, "offsets/28", b"v1\nno JSON", overwrites=True)
        files.put(checkpoint, "sources/0/0", b"v1", overwrites=False)
    text = ask(url + "query/logged")[1]
    table = text.partition('id="batches"')[2]
    lines = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", line, re.DOTALL) for line in lines]
    assert [int(row[0]) for row in rows[1:]] == list(range(30, 9, -1))
    began, committed, took, ends = rows[1][1:]
    assert (began, committed, len(took)) == ("2025-01-01 00:00:30 UTC", "not yet", 1)
    assert "&lt;b&gt;30" in ends
    assert rows[2][2].startswith("20")
    assert re.fullmatch(r"[\d,]+\.\d", rows[2][3])
    assert "offsets/28 is not as Spark writes it" in rows[3][1]
    assert "Batches" not in ask(url + "query/shop")[1]
    assert ["log in DynamoDB" in ask(url + f"cost/{name}")[1] for name in ("logged", "shop")] == [True, False]
    # Without a new version nothing is read again for some seconds: each time that of the last look is counted.
    first, second = (int(re.findall(r"in (\d+) requests?<", each)[0]) for each in (text, ask(url + "query/logged")[1]))
    assert first - second == 3


@pytest.mark.slow
def test_a_result_is_of_one_version(database: Database, environment: dict[str, str]) -> None:
    """While a result is read, and on its other pages, the version is that of the form, whatever is committed."""
    is_slow = False

    def rule(request: Request, forward: Forward) -> Reply:
        if is_slow and request.operation in ("Query", "BatchGetItem"):
            time.sleep(0.3)
        return forward(request)

    with closing(BotoTables(database.settings)) as tables, closing(make_engine(tables)) as engine:
        builder = StoreBuilder(engine, "moving/0/0/default")
        builder.commit(*((user(f"user-{number}"), counted(number)) for number in range(120)))
        with FaultProxy(database.endpoint, rule) as proxy, served(proxy.endpoint, environment, "moving") as url:
            for place in ("rows/moving/0", "compare/moving/0?before=0"):
                is_slow = True
                text = ask(url + place)[1]
                is_slow = False
                builder.commit((user("late"), counted(0)))
                version = builder.version.version - 1
                polls = re.findall(r'hx-get="([^"]+)"', text)
                links = polls or re.findall(r'id="page-next" href="([^"]+)"', text)
                assert (place, polls != []) == (place, True)
                following = ask(urljoin(url, unescape(links[0])))[1]
                assert (f"at version {version}." in following) or (f"From version 0 to {version}:" in following)
                assert f'value="{version}"' in following
                (next_link,) = re.findall(r'id="page-next" href="([^"]+)"', following)
                assert re.search(rf"(version|after)={version}\b", next_link)


@pytest.mark.slow
def test_a_version_that_was_made_again_is_read_again(database: Database, url: str) -> None:
    """After a query is taken back, a number is another version's: no result of the undone one is shown for it."""
    with closing(BotoTables(database.settings)) as tables, closing(make_engine(tables)) as engine:
        builder = StoreBuilder(engine, "again/0/0/default").count_to(3)
        version_3 = builder.version, dict(builder.state)
        for version in (4, 5):
            builder.commit((user("a"), counted(version, f"undone {version}")))
        places = ("rows/again/0?version=5", "compare/again/0?before=4&after=5", "compare/again/0?before=4&after=3")
        for place in places:
            assert "undone" in ask(url + place)[1]
        builder.run, (builder.version, builder.state) = "run-2", version_3
        for version in (4, 5):
            row = counted(version, f"second {version}")
            builder.commit((user("a"), row), (user("b"), row), by=Attempt(uuid4().bytes))
    wait_until(lambda: "2 rows at version 5" in ask(url + places[0])[1], "the new version is not shown")
    for place in places:
        text = ask(url + place)[1]
        assert ("second" in text, "undone" in text) == (True, False), text


@pytest.mark.slow
def test_a_view_of_an_unchanged_store_takes_no_search_for_stores(url: str) -> None:
    """The second view of the same rows reads the newest versions, one unit for each partition, and nothing else."""
    for place in ("query/shop", "rows/shop/0", "key/shop/0?k.user=user-3-1", "compare/shop/0", "operator/shop/0"):
        ask(url + place)
    time.sleep(2.1)
    count = units(ask(url + "query/shop")[1])
    assert count <= 8
    for place in ("rows/shop/0", "key/shop/0", "compare/shop/0", "operator/shop/0"):
        assert units(ask(url + place)[1]) <= 8, place


def units(text: str) -> int:
    (number,) = re.findall(r"This look <b>([\d,]+) read units? in", text)
    return int(number.replace(",", ""))


def test_commands_can_be_copied(url: str, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command of each view runs in a terminal that knows nothing of the page's options."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for place in (
        *("query/shop", "operator/shop/0", "key/shop/0", "key/shop/0?k.user=user-3-1&version=2", "rows/shop/0"),
        *("compare/shop/0", "cost/shop", "health/shop", "key/types/0?family=every&k.user=a", "rows/types/0"),
        *("rows/types/0?family=lists", "compare/types/0?family=every", "rows/join/0?store=left-keyToNumValues"),
    ):
        text = ask(url + place)[1]
        (line,) = re.findall(r"<code><bdi>(.*)</bdi></code>", text.partition('id="terminal"')[2])
        words = shlex.split(unescape(re.sub("<[^>]*>", "", line)))
        assert (words[0], words[-4:]) == ("dynastate", ["--endpoint", database.endpoint, "--region", "us-east-1"]), (
            place
        )
        result = run(*words[1:], *(("--looks", "1") if words[1] == "top" else ()))
        assert result.code == (1 if place == "key/shop/0" else 0), (place, line, result.err)


def test_what_is_lost_is_said(url: str, database: Database) -> None:
    """`verify` names what is missing; the view of the rows says so too."""
    with closing(BotoTables(database.settings)) as tables, closing(make_engine(tables)) as engine:
        store = StoreBuilder(engine, "lost/0/0/default").count_to(3).store
        tables.delete([key for key, _ in parts_of(tables, store)])
    status, text, _ = ask(url + "rows/lost/0")
    assert (status, "dynastate verify lost" in text) == (503, True), text


@pytest.mark.slow
def test_a_dead_dynamodb_is_named_at_the_next_look(database: Database, environment: dict[str, str]) -> None:
    """A page that was opened says so, and since when; views that are opened meanwhile answer within two seconds."""
    is_dead = False

    def rule(request: Request, forward: Forward) -> Reply:
        if is_dead:
            raise CutError
        return forward(request)

    views = ("", "query/shop", "operator/shop/0", "health/shop", "cost/shop")
    with FaultProxy(database.endpoint, rule) as proxy, served(proxy.endpoint, environment, "shop") as url:
        for place in views:
            text = ask(url + place)[1]
            assert ("as of " in text.lower(), ">Old: as of" in text, "has not answered" in text) == (
                True,
                False,
                False,
            ), place
        is_dead = True
        time.sleep(2.1)
        for place in (*views, "key/shop/0", "rows/shop/0", "compare/shop/0"):
            start_s = time.monotonic()
            status, text, _ = ask(url + place)
            took_s = time.monotonic() - start_s
            assert took_s < 2, place
            assert re.search(r"DynamoDB has not answered since \d\d:\d\d:\d\d UTC\.", text), text
            assert text.count("gave no proper answer") == 1
            if place in views:
                assert (status, ">Old: as of" in text, "Live" in text) == (200, True, False), text
                assert 'class="badge ok"' not in text
            else:
                assert (status, "This view reads rows" in text) == (503, True)
        is_dead = False
        wait_until(lambda: "Live, as of" in ask(url + "query/shop")[1], "it is not live again")


@pytest.mark.slow
def test_an_unreachable_dynamodb_at_the_first_look(environment: dict[str, str]) -> None:
    """A view answers soon, and says what is wrong."""
    with served(f"http://127.0.0.1:{free_port()}", environment, "shop") as url:
        for place in ("", "operator/shop/0", "rows/shop/0"):
            start_s = time.monotonic()
            assert "DynamoDB cannot be reached at" in ask(url + place)[1]
            assert time.monotonic() - start_s < 2.5


@pytest.mark.slow
def test_a_dropped_namespace_leaves_the_page(url: str, database: Database, environment: dict[str, str]) -> None:
    """Its fences stay in the table, by which it is listed still."""
    with closing(BotoTables(database.settings)) as tables, closing(make_engine(tables)) as engine:
        stores = [StoreBuilder(engine, f"gone/0/{number}/default").count_to(2).store for number in range(2)]
        with served(database.endpoint, environment) as address:
            assert "query/gone" in ask(address)[1]
            drop_stores(tables, stores)
            time.sleep(2.1)
            text = ask(address)[1]
            assert ("query/gone" in text, "query/shop" in text, "failing" in text.partition("<main")[2]) == (
                False,
                True,
                False,
            ), text
        assert "gone" in {store.split("/")[0] for store in tables.find_stores()}
    text = ask(url + "query/gone")[1]
    assert (text.count(NO_STORES), "operator/gone" in text, "failing" in text.partition("<main")[2]) == (
        1,
        False,
        False,
    )


def test_the_readers_policy_suffices(database: Database, environment: dict[str, str]) -> None:
    """Every view of a namespace that is named."""
    policy = render("reader", delta=DELTA_TABLE, snapshot=SNAPSHOT_TABLE, namespace="shop")
    with FaultProxy(database.endpoint, enforce(policy, let_pass)) as proxy:
        with served(proxy.endpoint, environment, "shop") as url:
            for place in (
                *("", "query/shop", "operator/shop/0", "key/shop/0?k.user=user-3-1&other=3", "rows/shop/0"),
                *("compare/shop/0", "cost/shop", "health/shop"),
            ):
                status, text, _ = ask(url + place)
                assert (status, "denies permission" in text) == (200, False), text
            status, text, _ = ask(url + "query/types")
            assert (status, "this page was not started for this namespace" in text) == (400, True)
        with served(proxy.endpoint, environment) as url:
            status, text, _ = ask(url)
            assert (status, "dynamodb:Scan" in text or "Scan" in text) == (400, True), text


@pytest.mark.slow
def test_throttles_of_the_progress_reports(database: Database, environment: dict[str, str], tmp_path: Path) -> None:
    """With --progress the page shows them, batch by batch, and which operator is throttled."""
    file = tmp_path / "progress.json"

    def report(batch: int, throttles: int) -> str:
        every = dict.fromkeys((name for names in METRICS.values() for name in names), 0)
        metrics = every | {"dynastateThrottles": throttles, "dynastateWriteUnits": 100 + batch, "dynastateCommitMs": 16}
        report = {"id": "q", "runId": "run-1", "batchId": batch, "timestamp": f"2026-11-24T00:00:0{batch}.000Z"}
        durations = {"addBatch": 1_000, "triggerExecution": 1_500}
        return json.dumps(report | {"durationMs": durations, "stateOperators": [{"customMetrics": metrics}]}) + "\n"

    file.write_text(report(1, 0) + report(2, 7))
    with served(database.endpoint, environment, "shop", "--progress", str(file)) as url:
        health = ask(url + "health/shop")[1]
        assert "7 requests of the last batch" in health, "also of a query that is stopped by now"
        assert re.search(r'>00:00:02</time></td><td class="n">2</td><td class="n">7</td>', health)
        cost = ask(url + "cost/shop")[1]
        assert '>00:00:01</time></td><td class="n">1</td><td class="n">\N{EN DASH}</td>' in cost
        assert re.search(r'>00:00:02</time></td><td class="n">2</td><td class="n">\d+\.\d\d</td>', cost)
        # Two batches of 101 and 102 write units, a second apart.
        assert re.search(rf"By the last 2 reported batches: <strong>\$\d+\.\d\d a day</strong>; {REPORTED}", cost)
    path = tmp_path / "missing"
    assert "the progress reports cannot be read" in refused("ui", "shop", "--progress", str(path), "--no-browser")


@pytest.mark.slow
def test_a_check_is_followed_and_cancelled(database: Database, environment: dict[str, str]) -> None:
    """While it runs the page says how far it is; cancelled, it says so."""

    def slow(request: Request, forward: Forward) -> Reply:
        time.sleep(0.05)
        return forward(request)

    with FaultProxy(database.endpoint, slow) as proxy, served(proxy.endpoint, environment, "shop") as url:
        assert ask(url + "health/shop/cancel", "POST")[0] == 303
        status, _, headers = ask(url + "health/shop/verify", "POST")
        assert (status, urlsplit(headers["location"]).path) == (303, urlsplit(url + "health/shop").path)
        text = ask(url + "health/shop")[1]
        assert ("of 8 stores" in text, 'id="cancel"' in text) == (True, True)
        ask(url + "health/shop/cancel", "POST")
        wait_until(lambda: "It was cancelled after" in ask(url + "health/shop")[1], "it was not cancelled")
        assert ask(url + "health/missing/verify", "POST")[0] == 400


def test_a_taken_port_and_a_wrong_namespace(database: Database, dummy_credentials: None) -> None:
    port = str(urlsplit(database.endpoint).port)
    assert f"name another port, or 0 for a free one port={port}" in refused("ui", "--port", port, "--no-browser")
    assert "namespace" in refused("ui", "a/b", "--port", str(free_port()), "--no-browser")
