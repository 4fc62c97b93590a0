"""The Terraform module, run by the real terraform: formatted, valid, tested, and applied to an emulated DynamoDB.

Everything runs on a copy of ``infra/`` in pytest's temporary directory, so no plugin, lock file or state is left in the
tree; and with an environment in which nothing leads to a real AWS account.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped, unused-ignore]
import pytest
from botocore.config import Config  # type: ignore[import-untyped, unused-ignore]
from botocore.exceptions import ClientError  # type: ignore[import-untyped, unused-ignore]

from tests.infra.conftest import CREDENTIALS, INFRA, Terraform

REGION = "us-east-1"

# `terraform plan -detailed-exitcode` ends with 0 for no changes, 1 for an error, 2 for changes.
NO_CHANGES = 0


def dynamodb_client(endpoint: str) -> Any:
    """Return a DynamoDB client for the emulated AWS; a proxy in the environment is not for loopback."""
    return boto3.client(
        "dynamodb",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        config=Config(proxies={}, retries={"total_max_attempts": 1}),
    )


def keys(table: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return a described table's keys as name, role and type, partition key first."""
    types = {attribute["AttributeName"]: attribute["AttributeType"] for attribute in table["AttributeDefinitions"]}
    return [(key["AttributeName"], key["KeyType"], types.pop(key["AttributeName"])) for key in table["KeySchema"]]


def test_every_file_is_formatted(terraform: Terraform) -> None:
    """Every Terraform file is as `terraform fmt` would write it."""
    done = terraform.run(INFRA, "fmt", "-check", "-diff", "-recursive")

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("root", [".", "examples/basic"])
def test_every_root_is_valid(terraform: Terraform, plugin_dir: str, module: Path, root: str) -> None:
    """The module and its example are valid against the provider's real schema."""
    terraform.succeed(module / root, "init", plugin_dir)

    terraform.succeed(module / root, "validate")


def test_the_modules_own_tests_pass(terraform: Terraform, plugin_dir: str, module: Path) -> None:
    """The module's own tests pass, and none of them is left out."""
    terraform.succeed(module, "init", plugin_dir)

    output = terraform.succeed(module, "test")

    for path in sorted((module / "tests").glob("*.tftest.hcl")):
        assert f"tests/{path.name}... pass" in output


def test_the_example_lives_and_dies(terraform: Terraform, plugin_dir: str, module: Path, endpoint: str) -> None:
    """The example makes two tables with the right keys, shows no drift, and goes only once its protection is off."""
    terraform = terraform.with_endpoint(endpoint)
    dynamodb = dynamodb_client(endpoint)
    root = module / "examples" / "basic"
    unprotected = "-var=deletion_protection=false"

    # Made.
    terraform.succeed(root, "init", plugin_dir)
    terraform.succeed(root, "apply", "-auto-approve")

    conf = json.loads(terraform.succeed(root, "output", "-json", "spark_conf"))
    assert conf == {
        "spark.sql.streaming.stateStore.dynastate.deltaTable": "dynastate-delta",
        "spark.sql.streaming.stateStore.dynastate.snapshotTable": "dynastate-snapshot-group",
    }
    assert set(dynamodb.list_tables()["TableNames"]) == set(conf.values())

    # As it should be.
    plan = terraform.run(root, "plan", "-detailed-exitcode")
    assert plan.returncode == NO_CHANGES, plan.stdout

    tables = {name: dynamodb.describe_table(TableName=name)["Table"] for name in conf.values()}
    assert {name: keys(table) for name, table in tables.items()} == {
        "dynastate-delta": [("store_shard", "HASH", "S"), ("part", "RANGE", "S")],
        "dynastate-snapshot-group": [("store_shard", "HASH", "S"), ("entry", "RANGE", "S")],
    }
    for name, table in tables.items():
        backups = dynamodb.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
        assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"
        assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
        assert table["SSEDescription"]["Status"] == "ENABLED"

    # Protected.
    for name in tables:
        with pytest.raises(ClientError, match=r"(?i)deletion.?protection"):
            dynamodb.delete_table(TableName=name)

    # Gone.
    terraform.succeed(root, "apply", "-auto-approve", unprotected)
    terraform.succeed(root, "destroy", "-auto-approve", unprotected)
    assert dynamodb.list_tables()["TableNames"] == []
