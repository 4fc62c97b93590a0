"""The page in a real browser: every view, narrow and wide, live, with hostile values, by keyboard, for two people."""

from __future__ import annotations

import re
from contextlib import closing

import pytest
from playwright.sync_api import Browser, Page, expect

from dynastate.dynamodb.boto_tables import BotoTables
from tests.support.browser import opened
from tests.support.engine_driver import make_engine
from tests.support.fault_proxy import CutError, FaultProxy, Forward, Reply, Request
from tests.support.samples import attempt, query_run
from tests.support.store_builder import COUNTS, StoreBuilder, counted, user
from tests.ui.checks import BACKWARDS, DRAWN, LEFT_FIGURES, LOW_CONTRAST
from tests.ui.conftest import Database, served
from tests.ui.dataset import BATCH_S, HOSTILE, LARGEST, MANY, PARTITIONS, VERSIONS

VIEWS = {
    "queries": "",
    "query": "query/shop",
    "operator": f"operator/shop/0?partition={LARGEST}",
    "key": "key/shop/0?k.user=user-3-1&version=5&other=3",
    "rows": "rows/shop/0",
    "compare": "compare/shop/0",
    "cost": "cost/shop",
    "health": "health/shop",
    "types": "key/types/0?family=every&k.user=a",
    "lists": "key/types/0?family=lists&k.user=a",
    "join": "operator/join/0?store=left-keyToNumValues",
}


@pytest.mark.parametrize(
    ("width", "scheme"), [(1600, "light"), (400, "dark"), pytest.param(400, "light", marks=pytest.mark.slow)]
)
def test_every_view_can_be_read(browser: Browser, url: str, width: int, scheme: str) -> None:
    """Nothing is wider than the window, every text has contrast, figures are on the right, focus goes as one reads.

    The read units and a command line are in each view, and nothing fails.
    """
    with opened(browser, url, width, scheme) as page:
        for name, place in VIEWS.items():
            page.goto(url + place)
            expect(page.get_by_text(re.compile(r"This look [\d,]+ read units? in [\d,]+ request"))).to_be_visible()
            expect(page.locator("#terminal code")).to_contain_text("dynastate ")
            expect(page.locator("#terminal button")).to_be_visible()
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
            background = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (background == "rgb(246, 245, 241)") == (scheme == "light")
            assert page.evaluate(LEFT_FIGURES) == [], name
            assert page.evaluate(LOW_CONTRAST) == [], name
            assert page.evaluate(BACKWARDS) == [], name
            for chart in page.evaluate(DRAWN):
                assert len(chart["axes"]) >= 1, name
                assert all([*chart["axes"], *chart["values"]]), name


def test_the_checks_find_what_is_wrong(browser: Browser, url: str) -> None:
    """A text that is too pale, tabs in the order from right to left, and a figure on the left."""
    with opened(browser, url + "rows/shop/0") as page:
        page.evaluate("document.querySelector('h1').style.color = '#999'")
        page.evaluate("document.querySelector('.tabs').style.flexDirection = 'row-reverse'")
        page.evaluate("document.querySelector('td.n').style.textAlign = 'left'")
        assert [text for text, _ in page.evaluate(LOW_CONTRAST)] == ["Rows"]
        assert len(page.evaluate(BACKWARDS)) == 3
        assert len(page.evaluate(LEFT_FIGURES)) == 1


def test_the_queries_say_what_they_are(browser: Browser, url: str) -> None:
    """Version, rows, dollars and health of each operator."""
    with opened(browser, url) as page:
        query = page.locator("tbody", has=page.get_by_role("link", name="shop", exact=True))
        cells = [each.strip() for each in query.locator("tr.q > *").all_inner_texts()]
        assert (cells[0], cells[1].split()[0], cells[3]) == ("shop", "ok", f"{BATCH_S}.0")
        assert cells[4] == str(3 * (PARTITIONS - 1) + 59 + len(HOSTILE))
        assert re.fullmatch(r"\d+\.\d\d", cells[6])
        cells = query.locator("tr.op > *").all_inner_texts()
        assert cells[1:3] == [f"{PARTITIONS} partitions", f"version {VERSIONS}"]
        page.locator("#search").fill("join")
        expect(query).to_be_hidden()
        page.locator("#only-stopped").click()
        expect(page.locator("#only-stopped")).to_have_attribute("aria-current", "page")


