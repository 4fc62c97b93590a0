"""Checks of the tables and of permissions."""

from __future__ import annotations

from typing import Final

from dynastate.dynamodb.probe import Probe
from dynastate.format.keys import SPECS
from dynastate.operations.doctor.checks import check, expect, refused, text

TABLES: Final = "tables"


@check(TABLES, "both tables are there, with string keys of these names")
def _tables(probe: Probe) -> None:
    for role in SPECS:
        table = probe.send("describe_table", TableName=probe.names[role])["Table"]
        keys = [each["AttributeName"] for each in table["KeySchema"]]
        expect(keys == list(SPECS[role]), f"{probe.names[role]} has the keys {', '.join(keys)}")


@check("missing table", "a wrong name is an error at once, not an outage")
def _missing_table(probe: Probe) -> None:
    missing = {"TableName": f"{probe.names['delta']}-missing", "Key": probe.key("delta", "a")}
    refused("ResourceNotFoundException", lambda: probe.send("get_item", **missing))


@check("permissions of reads and writes", "each verb is allowed for this namespace")
def _permissions(probe: Probe) -> None:
    for role in SPECS:
        probe.put(role, "allowed", text("a"))
        probe.update(role, "allowed", "SET v = :v", ExpressionAttributeValues={":v": {"S": "b"}})
        probe.get(role, "allowed")
        probe.page(role, "0")
        probe.write(role, [probe.key(role, "allowed") | text("c")])
        probe.send("batch_get_item", RequestItems={probe.names[role]: {"Keys": [probe.key(role, "allowed")]}})
        probe.delete(role, "allowed")
