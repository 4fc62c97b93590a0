"""Artifacts for Maven Central: what its checks ask for, and signatures."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from dynastate import __version__
from dynastate.spark.jar import jar_path
from tests.support.jvm import ROOT, SPARK, make_repository

SCALA = "2.12" if SPARK == "3.5" else "2.13"
ARTIFACT = f"dynastate-spark-{SPARK}_{SCALA}"
STEM = f"{ARTIFACT}-{__version__}"
#: Each artifact of Central has these.
FILES = (f"{STEM}.jar", f"{STEM}.pom", f"{STEM}-sources.jar", f"{STEM}-javadoc.jar")
#: And these in its POM.
ASKED = (
    "name",
    "description",
    "url",
    "licenses/license/name",
    "licenses/license/url",
    "developers/developer/name",
    "developers/developer/organization",
    "developers/developer/organizationUrl",
    "scm/connection",
    "scm/developerConnection",
    "scm/url",
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the artifact for the Spark here."""
    folder = tmp_path_factory.mktemp("maven") / "repository"
    assert make_repository(folder) == [f"io.github.dynastate:{ARTIFACT}:{__version__}"]
    return folder


@pytest.fixture(scope="module")
def folder(repository: Path) -> Path:
    return repository / "io" / "github" / "dynastate" / ARTIFACT / __version__


@pytest.mark.every_spark
def test_files_and_checksums_are_those_that_central_asks_for(folder: Path) -> None:
    """Jar, POM, sources and Scaladoc, each with its checksums, and nothing else; the jar is the wheel's."""
    checksums = ("md5", "sha1", "sha256", "sha512")
    assert {file.name for file in folder.iterdir()} == {
        *FILES,
        *(f"{name}.{checksum}" for name in FILES for checksum in checksums),
    }
    for name in FILES:
        content = (folder / name).read_bytes()
        for checksum in checksums:
            assert (folder / f"{name}.{checksum}").read_text() == hashlib.new(checksum, content).hexdigest(), name
    assert (folder / f"{STEM}.jar").read_bytes() == jar_path().read_bytes()


@pytest.mark.every_spark
def test_pom_has_all_that_central_asks_for(folder: Path) -> None:
    """Every element has a text; the only dependency is Spark, which is there already."""
    pom = ET.parse(folder / f"{STEM}.pom").getroot()  # noqa: S314  # we wrote it
    assert [path for path in ASKED if not pom.findtext(path)] == []
    coordinates = tuple(pom.findtext(name) for name in ("groupId", "artifactId", "version"))
    assert coordinates == ("io.github.dynastate", ARTIFACT, __version__)
    (dependency,) = pom.findall("dependencies/dependency")
    texts = {each.tag: each.text for each in dependency}
    version = texts.pop("version") or ""
    assert version.startswith(f"{SPARK}.")
    assert texts == {"groupId": "org.apache.spark", "artifactId": f"spark-sql_{SCALA}", "scope": "provided"}


@pytest.mark.every_spark
def test_maven_accepts_the_pom(folder: Path, tmp_path: Path) -> None:
    """It builds the project's model of it without a warning; no plugin or dependency is needed for that."""
    if shutil.which("mvn") is None:
        pytest.skip("Maven is missing; install it (Debian: apt-get install maven)")
    command = ["mvn", "--offline", "--batch-mode", f"-Dmaven.repo.local={tmp_path}"]
    command += ["--file", str(folder / f"{STEM}.pom"), "validate"]
    completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert completed.returncode == 0, completed.stdout
    assert f"Building dynastate for Spark {SPARK} {__version__}" in completed.stdout
    assert "WARNING" not in completed.stdout


@pytest.mark.every_spark
def test_sources_and_scaladoc_are_of_this_spark(folder: Path) -> None:
    """The provider is in both, shims are those of this minor, and both have the licence."""
    with zipfile.ZipFile(folder / f"{STEM}-sources.jar") as sources:
        assert "io/dynastate/spark/DynamoDBStateStoreProvider.scala" in sources.namelist()
        assert len(sources.namelist()) == len(set(sources.namelist())), "two sources of one name"
        assert sources.read("META-INF/LICENSE") == (ROOT / "LICENSE").read_bytes()
    with zipfile.ZipFile(folder / f"{STEM}-javadoc.jar") as pages:
        assert {"index.html", "io/dynastate/spark/DynamoDBStateStoreProvider.html"} <= set(pages.namelist())
        assert pages.read("META-INF/LICENSE") == (ROOT / "LICENSE").read_bytes()
        texts = [pages.read(name) for name in pages.namelist()]
    assert not [text for text in texts if str(ROOT).encode() in text], "a path of this machine"


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A key of GnuPG's in a folder of its own, with a short path: that of a socket is in it."""
    if shutil.which("gpg") is None:
        pytest.skip("gpg is missing; install it (Debian: apt-get install gnupg)")
    home = tempfile.mkdtemp(prefix="dyn-")
    monkeypatch.setenv("GNUPGHOME", home)
    key = "release@dynastate.invalid"
    make = ["gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", key, "ed25519", "sign", "1d"]
    subprocess.run(make, check=True, timeout=60, capture_output=True)
    yield key
    subprocess.run(["gpgconf", "--kill", "all"], check=True, timeout=60)
    shutil.rmtree(home)


def test_signed_bundle_holds_a_signature_of_every_file(keyring: str, tmp_path: Path) -> None:
    """GnuPG verifies each; checksums have none; the bundle has the folders of a repository."""
    *_, message = make_repository(tmp_path / "maven", "--key", keyring)
    bundle = tmp_path / f"dynastate-{__version__}-central.zip"
    assert message == f"signed; upload {bundle}"
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(tmp_path / "bundle")
    folder = tmp_path / "bundle" / "io" / "github" / "dynastate" / ARTIFACT / __version__
    assert {file.stem for file in folder.glob("*.asc")} == set(FILES)
    for name in FILES:
        subprocess.run(["gpg", "--verify", folder / f"{name}.asc", folder / name], check=True, capture_output=True)


def test_unknown_key_is_refused(keyring: str, tmp_path: Path) -> None:
    """The error names the key, and comes before anything is built."""
    command = [sys.executable, "jvm-bridge/maven.py", "--repository", str(tmp_path / "maven"), "--key", "a@b.invalid"]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)
    assert completed.returncode == 1
    assert completed.stderr.startswith("dynastate: gpg has no secret key a@b.invalid; ")
    assert completed.stdout == ""
    assert list(tmp_path.iterdir()) == []