@pytest.mark.slow
def test_it_is_live_until_it_is_paused(browser: Browser, url: str, database: Database) -> None:
    """A new version is there without a reload; what is paused stays, and goes on."""
    with closing(BotoTables(database.settings)) as tables, closing(make_engine(tables)) as engine:
        builder = StoreBuilder(engine, "live/0/0/default").count_to(2)
        with opened(browser, url + "query/live") as page:
            page.evaluate("window.loaded = 1")
            version = page.locator("tr.op td").nth(2)
            expect(version).to_have_text("version 2")
            builder.count_to(3)
            expect(version).to_have_text("version 3")
            assert page.evaluate("window.loaded") == 1
            page.get_by_role("button", name="Pause").click()
            expect(page.locator("#age")).to_contain_text("Paused, read")
            requests: list[str] = []
            page.on("request", lambda request: requests.append(request.url))
            builder.count_to(4)
            page.wait_for_timeout(5_000)
            assert requests == []
            page.get_by_role("button", name="Resume").click()
            expect(version).to_have_text("version 4")


@pytest.mark.slow
def test_what_is_old_is_not_called_live(browser: Browser, database: Database, environment: dict[str, str]) -> None:
    """DynamoDB dies, and is back; then the page's program ends. The page says each without a reload."""
    is_dead = False

    def rule(request: Request, forward: Forward) -> Reply:
        if is_dead:
            raise CutError
        return forward(request)

    with FaultProxy(database.endpoint, rule) as proxy, browser.new_context() as window:
        page = window.new_page()
        line, banner = page.locator("#age"), page.locator("#banner")
        key = window.new_page()
        with served(proxy.endpoint, environment, "shop") as url:
            page.goto(url + "query/shop")
            key.goto(url + "key/shop/0?k.user=user-3-1")
            expect(line).to_contain_text("Live, read")
            expect(key.locator("#age")).to_contain_text("Read")
            is_dead = True
            expect(line).to_contain_text("Not live, read", timeout=6_000)
            expect(banner).to_contain_text("DynamoDB has not answered since")
            expect(page.locator(".badge").first).to_have_text("old")
            expect(key.locator("#banner")).to_contain_text("DynamoDB has not answered since", timeout=12_000)
            is_dead = False
            expect(line).to_contain_text("Live, read")
            expect(page.locator(".badge").first).not_to_have_text("old")
            expect(key.locator("#banner")).to_be_empty(timeout=12_000)
        expect(page.locator("#gone")).to_contain_text("'dynastate ui' has not answered since")
        expect(line).to_contain_text("Not live")


@pytest.mark.slow
def test_the_focus_stays_while_it_is_live(browser: Browser, url: str) -> None:
    """A link that has it is replaced by the same link, which has it again."""
    with opened(browser, url + "operator/shop/0") as page:
        for place in ("#pause", "#partition-4"):
            page.locator(place).focus()
            with page.expect_response(lambda answer: "operator/shop" in answer.url):
                page.wait_for_timeout(5_500)
            page.wait_for_timeout(200)
            assert page.evaluate("'#' + document.activeElement.id") == place


def test_a_stranger_finds_the_largest_partition(browser: Browser, url: str) -> None:
    """By clicks from the first page; versions and partitions are tables, too."""
    with opened(browser, url) as page:
        page.locator("tbody", has=page.get_by_role("link", name="shop", exact=True)).locator("tr.op a").first.click()
        expect(page.locator("#table-versions tbody tr")).to_have_count(VERSIONS)
        expect(page.locator("#table-versions")).to_contain_text(f"partition {LARGEST}")
        assert rows_of(page, ".parts")[0][:2] == [str(LARGEST), str(59 + len(HOSTILE))]
        largest = page.locator("#largest")
        expect(largest).to_have_text(str(LARGEST))
        largest.click()
        expect(page.get_by_text(f"of shop/0/{LARGEST}/default; 1 to {VERSIONS} can be read")).to_be_visible()
        assert sum(row[-1] == "snapshot" for row in rows_of(page, "#table-versions")) == 1
        columns = page.locator("table.columns tbody tr").all_inner_texts()
        assert [each.split("\t")[:2] for each in columns] == [["user", "string"], *(list(each) for each in COUNTS)]


