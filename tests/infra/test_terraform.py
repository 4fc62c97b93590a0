"""The Terraform module, run by the real terraform: formatted, valid, tested, and applied to an emulated AWS.

Everything runs on a copy of ``infra/`` in pytest's temporary directory, so no plugin, lock file or state is left in the
tree. Nothing in its environment leads to a real AWS account.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped, unused-ignore]
import pytest
from botocore.config import Config  # type: ignore[import-untyped, unused-ignore]
from botocore.exceptions import ClientError  # type: ignore[import-untyped, unused-ignore]

from dynastate.dynamodb.admin import check_tables
from dynastate.format.keys import SPECS
from dynastate.settings import PREFIX, Settings
from tests.infra.conftest import CREDENTIALS, INFRA, TEST_TIMEOUT_S, AsAws, Terraform
from tests.support.fault_proxy import FaultProxy
from tests.support.jvm import LOG4J
from tests.support.processes import wait_until

REGION = "us-east-1"
ROOTS = [".", "examples/basic", "examples/production", "observability/cloudwatch"]
UNPROTECTED = "-var=deletion_protection=false"
QUERY = Path(__file__).with_name("query.py")
#: A JVM starts, and runs a query of two partitions: ten seconds, and minutes on a machine that has much else to do.
QUERY_TIMEOUT_S = 300

# `terraform plan -detailed-exitcode` ends with 0 for no changes, 1 for an error, 2 for changes.
NO_CHANGES = 0


def dynamodb_client(endpoint: str) -> Any:
    return boto3.client(
        "dynamodb",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        config=Config(proxies={}, retries={"total_max_attempts": 1}),
    )


def expect_no_changes(terraform: Terraform, root: Path, *arguments: str) -> None:
    plan = terraform.run(root, "plan", "-detailed-exitcode", *arguments)
    assert plan.returncode == NO_CHANGES, plan.stdout


def expect_tables_that_fit(conf: Mapping[str, str], endpoint: str) -> Settings:
    """The tables that `spark_conf` names are what the package needs; the settings that reach them."""
    options = {name.removeprefix(PREFIX): value for name, value in conf.items()}
    settings = Settings.from_spark({**options, "endpoint": endpoint, "region": REGION})
    assert check_tables(settings) == []
    return settings


def test_every_file_is_formatted(terraform: Terraform) -> None:
    completed = terraform.run(INFRA, "fmt", "-check", "-diff", "-recursive")

    assert completed.returncode == 0, completed.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("root", ROOTS)
def test_every_root_is_valid(terraform: Terraform, plugin_dir: str, module: Path, root: str) -> None:
    """The module and its examples are valid against the provider's real schema, and pass all of their own tests."""
    terraform.succeed(module / root, "init", plugin_dir)

    terraform.succeed(module / root, "validate")
    output = terraform.succeed(module / root, "test", timeout_s=TEST_TIMEOUT_S)

    tests = sorted((module / root / "tests").glob("*.tftest.hcl"))
    assert tests
    for path in tests:
        assert f"tests/{path.name}... pass" in output


@pytest.mark.slow
@pytest.mark.usefixtures("dummy_credentials")
def test_the_basic_example_is_applied(terraform: Terraform, plugin_dir: str, module: Path, endpoint: str) -> None:
    terraform = terraform.with_endpoint(endpoint)
    dynamodb = dynamodb_client(endpoint)
    root = module / "examples" / "basic"

    # Made.
    terraform.succeed(root, "init", plugin_dir)
    terraform.succeed(root, "apply", "-auto-approve")

    conf = json.loads(terraform.succeed(root, "output", "-json", "spark_conf"))
    settings = expect_tables_that_fit(conf, endpoint)
    assert settings == Settings(endpoint=endpoint, region=REGION)
    assert set(dynamodb.list_tables()["TableNames"]) == {settings.delta_table, settings.snapshot_table}

    # As it should be.
    expect_no_changes(terraform, root)
    for name in conf.values():
        table = dynamodb.describe_table(TableName=name)["Table"]
        backups = dynamodb.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
        assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"
        assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
        assert table["SSEDescription"]["Status"] == "ENABLED"

    # Protected.
    for name in conf.values():
        with pytest.raises(ClientError, match=r"(?i)deletion.?protection"):
            dynamodb.delete_table(TableName=name)

    # Gone.
    terraform.succeed(root, "apply", "-auto-approve", UNPROTECTED)
    terraform.succeed(root, "destroy", "-auto-approve", UNPROTECTED)
    assert dynamodb.list_tables()["TableNames"] == []


