"""Python against the test vectors that the Scala tests read too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynastate import layout, protocol, rows
from dynastate.layout import Attempt, Chunk, Item, Key, VersionEntry
from dynastate.protocol import Append, Begin, Changes, Commit, Hello, Open, Type
from dynastate.rows import Change

Vector = dict[str, Any]
FOLDER = Path(__file__).parent / "vectors"
FORMAT: dict[str, Any] = json.loads((FOLDER / "format.json").read_text())
FRAMES: list[Vector] = json.loads((FOLDER / "protocol.json").read_text())["frames"]
PART_NUMBERS = ("format", "records", "raw_bytes", "fragment", "fragments", "hash_min", "hash_max", "crc32")


def attempt(text: str) -> Attempt:
    """Read an attempt."""
    return Attempt(bytes.fromhex(text))


def changes(listed: list[Vector]) -> list[Change]:
    """Read changes."""
    return [
        Change(
            each["operation"],
            each["family"],
            bytes.fromhex(each["key"]),
            None if each["value"] is None else bytes.fromhex(each["value"]),
        )
        for each in listed
    ]


def part_item(vector: Vector) -> tuple[Key, Item]:
    """Read one item of the delta table."""
    key = Key("delta", vector["store_shard"], vector["part"])
    item: Item = {name: vector[name] for name in ("store_shard", "part", "codec", *PART_NUMBERS)}
    return key, item | {"data": bytes.fromhex(vector["data"])}


def version_entry(vector: Vector) -> VersionEntry:
    """Read the fields of a version entry."""
    return VersionEntry(
        version=vector["version"],
        attempt=attempt(vector["attempt"]),
        parent=attempt(vector["parent"]),
        epoch=vector["epoch"],
        schema=bytes.fromhex(vector["schema"]),
        parts=vector["parts"],
        records=vector["records"],
        raw_bytes=vector["raw_bytes"],
        stored_bytes=vector["stored_bytes"],
        digest=bytes.fromhex(vector["digest"]),
        keys=dict(vector["keys"]),
        home=layout.Home(vector["home"]["store"], vector["home"]["shards"]) if "home" in vector else None,
    )


def items_of(vector: Vector) -> list[tuple[Key, Item]]:
    """Make the items that a vector's chunk becomes."""
    chunk = Chunk(vector["records"], vector["hash_min"], vector["hash_max"], bytes.fromhex(vector["run"]))
    name, first = attempt(vector["attempt"]), vector["first_sequence"]
    return layout.part_items(vector["store"], vector["version"], name, first, vector["shards"], chunk)


@pytest.mark.parametrize("vector", FORMAT["key_hashes"], ids=lambda vector: f"{len(vector['key']) // 2} bytes")
def test_key_hashes(vector: Vector) -> None:
    """A key has the hash of the vector."""
    assert rows.key_hash(bytes.fromhex(vector["key"])) == vector["hash"]


@pytest.mark.parametrize("vector", FORMAT["runs"], ids=lambda vector: vector["name"])
def test_runs(vector: Vector) -> None:
    """Changes become the run of the vector, and the run those changes."""
    assert rows.encode(changes(vector["changes"])).hex() == vector["run"]
    assert list(rows.decode(bytes.fromhex(vector["run"]))) == changes(vector["changes"])


@pytest.mark.parametrize("vector", FORMAT["parts"], ids=lambda vector: vector["name"])
def test_parts(vector: Vector) -> None:
    """Items are read back as the chunk they hold, and a chunk that is not compressed becomes just these items."""
    items = [part_item(each) for each in vector["items"]]
    parts = [layout.parse_part(key, item) for key, item in items]
    assert layout.join_fragments(items[0][0], parts).hex() == vector["run"]
    made = items_of(vector)
    assert [key for key, _ in made] == [key for key, _ in items]
    assert [item["codec"] for _, item in made] == [item["codec"] for _, item in items]
    if parts[0].codec == "raw":
        assert made == items


@pytest.mark.parametrize("vector", FORMAT["entries"])
def test_version_entries(vector: Vector) -> None:
    """The fields of a version entry become the bytes of the vector, and the bytes those fields."""
    entry = version_entry(vector)
    assert layout.encode_entry(vector["store"], entry).hex() == vector["bytes"]
    assert layout.decode_entry(vector["store"], bytes.fromhex(vector["bytes"])) == entry