@pytest.mark.slow
def test_the_heaviest_keys_are_read_on_request(browser: Browser, url: str) -> None:
    with opened(browser, url + "operator/types/0") as page:
        page.locator("#read-keys").click()
        first = page.locator("section", has=page.get_by_role("heading", name="Heaviest keys")).locator("tbody tr").first
        expect(first.get_by_role("link")).to_have_text("a")
        expect(first).to_contain_text("49.0")


def rows_of(page: Page, place: str) -> list[list[str]]:
    """The cells of the rows of a table, also where it is folded."""
    rows = page.locator(f"{place} tbody tr").all()
    return [[cell.strip() for cell in row.locator("td").all_text_contents()] for row in rows]


@pytest.mark.parametrize("place", ["operator/shop/0", f"operator/shop/0?partition={LARGEST}", "cost/shop"])
def test_every_chart_has_axes_with_units(browser: Browser, url: str, place: str) -> None:
    """Each panel names its figure; the values are there before a pointer is, and change under it, in every panel."""
    with opened(browser, url + place) as page:
        charts = page.evaluate(DRAWN)
        assert charts
        for each in charts:
            assert each["plots"] >= len(each["axes"]) >= 1
            assert all(each["axes"])
            assert each["noun"] in ("time", "partition")
            assert all(each["values"])
            assert abs(each["width"]) < 2
        figure = page.locator("figure.chart").first
        at = figure.locator(".at")
        last = at.inner_text()
        assert re.search(r"^version 12, \d\d:\d\d:\d\d$", last)
        over = figure.locator(".u-over").first
        box = over.bounding_box()
        assert box is not None
        over.hover(position={"x": box["width"] * 0.3, "y": 20})
        expect(at).not_to_have_text(last)
        cursors = figure.locator(".u-cursor-x").evaluate_all("all => all.map(each => each.style.transform)")
        assert len(set(cursors)) == 1


def test_a_chart_is_zoomed_by_a_drag(browser: Browser, url: str) -> None:
    """Also after the view is read again; a double click shows all."""
    with opened(browser, url + "operator/shop/0") as page:
        span = "(([plot]) => plot.scales.x.max - plot.scales.x.min)([...drawn.values()][0].plots)"
        whole = page.evaluate(span)
        box = page.locator("#chart-versions .u-over").first.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 50, box["y"] + 30)
        page.mouse.down()
        page.mouse.move(box["x"] + 250, box["y"] + 30, steps=5)
        page.mouse.up()
        zoomed = page.evaluate(span)
        assert zoomed < whole / 2
        with page.expect_response(lambda answer: "operator/shop" in answer.url):
            page.wait_for_timeout(5_200)
        page.wait_for_timeout(200)
        assert page.evaluate(span) == zoomed
        page.locator("#chart-versions .u-over").first.dblclick()
        assert page.evaluate(span) == whole


def test_an_abandoned_attempt_is_marked(browser: Browser, url: str, database: Database) -> None:
    """An attempt at a version on which another one was built is in the timeline, and not among the current ones."""
    with closing(BotoTables(database.settings)) as tables, closing(make_engine(tables)) as engine:
        builder = StoreBuilder(engine, "torn/0/0/default").count_to(2)
        base = builder.version
        builder.commit((user("late"), counted(1)), by=attempt(77))
        second = engine.begin(builder.store, query_run(), *base, attempt(78))
        second.commit({0: 1}, '{"families":[]}')
    with opened(browser, url + "operator/torn/0") as page:
        assert [row[-1] for row in rows_of(page, "#table-versions")] == ["", "", "partition 0"]
        page.locator("#partition-0").click()
        assert [row[-1] for row in rows_of(page, "#table-versions")] == ["", "", attempt(77).hex()[:8]]


