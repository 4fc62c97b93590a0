"""Names, keys and items of the two tables, and what a reader refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynastate import blocks, layout, rows
from dynastate.errors import ConfigurationError, CorruptStateError, VersionMissingError
from dynastate.layout import NO_ATTEMPT, Attempt, Chunk, History, Item, Key, VersionEntry
from dynastate.tables import ITEM_BYTES_MAX, PARTITION_KEY_BYTES_MAX, SORT_KEY_BYTES_MAX

STORE = "ns/0/0/default"
A, B, C = (Attempt(bytes([number]) * 16) for number in (1, 2, 3))
U64 = st.integers(0, 2**64 - 1)
ATTEMPTS = st.binary(min_size=16, max_size=16).map(Attempt)
DIGESTS = st.binary(min_size=8, max_size=8)
ENTRIES = st.builds(
    VersionEntry,
    version=U64,
    attempt=ATTEMPTS,
    parent=ATTEMPTS,
    epoch=U64,
    schema=DIGESTS,
    parts=U64,
    records=U64,
    raw_bytes=U64,
    stored_bytes=U64,
    digest=DIGESTS,
    keys=st.dictionaries(st.integers(0, rows.FAMILY_MAX), U64, max_size=4),
    home=st.none()
    | st.builds(
        layout.Home,
        store=st.text(st.characters(exclude_characters="#", exclude_categories=["Cs"]), min_size=1, max_size=200),
        shards=st.integers(1, layout.SHARDS_MAX),
    ),
)


def entry(version: int, attempt: Attempt, parent: Attempt = NO_ATTEMPT, epoch: int = 1) -> VersionEntry:
    """Make a version entry without parts."""
    return VersionEntry(version, attempt, parent, epoch, bytes(8), 0, 0, 0, 0, layout.parts_digest([]), {0: 0})


def group(*entries: VersionEntry) -> tuple[Key, Item]:
    """Make the item of the group that these entries lie in."""
    key = layout.group_key(STORE, entries[0].version)
    item: Item = layout.item_key(key) | {"format": layout.FORMAT}
    return key, item | {"versions": [layout.encode_entry(STORE, each) for each in entries]}


def part(run: bytes = b"the same again and again " * 9) -> tuple[Key, Item]:
    """Make the one part of a chunk."""
    ((key, item),) = layout.part_items(STORE, 1, A, 0, 4, Chunk(1, 5, 5, run))
    return key, item


# --------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("length", [0, 1, 15, 17, 32])
def test_an_attempt_is_sixteen_bytes(length: int) -> None:
    """Bytes of any other length are no attempt."""
    with pytest.raises(CorruptStateError, match="16 bytes"):
        Attempt(bytes(length))


@pytest.mark.parametrize("store", ["", "ns/0/0/a#b", "n" * 1025, "é" * 513])
def test_a_store_name_that_fits_no_key_is_refused(store: str) -> None:
    """A store's name is neither empty, nor ambiguous beside a shard, nor longer than 1,024 bytes of UTF-8."""
    with pytest.raises(ConfigurationError, match="1 to 1024 bytes"):
        layout.check_store(store)


def test_the_longest_keys_fit_into_dynamodb() -> None:
    """The longest store, the highest shard, version and sequence make keys that DynamoDB takes."""
    store = layout.check_store("é" * 512)
    for key in (
        layout.part_key(store, 2**64 - 1, A, layout.PARTS_MAX - 1, 256),
        layout.group_key(store, 2**64 - 1),
        layout.schema_key(store, bytes(8)),
        layout.meta_key(store),
    ):
        assert len(key.store_shard.encode()) <= PARTITION_KEY_BYTES_MAX
        assert len(key.sort.encode()) <= SORT_KEY_BYTES_MAX


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), ATTEMPTS, st.integers(0, layout.PARTS_MAX - 1)), max_size=6))
def test_parts_sort_as_their_numbers_do(places: list[tuple[int, Attempt, int]]) -> None:
    """Sort keys of parts are in the order of version, attempt, sequence."""
    keys = {place: layout.part_key(STORE, place[0], place[1], place[2], 1).sort for place in places}
    assert sorted(places, key=keys.__getitem__) == sorted(places)


