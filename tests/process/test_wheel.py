"""Contents of the wheel and of the source distribution; installed_wheel.py installs a wheel."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from dynastate import __version__
from dynastate.spark.jar import MINORS, SCALA, jar_name, jar_path

ROOT = Path(__file__).resolve().parents[2]
PROVIDER = "io/dynastate/spark/DynamoDBStateStoreProvider.class"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, of the jars that were built."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    return folder


def build(root: Path, target: Path, *options: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target), *options]
    completed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr


def files_of(folder: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(folder / f"dynastate-{__version__}-py3-none-any.whl") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def wheel(built: Path) -> dict[str, bytes]:
    return files_of(built)


@pytest.fixture(scope="module")
def metadata(wheel: dict[str, bytes]) -> Message:
    return Parser().parsestr(wheel[f"dynastate-{__version__}.dist-info/METADATA"].decode())


def test_wheel_holds_the_package_and_nothing_else(wheel: dict[str, bytes]) -> None:
    """Every module, the mark that it is typed, the log settings, the page's files, and of this checkout no other."""
    package = {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src" / "dynastate").rglob("*.py")}
    names = set(wheel)
    assert package | {"dynastate/py.typed"} <= names
    assert not {name for name in names if not name.startswith(("dynastate/", f"dynastate-{__version__}.dist-info/"))}
    kinds = {Path(name).suffix for name in names if name.startswith("dynastate/")}
    assert kinds == {".py", ".typed", ".jar", ".properties", ".html", ".css", ".js", ".svg", ".txt"}
    page = {str(file.relative_to(ROOT / "src")) for file in (ROOT / "src" / "dynastate" / "ui").rglob("*.*")}
    assert {name for name in page if not name.endswith(".pyc")} <= names


def test_jars_are_of_this_version(wheel: dict[str, bytes]) -> None:
    """The jar for the Spark here is among them; each is for one minor, holds the provider, and says this version."""
    jars = {Path(name).name: content for name, content in wheel.items() if name.endswith(".jar")}
    assert jar_path().name in jars
    assert set(jars) <= {jar_name(minor) for minor in MINORS}
    for name, content in jars.items():
        with zipfile.ZipFile(io.BytesIO(content)) as jar:
            assert PROVIDER in jar.namelist(), name
            assert jar.read("dynastate-version.txt").decode() == __version__, name


def test_licence_is_in_both(built: Path, wheel: dict[str, bytes], metadata: Message) -> None:
    """With the notice, which names what the page has of other projects."""
    assert (metadata["License-Expression"], metadata.get_all("License-File")) == ("Apache-2.0", ["LICENSE", "NOTICE"])
    for name in ("LICENSE", "NOTICE"):
        text = (ROOT / name).read_bytes()
        assert wheel[f"dynastate-{__version__}.dist-info/licenses/{name}"] == text
        with tarfile.open(built / f"dynastate-{__version__}.tar.gz") as sources:
            licence = sources.extractfile(f"dynastate-{__version__}/{name}")
            assert licence is not None
            assert licence.read() == text


def test_source_distribution_makes_a_whole_wheel(built: Path, wheel: dict[str, bytes]) -> None:
    """All that the wheel holds is in it, the jars too, and the sources of those."""
    with tarfile.open(built / f"dynastate-{__version__}.tar.gz") as sources:
        names = {name.removeprefix(f"dynastate-{__version__}/") for name in sources.getnames()}
    assert {f"src/{name}" for name in wheel if name.startswith("dynastate/")} <= names
    scala = {str(file.relative_to(ROOT)) for file in (ROOT / "jvm-bridge").rglob("*.scala")}
    assert scala | {"jvm-bridge/build.py", "pyproject.toml", "README.md"} <= names


def test_wheel_of_the_source_distribution_is_the_same(built: Path, wheel: dict[str, bytes], tmp_path: Path) -> None:
    """As pip builds it where there is no wheel: every file, jars and metadata too, has the same bytes."""
    subprocess.run(["tar", "-xzf", built / f"dynastate-{__version__}.tar.gz", "-C", tmp_path], check=True)
    build(tmp_path / f"dynastate-{__version__}", tmp_path, "-t", "wheel")
    files = files_of(tmp_path)
    assert any(name.endswith(".jar") for name in files)
    assert set(files) == set(wheel)
    assert [name for name in wheel if files[name] != wheel[name]] == []


def test_description_leads_to_the_repository(metadata: Message) -> None:
    """The package index shows the README; its links and pictures have whole addresses, at the tag of this version."""
    description = str(metadata.get_payload())
    targets = re.findall(r"\]\(([^)]+)\)", description)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    path = f"/dynastate/dynastate/blob/v{__version__}/docs/getting-started.md"
    assert f"https://github.com{path}" in targets
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", description)
    assert pictures
    assert all(f"/v{__version__}/docs/images/" in picture for picture in pictures)
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_command_is_installed(wheel: dict[str, bytes], metadata: Message) -> None:
    """`dynastate` is on the path of who installs it, and pyspark only with an extra."""
    assert b"dynastate = dynastate.cli.__main__:main" in wheel[f"dynastate-{__version__}.dist-info/entry_points.txt"]
    requirements = metadata.get_all("Requires-Dist") or []
    assert "pyspark!=4.0.0,<4.4,>=3.5; extra == 'spark'" in requirements
    assert not [text for text in requirements if text.startswith("pyspark") and "extra ==" not in text]


def test_minors_are_those_that_are_built() -> None:
    """The build makes a jar for each minor that `dynastate jar` knows, the one pinned for development among them."""
    source = (ROOT / "jvm-bridge" / "build.py").read_text()
    (line,) = [line for line in source.splitlines() if line.startswith("SPARKS = ")]
    sparks: dict[str, str] = ast.literal_eval(line.removeprefix("SPARKS = "))
    assert tuple(sparks) == MINORS
    assert all(version.startswith(f"{minor}.") for minor, version in sparks.items())
    assert f"SCALA = {json.dumps(SCALA)}" in source.splitlines()
    assert f"pyspark=={sparks[MINORS[-1]]}" in (ROOT / "constraints.txt").read_text().splitlines()