@pytest.mark.slow
def test_a_key_by_the_keyboard(browser: Browser, url: str) -> None:
    """The form is there at once; the value, its history, and where it changed; a key that is not there is said so."""
    with opened(browser, url + "key/shop/0") as page:
        expect(page.get_by_label("user").first).to_be_focused()
        page.keyboard.type("user-3-0")
        page.keyboard.press("Enter")
        expect(page.get_by_text(f"There was no such key at version {VERSIONS}.")).to_be_visible()
        history = page.locator(".history tbody tr")
        expect(history).to_have_count(VERSIONS)
        assert "removed" in history.nth(0).inner_text()
        page.locator("#at-5").click()
        rows = page.locator(".fields tbody tr").all_inner_texts()
        assert [each.split()[:-1] for each in rows[1:]] == [
            ["count", "long", "5", "5"],
            ["note", "string", "note", "5", "5"],
        ]
        cells = page.locator(".history tbody tr", has=page.locator("#at-5")).locator("td.changed").all_inner_texts()
        assert [each.split() for each in cells] == [["+1", "5"], ["note", "4", "note", "5"]]
        expect(page.locator("#chart-numbers .at")).to_contain_text(f"version {VERSIONS}")
        page.get_by_label("Compare with version").fill("2")
        page.get_by_role("button", name="Show").click()
        changes = page.locator("tr.changed").all_inner_texts()
        assert [each.split() for each in changes] == [
            ["count", "long", "2", "5"],
            ["note", "string", "note", "2", "note", "5"],
        ]
        page.get_by_label("user").first.fill("missing")
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_text("It was not there at any version that can be read (1 to 12).")).to_be_visible()


def test_the_keyboard_reaches_everything(browser: Browser, url: str) -> None:
    """The first stop leads to the content; each stop after it is a link or a field that can be seen."""
    with opened(browser, url + "rows/shop/0") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        stops = []
        for _ in range(12):
            page.keyboard.press("Tab")
            outline = "getComputedStyle(document.activeElement).outlineStyle"
            stops.append(page.evaluate(f"[document.activeElement.tagName, {outline}]"))
        assert {tag for tag, _ in stops} >= {"A", "INPUT", "SELECT", "BUTTON"}
        assert {style for tag, style in stops if tag != "BODY"} == {"solid"}


@pytest.mark.parametrize("place", ["rows/shop/0", "rows/shop/0?contains=s", "compare/shop/0?before=0&after=1"])
def test_hostile_values_are_only_text(browser: Browser, url: str, place: str) -> None:
    """Texts that are HTML, a script, or turn the order of letters, are shown as what they are."""
    with opened(browser, url + place) as page:
        text, pages = page.inner_text("main"), 1
        while page.locator("#page-next").count():
            page.locator("#page-next").click()
            page.wait_for_load_state()
            text, pages = text + page.inner_text("main"), pages + 1
        assert pages > 1
        for value in HOSTILE:
            if "contains" not in place or "s" in value:
                assert value.replace("\u202e", "\\u202e") in text
        assert page.evaluate("window.hacked") is None


@pytest.mark.slow
def test_hostile_keys_in_the_form(browser: Browser, url: str) -> None:
    with opened(browser, url + "key/shop/0") as page:
        for value in HOSTILE:
            page.get_by_label("user").first.fill(value)
            page.get_by_role("button", name="Show").click()
            expect(page.locator(".fields tbody tr").nth(1).locator("pre")).to_have_text("1")
            assert page.evaluate("window.hacked") is None


@pytest.mark.slow
def test_values_of_every_type(browser: Browser, url: str) -> None:
    with opened(browser, url + VIEWS["types"]) as page:
        lines = page.locator(".fields tbody tr").all()
        rows = {each.locator("th bdi").inner_text(): each.locator("pre").inner_text() for each in lines}
        assert rows["whole"] == str(2**62)
        assert (rows["price"], rows["day"], rows["raw"]) == ("12345.67", "2026-11-24", "AP8=")
        assert rows["at"] == "2026-11-24T12:30:00Z"
        assert "Łódź" in rows["place"]
        assert rows["large"].endswith("and 46,000 characters more")
        page.goto(url + VIEWS["lists"])
        expect(page.get_by_role("heading", name="120 values")).to_be_visible()
        expect(page.locator("ol.list li")).to_have_count(50)
        page.locator("#page-next").click()
        expect(page.locator("ol.list li").first).to_have_text('{"event": "event 50"}')


