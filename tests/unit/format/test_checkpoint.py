"""Keys and items of checkpoint files."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format import checkpoint as files
from dynastate.format.checkpoint import (
    FILE_BYTES_MAX,
    ITEMS_FILE_BYTES_MAX,
    Checkpoint,
    FileEntry,
    checkpoint_of,
    checkpoint_of_store,
    data_of,
    file_key,
    file_parts,
    folder_range,
    fragment_keys,
    fragment_range,
    listed_checkpoint,
    listed_item,
    parse_head,
    path_of,
    writer_of_fragment,
)
from dynastate.format.items import Item, Value, item_bytes, item_key
from dynastate.format.keys import SORT_KEY_BYTES_MAX, Attempt, Key
from dynastate.format.namespace import NAMESPACE_RANGE
from dynastate.storage.limits import ITEM_BYTES_MAX
from tests.support.corruption import KINDS
from tests.support.limits import set_limits
from tests.support.samples import A, B, noise

CHECKPOINT = Checkpoint("ns", "clicks")
#: The first millisecond of 2026.
TIME = 1_767_225_600_000
NAMES = st.text("019ab.-_~ \u00e9\U0001f600", min_size=1, max_size=22).filter(lambda name: name not in (".", ".."))
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join)


def is_refused(path: str) -> bool:
    """Whether the path of a file is refused."""
    try:
        file_key(CHECKPOINT, path)
    except ConfigurationError:
        return True
    return False


@pytest.mark.parametrize(
    ("path", "entry"),
    [
        ("offsets/12", "file/offsets/00000000000000000012"),
        ("offsets/0", "file/offsets/00000000000000000000"),
        ("sources/0/9.compact", "file/sources/0/00000000000000000009.compact"),
        ("9223372036854775807", "file/09223372036854775807"),
        ("state/0/_metadata/v2/17", "file/state/0/_metadata/v2/00000000000000000017"),
        ("metadata", "file/metadata"),
        ("007", "file/007"),
        ("00", "file/00"),
        (".12.tmp", "file/.12.tmp"),
        ("a12", "file/a12"),
        ("12345678901234567890/x", "file/12345678901234567890/x"),
    ],
)
def test_a_number_that_a_name_begins_with_is_padded(path: str, entry: str) -> None:
    """Only a number in canonical decimal, and only of the last part, has 20 digits in a key."""
    key = file_key(CHECKPOINT, path)
    assert key == Key("snapshot", "ns/checkpoint/clicks#0", entry)
    assert path_of(key) == path


@given(PATHS, PATHS)
def test_a_path_has_one_key_and_a_key_one_path(path: str, other: str) -> None:
    """Any path is refused, or has a key that is its own."""
    if not is_refused(path):
        assert path_of(file_key(CHECKPOINT, path)) == path
        if not is_refused(other):
            assert (file_key(CHECKPOINT, path) == file_key(CHECKPOINT, other)) == (path == other)


@given(st.lists(st.integers(0, 10**19 - 1), min_size=2, max_size=6, unique=True))
def test_batches_are_in_order(numbers: list[int]) -> None:
    """Keys of batches are in the order of their numbers."""
    keys = sorted(file_key(CHECKPOINT, f"offsets/{number}") for number in numbers)
    assert [path_of(key) for key in keys] == [f"offsets/{number}" for number in sorted(numbers)]


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/a",
        "a/",
        "a//b",
        ".",
        "a/..",
        "./a",
        "a\nb",
        "a\0",
        "a\ud800",
        f"a{chr(0x10FFFF)}",
        "1" * 20,
        "a/" + "9" * 25,
    ],
    ids=ascii,
)
def test_a_path_that_no_file_has_is_refused(path: str) -> None:
    """Empty parts, dots, characters that are not printable, and numbers of 20 digits."""
    assert is_refused(path)


def test_a_path_that_is_too_long_is_refused() -> None:
    """The whole key has 1,024 bytes at most, padded and in UTF-8."""
    longest = "\u00e9" * ((SORT_KEY_BYTES_MAX - len("file/")) // 2)
    assert not is_refused(longest)
    assert is_refused(f"{longest}aa")
    assert is_refused("a" * 1_000 + "/1")


@given(PATHS, PATHS)
def test_the_range_of_a_folder(folder: str, path: str) -> None:
    """A file lies in the range of a folder if its path begins with it; all lie in the range of the checkpoint."""
    if not is_refused(path):
        key = file_key(CHECKPOINT, path)
        low, high = folder_range(CHECKPOINT, folder)
        assert (low <= key.sort <= high) == path.startswith(f"{folder}/")
        low, high = folder_range(CHECKPOINT, "")
        assert low <= key.sort <= high


def test_names_of_checkpoints() -> None:
    """Namespace and name have 1 to 128 safe characters; only the partition of a checkpoint names one."""
    assert checkpoint_of("n.s-1/Clicks_2") == Checkpoint("n.s-1", "Clicks_2")
    assert str(CHECKPOINT) == "ns/clicks"
    assert checkpoint_of_store(CHECKPOINT.store) == CHECKPOINT
    assert checkpoint_of_store("ns/0/0/default") is None
    for text in ("", "ns", "ns/", "/a", "ns/a/b", "ns/a#0", "ns/a b", "ns/" + "a" * 129, "ns/a\n"):
        with pytest.raises(ConfigurationError, match="dynastate://NAMESPACE/NAME"):
            checkpoint_of(text)


def test_the_item_that_lists_a_checkpoint() -> None:
    """It lies beside the list of stores, where readers of that list do not find it."""
    key, item = listed_item(CHECKPOINT)
    assert key == Key("snapshot", "ns/#", "checkpoint/clicks")
    assert files.CHECKPOINT_RANGE[0] <= key.sort <= files.CHECKPOINT_RANGE[1]
    assert not NAMESPACE_RANGE[0] <= key.sort <= NAMESPACE_RANGE[1]
    assert listed_checkpoint("ns", key, item) == CHECKPOINT
    with pytest.raises(CorruptStateError, match="format 9"):
        listed_checkpoint("ns", key, item | {"format": 9})


def stored(path: str, data: bytes, writer: Attempt = A) -> tuple[Key, Item, list[tuple[Key, Item]]]:
    """The items of a file."""
    key = file_key(CHECKPOINT, path)
    head, fragments, _ = file_parts(key, data, writer, TIME)
    return key, item_key(key) | head, fragments


@pytest.mark.parametrize(
    ("data", "codec", "fragments"),
    [
        (b"", "raw", 0),
        (b"v1\n{}", "raw", 0),
        (bytes(1_000_000), "lz4", 0),
        (noise(380_000), "raw", 0),
        (noise(380_001), "raw", 2),
    ],
    ids=["empty", "short", "compressed", "largest item", "fragments"],
)
def test_items_of_a_file(data: bytes, codec: str, fragments: int) -> None:
    """A file is in its head, or in fragments of at most 380,000 bytes; every item fits into DynamoDB."""
    key, item, fragment_items = stored("sources/0/9.compact", data)
    assert (item["codec"], item["fragments"], len(fragment_items)) == (codec, fragments, fragments)
    assert all(item_bytes(each) <= ITEM_BYTES_MAX for each in (item, *(each for _, each in fragment_items)))
    assert [fragment for fragment, _ in fragment_items] == fragment_keys(key, A, fragments)
    low, high = fragment_range(A)
    assert all(low <= fragment.sort <= high for fragment, _ in fragment_items)
    assert {writer_of_fragment(fragment) for fragment, _ in fragment_items} <= {A}
    head = parse_head(key, item)
    assert (head.raw_bytes, head.time, head.writer) == (len(data), TIME, A)
    assert data_of(key, head, fragment_items) == data


def test_a_file_that_is_too_large_is_refused() -> None:
    """Files above 64 MiB are stored in S3 only, and those above 512 MiB not at all."""
    with pytest.raises(ConfigurationError, match=r"larger than 64 MiB.*objects"):
        stored("f", bytes(ITEMS_FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigurationError, match="larger than 512 MiB"):
        file_parts(file_key(CHECKPOINT, "f"), bytes(FILE_BYTES_MAX + 1), A, TIME, location="s3://bucket/t")


def read(key: Key, item: Item, fragments: list[tuple[Key, Item]]) -> bytes:
    return data_of(key, parse_head(key, item), fragments)


def other_values(value: Value) -> list[Value]:
    """Other values of an attribute, of its type and of others."""
    others: list[Value] = [other for other in KINDS if type(other) is not type(value)]
    if isinstance(value, bytes):
        others += [value + b"x", value[:-1], bytes([value[0] ^ 1]) + value[1:]] if value else [b"x"]
    elif isinstance(value, int):
        others += [value + 1, value - 1, -value - 1, 2**70]
    else:
        others += [f"{value}x", "zstd"]
    return others


@pytest.mark.parametrize("data", [b"v1\n{}", bytes(3_000), noise(200)], ids=["raw", "lz4", "fragments"])
def test_any_damage_is_an_error(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Every attribute of a head and of a fragment that is lost or changed."""
    set_limits(monkeypatch, fragment_bytes_max=70)
    key, item, fragments = stored("offsets/12", data)
    assert read(key, item, fragments) == data
    for name in item.keys() - item_key(key).keys():
        for damaged in (
            {other: item[other] for other in item if other != name},
            *({**item, name: other} for other in other_values(item[name])),
        ):
            with pytest.raises(CorruptStateError, match=r"item=file/offsets/0+12"):
                read(key, damaged, fragments)
    for place, (fragment, part) in enumerate(fragments):
        for value in [None, b"", *other_values(part["data"])]:
            changed: Item = {**part, "data": value} if value is not None else item_key(fragment) | {"format": 3}
            with pytest.raises(CorruptStateError):
                read(key, item, [*fragments[:place], (fragment, changed), *fragments[place + 1 :]])


