"""Commits whose answer is lost."""

from __future__ import annotations

from typing import Any

import botocore.exceptions as boto_errors
import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.retries import FIRST_CONTACT_DEADLINE_S, RetryPolicy
from dynastate.engine.updates import advance_epoch, append_version
from dynastate.errors import ConfigurationError, DynastateError, UnavailableError, UnknownOutcomeError
from dynastate.format.items import FORMAT, Item, item_key
from dynastate.format.keys import Key, version_list_key
from dynastate.format.keys import meta_key as meta_key_of
from dynastate.settings import Settings
from dynastate.storage.meter import Meter
from tests.conftest import REGION
from tests.support.clients import FailingClient, client_error, lost_answer
from tests.support.clock import Clock, Longest
from tests.support.faults import Fault


@pytest.fixture
def group(store: str) -> Key:
    return version_list_key(store, 1)


def entries(tables: BotoTables, group: Key) -> list[bytes]:
    versions = tables.get([group]).get(group, {}).get("versions", [])
    assert isinstance(versions, list)
    return versions


def quickly(client: FailingClient, **settings: Any) -> tuple[BotoTables, Clock]:
    """Make tables on a client that may fail, with a clock of their own."""
    clock, fixed = Clock(), Settings(region=REGION, **settings)
    retries = RetryPolicy(fixed.request_deadline_s, clock=clock, sleep=clock.sleep, randomness=Longest())
    return BotoTables(fixed, retries=retries, client=client), clock


@pytest.mark.parametrize("error", [lost_answer(), client_error("InternalServerError", 500)], ids=["cut", "500"])
def test_applied_append_is_found_in_the_list(failing_client: FailingClient, group: Key, error: Exception) -> None:
    """The append happened and its answer is lost: the list is read, consistently, and nothing is appended again."""
    tables, _ = quickly(failing_client)
    meter = Meter()
    append_version(tables, group, b"before", "run-1")
    failing_client.fail("update_item", Fault(error, applied=True))
    append_version(tables.metered(meter), group, b"entry", "run-1")
    assert entries(tables, group) == [b"before", b"entry"]
    reads = [arguments for operation, arguments in failing_client.requests if operation == "get_item"]
    assert [read["ConsistentRead"] for read in reads] == [True]
    assert (meter.requests, meter.retries, meter.write_units, meter.read_units) == (2, 1, 1, 1)


@pytest.mark.parametrize("status", [301, 403, 404, 413])
def test_a_proxy_that_refuses_what_is_no_commit_is_not_asked_again(
    failing_client: FailingClient, group: Key, status: int
) -> None:
    """Other writes to the table are no reason to wait."""
    tables, clock = quickly(failing_client, endpoint="http://127.0.0.1:9")
    tables.expect_answers()
    failing_client.fail("batch_write_item", *[Fault(client_error(str(status), status))] * 1000)
    with pytest.raises(ConfigurationError):
        tables.write([(group, item_key(group) | {"format": FORMAT})])
    assert clock.now == 0
    assert len(failing_client.requests) == 1


BROKEN_TLS = boto_errors.SSLError(endpoint_url="https://test", error="unexpected end")


@pytest.mark.parametrize(
    ("appends", "reads"),
    [
        ([Fault(lost_answer()), Fault(lost_answer())], []),
        ([Fault(lost_answer(), applied=True)], [Fault(client_error("ThrottlingException")), Fault(lost_answer())]),
        ([Fault(BROKEN_TLS, applied=True)], []),  # TLS can break after the request was sent
    ],
    ids=["not applied", "read later", "broken TLS"],
)
def test_a_lost_answer_is_resolved(
    failing_client: FailingClient, group: Key, appends: list[Fault], reads: list[Fault]
) -> None:
    """The list is read, again and again if need be, before the append is sent again: it is in there once."""
    tables, _ = quickly(failing_client)
    failing_client.fail("update_item", *appends)
    failing_client.fail("get_item", *reads)
    append_version(tables, group, b"entry", "run-1")
    assert entries(tables, group) == [b"entry"]


@pytest.mark.parametrize("status", [301, 403, 404, 408, 413, 429])
def test_an_append_that_a_proxy_answers_may_have_happened(
    failing_client: FailingClient, group: Key, status: int
) -> None:
    """A proxy may answer with any status after it has passed the append on: the list shows whether it happened.

    At the very first request such an answer is another server's, and an error within the first contact.
    """
    foreign = Fault(client_error(str(status), status), applied=True)
    new, clock = quickly(failing_client, request_deadline_s=3600, endpoint="http://127.0.0.1:9")
    for operation in ("update_item", "get_item"):
        failing_client.fail(operation, *[foreign] * 1000)
    with pytest.raises(UnknownOutcomeError, match="is not DynamoDB; check"):
        append_version(new, group, b"first", "run-1")
    assert clock.now <= FIRST_CONTACT_DEADLINE_S
    failing_client.faults.clear()
    tables, _ = quickly(failing_client, request_deadline_s=20)
    tables.expect_answers()
    failing_client.fail("update_item", foreign, foreign)
    append_version(tables, group, b"entry", "run-1")
    assert entries(tables, group) == [b"first", b"entry"]
    failing_client.fail("update_item", foreign)
    failing_client.fail("get_item", *[Fault(client_error(str(status), status))] * 1000)
    with pytest.raises(UnknownOutcomeError, match=f"HTTP status {status}, without an error of DynamoDB"):
        append_version(tables, group, b"last", "run-1")


