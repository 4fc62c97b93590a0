"""Processes of the benchmarks, each with a log that is shown when it fails."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

from targets import RESULTS, ROOT

#: One process. A million rows take half a minute on two cores; this is for slow machines and larger states.
RUN_TIMEOUT_S = 1800


def run_logged(command: Sequence[str], environment: Mapping[str, str], log: str) -> str:
    """Run a process whose standard error goes to build/benchmarks/<log>.log; what it printed.

    Raises:
        SystemExit: It failed. The message ends with the end of its log.
    """
    file = RESULTS / f"{log}.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as errors:
        process = subprocess.run(
            command,
            env=dict(environment) | {"SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_S,
        )
    if process.returncode != 0:
        tail = "\n".join(file.read_text().splitlines()[-40:])
        sys.exit(f"benchmark: a process ended with {process.returncode}; the end of {file.relative_to(ROOT)}:\n{tail}")
    return process.stdout
