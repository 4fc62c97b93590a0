"""Checks of single items: values, and conditions on writes."""

from __future__ import annotations

from dynastate.dynamodb.probe import Probe, Wire
from dynastate.operations.doctor.checks import FAILED_CONDITION, KB, append, check, expect, refused, text


@check("read after write", "a consistent read sees each write that was answered")
def _read_after_write(probe: Probe) -> None:
    for number in range(100):
        probe.put("delta", "read", text(str(number)))
        item = probe.get("delta", "read")
        expect(item == text(str(number)), f"write {number} was not read, but {item}")


@check("deleted items", "a consistent read does not see what was deleted")
def _deleted(probe: Probe) -> None:
    probe.put("delta", "deleted", text("a"))
    probe.delete("delta", "deleted")
    expect(probe.get("delta", "deleted") is None, "the item is still there")
    probe.delete("delta", "deleted")


@check("binary values", "rows and entries are bytes of any value")
def _binary(probe: Probe) -> None:
    raw = bytes(range(256)) * 4
    probe.put("delta", "binary", {"data": {"B": raw}, "none": {"B": b""}})
    expect(probe.get("delta", "binary") == {"data": {"B": raw}, "none": {"B": b""}}, "bytes differ")


@check("numbers", "counts and hashes have up to 64 bits")
def _numbers(probe: Probe) -> None:
    item = {f"n{number}": {"N": str(number)} for number in (0, 1, 2**63 - 1, 2**64 - 1)}
    probe.put("delta", "numbers", item)
    stored_item = probe.get("delta", "numbers")
    expect(stored_item == item, f"read {stored_item}")


@check("lists, sets and maps", "version lists, refused runs and epochs are such values")
def _nested(probe: Probe) -> None:
    item: Wire = {
        "list": {"L": [{"B": b"b"}, {"B": b"a"}, {"B": b"b"}]},
        "set": {"SS": ["a", "b"]},
        "map": {"M": {"run": {"N": "1"}, "location": {"S": ""}}},
    }
    probe.put("snapshot", "nested", item)
    stored_item = probe.get("snapshot", "nested") or {}
    stored_item["set"]["SS"].sort()
    expect(stored_item == item, f"read {stored_item}")


@check("large items", "parts have up to 400,000 bytes")
def _large(probe: Probe) -> None:
    raw = b"x" * 399_000
    probe.put("delta", "large", {"data": {"B": raw}})
    expect(probe.get("delta", "large") == {"data": {"B": raw}}, "bytes differ")


@check("items beyond 400 KB", "dynastate never writes one", is_warning=True)
def _too_large(probe: Probe) -> None:
    item = {"data": {"B": b"x" * (400 * KB + 1)}}
    refused("ValidationException", lambda: probe.put("delta", "too large", item))


@check("conditions on new items", "a run or a snapshot is entered once")
def _new_items(probe: Probe) -> None:
    condition: Wire = {
        "ConditionExpression": "attribute_not_exists(#h)",
        "ExpressionAttributeNames": {"#h": "store_shard"},
    }
    probe.put("snapshot", "new", text("first"), **condition)
    refused(FAILED_CONDITION, lambda: probe.put("snapshot", "new", text("second"), **condition))
    expect(probe.get("snapshot", "new") == text("first"), "the refused write was applied")


@check("conditions on values", "clean-up and drops change only what they have read")
def _old_values(probe: Probe) -> None:
    probe.put("snapshot", "old", {"list": {"L": [{"B": b"a"}]}, "map": {"M": {"run": {"N": "1"}}}})

    def over(value: bytes) -> None:
        condition: Wire = {
            "ConditionExpression": "#l = :l AND #m = :m AND attribute_not_exists(#x)",
            "ExpressionAttributeNames": {"#l": "list", "#m": "map", "#x": "refused"},
            "ExpressionAttributeValues": {":l": {"L": [{"B": value}]}, ":m": {"M": {"run": {"N": "1"}}}},
        }
        probe.put("snapshot", "old", text("over"), **condition)

    refused(FAILED_CONDITION, lambda: over(b"b"))
    over(b"a")
    expect(probe.get("snapshot", "old") == text("over"), "the write was not applied")


@check("conditions on deletes", "clean-up does not delete what changed meanwhile")
def _conditional_delete(probe: Probe) -> None:
    probe.put("snapshot", "delete", text("a"))

    def delete(value: str) -> None:
        names: Wire = {"#v": "value"}
        condition: Wire = {"ConditionExpression": "#v = :v", "ExpressionAttributeNames": names}
        probe.delete("snapshot", "delete", **condition, ExpressionAttributeValues={":v": {"S": value}})

    refused(FAILED_CONDITION, lambda: delete("b"))
    expect(probe.get("snapshot", "delete") == text("a"), "the refused delete was applied")
    delete("a")
    expect(probe.get("snapshot", "delete") is None, "the item is still there")


@check("appended entries", "a commit appends to a version list, makes it if need be, and reads it in the answer")
def _appended(probe: Probe) -> None:
    entries = [b"%d" % number for number in range(20)]
    for number, entry in enumerate(entries):
        stored_entries = append(probe, "append", entry)
        expect(
            stored_entries == entries[: number + 1], f"append {number} was answered with {len(stored_entries)} entries"
        )


@check("refused runs", "a run that was superseded commits nothing")
def _refused_runs(probe: Probe) -> None:
    texts = {":runs": {"SS": ["old", "older"]}}
    probe.update("snapshot", "fence", "ADD refused :runs", ExpressionAttributeValues=texts)
    refused(FAILED_CONDITION, lambda: append(probe, "fence", b"a", "old"))
    expect(append(probe, "fence", b"b", "new") == [b"b"], "the list has other entries")
    probe.update("snapshot", "fence", "DELETE refused :runs", ExpressionAttributeValues={":runs": {"SS": ["old"]}})
    expect(append(probe, "fence", b"c", "old") == [b"b", b"c"], "the run is still refused")


@check("conditions on maps", "each run gets an epoch of its own")
def _epochs(probe: Probe) -> None:
    old: Wire = {"M": {"a": {"N": "1"}}}
    new: Wire = {"M": {"b": {"N": "2"}}}
    probe.put("snapshot", "epochs", {"epoch": {"N": "1"}, "epochs": old, "dropped": {"N": "1"}})

    def enter() -> Wire:
        answer: Wire = probe.update(
            "snapshot",
            "epochs",
            "SET epoch = :epoch, epochs = :after REMOVE dropped",
            ConditionExpression="epochs = :before AND NOT dropped = :deleting",
            ExpressionAttributeValues={":epoch": {"N": "2"}, ":after": new, ":before": old, ":deleting": {"N": "2"}},
            ReturnValues="ALL_NEW",
        )
        return answer

    attributes = {
        name: value for name, value in enter()["Attributes"].items() if name in ("epoch", "epochs", "dropped")
    }
    expect(attributes == {"epoch": {"N": "2"}, "epochs": new}, f"made {attributes}")
    refused(FAILED_CONDITION, enter)