@given(st.integers(1, 10**16), st.integers(0, 10**16))
def test_the_range_of_an_opening_holds_what_it_can_need(version: int, below: int) -> None:
    """Between its ends lie the groups from the lowest version up, meta, schemas and snapshots, and no older group."""
    lowest = max(0, version - below)
    low, high = layout.history_range(lowest, version)
    needed = [layout.group_key(STORE, lowest), layout.group_key(STORE, version), layout.meta_key(STORE)]
    snapshots = [f"snapshot/{0:020d}/{A.hex()}", f"snapshot/{version:020d}/{'f' * 32}"]
    for sort in (*[key.sort for key in needed], layout.schema_key(STORE, bytes(8)).sort, *snapshots):
        assert low <= sort <= high
    assert f"bucket/{version:020d}" < low
    if lowest >= layout.GROUP_SIZE:
        assert layout.group_key(STORE, lowest - layout.GROUP_SIZE).sort < low


def test_parts_are_spread_over_all_shards() -> None:
    """Part n of version v lies in shard (v + n) mod shards, so small versions do not all meet in shard 0."""
    assert [layout.part_key(STORE, 6, A, n, 4).store_shard[-1] for n in range(5)] == list("23012")
    assert [layout.part_key(STORE, version, A, 0, 4).store_shard[-1] for version in range(1, 6)] == list("12301")


def test_the_size_of_an_item() -> None:
    """An item's size is that of its names and values by DynamoDB's rules, and never less than DynamoDB's."""
    item: Item = {"text": "é", "data": b"123", "number": 12345, "list": [b"1", b"22"], "map": {"é": 1}}
    names = sum(len(name) for name in item)
    assert layout.item_bytes(item) == names + 2 + 3 + (2 + 2) + (3 + 2 + 3) + (3 + 1 + 2 + 2)


# --------------------------------------------------------------------------------------------------------------- parts


@given(st.binary(min_size=1, max_size=300), st.integers(0, 999), st.integers(1, 256))
def test_a_chunk_comes_back_from_its_parts(run: bytes, first: int, shards: int) -> None:
    """What a chunk becomes is read back as that chunk."""
    items = layout.part_items(STORE, 3, B, first, shards, Chunk(1, 0, 2**32 - 1, run))
    parts = [layout.parse_part(key, item) for key, item in items]
    assert layout.join_fragments(items[0][0], parts) == run


def test_a_large_row_spans_parts_that_fit_into_items() -> None:
    """A chunk that stays large when compressed is cut, and each part fits into an item under the longest key."""
    noise = hashlib.shake_128(b"seed").digest(1_000_000)
    items = layout.part_items("s" * 1024, 2**64 - 1, A, 0, 256, Chunk(1, 2**32 - 1, 2**32 - 1, noise))
    assert [item["fragment"] for _, item in items] == [0, 1, 2]
    assert {item["fragments"] for _, item in items} == {3}
    assert max(layout.item_bytes(item) for _, item in items) <= ITEM_BYTES_MAX
    assert layout.join_fragments(items[0][0], [layout.parse_part(key, item) for key, item in items]) == noise


def test_small_batches_and_snapshots_are_compressed_with_care() -> None:
    """The first parts of an attempt and every item of a bucket are dense; later parts and large rows are quick."""
    run = b"".join(b"order %010d" % (n * n) for n in range(1000))
    quick, dense = (blocks.compress(run, dense=care)[1] for care in (False, True))
    assert len(dense) < len(quick)
    for first, expected in ((0, dense), (layout.DENSE_PARTS - 1, dense), (layout.DENSE_PARTS, quick)):
        assert layout.part_items(STORE, 1, A, first, 1, Chunk(1, 0, 0, run))[0][1]["data"] == expected
    assert layout.bucket_items(STORE, 1, A, 0, 99, 1, Chunk(1, 0, 0, run))[0][1]["data"] == dense
    large = run * 30
    assert len(large) > layout.CHUNK_BYTES_MAX
    assert layout.part_items(STORE, 1, A, 0, 1, Chunk(1, 0, 0, large))[0][1]["data"] == blocks.compress(large)[1]


