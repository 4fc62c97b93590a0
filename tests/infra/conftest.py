"""The real terraform, on a copy of the module, in an environment in which nothing leads to a real AWS account."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

from dynastate.dynamodb.embedded import EmbeddedDynamoDB
from tests.support.fault_proxy import FaultProxy, Forward, Reply, Request

INFRA = Path(__file__).parents[2] / "infra"

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}

# A download of the AWS provider is some 150 MB; every other command takes seconds.
INIT_TIMEOUT_S = 600
COMMAND_TIMEOUT_S = 180
# `terraform test` plans some fifty times.
TEST_TIMEOUT_S = 600
SERVER_TIMEOUT_S = 60

MIRROR_ROOTS = ("/opt", "/usr/share", "/usr/local/share")
MIRROR_NAME = "registry.terraform.io"
MIRROR_DEPTH_MAX = 4

# What terraform says when neither a mirror nor the registry gives it a provider. Any other failure is ours.
PLUGIN_NOT_SERVED = ("Failed to query available provider packages", "Failed to install provider")

# One thread, so that requests are served one at a time: moto loses writes that come at once. The port is the system's
# choice and is printed; standard input closes with the parent, so that the server cannot outlive the tests.
SERVER = """
import os, sys, threading
import waitress
from moto.server import DomainDispatcherApplication, create_backend_app

def end_with_parent():
    sys.stdin.read()
    os._exit(0)

app = DomainDispatcherApplication(create_backend_app)
server = waitress.create_server(app, host="127.0.0.1", port=0, threads=1, max_request_body_size=64 * 1024**2)
threading.Thread(target=end_with_parent, daemon=True).start()
print(server.effective_port, flush=True)
server.run()
"""


@dataclass(frozen=True)
class Terraform:
    """The terraform program with the environment it runs in."""

    program: str
    # Not shown when a test fails: the environment of a CI job may hold secrets.
    environment: Mapping[str, str] = field(repr=False)

    def run(self, root: Path, *arguments: str, timeout_s: int = COMMAND_TIMEOUT_S) -> subprocess.CompletedProcess[str]:
        """Run one command in the root module ``root``; standard error is part of the output."""
        return subprocess.run(
            [self.program, *arguments],
            cwd=root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def succeed(self, root: Path, *arguments: str, timeout_s: int = COMMAND_TIMEOUT_S) -> str:
        """Run one command, which must end with 0; return its output."""
        completed = self.run(root, *arguments, timeout_s=timeout_s)
        assert completed.returncode == 0, completed.stdout
        return completed.stdout

    def with_endpoint(self, url: str) -> Terraform:
        """The same, with ``url`` in the place of every AWS service."""
        return Terraform(self.program, {**self.environment, "AWS_ENDPOINT_URL": url})


class AsAws:
    """Rule of a fault proxy in front of moto: it adds to the answers what AWS has there and moto leaves out.

    These are a table's limits on demand, its class and, as long as it is on demand, a capacity of 0; and the tags of
    scalable targets.
    """

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, Any]] = {}
        self._tags: dict[str, dict[str, str]] = {}

    def __call__(self, request: Request, forward: Forward) -> Reply:
        if request.service == "AnyScaleFrontendService":
            return self._scaling(request, forward)
        reply = forward(request)
        answer = json.loads(reply.raw) if request.service == "DynamoDB_20120810" else {}
        table = answer.get("Table") or answer.get("TableDescription")
        if table:
            self._complete(request, table)
            return reply._replace(raw=json.dumps(answer).encode())
        return reply

    def _complete(self, request: Request, table: dict[str, Any]) -> None:
        if request.operation == "CreateTable":
            self._tables[table["TableName"]] = {}
        description = self._tables[table["TableName"]]
        if "OnDemandThroughput" in request.body:
            limits = description.get("OnDemandThroughput", {}) | request.body["OnDemandThroughput"]
            description["OnDemandThroughput"] = {name: limit for name, limit in limits.items() if limit != -1}
            if not description["OnDemandThroughput"]:
                del description["OnDemandThroughput"]
        if "TableClass" in request.body:
            description["TableClassSummary"] = {"TableClass": request.body["TableClass"]}
        table |= description
        if table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST":
            table["ProvisionedThroughput"] |= {"ReadCapacityUnits": 0, "WriteCapacityUnits": 0}

    def _scaling(self, request: Request, forward: Forward) -> Reply:
        arn = request.body.get("ResourceARN", "")
        if request.operation == "ListTagsForResource":
            return Reply(200, json.dumps({"Tags": self._tags.get(arn, {})}).encode())
        if request.operation == "TagResource":
            self._tags.setdefault(arn, {}).update(request.body["Tags"])
            return Reply(200, b"{}")
        if request.operation == "UntagResource":
            for name in request.body["TagKeys"]:
                self._tags[arn].pop(name)
            return Reply(200, b"{}")
        reply = forward(request)
        if request.operation == "RegisterScalableTarget" and reply.status == 200:
            self._tags.setdefault(json.loads(reply.raw)["ScalableTargetARN"], {}).update(request.body.get("Tags") or {})
        return reply


def find_mirror() -> Path | None:
    for root in MIRROR_ROOTS:
        for depth in range(MIRROR_DEPTH_MAX):
            for path in sorted(Path(root).glob("*/" * depth + MIRROR_NAME)):
                if (path / "hashicorp" / "aws").is_dir():
                    return path.parent
    return None


def write_cli_config(path: Path) -> None:
    """Write a CLI configuration: the mirror, where there is one, else nothing, which leaves terraform's defaults."""
    mirror = find_mirror()
    if mirror is None:
        path.write_text("")
        return
    # A JSON string is an HCL string too, as long as the path has no template in it.
    literal = json.dumps(str(mirror))
    path.write_text(f"provider_installation {{\n  filesystem_mirror {{\n    path = {literal}\n  }}\n}}\n")


