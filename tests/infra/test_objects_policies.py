"""The policies of the bucket for objects compared with the requests that the code sends: they permit these only.

As in `test_policies.py`, each role works through a fault proxy that refuses what its policies do not allow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest

from dynastate.dynamodb.admin import check_tables
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.embedded import BUCKET
from dynastate.engine.checkpoint import first_writers
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError
from dynastate.format.checkpoint import Checkpoint
from dynastate.format.keys import VersionId
from dynastate.format.objects import ObjectId, store_prefix
from dynastate.operations.erase.absent import find_absence
from dynastate.operations.erase.erase import erase_stores, plan_erase
from dynastate.operations.erase.keys import GivenKeys
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.operations.lifecycle.drop import drop_checkpoints, drop_stores
from dynastate.operations.lifecycle.fork import fork_namespace
from dynastate.operations.lifecycle.verify_checkpoint import verify_checkpoints
from dynastate.settings import DELTA_TABLE, SNAPSHOT_TABLE, Settings
from dynastate.settings import PREFIX as SETTINGS
from tests.infra.conftest import AsAws, Terraform
from tests.support.engine_driver import begin, make_engine, read, save_snapshot, write, write_versions
from tests.support.fault_proxy import FaultProxy, let_pass
from tests.support.policies import (
    BUCKETS,
    PREFIX,
    TABLES,
    Access,
    Policy,
    allows,
    both,
    enforce,
    listed,
    render,
    render_objects,
    spare,
)
from tests.support.samples import attempt, noise, numbers
from tests.support.store_builder import StoreBuilder, counted, user

ARN = f"{BUCKETS}{BUCKET}"
S3_URL = f"s3://{BUCKET}/policies"
LOCATION = f"{S3_URL}/{SNAPSHOT_TABLE}"
#: Keys of this location.
KEYS = f"policies/{SNAPSHOT_TABLE}"
RETAIN = 2
pytestmark = pytest.mark.usefixtures("always_worth_it", "dummy_credentials")


def objects_of(role: str, namespace: str) -> Policy:
    return render_objects(role, BUCKET, "policies/", namespace)


def tables_of(role: str, namespace: str) -> Policy:
    return render(role, delta=DELTA_TABLE, snapshot=SNAPSHOT_TABLE, namespace=namespace)


def policies_of(role: str, namespace: str) -> Policy:
    return both(tables_of(role, namespace), objects_of(role, namespace))


def settings_of(proxy: FaultProxy, objects: str = "") -> Settings:
    """Settings that reach both services through the proxy; a PUT costs nothing, so every part goes to an object."""
    return Settings(
        endpoint=proxy.endpoint,
        region="us-east-1",
        objects=objects,
        objects_endpoint=proxy.endpoint,
        objects_threshold_kb=0,
        request_deadline_s=5,
    )


@contextmanager
def engine_at(proxy: FaultProxy, objects: str = "") -> Iterator[tuple[Engine, BotoTables]]:
    with (
        closing(BotoTables(settings_of(proxy, objects))) as tables,
        closing(make_engine(tables, objects=objects, objects_threshold_kb=0)) as engine,
    ):
        yield engine, tables


def write_everything(engine: Engine, store: str) -> list[VersionId]:
    """Do what an executor does with objects: parts, an abort, a snapshot, and a clean-up by a next run."""
    versions = write_versions(engine, store, 11)
    begin(engine, store, attempt(77), {b"x": b"y" * 9_000}, base=versions[11]).abort()
    save_snapshot(engine, store, versions[10], numbers(10))
    versions += [write(engine, store, attempt(12), {b"12": b"12"}, base=versions[11], run="run-2")]
    engine.maintenance.clean_up(store, "run-2", *versions[12], RETAIN, 1, 0)
    assert read(engine, store, 12) == numbers(12)
    return versions


@contextmanager
def make_s3(proxy: FaultProxy) -> Iterator[Any]:
    """A client of S3 with all permissions."""
    proxy.rule = let_pass
    client = boto3.client("s3", endpoint_url=proxy.endpoint, region_name="us-east-1")
    yield client
    client.close()


def names_of(tables: BotoTables, store: str) -> list[ObjectId]:
    return list(tables.objects.names(LOCATION, store_prefix(store)))


def test_executors_do_with_objects_what_their_policy_permits_and_nothing_else(proxy: FaultProxy) -> None:
    store, policy = "objects-writers/0/0/default", objects_of("writer", "objects-writers")
    proxy.rule = enforce(policies_of("writer", "objects-writers"), let_pass)
    assert check_tables(settings_of(proxy, S3_URL)) == []
    with engine_at(proxy, S3_URL) as (engine, tables):
        write_everything(engine, store)
        assert names_of(tables, store)
        assert spare(policy, proxy.requests) == set()
        drop_stores(tables, [store])
        assert names_of(tables, store) == []


@pytest.mark.slow
def test_large_files_of_a_checkpoint_take_no_other_permission(proxy: FaultProxy) -> None:
    """The writer of a namespace, as the driver, puts and deletes their objects, and drops; the reader reads them."""
    checkpoint, file, data = Checkpoint("drivers", "clicks"), "sources/0/9.compact", noise(900_000)
    proxy.rule = enforce(policies_of("writer", "drivers"), let_pass)
    with engine_at(proxy, S3_URL) as (engine, tables):
        for number in (7, 8, 9):
            assert engine.checkpoint_files().put(checkpoint, f"sources/0/{number}.compact", data, overwrites=False)
        engine.checkpoint_files().delete(checkpoint, ["sources/0/7.compact"])
        assert engine.checkpoint_files().put(checkpoint, "sources/0/8.compact", b"small", overwrites=True)
        proxy.rule = enforce(policies_of("reader", "drivers"), let_pass)
        (report,) = verify_checkpoints(tables, "drivers")
        assert [finding.what for finding in report.findings] == ["missing"]  # metadata
        stored = engine.checkpoint_files().get(checkpoint, file)
        assert stored is not None
        assert stored.data == data
        proxy.rule = enforce(policies_of("writer", "drivers"), let_pass)
        assert drop_checkpoints(tables, first_writers(tables, "drivers")) == 2
        assert list(tables.objects.names(LOCATION, "drivers/")) == []


def test_readers_do_with_objects_what_their_policy_permits_and_nothing_else(proxy: FaultProxy) -> None:
    store, policy = "objects-readers/0/0/default", objects_of("reader", "objects-readers")
    with engine_at(proxy, S3_URL) as (engine, tables):
        versions = write_everything(engine, store)
        object_names = names_of(tables, store)
    proxy.requests.clear()
    proxy.rule = enforce(policies_of("reader", "objects-readers"), let_pass)
    with engine_at(proxy) as (engine, tables):
        assert read(engine, store, 12) == numbers(12)
        assert verify(tables, store).is_whole
        assert check_tables(settings_of(proxy, S3_URL)) == []
        with pytest.raises(ConfigurationError, match="denies permission for PutObject on the bucket"):
            tables.objects.put(object_names[0], b"x")
        with pytest.raises(ConfigurationError, match="denies permission for DeleteObjects on the bucket"):
            tables.objects.delete(object_names)
    proxy.rule = enforce(both(tables_of("writer", "objects-readers"), policy), let_pass)
    with engine_at(proxy, S3_URL) as (engine, tables):
        with pytest.raises(ConfigurationError, match="denies permission for PutObject on the bucket"):
            write(engine, store, attempt(13), {b"13": b"13"}, base=versions[12], run="run-2")
        assert names_of(tables, store) == object_names
        assert read(engine, store, 12) == numbers(12)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["writer", "reader"])
def test_objects_of_another_namespace_are_out_of_reach(proxy: FaultProxy, role: str) -> None:
    """Even a role that may use all items can read, write, list and delete objects of its own namespace only."""
    theirs = f"objects-theirs-{role}"
    store = f"{theirs}/0/0/default"
    with engine_at(proxy, S3_URL) as (engine, tables):
        versions = write_everything(engine, store)
        object_names = names_of(tables, store)
    for namespace in ("objects", theirs[:-1], f"{theirs}2"):
        proxy.rule = enforce(both(tables_of("writer", "*"), objects_of(role, namespace)), let_pass)
        with engine_at(proxy, S3_URL) as (engine, tables):
            with pytest.raises(ConfigurationError, match="denies permission for GetObject on the bucket"):
                read(engine, store, 12)
            with pytest.raises(ConfigurationError, match="denies permission for PutObject on the bucket"):
                write(engine, store, attempt(13), {b"13": b"13"}, base=versions[12], run="run-2")
            with pytest.raises(ConfigurationError, match="denies permission for DeleteObjects on the bucket"):
                tables.objects.delete(object_names)
            with pytest.raises(ConfigurationError, match="denies permission for ListObjectsV2 on the bucket"):
                names_of(tables, store)
    proxy.rule = let_pass
    with engine_at(proxy) as (engine, tables):
        assert names_of(tables, store) == object_names
        assert read(engine, store, 12) == numbers(12)


@pytest.mark.slow
@pytest.mark.parametrize("is_versioned", [False, True])
def test_erasers_do_with_objects_what_their_policy_permits(proxy: FaultProxy, *, is_versioned: bool) -> None:
    """Whether the bucket keeps versions or not, with which all of it is used. A proof takes the reader's policy."""
    namespace, bucket = f"objects-erased-{is_versioned}".lower(), f"erased-objects-{is_versioned}".lower()
    store, url = f"{namespace}/0/0/default", f"s3://{bucket}/policies"
    with make_s3(proxy) as s3:
        s3.create_bucket(Bucket=bucket)
        if is_versioned:
            s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    with engine_at(proxy, url) as (engine, tables):
        builder = StoreBuilder(engine, store)
        for number in range(11):
            builder.commit((user(f"user-{number % 4}"), counted(number, "x" * 9_000)))
        assert compact_store(engine, tables, store)
    given = GivenKeys([user("user-1")])
    eraser, reader = (render_objects(role, bucket, "policies/", namespace) for role in ("eraser", "reader"))
    proxy.requests.clear()
    proxy.rule = enforce(both(tables_of("eraser", namespace), eraser), let_pass)
    with engine_at(proxy, url) as (_, tables):
        erase_stores(tables, plan_erase(tables, [store], given), given)
    unused = {action for action, _ in spare(eraser, proxy.requests)}
    assert unused == (
        {"s3:DeleteObject", "s3:ListBucket"} if is_versioned else {"s3:DeleteObjectVersion", "s3:ListBucketVersions"}
    )
    proxy.requests.clear()
    proxy.rule = enforce(both(tables_of("reader", namespace), reader), let_pass)
    with engine_at(proxy, url) as (_, tables):
        assert all(each.is_absent for each in find_absence(tables, [store], given))
        assert check_tables(settings_of(proxy, url)) == []
    assert {action for action, _ in spare(reader, proxy.requests)} == (
        set() if is_versioned else {"s3:ListBucketVersions"}
    )