def test_a_row_larger_than_a_reader_accepts_is_refused_when_written() -> None:
    """What could never be read back is never written: the largest chunk is the same for both ends."""
    largest = layout.part_items(STORE, 1, A, 0, 1, Chunk(1, 0, 0, bytes(layout.RAW_BYTES_MAX)))
    assert [layout.parse_part(key, item).raw_bytes for key, item in largest] == [layout.RAW_BYTES_MAX]
    with pytest.raises(ConfigurationError, match=f"larger than 64 MiB.* store={STORE}"):
        layout.part_items(STORE, 1, A, 0, 1, Chunk(1, 0, 0, bytes(layout.RAW_BYTES_MAX + 1)))


@pytest.mark.parametrize("name", ["format", "codec", "records", "raw_bytes", "fragment", "fragments", "crc32", "data"])
def test_a_part_without_an_attribute_is_refused(name: str) -> None:
    """A part that misses an attribute, or has it with another type, is broken; the error names the item."""
    key, item = part()
    for broken in ({k: v for k, v in item.items() if k != name}, item | {name: {}}):
        with pytest.raises(CorruptStateError, match=f"store_shard={key.store_shard} item={key.sort}"):
            layout.parse_part(key, broken)


@pytest.mark.parametrize("name", ["records", "raw_bytes", "fragment", "fragments", "hash_min", "hash_max", "crc32"])
def test_the_checksum_covers_every_number(name: str) -> None:
    """A number of a part that changed on its way is found by the checksum."""
    key, item = part()
    value = item[name]
    assert isinstance(value, int)
    with pytest.raises(CorruptStateError, match="wrong checksum"):
        layout.parse_part(key, item | {name: value ^ 1})


def test_the_checksum_covers_data_codec_and_key() -> None:
    """One bit of the data, another codec, or another key: each is found by the checksum."""
    key, item = part()
    data = item["data"]
    assert isinstance(data, bytes)
    for broken in (item | {"data": bytes([data[0] ^ 1]) + data[1:]}, item | {"data": b""}, item | {"codec": "raw"}):
        with pytest.raises(CorruptStateError, match="wrong checksum"):
            layout.parse_part(key, broken)
    for other in (key._replace(sort=key.sort[:-1] + "1"), key._replace(store_shard="ns/0/1/default#1")):
        with pytest.raises(CorruptStateError, match="wrong checksum"):
            layout.parse_part(other, item)


def test_a_part_of_a_newer_format_says_so() -> None:
    """A part with a format that this package does not read says to upgrade, and not that it is broken."""
    key, item = part()
    with pytest.raises(CorruptStateError, match="format 2, this package reads 1; upgrade dynastate"):
        layout.parse_part(key, item | {"format": 2})


@pytest.mark.parametrize(
    ("codec", "raw_bytes"),
    [("zstd", 10), ("lz4", 0), ("lz4", -1), ("raw", -1), ("lz4", layout.RAW_BYTES_MAX + 1), ("lz4", 2**40)],
)
def test_an_impossible_part_is_refused_before_memory_is_taken(codec: str, raw_bytes: int) -> None:
    """A part with an unknown codec or an impossible length is refused even where its checksum is right."""
    key, item = part()
    fields = (1, codec, 1, raw_bytes, 0, 1, 5, 5)
    data = item["data"]
    assert isinstance(data, bytes)
    crc = layout._part_crc(key, fields, data)
    with pytest.raises(CorruptStateError, match="unknown codec or an impossible size"):
        layout.parse_part(key, item | {"codec": codec, "raw_bytes": raw_bytes, "crc32": crc})


@given(
    st.dictionaries(
        st.sampled_from(("format", "codec", "records", "raw_bytes", "fragment", "fragments", "crc32", "data")),
        st.integers() | st.binary(max_size=9) | st.text(max_size=4) | st.just([b"x"]) | st.just({"x": 1}),
    )
)
def test_any_attributes_are_a_part_or_an_error(attributes: Item) -> None:
    """Whatever the attributes of an item are, it is a part, or CorruptStateError."""
    key, item = part()
    try:
        read = layout.parse_part(key, item | attributes)
    except CorruptStateError:
        return
    assert read.data == item["data"]


@given(st.sampled_from(blocks.CODECS), st.binary(max_size=30), st.integers(1, 100), st.integers(-1, 3))
def test_any_fragments_are_a_chunk_or_an_error(codec: str, data: bytes, raw_bytes: int, fragments: int) -> None:
    """Whatever a part with a right checksum holds, it is a chunk of the length it names, or CorruptStateError."""
    key, _ = part()
    only = layout.Part(codec, 1, raw_bytes, 0, fragments, 0, 0, 0, data)
    try:
        assert len(layout.join_fragments(key, [only])) == raw_bytes
    except CorruptStateError as error:
        assert key.sort in str(error)  # noqa: PT017  # both ends of the `try` are right