def run_query(folder: Path, conf: Mapping[str, str], environment: Mapping[str, str], *arguments: str) -> dict[str, int]:
    """Run the query in a new process, with Spark's conf by `--conf`, and return its counts."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    options = {
        "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={temporary} -Dlog4j2.configurationFile={LOG4J}",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(temporary),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        **conf,
    }
    conf_words = " ".join(f"--conf '{name}={value}'" for name, value in options.items())
    completed = subprocess.run(
        [sys.executable, str(QUERY), str(folder / "files"), str(folder / "checkpoint"), *arguments],
        cwd=folder,
        env={**environment, "PYSPARK_SUBMIT_ARGS": f"--master local[2] {conf_words} pyspark-shell"},
        capture_output=True,
        text=True,
        check=False,
        timeout=QUERY_TIMEOUT_S,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    wait_until(lambda: not list(temporary.glob("dynastate-*")), "the sidecar left its socket behind")
    counts: dict[str, int] = json.loads(completed.stdout.splitlines()[-1])
    return counts


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("dummy_credentials")
def test_a_query_runs_on_the_production_example(
    terraform: Terraform, plugin_dir: str, module: Path, endpoint: str, environment: dict[str, str], folder: Path
) -> None:
    """The example is applied, a PySpark query keeps its state there, nothing drifts, and it is destroyed."""
    files = folder / "files"
    files.mkdir()
    root = module / "examples" / "production"
    with FaultProxy(endpoint, AsAws()) as proxy:
        terraform = terraform.with_endpoint(proxy.endpoint)
        dynamodb = dynamodb_client(proxy.endpoint)
        terraform.succeed(root, "init", plugin_dir)
        terraform.succeed(root, "apply", "-auto-approve")
        conf = json.loads(terraform.succeed(root, "output", "-json", "spark_conf"))
        settings = expect_tables_that_fit(conf, proxy.endpoint)

        arguments = (proxy.endpoint, REGION, "orders")
        counts = {f"customer-{number}": 1 + number % 2 for number in range(100)}  # too many for the version list
        keys = (key for key, count in counts.items() for _ in range(count))
        (files / "1.json").write_text("".join(json.dumps({"key": key}) + "\n" for key in keys))
        assert run_query(folder, conf, environment, *arguments) == counts

        for name in (settings.delta_table, settings.snapshot_table):
            limits = dynamodb.describe_table(TableName=name)["Table"]["OnDemandThroughput"]
            assert limits == {"MaxReadRequestUnits": 12_000, "MaxWriteRequestUnits": 4_000}
            items = dynamodb.scan(TableName=name, ProjectionExpression="store_shard")["Items"]
            assert items
            assert all(item["store_shard"]["S"].startswith("orders/") for item in items)
        expect_no_changes(terraform, root)

        terraform.succeed(root, "apply", "-auto-approve", UNPROTECTED)
        terraform.succeed(root, "destroy", "-auto-approve", UNPROTECTED)
        assert dynamodb.list_tables()["TableNames"] == []


CAPACITY = """
variable "dynastate" { type = any }

provider "aws" { region = "us-east-1" }

