"""Hadoop's file system for S3, with which Spark's own stores and checkpoints reach the world of `world.py`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from targets import ROOT

#: What a classpath has for it.
JARS = ROOT / "build" / "upstream" / "s3a" / "*"
#: It writes a file by one PUT, the least that a file in S3 takes.
FILE_MANAGER = "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
BUCKET = "s3a://checkpoints"


def fetch_jars() -> None:
    """Have the jars, which Maven fetches once."""
    subprocess.run([sys.executable, "-m", "tests.upstream.maven", "s3a"], cwd=ROOT, check=True, stdout=sys.stderr)


def hadoop_conf(endpoint: str) -> Mapping[str, str]:
    """Conf of Hadoop for an S3 that verifies no signatures."""
    conf = {
        "endpoint": endpoint,
        "endpoint.region": "us-east-1",
        "access.key": "benchmark",
        "secret.key": "benchmark",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        "checksum.generation": "false",
        "input.stream.type": "classic",
        # Without looking for what a new file would replace.
        "performance.flags": "create,mkdir",
    }
    return {f"fs.s3a.{name}": value for name, value in conf.items()}