def test_digests_namespaces_and_keys() -> None:
    """Digests of parts and schemas, default namespaces and keys of groups are those of the vectors."""
    for vector in FORMAT["parts_digests"]:
        assert layout.parts_digest(vector["crc32"]).hex() == vector["digest"]
    for vector in FORMAT["schema_digests"]:
        assert layout.schema_digest(vector["text"]).hex() == vector["digest"]
    for vector in FORMAT["namespaces"]:
        assert layout.namespace_of(vector["state_root"]) == vector["namespace"]
    for vector in FORMAT["group_keys"]:
        key = layout.group_key(vector["store"], vector["version"])
        assert key == Key("snapshot", vector["store_shard"], vector["entry"])


def test_worked_example() -> None:
    """The worked example of docs/storage-format.md, from the changes to the version entry."""
    example = FORMAT["worked_example"]
    listed = changes(example["changes"])
    assert listed == [Change(rows.PUT, 0, b"\x01", b"\xaa\xbb"), Change(rows.PUT, 0, b"\x02", None)]
    assert rows.encode(listed).hex() == example["run"] == "0000010000000200000001aabb000001000000ffffffff02"
    hashes = [rows.key_hash(change.key) for change in listed]
    assert (min(hashes), max(hashes)) == (example["hash_min"], example["hash_max"])
    made = items_of(example)
    assert made == [part_item(each) for each in example["items"]]
    ((key, item),) = made
    assert key.store_shard == "ns/0/0/default#1"
    assert key.sort == "00000000000000000001/000102030405060708090a0b0c0d0e0f/000000"
    entry = version_entry(example["entry"])
    assert entry.schema == layout.schema_digest(example["schema"])
    assert isinstance(item["crc32"], int)
    assert entry.digest == layout.parts_digest([item["crc32"]])
    assert layout.encode_entry(example["store"], entry).hex() == example["entry"]["bytes"]
    expected = Key("snapshot", example["entry_key"]["store_shard"], example["entry_key"]["entry"])
    assert layout.group_key(example["store"], 1) == expected


def _hello(fields: Vector) -> Hello:
    return Hello(fields["protocol"], bytes.fromhex(fields["token"]), fields["package"], fields["settings"])


def _open(fields: Vector) -> Open:
    have = tuple((each["version"], attempt(each["attempt"])) for each in fields["have"])
    return Open(fields["store"], fields["version"], attempt(fields["attempt"]), have)


def _begin(fields: Vector) -> Begin:
    parent, made = attempt(fields["parent"]), attempt(fields["attempt"])
    return Begin(fields["store"], fields["run"], fields["checkpoint"], fields["base"], parent, made)


def _append(fields: Vector) -> Append:
    return Append(fields["records"], fields["hash_min"], fields["hash_max"], bytes.fromhex(fields["run"]))


def _commit(fields: Vector) -> Commit:
    return Commit(dict(fields["keys"]), fields["schema"])


def _changes(fields: Vector) -> Changes:
    return Changes(fields["store"], fields["first"], fields["last"], attempt(fields["attempt"]))


def _snapshot(fields: Vector) -> protocol.Snapshot:
    names = (fields["store"], fields["run"], fields["version"], attempt(fields["attempt"]))
    return protocol.Snapshot(*names, fields["state_bytes"], fields["min_deltas"])


def _whole(fields: Vector) -> protocol.Whole:
    names = (fields["store"], fields["run"], fields["checkpoint"], fields["version"], attempt(fields["attempt"]))
    return protocol.Whole(*names, fields["state_bytes"], dict(fields["keys"]), fields["schema"])


def _clean_up(fields: Vector) -> protocol.CleanUp:
    names = (fields["store"], fields["run"], fields["version"], attempt(fields["attempt"]))
    return protocol.CleanUp(*names, fields["retain"], fields["least"], fields["most"])


def _find(fields: Vector) -> protocol.Find:
    return protocol.Find(fields["store"], fields["version"], attempt(fields["attempt"]))


def _read(fields: Vector) -> protocol.Read:
    version = (fields["store"], fields["version"], attempt(fields["attempt"]))
    return protocol.Read(*version, fields["bits"], fields["bucket"])


