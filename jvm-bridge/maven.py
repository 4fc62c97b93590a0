"""Lay out the jars as Maven Central wants them, in a repository of files that Spark can use as it is.

    python jvm-bridge/maven.py                       for the pyspark here, into build/maven/
    python jvm-bridge/maven.py --all                 for every Spark in SPARKS
    python jvm-bridge/maven.py --all --key KEY       signed, with the bundle that Central takes beside it

Each minor of Spark has an artifact: the jar of the wheel, byte for byte, its POM, its sources, its Scaladoc, and the
checksums of all. `--key` is a key of GnuPG's, by id or address. Scaladoc is made by the compiler among pyspark's jars.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import build

REPOSITORY: Final = build.ROOT / "build" / "maven"
#: Central gives this name to whoever owns the account of the same name on GitHub.
GROUP: Final = "io.github.dynastate"
CHECKSUMS: Final = ("md5", "sha1", "sha256", "sha512")
#: Central takes the first two, and asks for no signature of a checksum.
UNSIGNED: Final = {".asc", *(f".{name}" for name in CHECKSUMS)}


def project() -> dict[str, Any]:
    toml = importlib.import_module("tomllib")  # by its name: mypy looks at the oldest Python we support, which has none
    metadata: dict[str, Any] = toml.loads((build.ROOT / "pyproject.toml").read_text())["project"]
    return metadata


def folder_of(repository: Path, artifact: str) -> Path:
    return repository.joinpath(*GROUP.split("."), artifact, build.package_version())


def pom(minor: str) -> bytes:
    """The POM of the artifact for a minor of Spark.

    Nothing is shaded into the jar, and it needs only what Spark brings: so resolvers add no other jar to it.
    """
    metadata, version = project(), build.package_version()
    root = ET.Element("project")  # Maven and Ivy go by the names of elements, and need no namespace
    address = metadata["urls"]["Repository"]
    elements: dict[str, Any] = {
        "modelVersion": "4.0.0",
        "groupId": GROUP,
        "artifactId": build.artifact(minor),
        "version": version,
        "packaging": "jar",
        "name": f"{metadata['name']} for Spark {minor}",
        "description": f"{metadata['description']}. It needs the Python package dynastate {version} on each executor.",
        "url": address,
        "licenses": {
            "license": {"name": metadata["license"], "url": "https://www.apache.org/licenses/LICENSE-2.0.txt"}
        },
        "developers": {
            "developer": {
                "name": metadata["authors"][0]["name"],
                "organization": metadata["authors"][0]["name"],
                "organizationUrl": address.rpartition("/")[0],
            }
        },
        "scm": {
            "connection": f"scm:git:{address}.git",
            "developerConnection": f"scm:git:{address}.git",
            "tag": f"v{version}",
            "url": f"{address}/tree/v{version}",
        },
        "issueManagement": {"system": "GitHub", "url": metadata["urls"]["Issues"]},
        "dependencies": {
            "dependency": {
                "groupId": "org.apache.spark",
                "artifactId": f"spark-sql_{build.scala(minor)}",
                "version": build.SPARKS[minor],
                "scope": "provided",
            }
        },
    }
    _fill(root, elements)
    ET.indent(root)
    text: str = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'.encode()


def _fill(element: ET.Element, values: dict[str, Any]) -> None:
    for name, value in values.items():
        child = ET.SubElement(element, name)
        if isinstance(value, dict):
            _fill(child, value)
        else:
            child.text = value


def scaladoc(minor: str, spark_jars: Path, target: Path) -> None:
    """Make the Scaladoc of a minor's sources."""
    command = [build.java(), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xss8m", "-cp", f"{spark_jars}/*"]
    command += ["scala.tools.nsc.ScalaDoc", "-usejavacp", "-release", "17", "-no-link-warnings"]
    command += ["-doc-title", f"dynastate for Spark {minor}", "-doc-version", build.package_version()]
    # Without it, each page has the path of the checkout.
    command += ["-sourcepath", str(build.ROOT), "-d", str(target)]
    command += [str(file) for _, file in build.sources_of(build.bridge_trees(minor), minor)]
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if process.returncode != 0:
        build.fail(f"there is no Scaladoc for Spark {minor}: {process.stdout[-2_000:]}")


def lay_out(repository: Path) -> Path:
    """Put the artifact for the installed pyspark into a repository, and return its folder."""
    build.build(None, None, [])
    minor, spark_jars = build.pyspark()
    artifact, version = build.artifact(minor), build.package_version()
    folder = folder_of(repository, artifact)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stem = f"{artifact}-{version}"
    shutil.copyfile(build.bridge_jar(minor), folder / f"{stem}.jar")
    (folder / f"{stem}.pom").write_bytes(pom(minor))
    notice = {"META-INF/LICENSE": (build.ROOT / "LICENSE").read_bytes()}
    sources = {name: file.read_bytes() for name, file in build.sources_of(build.bridge_trees(minor), minor)}
    build.pack(folder / f"{stem}-sources.jar", notice | sources)
    with tempfile.TemporaryDirectory(prefix="dynastate-doc-") as scratch:
        scaladoc(minor, spark_jars, Path(scratch))
        pages = {
            file.relative_to(scratch).as_posix(): file.read_bytes()
            for file in sorted(Path(scratch).rglob("*"))
            if file.is_file()
        }
        build.pack(folder / f"{stem}-javadoc.jar", notice | pages)
    for file in sorted(folder.iterdir()):
        for name in CHECKSUMS:
            digest = hashlib.new(name, file.read_bytes()).hexdigest()
            file.with_name(f"{file.name}.{name}").write_text(digest)
    return folder


def check_key(key: str) -> None:
    """Refuse a key that cannot sign, since what is signed takes minutes to build."""
    if shutil.which("gpg") is None:
        build.fail("gpg is missing, which signs; install it (Debian: apt-get install gnupg)")
    command = ["gpg", "--batch", "--list-secret-keys", key]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        build.fail(
            f"gpg has no secret key {key}; 'gpg --list-secret-keys' shows those it has: {process.stderr.strip()}"
        )


def sign(folder: Path, key: str) -> None:
    """Sign the files of an artifact, each beside it, with a key of GnuPG's."""
    for file in sorted(folder.iterdir()):
        if file.suffix not in UNSIGNED:
            command = ["gpg", "--batch", "--yes", "--armor", "--detach-sign", "--local-user", key, str(file)]
            process = subprocess.run(command, capture_output=True, text=True, check=False)
            if process.returncode != 0:
                build.fail(f"gpg did not sign {file.name} with key {key}: {process.stderr.strip()}")


def make_bundle(repository: Path, folders: list[Path]) -> Path:
    """Pack artifacts into the one file that is uploaded to Central."""
    bundle = repository.with_name(f"dynastate-{build.package_version()}-central.zip")
    files = [file for folder in folders for file in sorted(folder.iterdir())]
    build.pack(bundle, {file.relative_to(repository).as_posix(): file.read_bytes() for file in files})
    return bundle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repository", type=Path, default=REPOSITORY, help="folder of the repository")
    parser.add_argument("--all", action="store_true", help="for every Spark we support")
    parser.add_argument("--key", default="", help="key of GnuPG's that signs")
    options = parser.parse_args()
    if options.key:
        check_key(options.key)
    repository = options.repository.resolve()
    minors = [build.pyspark()[0]]
    if options.all:
        minors = list(build.SPARKS)
        shutil.rmtree(repository, ignore_errors=True)
        build.each_spark([__file__, "--repository", str(repository)])
    else:
        lay_out(repository)
    folders = [folder_of(repository, build.artifact(minor)) for minor in minors]
    for folder in folders:
        print(f"{GROUP}:{folder.parent.name}:{folder.name}")
    if options.key:
        for folder in folders:
            sign(folder, options.key)
        print(f"signed; upload {make_bundle(repository, folders)}")
    elif options.all:
        print("not signed, so Maven Central would refuse it: make maven KEY=ID")


if __name__ == "__main__":
    main()