@given(st.data())
def test_any_bit_is_covered(data: st.DataObject) -> None:
    """A changed bit of the stored bytes is an error, unless the block still has the same content."""
    content = data.draw(st.sampled_from([b"v1\n{}", bytes(3_000), noise(200), b"v1\n" + noise(30) * 9]))
    key, item, _ = stored("offsets/12", content)
    packed = bytearray(cast("bytes", item["data"]))
    bit = data.draw(st.integers(0, 8 * len(packed) - 1))
    packed[bit // 8] ^= 1 << bit % 8
    try:
        result = read(key, {**item, "data": bytes(packed)}, [])
    except CorruptStateError as corrupt:
        result, facts = content, corrupt.facts
        assert facts["item"] == key.sort  # an error is one of two right outcomes
    assert result == content


FRAGMENT_LOSSES: dict[str, Callable[[list[tuple[Key, Item]]], list[tuple[Key, Item]]]] = {
    "none": lambda _: [],
    "without the first": lambda fragments: fragments[1:],
    "without the last": lambda fragments: fragments[:-1],
    "in another order": lambda fragments: fragments[::-1],
    "one twice": lambda fragments: [*fragments, fragments[-1]],
    "exchanged": lambda fragments: [
        (key, other) for (key, _), (_, other) in zip(fragments, fragments[::-1], strict=True)
    ],
}


@pytest.mark.parametrize("loss", FRAGMENT_LOSSES)
def test_a_lost_fragment_is_an_error(monkeypatch: pytest.MonkeyPatch, loss: str) -> None:
    """Fragments that are lost, doubled or out of order; also those of another put of the same bytes."""
    set_limits(monkeypatch, fragment_bytes_max=70)
    key, item, fragments = stored("offsets/12", noise(200))
    with pytest.raises(CorruptStateError):
        read(key, item, FRAGMENT_LOSSES[loss](fragments))
    with pytest.raises(CorruptStateError, match="fragments of a checkpoint file are lost expected=3"):
        read(key, item, stored("offsets/12", noise(200), B)[2])


def test_an_item_under_another_key_is_an_error() -> None:
    """A head is not taken for the head of another file."""
    _, item, _ = stored("offsets/12", b"data")
    other = file_key(CHECKPOINT, "offsets/13")
    with pytest.raises(CorruptStateError, match="wrong checksum"):
        read(other, item, [])
    with pytest.raises(CorruptStateError, match="names no writer"):
        writer_of_fragment(other)


def test_entries_compare_by_value() -> None:
    """A frame has numbers in place of truth values."""
    assert FileEntry("a", is_folder=True, bytes=0, time=1) == ("a", 1, 0, 1)
