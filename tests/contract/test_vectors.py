"""Python against the test vectors that the Scala tests read too."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynastate.errors import CorruptStateError
from dynastate.format.changes import PUT, Change, decode_changes, encode_changes, key_hash
from dynastate.format.checkpoint import (
    FileEntry,
    checkpoint_of,
    data_of,
    data_of_objects,
    file_key,
    file_parts,
    parse_head,
)
from dynastate.format.codec import LZ4, RAW, decompress
from dynastate.format.items import Item
from dynastate.format.keys import Attempt, Home, Key, namespace_of, schema_digest, version_list_key
from dynastate.format.objects import ObjectParts, decode_frames, encode_frame
from dynastate.format.parts import Chunk, join_fragments, parse_part, part_items, parts_digest
from dynastate.format.version_list import InlineChanges, VersionEntry, decode_entry, encode_entry
from dynastate.sidecar import protocol

Vector = dict[str, Any]
FOLDER = Path(__file__).parents[1] / "vectors"
FORMAT: dict[str, Any] = json.loads((FOLDER / "format.json").read_text())
FILES: dict[str, Any] = json.loads((FOLDER / "files.json").read_text())
PROTOCOL: dict[str, Any] = json.loads((FOLDER / "protocol.json").read_text())
FRAMES: list[Vector] = PROTOCOL["frames"]
PART_NUMBERS = ("format", "records", "raw_bytes", "fragment", "fragments", "hash_min", "hash_max", "crc32")


def attempt(text: str) -> Attempt:
    return Attempt(bytes.fromhex(text))


def changes(vectors: list[Vector]) -> list[Change]:
    return [
        Change(
            each["operation"],
            each["family"],
            bytes.fromhex(each["key"]),
            None if each["value"] is None else bytes.fromhex(each["value"]),
        )
        for each in vectors
    ]


def part_item(vector: Vector) -> tuple[Key, Item]:
    key = Key("delta", vector["store_shard"], vector["part"])
    item: Item = {name: vector[name] for name in ("store_shard", "part", "codec", *PART_NUMBERS)}
    return key, item | {"data": bytes.fromhex(vector["data"])}


def version_entry(vector: Vector) -> VersionEntry:
    parsers: dict[str, Callable[[Any], Any]] = {
        **dict.fromkeys(("attempt", "parent"), attempt),
        **dict.fromkeys(("schema", "digest", "bounds"), bytes.fromhex),
        "keys": dict,
        "home": lambda home: Home(**home),
        "objects": lambda objects: ObjectParts(objects["location"], tuple(objects["sizes"])),
        "inline": lambda inline: InlineChanges(inline["codec"], bytes.fromhex(inline["packed"])),
    }
    values = {name: value for name, value in vector.items() if name not in ("store", "bytes")}
    return VersionEntry(**{name: parsers.get(name, int)(value) for name, value in values.items()})


def items_of(vector: Vector) -> list[tuple[Key, Item]]:
    chunk = Chunk(vector["records"], vector["hash_min"], vector["hash_max"], bytes.fromhex(vector["run"]))
    name, first = attempt(vector["attempt"]), vector["first_sequence"]
    codec = vector["items"][0]["codec"]
    target = LZ4 if codec == RAW else codec
    return part_items(vector["store"], vector["version"], name, first, vector["shards"], chunk, target)


@pytest.mark.parametrize("vector", FORMAT["key_hashes"], ids=lambda vector: f"{len(vector['key']) // 2} bytes")
def test_key_hashes(vector: Vector) -> None:
    assert key_hash(bytes.fromhex(vector["key"])) == vector["hash"]


@pytest.mark.parametrize("vector", FORMAT["runs"], ids=lambda vector: vector["name"])
def test_runs(vector: Vector) -> None:
    assert encode_changes(changes(vector["changes"])).hex() == vector["run"]
    assert list(decode_changes(bytes.fromhex(vector["run"]))) == changes(vector["changes"])


@pytest.mark.parametrize("vector", FORMAT["refused_runs"], ids=lambda vector: vector["name"])
def test_refused_runs(vector: Vector) -> None:
    with pytest.raises(CorruptStateError):
        list(decode_changes(bytes.fromhex(vector["run"])))


@pytest.mark.parametrize("vector", FORMAT["parts"], ids=lambda vector: vector["name"])
def test_parts(vector: Vector) -> None:
    """Items are read back as the chunk they hold, and a chunk that is not compressed becomes just these items."""
    items = [part_item(each) for each in vector["items"]]
    parts = [parse_part(key, item) for key, item in items]
    assert join_fragments(items[0][0], parts).changes.hex() == vector["run"]
    made_items = items_of(vector)
    assert [key for key, _ in made_items] == [key for key, _ in items]
    assert [item["codec"] for _, item in made_items] == [item["codec"] for _, item in items]
    if parts[0].codec == "raw":
        assert made_items == items


@pytest.mark.parametrize("vector", FORMAT["entries"])
def test_version_entries(vector: Vector) -> None:
    entry = version_entry(vector)
    assert encode_entry(vector["store"], entry).hex() == vector["bytes"]
    assert decode_entry(vector["store"], bytes.fromhex(vector["bytes"])) == entry


@pytest.mark.parametrize("vector", FORMAT["frames"], ids=lambda vector: vector["part"])
def test_frames_of_objects(vector: Vector) -> None:
    ((key, item), *_) = (part_item(each["items"][0]) for each in FORMAT["parts"] if each["name"] == vector["part"])
    part = parse_part(key, item)
    assert encode_frame(part).hex() == vector["frame"]
    assert dict(decode_frames([key], bytes.fromhex(vector["frame"]))) == {key: part}


def test_digests_namespaces_and_keys() -> None:
    """Digests of parts and schemas, default namespaces and keys of version lists are those of the vectors."""
    for vector in FORMAT["parts_digests"]:
        assert parts_digest(vector["crc32"]).hex() == vector["digest"]
    for vector in FORMAT["schema_digests"]:
        assert schema_digest(vector["text"]).hex() == vector["digest"]
    for vector in FORMAT["namespaces"]:
        assert namespace_of(vector["state_root"]) == vector["namespace"]
    for vector in FORMAT["version_list_keys"]:
        key = version_list_key(vector["store"], vector["version"])
        assert key == Key("snapshot", vector["store_shard"], vector["entry"])


def test_worked_example() -> None:
    """The worked example of docs/storage-format.md, from the changes to the version entry."""
    example = FORMAT["worked_example"]
    records = changes(example["changes"])
    assert records == [Change(PUT, 0, b"\x01", b"\xaa\xbb"), Change(PUT, 0, b"\x02", None)]
    assert encode_changes(records).hex() == example["run"] == "0000010000000200000001aabb000001000000ffffffff02"
    hashes = [key_hash(change.key) for change in records]
    assert (min(hashes), max(hashes)) == (example["hash_min"], example["hash_max"])
    items = items_of(example)
    assert items == [part_item(each) for each in example["items"]]
    ((key, item),) = items
    assert key.store_shard == "ns/0/0/default#1"
    assert key.sort == "00000000000000000001/000102030405060708090a0b0c0d0e0f/000000"
    entry = version_entry(example["entry"])
    assert entry.schema == schema_digest(example["schema"])
    assert isinstance(item["crc32"], int)
    assert entry.digest == parts_digest([item["crc32"]])
    assert encode_entry(example["store"], entry).hex() == example["entry"]["bytes"]
    expected = Key("snapshot", example["entry_key"]["store_shard"], example["entry_key"]["entry"])
    assert version_list_key(example["store"], 1) == expected


@pytest.mark.parametrize("vector", FILES["files"], ids=lambda vector: vector["path"])
def test_files_of_a_checkpoint(vector: Vector) -> None:
    key = file_key(checkpoint_of(FILES["checkpoint"]), vector["path"])
    assert (key.store_shard, key.sort) == (vector["store_shard"], vector["entry"])
    data, objects = bytes.fromhex(vector["data"]), vector["objects"]
    item = vector["head"] | {name: bytes.fromhex(vector["head"][name]) for name in ("writer", "data")}
    head = parse_head(key, item)
    assert [(each.bucket, each.key) for each in head.object_ids(key)] == [
        (each["bucket"], each["key"]) for each in objects
    ]
    if objects:
        assert data_of_objects(key, head, b"".join(bytes.fromhex(each["bytes"]) for each in objects)) == data
    else:
        assert data_of(key, head) == data
        assert file_parts(key, data, head.writer, head.time).head == item


def name_of(message: type) -> str:
    """The name of a message in docs/protocol.md: CLEAN_UP of CleanUp."""
    return re.sub("(?<!^)(?=[A-Z])", "_", message.__name__).upper()


def field(message: type, name: str, value: Any) -> Any:
    if name in ("attempt", "parent", "base_attempt", "held_attempt"):
        return attempt(value)
    if name in ("token", "data") or (name == "run" and message in (protocol.Append, protocol.Rows, protocol.Packed)):
        return bytes.fromhex(value)
    if name == "have":
        return tuple((each["version"], attempt(each["attempt"])) for each in value)
    if name in ("buckets", "files"):
        return tuple(value)
    if name == "entries":
        return tuple(FileEntry(*each) for each in value)
    return dict(value) if name in ("keys", "counters") else value


@pytest.mark.parametrize("vector", FRAMES, ids=lambda vector: vector["name"])
def test_frames(vector: Vector) -> None:
    raw, message_type = bytes.fromhex(vector["frame"]), protocol.MESSAGES[vector["type"]]
    message = message_type(*(field(message_type, *each) for each in vector["fields"].items()))
    assert protocol.encode(message) == raw
    length, number = protocol.HEADER.unpack_from(raw)
    assert protocol.check_length(length, number) == len(raw) - protocol.HEADER.size
    assert (number, name_of(message_type)) == (vector["type"], vector["name"])
    assert protocol.decode(number, raw[protocol.HEADER.size :]) == message


@pytest.mark.parametrize("vector", PROTOCOL["blocks"], ids=lambda vector: vector["name"])
def test_blocks(vector: Vector) -> None:
    block = bytes.fromhex(vector["block"])
    if vector["changes"] is None:
        with pytest.raises(CorruptStateError, match="a block"):
            decompress(vector["codec"], block, vector["raw_bytes"])
    else:
        assert decompress(vector["codec"], block, vector["raw_bytes"]).hex() == vector["changes"]


def test_every_message_has_a_frame() -> None:
    assert {vector["name"] for vector in FRAMES} == set(map(name_of, protocol.MESSAGES.values()))
