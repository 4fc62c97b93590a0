"""Debian's Chromium, without a screen, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str:
    """The path of the program; without it the test is skipped, and in CI it fails."""
    path = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if path is not None:
        return path
    missing = "Chromium is missing, which opens the page: apt-get install chromium"
    assert not os.environ.get("CI"), missing
    pytest.skip(missing)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser. It is in a container, as root: its own sandbox cannot work there."""
    program = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, url: str, width: int = 1200, scheme: str = "light") -> Iterator[Page]:
    """A page in a window of its own, in which nothing may fail: no script, no style, no request."""
    wrong: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            wrong.append(message.text)

    with browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme) as window:  # type: ignore[arg-type]
        page = window.new_page()
        page.set_default_timeout(15_000)
        page.on("console", note)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(url)
        yield page
    assert wrong == []
