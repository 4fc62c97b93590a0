"""The page beside a running query: its versions come to the page as they are committed, and its rows can be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.spark.conftest import CONF, Database, Sessions
from tests.spark.operators import sums
from tests.spark.streams import Running, make_source
from tests.support.browser import chromium, opened
from tests.ui.conftest import served

FILES = 6


@pytest.mark.slow
def test_the_page_is_live(sessions: Sessions, database: Database, environment: dict[str, str], folder: Path) -> None:
    """A batch for each file: the version on the page grows without a reload, and in the end has the query's rows."""
    source = make_source(folder / "files", seed=11, files=FILES)
    session = sessions({f"{CONF}.dynastate.namespace": folder.name})
    source.release(1)
    Running(sums(source.stream(session), "key"), folder / "checkpoint").finish()
    with (
        served(database.endpoint, environment, folder.name) as url,
        chromium() as browser,
        opened(browser, url) as page,
    ):
        version = page.locator("tr.op td").nth(2)
        expect(version).to_have_text("version 1")
        for count in range(2, FILES + 1):
            source.release(count)
            query = Running(sums(source.stream(session), "key"), folder / "checkpoint")
            expect(version).to_have_text(f"version {count}", timeout=60_000)
            outcome = query.finish()
        assert outcome.rows
        page.locator("#operator-1-1").click()
        page.get_by_role("link", name="Rows", exact=True).click()
        keys = {row.key for row in source.read(session).select("key").distinct().collect()}
        expect(page.locator("#found")).to_contain_text(f"{len(keys)} rows at version {FILES}")
        expect(page.locator(".wide tbody tr")).to_have_count(len(keys))