module "dynastate" {
  source               = "../.."
  deletion_protection  = false
  provisioned_capacity = try(var.dynastate.provisioned_capacity, null)
  on_demand_throughput = try(var.dynastate.on_demand_throughput, {})
  warm_throughput      = try(var.dynastate.warm_throughput, {})
  table_class          = try(var.dynastate.table_class, "STANDARD")
}
"""
# The AWS command line, as far as the module uses it. botocore's model of the API is the same.
AWS_CLI = """#!{python}
import json, sys
import boto3
client = boto3.client("dynamodb", region_name=sys.argv[sys.argv.index("--region") + 1])
if sys.argv[1:3] == ["dynamodb", "update-table"] and sys.argv[5] == "--cli-input-json":
    client.update_table(**json.loads(sys.argv[6]))
else:
    assert sys.argv[1:4] == ["dynamodb", "wait", "table-exists"] and sys.argv[6] == "--table-name", sys.argv
    client.get_waiter("table_exists").wait(TableName=sys.argv[7])
with open("{log}", "a") as log:
    log.write(sys.argv[2] + "\\n")
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_changes_in_place(terraform: Terraform, plugin_dir: str, module: Path, endpoint: str, tmp_path: Path) -> None:
    """Capacity mode, limits, warm throughput and class change both ways: the tables stay, and nothing drifts."""
    command = tmp_path / "bin" / "aws"
    command.parent.mkdir()
    log = tmp_path / "aws.log"
    command.write_text(AWS_CLI.format(python=sys.executable, log=log))
    command.chmod(0o755)
    root = module / "examples" / "capacity"
    root.mkdir()
    (root / "main.tf").write_text(CAPACITY)
    units = {"read": {"min": 10, "max": 20}, "write": {"min": 500, "max": 900}}
    arguments = {"provisioned_capacity": {"delta": units, "snapshot_group": units}}

    def given(**variables: object) -> str:
        return f"-var=dynastate={json.dumps(variables)}"

    with FaultProxy(endpoint, AsAws()) as proxy:
        local = terraform.with_endpoint(proxy.endpoint)
        path = f"{command.parent}:{terraform.environment['PATH']}"
        terraform = Terraform(local.program, {**local.environment, "PATH": path})
        dynamodb = dynamodb_client(proxy.endpoint)

        def apply(**variables: object) -> Mapping[str, Any]:
            terraform.succeed(root, "apply", "-auto-approve", given(**variables))
            expect_no_changes(terraform, root, given(**variables))
            table: Mapping[str, Any] = dynamodb.describe_table(TableName="dynastate-delta")["Table"]
            return table

        terraform.succeed(root, "init", plugin_dir)
        description = apply(
            on_demand_throughput={"delta": {"max_write_request_units": 2000}},
            warm_throughput={"delta": {"read_units_per_second": 13_000, "write_units_per_second": 5_000}},
        )
        assert description["OnDemandThroughput"] == {"MaxWriteRequestUnits": 2_000}
        assert description["WarmThroughput"]["ReadUnitsPerSecond"] == 13_000
        assert description["WarmThroughput"]["WriteUnitsPerSecond"] == 5_000
        assert log.read_text().split() == ["update-table", "wait"], "the table takes no other change meanwhile"

        unlimited = given(on_demand_throughput={"delta": {"max_write_request_units": -1}})
        terraform.succeed(root, "apply", "-auto-approve", unlimited)
        table = apply(table_class="STANDARD_INFREQUENT_ACCESS")
        assert "OnDemandThroughput" not in table
        assert table["TableClassSummary"] == {"TableClass": "STANDARD_INFREQUENT_ACCESS"}

        table = apply(**arguments)
        assert table["BillingModeSummary"]["BillingMode"] == "PROVISIONED"
        # Autoscaling works, and Terraform lets it.
        for name in ("dynastate-delta", "dynastate-snapshot-group"):
            capacity = {"ReadCapacityUnits": 15, "WriteCapacityUnits": 700}
            dynamodb.update_table(TableName=name, ProvisionedThroughput=capacity)
        expect_no_changes(terraform, root, given(**arguments))

        table = apply()
        assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
        assert [request.operation for request in proxy.requests].count("CreateTable") == len(SPECS)
        terraform.succeed(root, "destroy", "-auto-approve", given())
        assert dynamodb.list_tables()["TableNames"] == []