@pytest.mark.parametrize("order", [(1, 0), (0, 0), (0,), (0, 1, 1), (1,)])
def test_fragments_out_of_order_are_refused(order: tuple[int, ...]) -> None:
    """Fragments that are swapped, lost or there twice are no chunk, though each has a right checksum."""
    noise = hashlib.shake_128(b"seed").digest(500_000)
    items = layout.part_items(STORE, 1, A, 0, 1, Chunk(1, 0, 0, noise))
    parts = [layout.parse_part(key, item) for key, item in items]
    assert len(parts) == 2
    with pytest.raises(CorruptStateError, match="do not follow each other"):
        layout.join_fragments(items[0][0], [parts[place] for place in order])


# --------------------------------------------------------------------------------------------------------- version list


@given(ENTRIES)
def test_an_entry_comes_back(made: VersionEntry) -> None:
    """A version entry is read back as it was written."""
    assert layout.decode_entry(STORE, layout.encode_entry(STORE, made)) == made


@given(st.binary(max_size=120))
def test_any_bytes_are_an_entry_or_an_error(raw: bytes) -> None:
    """Whatever the bytes are, they are a version entry or CorruptStateError, with and without a right checksum."""
    for candidate in (raw, layout.seal(STORE, b"\x01" + raw), layout.seal(STORE, b"\x02" + raw)):
        with contextlib.suppress(CorruptStateError):
            assert layout.decode_entry(STORE, candidate).schema in candidate


@given(ENTRIES, st.data())
def test_an_entry_with_a_wrong_byte_is_refused(made: VersionEntry, data: st.DataObject) -> None:
    """One changed byte, a byte less or one more, or another store's name: a version entry is refused."""
    raw = layout.encode_entry(STORE, made)
    at = data.draw(st.integers(0, len(raw) - 1))
    for broken in (raw[:at] + bytes([raw[at] ^ data.draw(st.integers(1, 255))]) + raw[at + 1 :], raw[:-1], raw + b"x"):
        with pytest.raises(CorruptStateError):
            layout.decode_entry(STORE, broken)
    with pytest.raises(CorruptStateError, match="wrong checksum"):
        layout.decode_entry("ns/0/1/default", raw)


def test_ten_entries_cost_one_write_unit() -> None:
    """The item of a full group of one-family entries stays under 1 KB."""
    entries = [
        VersionEntry(1000 + n, A, B, 100, bytes(8), 40, 100_000, 10_000_000, 4_000_000, bytes(8), {0: 1_000_000})
        for n in range(10)
    ]
    _, item = group(*entries)
    assert layout.item_bytes(item | {"store_shard": "", "entry": ""}) + 80 + 22 <= 1024


def test_find_takes_the_attempt_asked_for_and_no_other() -> None:
    """With an attempt named, that one is found, or nothing is: the error names the attempts there are."""
    history = History(STORE, [group(entry(1, A, epoch=1), entry(1, B, epoch=9))])
    assert history.find(1, A).attempt == A
    with pytest.raises(
        VersionMissingError, match=f"not by that attempt .*attempt={C.hex()} attempts={A.hex()},{B.hex()}"
    ):
        history.find(1, C)


def test_find_takes_the_highest_epoch_and_of_equals_the_last() -> None:
    """Without an attempt, the highest epoch wins wherever it stands, and of equal epochs the last appended."""
    assert History(STORE, [group(entry(1, A, epoch=2), entry(1, B, epoch=1))]).find(1, NO_ATTEMPT).attempt == A
    assert History(STORE, [group(entry(1, A, epoch=2), entry(1, B, epoch=2))]).find(1, NO_ATTEMPT).attempt == B


def test_an_attempt_that_stands_twice_counts_once_at_its_first_place() -> None:
    """A repeated append changes nothing: an attempt that came after the first of the two still wins."""
    history = History(STORE, [group(entry(1, A), entry(1, B), entry(1, A))])
    assert history.find(1, NO_ATTEMPT).attempt == B


