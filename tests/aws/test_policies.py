"""The policies of the Terraform module, evaluated by AWS: credentials that have them, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from string import Template
from typing import Any

import boto3.session
import botocore.exceptions as boto_errors
import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.client import make_client
from dynastate.engine.updates import append_version
from dynastate.errors import ConfigurationError
from dynastate.format.items import FORMAT, Item, item_key
from dynastate.format.keys import Key, meta_key, version_list_key
from tests.aws.place import Place
from tests.support.policies import POLICIES

Roles = Callable[[str], Any]


def policy(place: Place, role: str) -> str:
    """A document of the module for the tables of this run and one namespace."""
    with closing(make_client(place.settings)) as client:
        delta, snapshot = (
            client.describe_table(TableName=name)["Table"]["TableArn"]
            for name in (place.settings.delta_table, place.settings.snapshot_table)
        )
    text = (POLICIES / f"{role}.json.tftpl").read_text()
    names = {"delta_table_arn": delta, "snapshot_group_table_arn": snapshot, "leading_keys": '["mine/*"]'}
    return json.dumps(json.loads(Template(text).substitute(names)), separators=(",", ":"))


@pytest.fixture
def with_policy(place: Place) -> Roles:
    """Make tables whose credentials have the policy of a role, and not more."""
    if place.is_local:
        pytest.skip("DynamoDB Local knows no policies")

    @contextmanager
    def opened(role: str) -> Iterator[BotoTables]:
        sts = boto3.session.Session().client("sts", region_name=place.settings.region)
        document = policy(place, role)
        try:
            if place.role:
                answer = sts.assume_role(RoleArn=place.role, RoleSessionName="dynastate-test", Policy=document)
            else:
                answer = sts.get_federation_token(Name="dynastate-test", Policy=document, DurationSeconds=900)
        except boto_errors.ClientError as error:
            pytest.skip(f"no credentials with a policy: {error}; name a role to assume: make test-aws ROLE=ARN")
        finally:
            sts.close()
        keys = answer["Credentials"]
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("AWS_PROFILE", raising=False)
            patch.setenv("AWS_ACCESS_KEY_ID", keys["AccessKeyId"])
            patch.setenv("AWS_SECRET_ACCESS_KEY", keys["SecretAccessKey"])
            patch.setenv("AWS_SESSION_TOKEN", keys["SessionToken"])
            with closing(place.ledger.watch(BotoTables(place.settings))) as tables:
                yield tables

    return opened


def item_of(store: str) -> tuple[Key, Item]:
    key = meta_key(store)
    return key, item_key(key) | {"format": FORMAT}


def test_writer_writes_its_own_namespace_only(with_policy: Roles) -> None:
    with with_policy("writer") as tables:
        assert tables.check() == []
        for namespace, is_own in (("mine", True), ("other", False)):
            key, item = item_of(f"{namespace}/0/0/default")
            store = f"{namespace}/0/0/default"
            calls = (
                partial(tables.write, [(key, item)]),
                partial(tables.get, [key]),
                partial(tables.query, "snapshot", key.store_shard, "a", "z"),
                partial(append_version, tables, version_list_key(store, 1), b"one", "run-1"),
                partial(tables.delete, [key]),
            )
            for call in calls:
                if is_own:
                    call()
                else:
                    with pytest.raises(ConfigurationError, match=r"not authorized|AccessDenied"):
                        call()


def test_reader_writes_nothing(with_policy: Roles, place: Place) -> None:
    key, item = item_of("mine/1/0/default")
    with closing(place.ledger.watch(BotoTables(place.settings))) as tables:
        tables.write([(key, item)])
    with with_policy("reader") as tables:
        assert tables.get([key]) == {key: item}
        with pytest.raises(ConfigurationError, match=r"not authorized|AccessDenied"):
            tables.write([(key, item)])
