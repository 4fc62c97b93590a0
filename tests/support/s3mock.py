"""Adobe's S3Mock, an S3 from Maven Central."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dynastate.settings import Settings
from tests.support.processes import free_port, wait_until
from tests.upstream.maven import jars

MAIN: Final = "com.adobe.testing.s3mock.S3MockApplication"
BUCKET: Final = "objects"
START_DEADLINE_S: Final = 60.0


@contextmanager
def s3mock(folder: Path) -> Iterator[Settings]:
    """Run it with one bucket, and give the settings for it. Without Maven the test is skipped; in CI it fails."""
    port = free_port()
    options = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Xmx512m"]
    options += ["-Djava.net.preferIPv4Stack=true", f"-Djava.io.tmpdir={folder}"]
    set_up = [f"--com.adobe.testing.s3mock.httpPort={port}", "--server.port=0"]
    set_up += [f"--com.adobe.testing.s3mock.store.initialBuckets={BUCKET}"]
    classes = f"{jars('s3mock')}/*"
    with (folder / "s3mock.log").open("wb") as log:
        process = subprocess.Popen(["java", *options, "-cp", classes, MAIN, *set_up], stdout=log, stderr=log)
    try:
        wait_until(lambda: _answers(port) or process.poll() is not None, "S3Mock to answer", START_DEADLINE_S)
        assert process.poll() is None, (folder / "s3mock.log").read_text()[-2_000:]
        yield Settings(region="us-east-1", objects=f"s3://{BUCKET}/prefix", objects_endpoint=f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1) as answer:  # our own
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False
