"""`make test-aws` on the embedded DynamoDB: how a run ends that cannot begin, or that a signal ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dynastate.dynamodb.client import make_client
from dynastate.dynamodb.embedded import EmbeddedDynamoDB
from tests.support.fault_proxy import FaultProxy, error
from tests.support.jvm import ROOT
from tests.support.processes import wait_until

REGION = "us-east-1"
NAMES = re.compile(r"tables of this run, deleted at its end: (\S+), (\S+)")
WITHIN_S = 60
#: A plugin of pytest: a test hangs, and says so first.
HANGS = """
import time
from pathlib import Path

def pytest_runtest_call(item):
    Path("hangs").touch()
    time.sleep(600)
"""


def aws_run(endpoint: str, environment: dict[str, str], folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """A test of tests/aws in the folder, as `make test-aws` starts it; what it prints is in the file `said`."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    command += ["-c", str(ROOT / "pyproject.toml"), *options, "--aws-region", REGION]
    command += [str(ROOT / "tests" / "aws" / "test_spending.py"), "-k", "tables_are_deleted"]
    variables = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    path = os.pathsep.join([str(folder), *filter(None, [variables.get("PYTHONPATH")])])
    variables |= {"AWS_ENDPOINT_URL": endpoint, "PYTHONPATH": path}
    with (folder / "said").open("wb") as log:
        return subprocess.Popen(command, cwd=folder, env=variables, stdout=log, stderr=log)


@pytest.mark.slow
def test_refused_credentials_end_a_run(embedded: EmbeddedDynamoDB, environment: dict[str, str], tmp_path: Path) -> None:
    """It is dynastate's, and comes before the first test; the deletion, which fails as well, does not cover it."""
    with FaultProxy(embedded.endpoint) as proxy:
        proxy.rule = lambda _request, _forward: error("UnrecognizedClientException", "The security token is invalid.")
        code = aws_run(proxy.endpoint, environment, tmp_path).wait(WITHIN_S)
    log = (tmp_path / "said").read_text()
    assert code == 2, log
    assert "Exit: AWS refuses the credentials: The security token is invalid." in log
    assert "tables may be left" in log
    assert "Traceback" not in log
    assert len(log.splitlines()) < 25, log


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("dummy_credentials")
def test_tables_of_a_run_that_a_signal_ends_are_deleted(
    number: signal.Signals, embedded: EmbeddedDynamoDB, environment: dict[str, str], tmp_path: Path
) -> None:
    """Their names are printed while the run goes on, where a SIGKILL would leave them."""
    (tmp_path / "hangs_always.py").write_text(HANGS)
    run = aws_run(embedded.endpoint, environment, tmp_path, "-p", "hangs_always")
    try:
        wait_until(lambda: (tmp_path / "hangs").exists() or run.poll() is not None, "no test begins", WITHIN_S)
        log = (tmp_path / "said").read_text()
        match = NAMES.search(log)
        assert match is not None, log
        with closing(make_client(embedded.settings)) as client:
            assert set(match.groups()) <= set(client.list_tables()["TableNames"])
            run.send_signal(number)
            assert run.wait(WITHIN_S) == 2, (tmp_path / "said").read_text()
            assert not set(match.groups()) & set(client.list_tables()["TableNames"])
    finally:
        run.kill()
        run.wait()


def test_the_region_is_asked_for_before_the_set_up(tmp_path: Path) -> None:
    """`make test-aws` without one says so where nothing is installed, and installs nothing."""
    environ = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "REGION")}
    command = ["make", "--no-print-directory", "test-aws", f"VENV={tmp_path / 'none'}", "SYSTEM_PYTHON="]
    completed = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=WITHIN_S
    )
    assert completed.returncode == 2
    assert completed.stderr.startswith("dynastate: say in which Region: make test-aws REGION=eu-west-1 CAP_USD=1\n")
    assert completed.stdout == ""
