"""Links, settings and the site of the documentation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from dynastate.settings import PREFIX, Settings
from tests.support.pages import DOCS, PAGES, ROOT
from tests.unit.test_settings import changed


def anchors(page: Path) -> set[str]:
    """Anchors of a page, as GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    """Links inside of the repository name files that exist, and headings in them."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?://", target):
            continue
        name, _, heading = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not heading or heading in anchors(file), target


def test_every_page_is_linked_from_the_readme() -> None:
    """The front page leads to every page; it has at most 1,000 words."""
    readme = (ROOT / "README.md").read_text()
    assert [page.name for page in DOCS.glob("*.md") if f"(docs/{page.name})" not in readme] == []
    assert len([word for word in readme.split() if re.search(r"\w", word)]) <= 1000


def test_every_decision_is_in_the_index() -> None:
    """The index has each record's title, status and date; the record has the last two."""
    index = (DOCS / "decisions" / "README.md").read_text()
    records = sorted((DOCS / "decisions").glob("0*.md"))
    assert len(records) > 10
    for record in records:
        title, status, date = re.match(r"# (.*)\n\n\*(\w+), ([\d-]+)\.\*\n", record.read_text()).groups()  # type: ignore[union-attr]
        assert re.search(rf"\| \[{re.escape(title)}\]\({record.name}\) \| {status.lower()}.*\| {date} \|", index), (
            record
        )


def test_pages_with_the_jar_of_spark_4_0_have_checkpoint_format_1() -> None:
    """In format 2 that Spark fails queries with an operator of one partition; the conf of getting started has it."""
    pages = {page.name: page.read_text() for page in (DOCS / "platforms").glob("*.md")}
    with_jar = {name: text for name, text in pages.items() if "dynastate-spark-4.0_2.13" in text}
    assert len(with_jar) >= 4
    assert [name for name, text in with_jar.items() if not re.search(r'checkpointFormatVersion[`": ]+1\b', text)] == []


@pytest.mark.slow
def test_the_site_builds() -> None:
    """Strictly: every page is in the navigation, and every link and name in the API reference exists."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_setting_is_one(page: Path) -> None:
    """Every setting on a page exists."""
    known = {name.removeprefix(PREFIX) for name in changed().to_spark()}
    assert len(known) == len(fields(Settings))
    assert set(re.findall(rf"{re.escape(PREFIX)}(\w+)", page.read_text())) <= known
