"""The policies of the Terraform module compared with the requests that the code sends: they permit these only.

Each role does all it does through a fault proxy that refuses what the role's policy does not allow; it records them.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import dynastate
from dynastate.dynamodb.admin import check_tables
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError
from dynastate.format.checkpoint import Checkpoint
from dynastate.format.keys import EMPTY, VersionId
from dynastate.operations.cost.usage import usage_of_namespace
from dynastate.operations.erase.absent import find_absence
from dynastate.operations.erase.erase import erase_stores, plan_erase
from dynastate.operations.erase.keys import GivenKeys
from dynastate.operations.inspection.inspect import inspect_store
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.operations.lifecycle.drop import drop_stores
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.operations.regions.failover import plan_failover
from dynastate.settings import DELTA_TABLE, SNAPSHOT_TABLE, Settings
from dynastate.sidecar.engines import Engines
from tests.infra.conftest import CREDENTIALS, AsAws, Terraform
from tests.support.engine_driver import begin, fold, read, save_snapshot, take_snapshot, write, write_versions
from tests.support.fault_proxy import CutError, FaultProxy, Forward, Reply, Request, let_pass
from tests.support.policies import (
    LEADING_KEYS,
    TABLES,
    Access,
    Policy,
    accesses,
    allows,
    both,
    enforce,
    leading_keys,
    permitted,
    render,
    spare,
    used,
)
from tests.support.samples import State, attempt, numbers
from tests.support.store_builder import StoreBuilder, counted, user

DELTA, SNAPSHOT = f"{TABLES}/{DELTA_TABLE}", f"{TABLES}/{SNAPSHOT_TABLE}"
#: What IAM can allow for all or for none.
LISTS = {
    "cloudwatch:DescribeAlarms",
    "application-autoscaling:DescribeScalableTargets",
    "application-autoscaling:DescribeScalingPolicies",
}
VERSIONS = 25
RETAIN = 2


def policy_of(role: str, namespace: str = "*") -> Policy:
    return render(role, delta=DELTA_TABLE, snapshot=SNAPSHOT_TABLE, namespace=namespace)


@contextmanager
def engine_at(endpoint: str) -> Iterator[Engine]:
    """An engine as the sidecar makes it, which checks the tables first."""
    settings = Settings(endpoint=endpoint, region="us-east-1", shards=2, cache_mb=0)
    instance = Engines().get(settings, was_reached=False)
    instance.commits.inline_bytes = 0  # each commit has parts, as large ones do
    try:
        yield instance
    finally:
        instance.close()
        instance._tables.close()  # type: ignore[attr-defined]  # these are BotoTables


def write_everything(engine: Engine, store: str) -> tuple[VersionId, State]:
    """Do everything that an executor does with a store; return its newest version and rows."""
    versions = write_versions(engine, store, 3)
    noisy = [{b"%d" % number: random.Random(number).randbytes(30_000)} for number in range(30)]  # noqa: S311
    begin(engine, store, attempt(77), *noisy, base=versions[3])  # it leaves orphans
    begin(engine, store, attempt(78), *noisy, base=versions[3]).abort()
    versions += write_versions(engine, store, VERSIONS - 3, base=versions[3], run="run-2")[1:]
    state = numbers(VERSIONS)
    for version in (VERSIONS - 10, VERSIONS - 1):
        save_snapshot(engine, store, versions[version], numbers(version), lambda _: set(state), run="run-2")
    assert engine.maintenance.clean_up(store, "run-2", *versions[VERSIONS], RETAIN, 1, 0)[0].items_deleted > VERSIONS
    assert read(engine, store, VERSIONS) == state
    return versions[VERSIONS], state


@pytest.mark.usefixtures("always_worth_it", "dummy_credentials")
def test_the_writer_may_do_what_executors_do_and_nothing_else(proxy: FaultProxy) -> None:
    policy = policy_of("writer", "writers")
    unlogged: list[Request] = []

    def lose_first_commit(request: Request, forward: Forward) -> Reply:
        """The engine must check then whether it was applied."""
        answer = forward(request)
        if request.operation == "UpdateItem" and "list_append" in request.body["UpdateExpression"] and not unlogged:
            unlogged.append(request)
            raise CutError
        return answer

    proxy.rule = enforce(policy, lose_first_commit)
    with engine_at(proxy.endpoint) as engine:
        write_everything(engine, "writers/0/0/default")
    assert unlogged
    assert used(proxy.requests) == permitted(policy)


@pytest.mark.usefixtures("dummy_credentials")
def test_files_of_a_checkpoint_take_no_other_permission(proxy: FaultProxy) -> None:
    """The writer of a namespace, as the driver, has the files of its checkpoints; the reader reads them."""
    checkpoint, other = Checkpoint("drivers", "clicks"), Checkpoint("others", "clicks")
    large = random.Random(1).randbytes(900_000)  # noqa: S311
    lost: list[Request] = []

    def lose_first_head(request: Request, forward: Forward) -> Reply:
        """The engine must check then whether it was applied."""
        answer = forward(request)
        is_head = request.operation == "UpdateItem" and request.body["Key"]["entry"]["S"].startswith("file/")
        if is_head and not lost:
            lost.append(request)
            raise CutError
        return answer

    proxy.rule = enforce(policy_of("writer", "drivers"), lose_first_head)
    with engine_at(proxy.endpoint) as engine:
        files = engine.checkpoint_files()
        assert files.put(checkpoint, "sources/0/9.compact", large, overwrites=False)
        assert not files.put(checkpoint, "sources/0/9.compact", b"other", overwrites=False)
        assert files.put(checkpoint, "sources/0/9.compact", large, overwrites=True)
        assert files.put(checkpoint, "offsets/0", b"v1", overwrites=False)
        files.delete(checkpoint, ["offsets/0", "commits"])
        with pytest.raises(ConfigurationError, match="denies permission"):
            files.put(other, "offsets/0", b"v1", overwrites=False)
    assert lost
    proxy.rule = enforce(policy_of("reader", "drivers"), let_pass)
    with engine_at(proxy.endpoint) as engine:
        files = engine.checkpoint_files()
        file = files.get(checkpoint, "sources/0/9.compact")
        assert file is not None
        assert file.data == large
        assert [entry.name for entry in files.list(checkpoint, "")] == ["sources"]
        with pytest.raises(ConfigurationError, match="denies permission"):
            files.put(checkpoint, "offsets/1", b"v1", overwrites=False)


@pytest.mark.usefixtures("always_worth_it", "dummy_credentials")
def test_the_reader_may_do_what_reading_takes_and_nothing_else(proxy: FaultProxy) -> None:
    """State, change feeds, cost and verify read with the reader's policy, and all of it is used."""
    store = "readers/0/0/default"
    with engine_at(proxy.endpoint) as engine:
        newest, state = write_everything(engine, store)
    policy = policy_of("reader", "readers")
    proxy.rule = enforce(policy, let_pass)
    proxy.requests.clear()
    with engine_at(proxy.endpoint) as engine:
        assert read(engine, store, VERSIONS) == state
        content = engine.open(store, VERSIONS, newest[1], [newest])
        assert list(content.chunks) == []
        ((version, chunks),) = engine.changes(store, VERSIONS, VERSIONS, newest[1]).versions
        assert (version, fold(chunks)) == (VERSIONS, {b"%d" % VERSIONS: b"%d" % VERSIONS})
        assert usage_of_namespace(engine._tables, "readers")[0].versions >= RETAIN  # dynastate cost
        assert verify(engine._tables, store).is_whole  # dynastate verify
        latest = engine.lineage(store).newest  # open_state
        engine.lookup(store, latest.version, latest.attempt, 0)
        assert inspect_store(engine._tables, store).version == latest.version  # dynastate stores, show
        assert used(proxy.requests) == permitted(policy)
        with pytest.raises(ConfigurationError, match="denies permission for UpdateItem"):
            write(engine, store, attempt(99), {b"a": b"1"}, base=newest, run="run-3")


