"""Jars from Maven Central, as pom.xml beside this lists them, below build/upstream/.

    python -m tests.upstream.maven s3a

fetches the jars of one profile, and prints their folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Final, NoReturn

import pytest

POM: Final = Path(__file__).parent / "pom.xml"
BUILD: Final = POM.parents[2] / "build" / "upstream"
FETCH_DEADLINE_S: Final = 900
ATTEMPTS: Final = 3


def jars(profile: str, spark: str = "") -> Path:
    """The folder with the jars of a profile of the POM; fetched once, and again when the POM changes.

    `spark` is another version of Spark than the profile's.
    Without Maven or a network the tests are skipped; in CI they fail.
    """
    folder = BUILD / (f"{profile}-{spark}" if spark else profile)
    stamp = folder / ".fetched"
    digest = sha256(POM.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return folder
    if shutil.which("mvn") is None:
        _missing("Maven is missing; install it (Debian: apt-get install maven)")
    shutil.rmtree(folder, ignore_errors=True)
    command = ["mvn", "--quiet", "--batch-mode", "--file", str(POM), "--activate-profiles", profile]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    command += [f"-Dspark={spark}"] if spark else []
    for _ in range(ATTEMPTS):  # another attempt fetches only what is missing
        completed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_DEADLINE_S)
        if completed.returncode == 0:
            break
    else:
        _missing(f"Maven Central did not give the jars: {' '.join(completed.stdout.split())[:300]}")
    stamp.write_text(digest)
    return folder


def unpacked(jar: Path) -> Path:
    """The folder that a jar of tests is unpacked in: they read files that are among its resources."""
    folder = jar.with_suffix("")
    if not folder.is_dir():
        partial = jar.with_suffix(".partial")
        with zipfile.ZipFile(jar) as archive:
            archive.extractall(partial)
        partial.rename(folder)
    return folder


def _missing(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


if __name__ == "__main__":
    print(jars(sys.argv[1]))  # noqa: T201  # what it is for
