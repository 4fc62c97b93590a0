"""Pictures of each view of the page, beside those of another commit: `make pictures`.

    python -m tests.ui.pictures                        beside those of HEAD
    python -m tests.ui.pictures --before main --views cost health
    python -m tests.ui.pictures --docs                 also those of the documentation

Both pages show one DynamoDB at the same time, so that pictures differ only by what was changed. They are in
build/pictures, with an index.html that shows them side by side.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from html import escape
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page, ViewportSize

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.embedded import credentials
from tests.support.browser import chromium
from tests.support.dynoxide import fast_dynamodb
from tests.ui.conftest import served
from tests.ui.gallery import FRAUD, HEAVY, LARGEST, SKEWED, make_gallery

ROOT: Final = Path(__file__).resolve().parents[2]
PICTURES: Final = ROOT / "build" / "pictures"
WIDTHS: Final = (400, 1400, 2000)
HEIGHT_MAX: Final = 2_600
SCHEMES: Final = ("light", "dark")
_KEY: Final = urlencode({"family": "spending", "k.card": HEAVY})
VIEWS: Final = {
    "queries": "",
    "query": "query/orders",
    "operator": f"operator/{SKEWED}/0?keys=1",
    "partition": f"operator/{SKEWED}/0?partition={LARGEST}&all=1",
    "join": "operator/orders/0?store=left-keyToNumValues",
    "choose": f"key/{SKEWED}/0?family=spending",
    "key": f"key/{SKEWED}/0?{_KEY}",
    "key-compared": f"key/{SKEWED}/0?{_KEY}&version={FRAUD.versions}&other={FRAUD.versions - 30}",
    "key-list": f"key/{SKEWED}/0?{urlencode({'family': 'recentPayments', 'k.card': HEAVY})}",
    "rows": f"rows/{SKEWED}/0?family=spending",
    "compare": f"compare/{SKEWED}/0?family=spending",
    "cost": f"cost/{SKEWED}",
    "cost-versions": "cost/sessions",
    "health": f"health/{SKEWED}",
    "health-failing": "health/ledger",
    "error": f"key/{SKEWED}/7",
}
#: Pictures of the documentation: view, width and height of the window.
DOCS: Final = {"ui-operator": ("operator", 1400, 1000)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="HEAD", help="the commit for the pictures on the left")
    parser.add_argument("--views", nargs="*", choices=VIEWS, default=list(VIEWS))
    parser.add_argument("--widths", nargs="*", type=int, default=WIDTHS)
    parser.add_argument("--docs", action="store_true", help="also make the pictures in docs/images")
    options = parser.parse_args()
    environment = {**os.environ, **credentials()}
    os.environ.update(credentials())
    with ExitStack() as opened_all:
        folder = Path(opened_all.enter_context(tempfile.TemporaryDirectory(prefix="dyn-")))
        dynamodb = opened_all.enter_context(fast_dynamodb(folder / "tables"))
        reports = folder / "progress.json"
        with closing(BotoTables(dynamodb.settings)) as tables:
            reports.write_text("".join(f"{line}\n" for line in make_gallery(tables)))
        browser = opened_all.enter_context(chromium())
        words = ("--progress", str(reports))
        with served(dynamodb.endpoint, environment, *words) as url:
            _take(browser, url, PICTURES / "now", options.views, options.widths)
            if options.docs:
                _take_docs(browser, url)
        with (
            _earlier(options.before, folder, environment) as earlier,
            served(dynamodb.endpoint, earlier, *words) as url,
        ):
            _take(browser, url, PICTURES / "before", options.views, options.widths)
    index = PICTURES / "index.html"
    index.write_text(_index(options.before))
    sys.stdout.write(f"{index}\n")


@contextmanager
def _earlier(commit: str, folder: Path, environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The environment of a process that runs the Python of another commit."""
    archive = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, check=True, capture_output=True).stdout
    (folder / "earlier").mkdir()
    subprocess.run(["tar", "-x", "-C", folder / "earlier"], input=archive, check=True)
    yield {**environment, "PYTHONPATH": str(folder / "earlier" / "src")}


def _take(browser: Browser, url: str, folder: Path, views: Sequence[str], widths: Sequence[int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for width in widths:
        for scheme in SCHEMES:
            with _window(browser, width, 900, scheme) as page:
                for name in views:
                    _picture(page, url + VIEWS[name], folder / f"{name}-{width}-{scheme}.png", is_whole=True)


def _take_docs(browser: Browser, url: str) -> None:
    for file, (name, width, height) in DOCS.items():
        with _window(browser, width, height, "light") as page:
            _picture(page, url + VIEWS[name], ROOT / "docs" / "images" / f"{file}.png", is_whole=False)


@contextmanager
def _window(browser: Browser, width: int, height: int, scheme: str) -> Iterator[Page]:
    size = ViewportSize(width=width, height=height)
    colours: Literal["light", "dark"] = "dark" if scheme == "dark" else "light"
    with browser.new_context(viewport=size, color_scheme=colours) as window:
        yield window.new_page()


def _picture(page: Page, url: str, file: Path, *, is_whole: bool) -> None:
    """A picture of the whole view, up to `HEIGHT_MAX`, or of what the window shows."""
    page.goto(url)
    page.wait_for_timeout(150)
    if not is_whole:
        page.screenshot(path=file)
        return
    width, height = page.evaluate("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
    page.screenshot(path=file, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": min(height, HEIGHT_MAX)})


def _index(before: str) -> str:
    """A page with each picture beside the earlier one."""
    rows = []
    for file in sorted((PICTURES / "now").glob("*.png")):
        other = PICTURES / "before" / file.name
        is_same = other.exists() and other.read_bytes() == file.read_bytes()
        pair = "".join(
            f'<a href="{each}/{file.name}"><img loading="lazy" src="{each}/{file.name}"></a>'
            for each in ("before", "now")
        )
        rows.append(f"<h2>{escape(file.stem)}{': the same' if is_same else ''}</h2><div>{pair}</div>")
    style = (
        "body{font:14px sans-serif;margin:24px}div{display:grid;grid-template-columns:1fr 1fr;gap:16px}"
        "img{max-width:100%;border:1px solid #999}"
    )
    head = f"<!doctype html><meta charset=utf-8><title>Pictures</title><style>{style}</style>"
    return f"{head}<h1>{escape(before)}, and now</h1>{''.join(rows)}"


if __name__ == "__main__":
    main()