@pytest.mark.usefixtures("dummy_credentials")
def test_a_failover_is_planned_with_the_readers_policy(proxy: FaultProxy) -> None:
    """Of both sides, where the other one has every item read; all of the policy is used."""
    with engine_at(proxy.endpoint) as engine:
        StoreBuilder(engine, "moved/0/0/default").count_to(3)
    policy = policy_of("reader", "moved")
    proxy.rule = enforce(policy, let_pass)
    proxy.requests.clear()
    settings = Settings(endpoint=proxy.endpoint, region="us-east-1")
    with closing(BotoTables(settings)) as target:
        plan = plan_failover(BotoTables, settings, target, "moved")
    assert (plan.source.version, plan.target.version, plan.problems) == (3, 3, ())
    assert used(proxy.requests) == permitted(policy)


@pytest.mark.usefixtures("dummy_credentials")
def test_tables_of_another_account_are_read_by_their_arns(proxy: FaultProxy) -> None:
    """Scans and look-ups of `open_state` name tables as they are given, and need the reader's policy only."""
    with engine_at(proxy.endpoint) as engine:
        StoreBuilder(engine, "owners/0/0/default").count_to(30)
    proxy.rule = enforce(policy_of("reader", "owners"), let_pass)
    proxy.requests.clear()
    source = dynastate.open_state(
        "owners/0", delta_table=DELTA, snapshot_table=SNAPSHOT, endpoint=proxy.endpoint, region="us-east-1"
    )
    with closing(source) as state:
        rows = list(state)
        assert rows
        key = {name: rows[0][name] for name in state.key_columns.names}
        assert state.get(key) == rows[0]
    arns = {table for request in proxy.requests for table in leading_keys(request.operation, request.body)}
    assert arns == {DELTA, SNAPSHOT}


