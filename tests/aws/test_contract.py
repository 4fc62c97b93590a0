"""The contract of the tables, by dynastate's own requests and by boto3's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.client import make_client
from tests.aws.place import Place
from tests.contract import test_tables

#: The rest is of fakes.
TESTS: dict[str, Callable[..., None]] = {
    name: test for name, test in vars(test_tables).items() if name.startswith("test_") and "fake" not in name
}
globals().update(TESTS)


@pytest.fixture(scope="module")
def http(place: Place) -> Iterator[BotoTables]:
    tables = place.ledger.watch(BotoTables(place.settings))
    yield tables
    tables.close()


@pytest.fixture(scope="module")
def boto3(place: Place) -> Iterator[BotoTables]:
    tables = place.ledger.watch(BotoTables(place.settings, client=make_client(place.settings)))
    yield tables
    tables.close()


@pytest.fixture(params=["http", "boto3"])
def tables(request: pytest.FixtureRequest) -> BotoTables:
    source: BotoTables = request.getfixturevalue(request.param)
    return source


@pytest.fixture
def moto(http: BotoTables) -> BotoTables:
    return http
