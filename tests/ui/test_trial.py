"""The trial of a new user: four questions, answered by a few clicks from the first page, on a fleet that goes wrong.

One query cannot be read, one is skewed and throttled, one is slow; the others are well.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from dynastate.dynamodb.boto_tables import BotoTables
from tests.support.browser import opened
from tests.support.dynoxide import fast_dynamodb
from tests.ui.conftest import served
from tests.ui.gallery import HEAVY, LARGEST, SKEWED, make_gallery

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def fleet(credentials_of_the_module: None, environment: dict[str, str]) -> Iterator[str]:
    """The page of all queries; its URL."""
    with tempfile.TemporaryDirectory(prefix="dyn-") as name, fast_dynamodb(Path(name) / "tables") as dynamodb:
        reports = Path(name) / "progress.json"
        with closing(BotoTables(dynamodb.settings)) as tables:
            reports.write_text("".join(f"{line}\n" for line in make_gallery(tables)))
        with served(dynamodb.endpoint, environment, "--progress", str(reports)) as url:
            yield url


def query(page: Page, name: str) -> Page:
    """The lines of a query on the first page."""
    return page.locator("table.queries tbody", has=page.get_by_role("link", name=name, exact=True))  # type: ignore[return-value]


def test_which_query_is_in_trouble_and_why(browser: Browser, fleet: str) -> None:
    """Without a click: trouble is on top, with its reason. One click: what to do first."""
    with opened(browser, fleet) as page:
        first, second = (page.locator("table.queries tbody").nth(number) for number in (0, 1))
        expect(first.locator("tr.q .name")).to_have_text("ledger")
        expect(first.locator("tr.q .state")).to_contain_text("failing")
        expect(first).to_contain_text("ledger/0/1/default")
        expect(second.locator("tr.q .name")).to_have_text(SKEWED)
        expect(second.locator("tr.q .state")).to_contain_text("throttled")
        expect(page.locator("dl.sum")).to_contain_text("ledger")
        first.locator("summary").click()
        first.get_by_role("link", name="Health").click()
        expect(page.get_by_text("dynastate verify ledger").first).to_be_visible()


def test_which_partition_and_key_is_heaviest(browser: Browser, fleet: str) -> None:
    """Two clicks: the operator, which names the partition, and its heaviest keys, with what they have."""
    with opened(browser, fleet) as page:
        query(page, SKEWED).locator("tr.op a").first.click()
        expect(page.locator("#largest")).to_have_text(str(LARGEST))
        page.locator("#read-why").click()
        heaviest = page.locator("#heavy-1")
        expect(heaviest).to_contain_text(HEAVY)
        expect(heaviest.locator("xpath=ancestor::tr")).to_contain_text(str(LARGEST))


def test_what_a_key_held_an_hour_ago_and_when_it_changed(browser: Browser, fleet: str) -> None:
    """Four clicks: operator, heaviest keys, the key, and an hour ago; the history has the times of its changes."""
    with opened(browser, fleet) as page:
        query(page, SKEWED).locator("tr.op a").first.click()
        page.locator("#read-why").click()
        page.locator("#heavy-1").click()
        newest = page.locator("table.history tbody tr").first
        expect(newest).to_contain_text(re.compile(r"\d\d:\d\d"))
        page.get_by_role("link", name="1 h ago").click()
        expect(page.get_by_role("heading", name=re.compile(r"Row at version \d+"))).to_be_visible()
        version = int(page.get_by_role("heading", name="Row at version").inner_text().split()[-1])
        assert version < int(newest.locator("td").first.inner_text())
        expect(page.get_by_role("link", name="1 h ago")).to_have_attribute("aria-current", "true")


def test_what_it_costs_a_month_and_what_would_halve_it(browser: Browser, fleet: str) -> None:
    """One click: the price of a month, and the choices, the largest saving first."""
    with opened(browser, fleet) as page:
        query(page, SKEWED).locator("td.usd a").click()
        month = page.locator("dl.sum div", has_text="A month")
        expect(month).to_contain_text("$")
        now = float(re.findall(r"[\d,]+\.\d+", month.inner_text())[0].replace(",", ""))
        then = [
            float(each.replace(",", "")) for each in page.locator("#advice tbody tr td:last-child").all_inner_texts()
        ]
        assert then == sorted(then)
        assert then[0] <= now / 2


def test_which_query_is_slow(browser: Browser, fleet: str) -> None:
    """Without a click: seconds from batch to batch are beside each other."""
    with opened(browser, fleet) as page:
        expect(query(page, "sessions").locator("td.batch .num")).to_contain_text("3,0")