@pytest.mark.usefixtures("dummy_credentials")
@pytest.mark.parametrize("role", ["writer", "reader", "eraser"])
def test_another_namespace_is_out_of_reach(proxy: FaultProxy, role: str) -> None:
    """With a policy for one namespace, open, write and clean-up in another one are denied, and the error says so."""
    with engine_at(proxy.endpoint) as engine:
        theirs = write(engine, f"theirs-{role}/0/0/default", attempt(1), {b"a": b"1"})
        proxy.rule = enforce(policy_of(role, "ours"), let_pass)
        denied = rf"AWS denies permission for \w+ on table {SNAPSHOT_TABLE}; grant it to the role that runs this"
        for store in (f"theirs-{role}/0/0/default", "ours2/0/0/default", f"theirs-{role}/ours/0/default"):
            with pytest.raises(ConfigurationError, match=denied):
                engine.open(store, 1, theirs[1])
            with pytest.raises(ConfigurationError, match=denied):
                write(engine, store, attempt(2), {b"a": b"2"}, run="run-9")
            with pytest.raises(ConfigurationError, match=denied):
                engine.maintenance.clean_up(store, "run-1", *theirs, RETAIN, 1, 0)
        proxy.rule = let_pass
        assert read(engine, f"theirs-{role}/0/0/default", 1) == {b"a": b"1"}


@pytest.mark.usefixtures("always_worth_it", "dummy_credentials")
def test_a_fork_writes_to_its_own_namespace_only(proxy: FaultProxy) -> None:
    """Fork, clean and drop write to both namespaces; a query on the fork, and verify, only read that of its origin."""
    store, fork = "origins/0/0/default", "forked/0/0/default"
    operator = both(policy_of("writer", "origins"), policy_of("writer", "forked"))
    with engine_at(proxy.endpoint) as engine:
        newest, state = write_everything(engine, store)
        proxy.rule = enforce(operator, let_pass)
        fork_namespace(engine._tables, "origins", "forked", None)
    proxy.rule = enforce(both(policy_of("reader", "origins"), policy_of("writer", "forked")), let_pass)
    with engine_at(proxy.endpoint) as engine:
        assert read(engine, fork, *newest) == state
        versions = write_versions(engine, fork, 12, base=newest, run="test")
        assert read(engine, fork, *versions[-1]) == numbers(VERSIONS + 12)
        keys = numbers(VERSIONS + 9)
        save_snapshot(engine, fork, versions[9], keys, lambda _: set(keys), run="test")
        assert engine.maintenance.clean_up(fork, "test", *versions[-1], RETAIN, 1, 0)[0].items_deleted > 0
        assert verify(engine._tables, fork).is_whole
    proxy.rule = enforce(operator, let_pass)
    with engine_at(proxy.endpoint) as engine:
        clean_store(engine, engine._tables, fork, RETAIN)
        drop_stores(engine._tables, [fork])
        clean_store(engine, engine._tables, store, RETAIN)
        drop_stores(engine._tables, [store])