def test_missing_versions_are_told_with_those_that_are_there() -> None:
    """A version that is not there is an error that names those that are, as ranges."""
    items = [group(entry(1, A), entry(2, B, A), entry(5, C, B)), group(entry(12, A, B))]
    with pytest.raises(VersionMissingError, match=rf"does not exist store={STORE} version=4 versions=1-2,5,12"):
        History(STORE, items).find(4, NO_ATTEMPT)
    with pytest.raises(
        VersionMissingError, match=r"checkpoint was copied or moved, set spark\.sql.*dynastate\.namespace"
    ):
        History(STORE, []).find(4, NO_ATTEMPT)


def test_the_chain_goes_by_parents_not_by_epochs() -> None:
    """A chain follows each entry's parent, even where another attempt of that version has a higher epoch."""
    history = History(STORE, [group(entry(1, A), entry(1, B, epoch=9), entry(2, C, A))])
    base, entries = history.chain(2, C, ())
    assert base == (0, NO_ATTEMPT)
    assert [(each.version, each.attempt) for each in entries] == [(1, A), (2, C)]


def test_the_chain_ends_at_the_newest_version_held_on_its_way() -> None:
    """Of the versions held, the newest on the chain is the base; one of another attempt, or older, is none."""
    history = History(STORE, [group(entry(1, A), entry(2, A, A), entry(2, B, A), entry(3, C, B))])
    base, entries = history.chain(3, C, [(1, A), (2, A)])
    assert (base, [each.version for each in entries]) == ((1, A), [2, 3])
    base, entries = history.chain(3, C, [(1, A), (2, B), (2, A)])
    assert (base, [each.version for each in entries]) == ((2, B), [3])
    assert history.chain(3, C, [(3, C)]) == ((3, C), [])


def test_a_gap_in_the_chain_is_an_error() -> None:
    """A parent that is not there is lost state: the error names store, version, attempt and the group to look at."""
    history = History(STORE, [group(entry(12, C, B))])
    where = f"table=snapshot store_shard={STORE}#0 item=group/0000000000000001"
    said = f"store={STORE} version=12 attempt={C.hex()} parent={B.hex()} {where}"
    with pytest.raises(CorruptStateError, match=said):
        history.chain(12, C, ())
    with pytest.raises(CorruptStateError, match="names no parent"):
        History(STORE, [group(entry(12, C))]).chain(12, C, ())


def test_a_narrow_history_does_not_end_in_an_error() -> None:
    """Where only the newest groups were read, a chain that goes on below them asks for more instead of failing."""
    history = History(STORE, [group(entry(12, C, B))], lowest=12)
    with pytest.raises(layout.ShortHistoryError):
        history.chain(12, C, [(11, A)])


@pytest.mark.parametrize(
    ("sort", "item"),
    [
        ("group/0000000000000000", {"versions": []}),
        ("group/0000000000000000", {"format": 1}),
        ("group/0000000000000000", {"format": 1, "versions": "text"}),
        ("group/0000000000000000", {"format": 1, "versions": [b""]}),
        ("group/0000000000000000", {"format": 1, "versions": [b"\x01broken"]}),
        ("group/0000000000000000", {"format": 2, "versions": []}),
        ("meta", {"format": 2}),
        ("snapshot/00000000000000000007/00", {"format": 1}),
    ],
)
def test_a_broken_or_newer_item_of_the_history_is_named(sort: str, item: Item) -> None:
    """An item of the snapshot-group table that is broken, or written by a newer package, is named with its store."""
    key = Key("snapshot", layout.store_shard(STORE, 0), sort)
    with pytest.raises(CorruptStateError, match=f"store_shard={STORE}#0 item={sort}"):
        History(STORE, [(key, item)])


def test_schema_items_are_named_by_their_content() -> None:
    """A schema item gives its text, unless the text is not the one its key names."""
    text = '{"families":[]}'
    key = layout.schema_key(STORE, layout.schema_digest(text))
    assert layout.parse_schema(key, {"text": text}) == text
    broken_items: list[Item] = [{"text": text + " "}, {"text": b"bytes"}, {}]
    for broken in broken_items:
        with pytest.raises(CorruptStateError, match=f"item={key.sort}"):
            layout.parse_schema(key, broken)


def test_entries_are_immutable() -> None:
    """A version entry cannot be changed once it is made."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        entry(1, A).version = 2  # type: ignore[misc]  # that is what is tested