@pytest.mark.parametrize(
    ("error", "expected"),
    [(lost_answer(), UnknownOutcomeError), (client_error("ThrottlingException"), UnavailableError)],
    ids=["lost", "throttled"],
)
def test_a_commit_is_sent_again_only_while_somebody_waits(
    failing_client: FailingClient, group: Key, error: Exception, expected: type[DynastateError]
) -> None:
    """A task that ends during retries has no commit after that; a request without an answer keeps it in doubt."""
    tables, _ = quickly(failing_client)
    failing_client.fail("update_item", Fault(error))
    is_awaited = iter([True, False]).__next__
    with pytest.raises(expected, match="this task ended"):
        append_version(tables, group, b"entry", "run-1", is_awaited)
    assert [operation for operation, _ in failing_client.requests].count("update_item") == 1
    assert entries(tables, group) == []


@pytest.mark.parametrize("applied", [True, False])
def test_append_whose_fate_stays_unknown_says_so(failing_client: FailingClient, group: Key, *, applied: bool) -> None:
    """When the list cannot be read until the deadline, the outcome is unknown, and not 'nothing was committed'."""
    tables, clock = quickly(failing_client, request_deadline_s=20)
    tables.expect_answers()
    failing_client.fail("update_item", Fault(lost_answer(), applied=applied))
    failing_client.fail("get_item", *[Fault(lost_answer())] * 1000)
    with pytest.raises(UnknownOutcomeError, match=r"may have happened; retry the task: .*operation=UpdateItem"):
        append_version(tables, group, b"entry", "run-1")
    assert clock.now == pytest.approx(20)


def test_an_append_that_is_refused_after_doubt_is_unknown(failing_client: FailingClient, group: Key) -> None:
    """Once an append may have happened, a later refusal does not make it undone: the outcome stays unknown."""
    tables, _ = quickly(failing_client)
    failing_client.fail("update_item", Fault(lost_answer(), applied=True))
    failing_client.fail("get_item", Fault(client_error("AccessDeniedException")))
    with pytest.raises(UnknownOutcomeError, match="AWS denies permission"):
        append_version(tables, group, b"entry", "run-1")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (client_error("ThrottlingException"), UnavailableError),
        (boto_errors.EndpointConnectionError(endpoint_url="http://test"), UnavailableError),
        (boto_errors.ConnectTimeoutError(endpoint_url="http://test"), UnavailableError),
        (client_error("AccessDeniedException"), ConfigurationError),
    ],
)
def test_an_append_that_surely_did_not_happen_says_so(
    failing_client: FailingClient, group: Key, error: Exception, expected: type[DynastateError]
) -> None:
    """Throttled, never connected, or refused: nothing was committed, and the error is one that says it."""
    tables, _ = quickly(failing_client)
    tables.expect_answers()
    failing_client.fail("update_item", *[Fault(error)] * 1000)
    with pytest.raises(expected):
        append_version(tables, group, b"entry", "run-1")
    assert [operation for operation, _ in failing_client.requests].count("get_item") == 0


def test_conditional_writes_survive_a_lost_answer(failing_client: FailingClient, store: str) -> None:
    """An item or a run that went in though its answer was lost is found there at the second try: False, and in once."""
    tables, _ = quickly(failing_client)
    meta = meta_key_of(store)
    failing_client.fail("put_item", Fault(lost_answer(), applied=True))
    item: Item = item_key(meta) | {"format": FORMAT, "epoch": 1, "epochs": {"a": 1}}
    assert tables.put_new(meta, item) is False
    failing_client.fail("update_item", Fault(lost_answer(), applied=True))
    assert advance_epoch(tables, meta, "b", {"a": 1}, {}) is False
    assert tables.get([meta])[meta]["epochs"] == {"a": 1, "b": 2}


def test_an_epoch_that_is_not_known_is_no_unknown_commit(failing_client: FailingClient, store: str) -> None:
    """Only an append to the version list can leave a commit in doubt; an epoch without an answer commits nothing."""
    tables, _ = quickly(failing_client)
    tables.expect_answers()
    failing_client.fail("update_item", *[Fault(lost_answer())] * 1000)
    with pytest.raises(UnavailableError, match="no proper answer until the deadline"):
        advance_epoch(tables, meta_key_of(store), "run", {"a": 1}, {})
