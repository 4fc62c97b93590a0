"""Reproducible builds of all that is released."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.jvm import ROOT, make_repository

#: The time that files of a wheel have, as the Makefile sets it: that of the jars.
EPOCH = "1767225600"


@pytest.mark.slow
def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    """Wheel, source distribution, jars and POM depend on the sources, not on folder, time, mask or locale."""
    digests = []
    for name, umask, variables in (
        ("one", 0o022, {"LC_ALL": "C.UTF-8", "TZ": "UTC"}),
        ("another-folder", 0o077, {"LC_ALL": "C", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"}),
    ):
        root = tmp_path / name
        copy_checkout(root, umask)
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in (variables | {"SOURCE_DATE_EPOCH": EPOCH}).items():
                patch.setenv(variable, value)
            previous = os.umask(umask)
            try:
                make_repository(root / "repository", root=root)
                build = [sys.executable, "-m", "hatchling", "build", "-d", str(root / "dist")]
                completed = subprocess.run(build, cwd=root, capture_output=True, text=True, check=False)
            finally:
                os.umask(previous)
        assert completed.returncode == 0, completed.stdout + completed.stderr
        files = [file for part in ("repository", "dist") for file in (root / part).rglob("*") if file.is_file()]
        digests.append({file.relative_to(root): hashlib.sha256(file.read_bytes()).hexdigest() for file in files})
        for archive in [*(root / "dist").glob("*.whl"), *(root / "repository").rglob("*.jar")]:
            with zipfile.ZipFile(archive) as zip_file:
                assert {entry.date_time for entry in zip_file.infolist()} == {(2026, 1, 1, 0, 0, 0)}, archive
    assert f"SOURCE_DATE_EPOCH := {EPOCH}" in (ROOT / "Makefile").read_text()
    one, another = digests
    assert {".whl", ".gz", ".jar", ".pom"} <= {file.suffix for file in one}
    assert one == another


def copy_checkout(root: Path, umask: int) -> None:
    """Copy what releases are built of; jars and times are not among it."""
    previous = os.umask(umask)
    try:
        for folder in ("src", "jvm-bridge"):
            ignore = shutil.ignore_patterns("__pycache__", "jars")
            shutil.copytree(ROOT / folder, root / folder, ignore=ignore, copy_function=shutil.copyfile)
        for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md", ".gitignore"):
            shutil.copyfile(ROOT / name, root / name)
    finally:
        os.umask(previous)