def clean_environment(directory: Path) -> dict[str, str]:
    """Return this environment without any setting of terraform's or AWS's, so that no real account can be meant."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "TF_"))}
    if "TF_PLUGIN_CACHE_DIR" in os.environ:
        variables["TF_PLUGIN_CACHE_DIR"] = os.environ["TF_PLUGIN_CACHE_DIR"]
    cli_config = directory / "terraform.rc"
    write_cli_config(cli_config)
    return {
        **variables,
        **CREDENTIALS,
        "AWS_CONFIG_FILE": str(directory / "no-aws-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(directory / "no-aws-credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "CHECKPOINT_DISABLE": "1",
        "GOGC": "off",  # every command starts the provider; a quarter of its CPU would go to garbage collection
        "TF_CLI_ARGS": "-no-color",
        "TF_CLI_CONFIG_FILE": str(cli_config),
        "TF_INPUT": "0",
        "TF_IN_AUTOMATION": "1",
    }


def skip(reason: str) -> NoReturn:
    """Skip the test, unless DYNASTATE_TERRAFORM=required, or a mirror shows that this machine is to run it."""
    if os.environ.get("DYNASTATE_TERRAFORM") == "required" or find_mirror() is not None:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> Terraform:
    program = shutil.which("terraform")
    if program is None:
        skip("terraform is not on PATH: install Terraform 1.9 or newer")
    return Terraform(program, clean_environment(tmp_path_factory.mktemp("terraform")))


@pytest.fixture(scope="module")
def plugin_dir(terraform: Terraform, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The `init` option that installs the AWS provider; where nothing serves the provider, the test is skipped.

    The provider is fetched once, with no more than versions.tf, so that an error anywhere else in the module fails a
    test; every other root takes it from there.
    """
    root = tmp_path_factory.mktemp("provider")
    shutil.copy(INFRA / "versions.tf", root)
    completed = terraform.run(root, "init", timeout_s=INIT_TIMEOUT_S)
    if any(reason in completed.stdout for reason in PLUGIN_NOT_SERVED):
        skip(
            "nothing serves the AWS provider for Terraform that versions.tf asks for: connect this machine to the"
            f" internet, or install a filesystem mirror below one of {', '.join(MIRROR_ROOTS)}"
        )
    assert completed.returncode == 0, completed.stdout
    return f"-plugin-dir={root / '.terraform' / 'providers'}"


@pytest.fixture
def module(tmp_path: Path) -> Path:
    return Path(shutil.copytree(INFRA, tmp_path / "infra", ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*")))


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """The URL of an empty emulated AWS on loopback, in a process of its own."""
    log = tmp_path / "server.log"
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as server,
    ):
        assert server.stdout is not None
        # A killed server closes its output, so the wait for its port ends in any case.
        deadline = threading.Timer(SERVER_TIMEOUT_S, server.kill)
        deadline.start()
        try:
            port = server.stdout.readline().strip()
            deadline.cancel()
            assert port, log.read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            deadline.cancel()
            server.kill()


@pytest.fixture
def proxy(embedded: EmbeddedDynamoDB) -> Iterator[FaultProxy]:
    """A fault proxy in front of the embedded DynamoDB, and its S3."""
    with FaultProxy(embedded.endpoint) as fault_proxy:
        yield fault_proxy