@pytest.mark.slow
def test_a_fork_reads_objects_of_its_origin_and_writes_its_own(proxy: FaultProxy) -> None:
    """A query on a fork reads its origin's objects; fork, and drop of either, have the writer's policies of both."""
    store, fork = "objects-origins/0/0/default", "objects-forked/0/0/default"
    operator = both(policies_of("writer", "objects-origins"), policies_of("writer", "objects-forked"))
    with engine_at(proxy, S3_URL) as (engine, tables):
        newest = write_everything(engine, store)[-1]
        object_names = names_of(tables, store)
        proxy.rule = enforce(operator, let_pass)
        fork_namespace(tables, "objects-origins", "objects-forked", None)
    proxy.rule = enforce(policies_of("writer", "objects-forked"), let_pass)
    with engine_at(proxy, S3_URL) as (engine, _), pytest.raises(ConfigurationError, match="denies permission"):
        read(engine, fork, *newest)
    proxy.rule = enforce(
        both(policies_of("reader", "objects-origins"), policies_of("writer", "objects-forked")), let_pass
    )
    with engine_at(proxy, S3_URL) as (engine, tables):
        assert read(engine, fork, *newest) == numbers(12)
        versions = write_versions(engine, fork, 12, base=newest, run="test")
        save_snapshot(engine, fork, versions[9], numbers(21), run="test")
        engine.maintenance.clean_up(fork, "test", *versions[-1], RETAIN, 1, 0)
        assert read(engine, fork, *versions[-1]) == numbers(24)
        assert verify(tables, fork).is_whole
        assert names_of(tables, store) == object_names
    proxy.rule = enforce(operator, let_pass)
    with engine_at(proxy) as (engine, tables):
        drop_stores(tables, [fork])
        drop_stores(tables, [store])
        assert (names_of(tables, fork), names_of(tables, store)) == ([], [])