#: For each message that Python makes in tests only, and reads: its fields, its reader.
READERS: dict[str, tuple[Callable[[Vector], object], Callable[[bytes], object]]] = {
    "HELLO": (_hello, protocol.parse_hello),
    "OPEN": (_open, protocol.parse_open),
    "BEGIN": (_begin, protocol.parse_begin),
    "APPEND": (_append, protocol.parse_append),
    "COMMIT": (_commit, protocol.parse_commit),
    "CHANGES": (_changes, protocol.parse_changes),
    "SNAPSHOT": (_snapshot, protocol.parse_snapshot),
    "WHOLE": (_whole, protocol.parse_whole),
    "BUCKET": (lambda f: f["bucket"], protocol.parse_bucket),
    "CLEAN_UP": (_clean_up, protocol.parse_clean_up),
    "FIND": (_find, protocol.parse_find),
    "READ": (_read, protocol.parse_read),
}
WRITERS: dict[str, Callable[[Vector], bytes]] = {
    "HELLO": lambda f: protocol.hello(bytes.fromhex(f["token"]), f["package"], f["settings"]),
    "OPEN": lambda f: protocol.open_(_open(f)),
    "BEGIN": lambda f: protocol.begin(_begin(f)),
    "APPEND": lambda f: protocol.append(_append(f)),
    "COMMIT": lambda f: protocol.commit(_commit(f)),
    "CHANGES": lambda f: protocol.changes(_changes(f)),
    "ABORT": lambda _: protocol.frame(Type.ABORT),
    "SNAPSHOT": lambda f: protocol.snapshot(_snapshot(f)),
    "WHOLE": lambda f: protocol.whole(_whole(f)),
    "BUCKET": lambda f: protocol.bucket(f["bucket"]),
    "SNAPSHOT_END": lambda _: protocol.frame(Type.SNAPSHOT_END),
    "CHECK": lambda _: protocol.frame(Type.CHECK),
    "CHECKED": lambda _: protocol.frame(Type.CHECKED),
    "CLEAN_UP": lambda f: protocol.clean_up(_clean_up(f)),
    "FIND": lambda f: protocol.find(_find(f)),
    "READ": lambda f: protocol.read(_read(f)),
    "CONTENT": lambda f: protocol.content(f["bits"], dict(f["keys"])),
    "DELTAS": lambda f: protocol.deltas(f["snapshot"]),
    "WANTED": lambda f: protocol.wanted(f["base"], f["bits"]),
    "MAINTAINED": lambda f: protocol.maintained(dict(f["counters"])),
    "WELCOME": lambda f: protocol.welcome(f["package"]),
    "ROWS": lambda f: protocol.rows(f["records"], bytes.fromhex(f["run"])),
    "OPENED": lambda f: protocol.opened(dict(f["counters"])),
    "FOUND": lambda f: protocol.found(
        f["version"], attempt(f["attempt"]), (f["base"], attempt(f["base_attempt"])), f["schema"]
    ),
    "CHANGES_OF": lambda f: protocol.changes_of(f["version"]),
    "COMMITTED": lambda f: protocol.committed(f["version"], dict(f["counters"])),
    "ERROR": lambda f: protocol.error(f["kind"], f["store"], f["message"]),
}


@pytest.mark.parametrize("vector", FRAMES, ids=lambda vector: vector["name"])
def test_frames(vector: Vector) -> None:
    """The fields of a message become the frame of the vector; one that Python reads is read as those fields."""
    raw = bytes.fromhex(vector["frame"])
    assert WRITERS[vector["name"]](vector["fields"]) == raw
    length, frame_type = protocol.HEADER.unpack_from(raw)
    assert protocol.check_length(length) == len(raw) - protocol.HEADER.size
    assert (frame_type, Type(frame_type).name) == (vector["type"], vector["name"])
    if vector["name"] in READERS:
        make, read = READERS[vector["name"]]
        assert read(raw[protocol.HEADER.size :]) == make(vector["fields"])


def test_every_message_has_a_frame() -> None:
    """There is a vector for each type of message."""
    assert {vector["name"] for vector in FRAMES} == {each.name for each in Type}
