"""Tests on AWS itself, or on DynamoDB Local with `--dynamodb-local`: `make test-aws`, `make test-aws-local`.

They run when they are asked for only, since AWS takes money for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import boto3.session
import botocore.exceptions as boto_errors
import pytest

from dynastate.dynamodb.embedded import credentials
from dynastate.errors import DynastateError
from dynastate.settings import Settings
from tests.aws.place import Place, Say, ended_in_order, own_tables
from tests.aws.spending import Ledger, cap_usd, dollars, planned, refuse_over
from tests.upstream.dynamodb_local import DynamoDBLocal

_HERE = Path(__file__).parent
#: Of the caller, before the other tests' configuration removes them.
_CALLERS = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
_LEDGER = pytest.StashKey[Ledger]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--aws-region", default="", help="Region of the tables")
    parser.addoption("--aws-cap-usd", type=cap_usd, default=1.0, help="dollars that the run may spend")
    parser.addoption("--aws-role", default="", help="role to assume with the policies that are tested")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave these tests out unless the command line names this folder or one of them."""
    paths = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    return None if any(each.resolve().is_relative_to(_HERE) for each in paths) else True


@pytest.fixture(scope="session")
def caller(pytestconfig: pytest.Config) -> Iterator[None]:
    """The environment with the caller's AWS in it, or dummy credentials for DynamoDB Local."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        is_local = pytestconfig.getoption("dynamodb_local")
        for name, value in (credentials() if is_local else _CALLERS).items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Say:
    """Print a line at once, while pytest captures what tests print: it is there after a SIGKILL, too."""
    capture: Any = pytestconfig.pluginmanager.get_plugin("capturemanager")
    terminal: Any = pytestconfig.pluginmanager.get_plugin("terminalreporter")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            terminal.write_line(line)
            terminal.flush()

    return say


@pytest.fixture(scope="session")
def place(pytestconfig: pytest.Config, caller: None, say: Say) -> Iterator[Place]:
    """The tables of this run, once the plan fits into the cap. At the end the plan must have been enough."""
    cap, is_local = pytestconfig.getoption("aws_cap_usd"), pytestconfig.getoption("dynamodb_local")
    refuse_over(cap)
    ledger = pytestconfig.stash[_LEDGER] = Ledger(cap)
    with ExitStack() as until_the_end:
        until_the_end.enter_context(ended_in_order())
        try:
            local = until_the_end.enter_context(DynamoDBLocal()) if is_local else None
            base = local.settings if local else on_aws(pytestconfig.getoption("aws_region"))
            settings = until_the_end.enter_context(own_tables(base, say))
        except DynastateError as error:
            pytest.exit(str(error), 2)
        yield Place(settings, ledger, say, is_local, role=pytestconfig.getoption("aws_role"))
    assert ledger.spent.write <= planned().write, "the plan is too low"
    assert ledger.spent.read <= planned().read, "the plan is too low"


def on_aws(region: str) -> Settings:
    """Settings for a Region. Without one, and without credentials, the run ends."""
    if not region:
        pytest.exit("say in which Region: make test-aws REGION=eu-west-1 CAP_USD=1", 2)
    reason = "no AWS credentials are found: set them in the environment, or AWS_PROFILE"
    try:
        session_credentials = boto3.session.Session().get_credentials()
    except boto_errors.BotoCoreError as error:  # such as a profile that does not exist
        pytest.exit(f"{reason} ({error})", 2)
    if session_credentials is None:
        pytest.exit(reason, 2)
    return Settings(region=region)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    ledger = config.stash.get(_LEDGER, None)
    if ledger is not None:
        spent = ledger.spent
        terminalreporter.write_line(
            f"{spent.write:,.0f} write and {spent.read:,.0f} read units: at most {dollars(spent.cost())}; "
            f"planned {dollars(planned().cost())}, cap {dollars(ledger.cap)}"
        )