@pytest.mark.usefixtures("always_worth_it", "dummy_credentials")
def test_erasing_takes_the_erasers_policies_and_its_proof_the_readers(proxy: FaultProxy) -> None:
    """Those of a query and of its fork: no request has keys of both, and all of the policies is used."""
    store, given = "customers/0/0/default", GivenKeys([user("a")])
    eraser, reader = (both(policy_of(role, "customers"), policy_of(role, "copied")) for role in ("eraser", "reader"))
    with engine_at(proxy.endpoint) as engine:
        tables = engine._tables
        StoreBuilder(engine, store).count_to(12).commit((user("b"), counted(1)))
        assert compact_store(engine, tables, store)
        fork_namespace(tables, "customers", "copied", None)
        assert take_snapshot(engine, store, VersionId(12, attempt(12)), {}) is not None
    proxy.rule = enforce(eraser, let_pass)
    proxy.requests.clear()
    with engine_at(proxy.endpoint) as engine:
        tables = engine._tables
        erase_stores(tables, plan_erase(tables, [store], given), given)
    assert used(proxy.requests) == permitted(eraser)
    proxy.rule = enforce(reader, let_pass)
    with engine_at(proxy.endpoint) as engine:
        absences = find_absence(engine._tables, [store], given)
    assert [each.is_absent for each in absences] == [True, True]


def test_one_foreign_key_in_a_batch_denies_it() -> None:
    policy = policy_of("writer", "ours")
    key, foreign_key = "ours/0/0/default#1", "theirs/0/0/default#1"
    for action in ("BatchWriteItem", "BatchGetItem"):
        for table in (DELTA, SNAPSHOT):
            assert allows(policy, Access(f"dynamodb:{action}", table, {LEADING_KEYS: (key, key)}))
            assert not allows(policy, Access(f"dynamodb:{action}", table, {LEADING_KEYS: (key, foreign_key)}))


@pytest.mark.parametrize("role", ["writer", "reader", "eraser", "operator"])
def test_no_policy_permits_requests_without_keys(role: str) -> None:
    """No role may scan, export, or run statements, which have no leading keys to check; nor reach another table."""
    policy = policy_of(role)
    for action in (
        "Scan",
        "PartiQLSelect",
        "ExportTableToPointInTime",
        "TransactWriteItems",
        "GetRecords",
        "CreateBackup",
    ):
        assert not allows(policy, Access(f"dynamodb:{action}", DELTA))
    for action, _ in permitted(policy):
        assert "*" not in action
        assert not allows(policy, Access(action, f"{TABLES}/another", {LEADING_KEYS: ("ours/0/0/default#0",)})) or (
            action in LISTS
        )


@pytest.mark.parametrize("role", ["writer", "reader", "eraser"])
def test_a_scan_is_denied_where_it_is_added(role: str) -> None:
    """A Scan has no leading keys, which `ForAllValues` takes for met: the keys must be there."""
    statements = [
        each | {"Action": [*each["Action"], "dynamodb:Scan"]} for each in policy_of(role, "ours")["Statement"][1:]
    ]
    for table in (DELTA, SNAPSHOT):
        assert not allows({"Statement": statements}, Access("dynamodb:Scan", table))


def test_conditions_are_where_there_are_keys() -> None:
    """A request without leading keys meets a condition on them, so it is only on actions with keys."""
    for role in ("writer", "reader", "eraser"):
        for statement in policy_of(role)["Statement"]:
            actions = {statement["Action"]} if isinstance(statement["Action"], str) else set(statement["Action"])
            assert ("Condition" in statement) == (actions != {"dynamodb:DescribeTable"})


@pytest.mark.parametrize(
    ("pattern", "key", "like"),
    [
        ("ours/*", "ours/0/0/default#3", True),
        ("ours/*", "ours", False),
        ("ours/*", "OURS/0/0/default#3", False),
        ("a.b/*", "axb/0/0/default#3", False),
        ("*/*", "anyone/0/0/default#3", True),
        ("our?/*", "ours/0", True),
    ],
)
def test_the_judge_reads_wildcards_as_iam_does(pattern: str, key: str, like: bool) -> None:  # noqa: FBT001  # expected
    """StringLike: `*` is any text, `?` one character, everything else is itself."""
    condition = {"ForAllValues:StringLike": {LEADING_KEYS: pattern}}
    statement = {"Effect": "Allow", "Action": "dynamodb:Query", "Resource": "*", "Condition": condition}
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    assert allows(policy, Access("dynamodb:Query", DELTA, {LEADING_KEYS: (key,)})) is like