def test_a_reader_learns_that_an_object_is_lost(proxy: FaultProxy) -> None:
    """S3 says so to those only who may list the bucket without a prefix: with a strict condition, it denies access."""
    store = "objects-lost/0/0/default"
    reader = policies_of("reader", "objects-lost")
    with engine_at(proxy, S3_URL) as (engine, tables):
        write_everything(engine, store)
        tables.objects.delete(names_of(tables, store))
    proxy.rule = enforce(reader, let_pass)
    with engine_at(proxy) as (_, tables):
        assert {each.what for each in verify(tables, store).findings} == {"missing"}
    *others, names = reader["Statement"]
    strict = names | {"Condition": {"StringLike": names["Condition"]["StringLikeIfExists"]}}
    proxy.rule = enforce({"Statement": [*others, strict]}, let_pass)
    with engine_at(proxy) as (_, tables), pytest.raises(ConfigurationError, match="denies permission for GetObject"):
        verify(tables, store)


@pytest.mark.parametrize("role", ["writer", "reader", "eraser"])
def test_no_policy_of_a_namespace_reaches_the_bucket_itself(role: str) -> None:
    """No wildcard of actions, no other bucket, no prefix of others, and nothing that changes a bucket is allowed."""
    policy = objects_of(role, "ours")
    object_arn = f"{ARN}/{KEYS}/ours/0/0/default#delta/1"
    assert allows(policy, Access("s3:GetObject", object_arn))
    assert allows(policy, Access("s3:PutObject", object_arn)) is (role != "reader")
    assert allows(policy, Access("s3:DeleteObject", object_arn)) is (role != "reader")
    assert allows(policy, Access("s3:DeleteObjectVersion", object_arn)) is (role == "eraser")
    assert allows(policy, Access("s3:ListBucket", ARN))  # HeadBucket
    for other in (f"{KEYS}/ours2/0/", f"{KEYS}/", "policies/other-groups/ours/0/", "policies/", ""):
        assert not allows(policy, Access("s3:ListBucket", ARN, {PREFIX: (other,)}))
    assert allows(policy, Access("s3:ListBucket", ARN, {PREFIX: (f"{KEYS}/ours/0/",)}))
    for statement in policy["Statement"]:
        for action in listed(statement["Action"]):
            assert "*" not in action
            for resource in (f"{BUCKETS}another", f"{ARN}2", f"{TABLES}/another"):
                assert not allows(policy, Access(action, resource))
                assert not allows(policy, Access(action, f"{resource}/{KEYS}/ours/0/0/default#delta/1"))
    for action in ("DeleteBucket", "PutBucketPolicy", "PutLifecycleConfiguration", "GetObjectVersion", "PutObjectAcl"):
        assert not allows(policy, Access(f"s3:{action}", ARN))
        assert not allows(policy, Access(f"s3:{action}", object_arn))


