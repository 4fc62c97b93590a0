"""The two tables as a whole: make them for development, and check whether they fit.

In production they come from Terraform (`infra/`), which also sets point-in-time recovery, encryption and protection
from deletion. The engine itself never makes a table.
"""

from __future__ import annotations

from typing import Final

from dynastate import runtime
from dynastate.dynamodb.boto_tables import BotoTables, open_tables
from dynastate.dynamodb.failures import code_of
from dynastate.errors import ConfigurationError, UnavailableError
from dynastate.format.keys import SPECS, Role
from dynastate.settings import Settings

#: DynamoDB makes an empty on-demand table in some ten seconds.
ACTIVE_DEADLINE_S: Final = 120.0
_POLL_FIRST_S: Final = 0.05
_POLL_MAX_S: Final = 2.0


def create_tables(settings: Settings) -> list[str]:
    """Make each of the two tables that does not exist, on demand, and return once both can be used.

    An existing table is left as it is, even if its keys are wrong: `check_tables` reports that.

    Returns:
        The names of the tables made, in the order delta, snapshot-group.

    Raises:
        ConfigurationError: no Region, no credentials or permission, a wrong or unreachable endpoint.
        UnavailableError: throttled until `request_deadline_s`, or a table did not become ACTIVE within 120 seconds.
    """
    with open_tables(settings) as tables:
        names = [tables.names[role] for role in SPECS if _create(tables, role)]
        deadline = runtime.monotonic() + ACTIVE_DEADLINE_S
        for role in SPECS:
            _wait_until_active(tables, role, deadline)
    return names


def check_tables(settings: Settings) -> list[str]:
    """Compare the two tables with the needs of the package. Returns a line for each difference.

    Raises:
        ConfigurationError: a table is missing, or an error of `create_tables`.
        UnavailableError: throttled until `request_deadline_s`.
    """
    with open_tables(settings) as tables:
        return tables.check()


def _create(tables: BotoTables, role: Role) -> bool:
    """Make one table. Returns False if it exists already."""
    spec = SPECS[role]
    request = {
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": key, "AttributeType": "S"} for key in (spec.hash_key, spec.range_key)
        ],
        "KeySchema": [
            {"AttributeName": spec.hash_key, "KeyType": "HASH"},
            {"AttributeName": spec.range_key, "KeyType": "RANGE"},
        ],
        "Tags": [{"Key": "created-by", "Value": "dynastate"}],
    }
    try:
        tables.call("CreateTable", role, **request)
    except ConfigurationError as refused:
        if code_of(refused.__cause__) == "ResourceInUseException":
            return False
        raise
    return True


def _wait_until_active(tables: BotoTables, role: Role, deadline: float) -> None:
    name, status, pause_s = tables.names[role], "", _POLL_FIRST_S
    while True:
        try:
            status = tables.call("DescribeTable", role)["Table"]["TableStatus"]
        except ConfigurationError as refused:
            # DescribeTable may not know a table yet that CreateTable has just accepted.
            if code_of(refused.__cause__) != "ResourceNotFoundException":
                raise
        if status in ("ACTIVE", "UPDATING"):
            return
        if runtime.monotonic() + pause_s > deadline:
            raise UnavailableError(
                "the table did not become ACTIVE; look at it in the AWS console", table=name, status=status or "unknown"
            )
        runtime.sleep(pause_s)
        pause_s = min(2 * pause_s, _POLL_MAX_S)