@pytest.mark.parametrize(
    "statement",
    [
        {"Effect": "Deny", "Action": "dynamodb:Query", "Resource": "*"},
        {"Effect": "Allow", "NotAction": "dynamodb:Query", "Resource": "*"},
        {"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": {"StringNotLike": {LEADING_KEYS: "a/*"}}},
    ],
)
def test_the_judge_refuses_what_it_does_not_know(statement: dict[str, object]) -> None:
    """A document with parts of IAM's language that the judge does not know is an error, so it permits nothing."""
    with pytest.raises(AssertionError):
        allows({"Version": "2012-10-17", "Statement": [statement]}, Access("dynamodb:Query", DELTA))


ROOT = """
variable "deletion_protection" { default = true }
variable "point_in_time_recovery" { default = true }
variable "scaled" { default = true }
variable "tags" {
  type    = map(string)
  default = { team = "one" }
}

locals {
  units = {
    read  = { min = 10, max = 20 }
    write = { min = 500, max = 900 }
  }
}

provider "aws" { region = "us-east-1" }

module "dynastate" {
  source                 = "../.."
  namespaces             = { orders = ["orders"], all = ["*"] }
  deletion_protection    = var.deletion_protection
  point_in_time_recovery = var.point_in_time_recovery
  tags                   = var.tags
  alarms                 = {}
  provisioned_capacity   = var.scaled ? { delta = local.units, snapshot_group = local.units } : null
}

output "writer_policies" { value = module.dynastate.writer_policies }
output "reader_policies" { value = module.dynastate.reader_policies }
output "eraser_policies" { value = module.dynastate.eraser_policies }
output "operator_policy" { value = module.dynastate.operator_policy }
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_terraform_needs_the_operators_policy_and_gives_all_four(
    terraform: Terraform, plugin_dir: str, module: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Terraform and the CLI make, change and drop the tables with the operator's policy, which permits nothing else.

    The documents that the module gives are those that were tested above.
    """
    policy = policy_of("operator")
    root = module / "examples" / "policies"
    root.mkdir()
    (root / "main.tf").write_text(ROOT)
    with FaultProxy(endpoint, enforce(policy, AsAws())) as proxy:
        terraform = terraform.with_endpoint(proxy.endpoint)
        terraform.succeed(root, "init", plugin_dir)
        terraform.succeed(root, "apply", "-auto-approve")
        outputs = {name: each["value"] for name, each in json.loads(terraform.succeed(root, "output", "-json")).items()}
        changes = ["-var=deletion_protection=false", "-var=point_in_time_recovery=false", '-var=tags={ owner = "two" }']
        terraform.succeed(root, "apply", "-auto-approve", *changes)
        terraform.succeed(root, "destroy", "-auto-approve", "-var=scaled=false", *changes)
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        settings = Settings(endpoint=proxy.endpoint, region="us-east-1")
        words = [sys.executable, "-m", "dynastate.cli", "tables", "create", "--endpoint", proxy.endpoint]
        subprocess.run([*words, "--region", "us-east-1"], env=terraform.environment, check=True, capture_output=True)
        assert check_tables(settings) == []
        assert spare(policy, proxy.requests) == set()
        with (
            engine_at(proxy.endpoint) as engine,
            pytest.raises(ConfigurationError, match="denies permission for BatchGetItem"),
        ):
            write(engine, "orders/0/0/default", attempt(1), {b"a": b"1"}, base=EMPTY)
        with pytest.raises(ConfigurationError, match="denies permission for DescribeTable on table another"):
            check_tables(replace(settings, delta_table="another"))
    assert json.loads(outputs["operator_policy"]) == policy
    for role in ("writer", "reader", "eraser"):
        documents = {namespace: json.loads(text) for namespace, text in outputs[f"{role}_policies"].items()}
        assert documents == {"orders": policy_of(role, "orders"), "all": policy_of(role)}


def test_every_request_is_understood(proxy: FaultProxy, dummy_credentials: None) -> None:
    """The judge takes keys from where each operation has them; an operation it does not know is an error."""
    with engine_at(proxy.endpoint) as engine:
        write(engine, "understood/0/0/default", attempt(1), {b"a": b"1"})
    contexts = {access.action: access.context for request in proxy.requests for access in accesses(request)}
    assert contexts.pop("dynamodb:DescribeTable") == {}
    assert set(contexts) == {
        f"dynamodb:{each}" for each in ("BatchGetItem", "Query", "PutItem", "BatchWriteItem", "UpdateItem")
    }
    for context in contexts.values():
        assert all(key.startswith("understood/") for key in context[LEADING_KEYS])
    with pytest.raises(AssertionError):
        accesses(Request("DynamoDB_20120810", "TransactGetItems", {"TransactItems": []}, {}))
