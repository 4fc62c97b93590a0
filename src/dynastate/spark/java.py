"""Check of the Java that Spark will use, before Spark starts: its own message for a missing Java says little."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from dynastate.errors import ConfigurationError

_JAVA_MIN = 17


def check_java(subject: str) -> None:
    """Check that Java is new enough for Spark; `subject` needs it."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    package = f"Debian: apt-get install openjdk-{_JAVA_MIN}-jre-headless"
    install = f"install a JRE {_JAVA_MIN}, 21 or, with Spark 4.3, 25 ({package})"
    if java is None or not os.access(java, os.X_OK):
        raise ConfigurationError(f"{subject} needs Java; {install}", looked_at=java or "PATH")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr  # noqa: S603  # what the user calls java
    version = re.search(r'version "(?:1\.)?(\d+)', output)
    if version is None or int(version.group(1)) < _JAVA_MIN:
        raise ConfigurationError(
            f"{subject} needs Java {_JAVA_MIN} or newer; {install}", found=version.group(1) if version else output[:80]
        )