@pytest.mark.slow
def test_rows_are_filtered_and_paged(browser: Browser, url: str) -> None:
    """A filter that finds one row of many reads on by itself; pages go forth and back."""
    with opened(browser, url + "rows/many/0") as page:
        expect(page.locator("#found")).to_contain_text(f"{MANY:,} rows at version 2")
        first = page.locator("tbody tr").first.inner_text()
        page.locator("#page-next").click()
        assert page.locator("tbody tr").first.inner_text() != first
        page.locator("#page-before").click()
        assert page.locator("tbody tr").first.inner_text() == first
        page.get_by_label("contains").fill(f"user-{MANY - 1:06}")
        page.get_by_role("button", name="Show").click()
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("#found")).not_to_contain_text("Reading on")
        page.get_by_label("contains").fill("missing")
        page.get_by_role("button", name="Show").click()
        expect(page.locator("#found")).to_contain_text("None is found.")


def test_two_versions_are_compared(browser: Browser, url: str) -> None:
    with opened(browser, url + "compare/many/0?before=1&after=2") as page:
        # -0 is 0: the first row is as it was.
        expect(page.locator("#found")).to_contain_text(f"0 rows added, 0 removed, {MANY // 2 - 1:,} changed.")
        expect(page.locator("tr.is-changed")).to_have_count(50)
        page.goto(url + "compare/shop/0?before=4&after=5")
        page.locator("#later").click()
        row = page.locator("tr.is-changed", has=page.get_by_role("link", name="user-3-0", exact=True))
        assert [each.split() for each in row.locator("td.changed").all_inner_texts()] == [
            ["5", "6"],
            ["note", "5", "note", "6"],
        ]
        row.get_by_role("link").click()
        expect(page.get_by_role("heading", name="user = user-3-0")).to_be_visible()
        expect(page.get_by_role("heading", name="Row at version 6")).to_be_visible()


def test_keys_are_offered(browser: Browser, url: str) -> None:
    """Before one is typed, some lead to their rows; so do the rows of the state."""
    with opened(browser, url + "key/shop/0") as page:
        key = page.locator("#offer-1").inner_text()
        page.locator("#offer-1").click()
        expect(page.get_by_label("user").first).to_have_value(key)
        expect(page.get_by_role("heading", name=f"Row at version {VERSIONS}")).to_be_visible()
        page.goto(url + "rows/shop/0?contains=user-3-1")
        page.get_by_role("link", name="user-3-1", exact=True).click()
        expect(page.get_by_role("heading", name="user = user-3-1")).to_be_visible()


@pytest.mark.slow
def test_other_choices_are_priced(browser: Browser, url: str) -> None:
    """A slider changes the prediction at once, and the URL, which shows the same again."""
    with opened(browser, url + "cost/shop") as page:
        dollars = page.locator("#scenarios tbody tr").nth(1).locator("td").last
        old_price = dollars.inner_text()
        slider = page.get_by_label("Seconds a batch")
        slider.focus()
        page.keyboard.press("End")
        expect(page.locator("output").first).to_have_text("120")
        expect(page.get_by_role("heading", name="With 120.0 s a batch")).to_be_visible()
        expect(dollars).not_to_have_text(old_price)
        expect(page.locator("#result .saves")).to_contain_text("less")
        new_price = dollars.inner_text()
        page.wait_for_url(re.compile("trigger=120"))
        page.reload()
        expect(dollars).to_have_text(new_price)
        savings = [float(each) for each in page.locator("#advice tbody tr td:nth-child(2)").all_inner_texts()]
        assert savings == sorted(savings, reverse=True)
        assert min(savings) >= 0.01
        assert len(savings) >= 2


@pytest.mark.slow
def test_verify_is_followed_and_cancelled(browser: Browser, url: str) -> None:
    with opened(browser, url + "health/shop") as page:
        page.get_by_role("button", name="Verify").click()
        expect(page.locator("#result")).to_contain_text("whole: 0 missing, 0 corrupt, 0 orphaned")
        expect(page.get_by_role("button", name="Verify again")).to_be_visible()


@pytest.mark.slow
def test_two_people_at_once(browser: Browser, url: str) -> None:
    """Each has pages of the same rows, as if alone."""
    with opened(browser, url + "rows/many/0") as one, opened(browser, url + "rows/many/0") as other:
        for _ in range(3):
            for page in (one, other):
                page.locator("#page-next").click()
        assert page_number(one) == page_number(other) == 4
        assert one.locator("tbody").inner_text() == other.locator("tbody").inner_text()


def page_number(page: Page) -> int:
    match = re.search(r"Page (\d+)", page.locator(".pager").inner_text())
    assert match is not None
    return int(match[1])