ROOT = """
variable "tags" {
  type    = map(string)
  default = { team = "one" }
}

provider "aws" {
  region            = "us-east-1"
  s3_use_path_style = true
}

module "dynastate" {
  source                 = "../.."
  namespaces             = { orders = ["orders"], all = ["*"] }
  deletion_protection    = false
  tags                   = var.tags
  objects_bucket_name     = "team-objects"
  objects_prefix          = "state"
  objects_noncurrent_days = 35
}

output "spark_conf" { value = module.dynastate.spark_conf }
output "writer" { value = module.dynastate.objects_writer_policies }
output "reader" { value = module.dynastate.objects_reader_policies }
output "eraser" { value = module.dynastate.objects_eraser_policies }
output "operator" { value = module.dynastate.objects_operator_policy }
"""
NAMESPACES = (("orders", "orders"), ("all", "*"))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_terraform_makes_the_bucket(terraform: Terraform, plugin_dir: str, module: Path, endpoint: str) -> None:
    """Terraform makes, changes and destroys the bucket with the operator's policies, of which all is used.

    Nothing drifts, objects are out of the operator's reach, and the documents that the module gives are those that
    were tested above.
    """
    root = module / "examples" / "objects"
    root.mkdir()
    (root / "main.tf").write_text(ROOT)
    policy = render_objects("operator", "team-objects", "state/")
    place = ObjectId(f"s3://team-objects/state/{SNAPSHOT_TABLE}", "orders/0/0/default#delta/1/a/000000")
    tables_policy = render("operator", delta=DELTA_TABLE, snapshot=SNAPSHOT_TABLE)
    as_aws = AsAws()
    with FaultProxy(endpoint, enforce(both(tables_policy, policy), as_aws)) as proxy:
        terraform = terraform.with_endpoint(proxy.endpoint)
        terraform.succeed(root, "init", plugin_dir)
        terraform.succeed(root, "apply", "-auto-approve")
        outputs = {name: each["value"] for name, each in json.loads(terraform.succeed(root, "output", "-json")).items()}
        tags = '-var=tags={ owner = "two" }'
        terraform.succeed(root, "apply", "-auto-approve", tags)
        plan = terraform.run(root, "plan", "-detailed-exitcode", tags)
        assert plan.returncode == 0, plan.stdout

        objects = outputs["spark_conf"][f"{SETTINGS}objects"]
        assert f"{objects}/{SNAPSHOT_TABLE}" == place.location
        assert check_tables(settings_of(proxy, objects)) == []
        with engine_at(proxy, objects) as (_, tables):
            requests: list[Callable[[], object]] = [
                lambda: tables.objects.put(place, b"x"),
                lambda: tables.objects.get(place, 0, 1),
                lambda: tables.objects.delete([place]),
            ]
            for request in requests:
                with pytest.raises(ConfigurationError, match="AWS denies permission"):
                    request()
        terraform.succeed(root, "destroy", "-auto-approve", tags)
        assert spare(policy, proxy.requests) == set()
    assert json.loads(outputs["operator"]) == policy
    for role in ("writer", "reader", "eraser"):
        documents = {name: json.loads(text) for name, text in outputs[role].items()}
        assert documents == {name: render_objects(role, "team-objects", "state/", each) for name, each in NAMESPACES}
