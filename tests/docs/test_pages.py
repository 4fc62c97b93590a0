"""Links, settings and the site of the documentation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from dynastate import __version__
from dynastate.settings import PREFIX, Settings
from tests.support.pages import DOCS, PAGES, ROOT
from tests.support.shipped_environment import IMAGE, commands
from tests.unit.test_settings import changed

#: Names of what is released, with the version: the wheel, a jar, its coordinates, the tag of an image.
FILES = r"dynastate-([\d.]+)-py3|dynastate-spark-[\d.]+_2\.13[-:](\d+\.\d+\.\d+)|dynastate-spark:(\d+\.\d+\.\d+)"


def anchors(page: Path) -> set[str]:
    """Anchors of a page, as GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_has_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"https?://", target):
            continue
        name, _, heading = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), target
        assert not heading or heading in anchors(file), target


def test_every_page_is_in_the_index() -> None:
    """The front page leads to the index, and this to every page; the front page has at most 1,000 words."""
    readme, index = (ROOT / "README.md").read_text(), (DOCS / "index.md").read_text()
    assert "(docs/index.md)" in readme
    assert [page.name for page in DOCS.glob("*.md") if f"({page.name})" not in index] == ["index.md"]
    assert len([word for word in readme.split() if re.search(r"\w", word)]) <= 1000


def test_every_decision_is_in_the_index() -> None:
    index = (DOCS / "decisions" / "README.md").read_text()
    records = sorted((DOCS / "decisions").glob("0*.md"))
    assert len(records) > 10
    for record in records:
        title, status, date = re.match(r"# (.*)\n\n\*(\w+), ([\d-]+)\.\*\n", record.read_text()).groups()  # type: ignore[union-attr]
        assert re.search(rf"\| \[{re.escape(title)}\]\({record.name}\) \| {status.lower()}.*\| {date} \|", index), (
            record
        )


NAMED = [page for page in [*PAGES, IMAGE] if re.search(FILES, page.read_text()) and page.name != "CHANGELOG.md"]


@pytest.mark.parametrize("page", NAMED, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_a_release_have_the_version(page: Path) -> None:
    assert {"".join(groups) for groups in re.findall(FILES, page.read_text())} == {__version__}


def test_pages_that_name_files_of_a_release_are_found() -> None:
    names = {"emr-on-ec2.md", "emr-serverless.md", "kubernetes.md", "python-environment.md", "getting-started.md"}
    assert names | {IMAGE.name} <= {page.name for page in NAMED}


def test_pages_with_the_jar_of_spark_4_0_have_checkpoint_format_1() -> None:
    """In format 2 that Spark fails queries with an operator of one partition; the conf of getting started has it."""
    pages = {page.name: page.read_text() for page in (DOCS / "platforms").glob("*.md")}
    with_jar = {name: text for name, text in pages.items() if "dynastate-spark-4.0_2.13" in text}
    assert len(with_jar) >= 4
    assert [name for name, text in with_jar.items() if not re.search(r'checkpointFormatVersion[`": ]+1\b', text)] == []


def test_tools_of_the_packed_environment_are_pinned() -> None:
    """Beside the wheel, what the page installs has an exact version: the one that `make test-wheel` has run."""
    (install,) = [line for line in commands()[0].splitlines() if "pip install" in line]
    words = install.partition("install ")[2].split()
    tools = [word for word in words if not word.startswith(("-", "dist/"))]
    assert tools
    assert [word for word in tools if not re.fullmatch(r"[\w-]+==[\d.]+", word)] == []


@pytest.mark.slow
def test_the_site_builds() -> None:
    """Strictly: every page is in the navigation, and every link and name in the API reference exists."""
    completed = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_setting_is_one(page: Path) -> None:
    names = {name.removeprefix(PREFIX) for name in changed().to_spark()}
    assert len(names) == len(fields(Settings))
    assert set(re.findall(rf"{re.escape(PREFIX)}(\w+)", page.read_text())) <= names
