"""Any bytes, in every reader of the protocol and of the format: a declared error or a value; no hang, bounded memory.

Most inputs are made from valid ones: whole frames and items with bytes, lengths and attributes changed, and checksums
corrected, so that the code behind a checksum is reached. Examples are the same at every run; DYNASTATE_FUZZ=50 tries
fifty times as many.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import random
import socket
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dynastate
from dynastate.dynamodb.wire import from_wire
from dynastate.engine.engine import Engine
from dynastate.errors import CorruptStateError, DynastateError, MismatchError, VersionMissingError
from dynastate.format.binary import seal
from dynastate.format.changes import MERGE, PUT, Change, decode_changes, encode_changes
from dynastate.format.codec import CODEC_BYTES, LZ4, ZSTD, compress, decompress
from dynastate.format.graph import VersionGraph
from dynastate.format.items import FORMAT, Item, Value, item_key
from dynastate.format.keys import (
    NO_ATTEMPT,
    Home,
    Key,
    Role,
    VersionId,
    graph_range,
    maker_of_bucket,
    maker_of_manifest,
    maker_of_part,
    store_shard,
)
from dynastate.format.manifest import decode_manifest, encode_manifest
from dynastate.format.parts import RAW_BYTES_MAX, Chunk
from dynastate.format.version_list import decode_entry, encode_entry
from dynastate.operations.cost.usage import usage_of_namespace
from dynastate.operations.inspection.inspect import inspect_store, list_versions
from dynastate.operations.inspection.verify import verify
from dynastate.operations.lifecycle.clean import clean_store
from dynastate.operations.lifecycle.compact import compact_store
from dynastate.reader.families import parse_families
from dynastate.reader.json_rows import json_text, row_to_json
from dynastate.reader.state import StateReader
from dynastate.settings import Settings
from dynastate.sidecar import protocol
from dynastate.sidecar.connection import READ_BUFFER_BYTES
from dynastate.sidecar.engines import parse_settings
from dynastate.sidecar.listener import converse as serve_connection
from dynastate.unsaferow.key_encoders import SEED as HASH_SEED
from dynastate.unsaferow.key_encoders import make_encoder
from dynastate.unsaferow.nested import Struct
from dynastate.unsaferow.schema import described_families, parse_schema
from tests.support.corruption import NEWEST, STORE, damages, intact_store
from tests.support.engine_driver import begin, fold, make_engine, read
from tests.support.memory_tables import MemoryTables
from tests.support.samples import QUERY, attempt, chunk
from tests.support.sidecar import FixedEngines
from tests.support.store_builder import COUNTS, RAW, USER, StoreBuilder, counted, family, struct, user

#: Few characters: hypothesis takes seconds to list all of Unicode.
ALPHABET = 'ab01-.+eE "\\{}[]:,\0\x7f\u00e9\u2028\ufffd\U0001f600'
TIMES = int(os.environ.get("DYNASTATE_FUZZ", "1"))
SEED = 20_250_107
TOKEN = bytes(range(32))
HELLO = protocol.encode(protocol.Hello(protocol.PROTOCOL, TOKEN, dynastate.__version__, "{}"))
HEAD = protocol.HEADER.size
VECTORS = Path(__file__).parents[1] / "vectors"
FRAMES = [bytes.fromhex(each["frame"]) for each in json.loads((VECTORS / "protocol.json").read_text())["frames"]]
#: Numbers of the messages from the JVM.
REQUESTS = [number for number in protocol.MESSAGES if number < 64]
#: Numbers that lengths and counts go wrong with.
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


Test = Callable[..., None]


def examples(count: int) -> Callable[[Test], Test]:
    """Bound the examples of a test; DYNASTATE_FUZZ multiplies them."""
    return settings(max_examples=count * TIMES, suppress_health_check=list(HealthCheck))


@st.composite
def mutated(draw: st.DrawFn, wholes: list[bytes]) -> bytes:
    """Bytes of a valid input, changed in up to four places: flipped, extreme numbers, deleted or inserted."""
    raw = bytearray(draw(st.sampled_from(wholes)))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(raw)))
        kind = draw(st.sampled_from(("flip", "number", "cut", "put", "twice", "end")))
        if kind == "flip" and place < len(raw):
            raw[place] ^= draw(st.integers(1, 255))
        elif kind == "number":
            size = draw(st.sampled_from((2, 4, 8)))
            raw[place : place + size] = (draw(st.sampled_from(EXTREMES)) % 256**size).to_bytes(size, "little")
        elif kind == "cut":
            del raw[place : place + draw(st.integers(1, 9))]
        elif kind == "put":
            raw[place:place] = draw(st.binary(min_size=1, max_size=9))
        elif kind == "twice":
            raw[place:place] = raw[place : place + draw(st.integers(1, 40))]
        elif kind == "end":
            del raw[place:]
    return bytes(raw)


@contextlib.contextmanager
def bounded(most: int) -> Iterator[None]:
    """Bound the memory that this block may take."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= most, f"{peak} bytes were taken, {most} are allowed"


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda number: protocol.MESSAGES[number].__name__)
@examples(30)
@given(data=st.data())
def test_any_body_is_a_message_or_a_mismatch(kind: int, data: st.DataObject) -> None:
    """Each message, from bodies made of valid ones of its own kind and of others: MismatchError, and little memory."""
    bodies = [frame[HEAD:] for frame in FRAMES if frame[4] == kind] * 8
    body = data.draw(mutated(bodies + [frame[HEAD:] for frame in FRAMES]))
    with bounded(200 * len(body) + 100_000), contextlib.suppress(MismatchError):
        protocol.decode(kind, body)


@examples(75)
@given(
    text=st.text(ALPHABET, max_size=60)
    | st.recursive(st.none() | st.text(ALPHABET, max_size=9) | st.integers(), st.lists).map(json.dumps)
)
def test_any_settings_are_settings_or_an_error(text: str) -> None:
    with contextlib.suppress(DynastateError):
        parse_settings(text)


@pytest.mark.parametrize("text", ["[" * 500_000, '{"a":' * 99_999, "1" * 999_999, '"\\ud800"', '{"region": "\\ud800"}'])
def test_hostile_settings_are_refused(text: str) -> None:
    with pytest.raises(DynastateError):
        parse_settings(text)


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    """Frames that a JVM might send, in legal order or not, some of them changed, to existing or missing stores."""
    one, parent = attempt(NEWEST), draw(st.sampled_from((attempt(NEWEST), attempt(99), NO_ATTEMPT)))
    base = draw(st.sampled_from((NEWEST, NEWEST, 3, 0, 2**63 - 1, 2**64 - 1)))
    store = draw(st.sampled_from((STORE, STORE, "new/0/0/default", "", "a#b", "n" * 1025)))
    run = draw(st.sampled_from(("run-2", "run-1", "run-3", "")))
    new = attempt(draw(st.integers(1000, 1010)))
    changes = {b"%d" % number: b"x" * number for number in range(draw(st.integers(1, 5)))}
    some = chunk(changes)
    messages: list[tuple[Any, ...]] = [
        (protocol.Open(store, draw(st.integers(1, 14)), draw(st.sampled_from((NO_ATTEMPT, one))), ())),
        (protocol.Open(store, NEWEST, NO_ATTEMPT, (VersionId(9, attempt(9)), VersionId(2**64 - 1, one)))),
        (protocol.Find(store, NEWEST, one)),
        (protocol.Read(store, NEWEST, one, 0, 0, NO_ATTEMPT, draw(st.integers(0, 3)), (0,))),
        (protocol.Changes(store, draw(st.integers(1, 4)), NEWEST, one)),
        (protocol.Begin(store, run, QUERY, "file:/tmp/ck/state", base, parent if base else NO_ATTEMPT, new)),
        (protocol.Append(some.records, some.hash_min, some.hash_max, some.changes)),
        (protocol.Append(1, 0, 2**32 - 1, b"\xff" * 9)),
        (protocol.Commit({0: 1, 65_535: 2**64 - 1}, "{}")),
        (protocol.Abort()),
        (protocol.Snapshot(store, run, NEWEST, one, draw(st.sampled_from((1, 2**22, 2**64 - 1))), 1)),
        (
            protocol.Import(
                store, run, QUERY, "file:/tmp/ck/state", draw(st.sampled_from((NEWEST + 1, 2))), new, 1, {0: 1}, "{}"
            )
        ),
        (protocol.Bucket(draw(st.sampled_from((0, 1, 7, 2**32 - 1))))),
        (protocol.SnapshotEnd()),
        (protocol.CleanUp(store, run, NEWEST, one, draw(st.integers(0, 9)), 0, 0)),
    ]
    right = list(map(protocol.encode, messages))
    hello = HELLO if draw(st.integers(0, 9)) else draw(mutated([HELLO]))
    frame = st.sampled_from(right) | st.sampled_from(right) | st.sampled_from(right) | mutated(right + FRAMES)
    return b"".join([hello, *draw(st.lists(frame, max_size=8))])


def converse(frames: bytes, tables: MemoryTables) -> tuple[list[tuple[int, bytes]], bool]:
    """Send these bytes over a socket, and close; return the answers, and whether the sidecar's thread has ended."""
    with contextlib.closing(make_engine(tables, parallel_requests=1)) as engine:
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=serve_connection, args=(theirs, TOKEN, FixedEngines(engine)), daemon=True)
        thread.start()

        def send() -> None:
            with contextlib.suppress(OSError):  # it has hung up already
                ours.sendall(frames)
                ours.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        ours.settimeout(20)
        answers = []
        with ours, ours.makefile("rb") as stream, contextlib.suppress(ConnectionResetError):
            while header := stream.read(HEAD):
                length, kind = protocol.HEADER.unpack(header)
                answers.append((kind, stream.read(protocol.check_length(length, kind))))
        thread.join(20)
        sender.join(20)
        is_over = not thread.is_alive() and not sender.is_alive()
    return answers, is_over


class Crashes(logging.Handler):
    """Keeps traces: whatever is not an error of ours is logged with its own."""

    def __init__(self) -> None:
        super().__init__()
        self.traces: list[object] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.traces.append(record.exc_info)


@examples(50)
@given(sent=conversations())
def test_any_conversation_ends(sent: bytes) -> None:
    """Whatever is sent, the answers are frames, nothing unexpected is raised inside, and the conversation ends."""
    whole = intact_store(cleaned=False)
    tables = whole.tables()
    log = logging.getLogger("dynastate.sidecar")
    crashes = Crashes()
    log.addHandler(crashes)
    try:
        answers, is_over = converse(sent, tables)
    finally:
        log.removeHandler(crashes)
    assert is_over, "the conversation does not end"
    assert crashes.traces == []
    for kind, body in answers:
        assert kind >= 64
        answer = protocol.decode(kind, body)
        if isinstance(answer, protocol.Error):
            assert 1 <= answer.kind <= 7
            assert answer.store or answer.message


@pytest.mark.parametrize("length", [READ_BUFFER_BYTES + 2, protocol.FRAME_BYTES_MAX, 2**31, 2**32 - 1])
def test_a_peer_without_hello_takes_no_memory(length: int) -> None:
    """Before HELLO a long frame is refused by its header, whatever its length."""
    with bounded(4 * READ_BUFFER_BYTES):
        answers, is_over = converse(protocol.HEADER.pack(length, 1) + HELLO[HEAD:], MemoryTables())
    assert is_over
    assert [kind for kind, _ in answers] == [127]


def test_a_frame_that_never_comes_takes_no_more_than_a_frame() -> None:
    """After HELLO the length of a frame is believed up to the largest there may be, and no further."""
    with bounded(protocol.FRAME_BYTES_MAX + 4 * READ_BUFFER_BYTES):
        frames = HELLO + protocol.HEADER.pack(protocol.FRAME_BYTES_MAX, 4) + b"some"
        answers, is_over = converse(frames, MemoryTables())
    assert is_over
    assert [kind for kind, _ in answers] == [64]


WHOLE = intact_store(cleaned=False)
ELSEWHERE = Home("origin/0/0/default", 4)


def stored(sort: str, name: str) -> list[Any]:
    mine = [key for key in WHOLE.items if key.sort.startswith(sort) and key.store_shard.startswith(STORE)]
    return [WHOLE.items[key][name] for key in mine]


ENTRIES = [raw for versions in stored("list/", "versions") for raw in versions]
ENTRIES += [encode_entry(STORE, replace(decode_entry(STORE, raw), home=ELSEWHERE)) for raw in ENTRIES[:2]]
MANIFESTS = stored("snapshot_manifest/", "data")
for found in [decode_manifest(STORE, raw) for raw in MANIFESTS[:2]]:
    moved = tuple(replace(bucket, home=ELSEWHERE) if bucket.parts else bucket for bucket in found.buckets)
    MANIFESTS.append(encode_manifest(STORE, replace(found, buckets=moved)))
RUNS = [
    encode_changes([Change(PUT, 0, b"key", b"value"), Change(PUT, 4095, b"", None), Change(MERGE, 1, b"key", b"")]),
    b"",
]


@examples(100)
@given(raw=mutated([each[:-4] for each in ENTRIES]))
def test_any_entry_behind_its_checksum_is_one_or_an_error(raw: bytes) -> None:
    """A version entry whose checksum is right, whatever it holds."""
    with bounded(100 * len(raw) + 100_000), contextlib.suppress(CorruptStateError):
        decode_entry(STORE, seal(STORE, raw))


@examples(100)
@given(raw=mutated([each[:-4] for each in MANIFESTS]))
def test_any_manifest_behind_its_checksum_is_one_or_an_error(raw: bytes) -> None:
    """A manifest whose checksum is right, whatever it holds: no more memory than some times its bytes."""
    with bounded(300 * len(raw) + 2_000_000), contextlib.suppress(CorruptStateError):
        decode_manifest(STORE, seal(STORE, raw))


@examples(75)
@given(run=mutated(RUNS))
def test_any_records_are_changes_or_an_error(run: bytes) -> None:
    """Records of changes, whatever lengths they claim; changes encode to the same records again."""
    with contextlib.suppress(CorruptStateError):
        with bounded(100 * len(run) + 100_000):
            changes = list(decode_changes(run))
        assert encode_changes(changes) == run


@examples(75)
@given(
    packed=st.binary(max_size=40)
    | mutated([compress(run, codec)[1] for codec in (LZ4, ZSTD) for run in (bytes(3000), b"abc" * 99)]),
    raw_bytes=st.integers(-1, 5000) | st.sampled_from((2**16, 2**24, RAW_BYTES_MAX, *EXTREMES)),
    codec=st.sampled_from(CODEC_BYTES),
)
def test_any_block_is_a_chunk_or_an_error(packed: bytes, raw_bytes: int, codec: str) -> None:
    """A block that says it is 64 MiB before compression takes memory by what it holds, not by what it says."""
    with bounded(600 * len(packed) + 100_000), contextlib.suppress(CorruptStateError):
        assert len(decompress(codec, packed, raw_bytes)) == raw_bytes


def wire() -> st.SearchStrategy[dict[str, Any]]:
    number = st.sampled_from(("0", "-1", "1.5", "1E+30", "9" * 38, "-0", "NaN", ""))
    kinds = {
        "S": st.text(ALPHABET, max_size=5),
        "N": number,
        "B": st.binary(max_size=5),
        "BOOL": st.booleans(),
        "NULL": st.just(True),
        "SS": st.lists(st.text(ALPHABET, max_size=3), min_size=1, max_size=2),
        "NS": st.lists(number, min_size=1, max_size=2),
        "BS": st.lists(st.binary(max_size=3), min_size=1, max_size=2),
    }
    scalar = st.one_of([st.fixed_dictionaries({kind: values}) for kind, values in kinds.items()])
    return st.recursive(
        scalar,
        lambda inner: (
            st.fixed_dictionaries({"L": st.lists(inner, max_size=3)})
            | st.fixed_dictionaries({"M": st.dictionaries(st.text(ALPHABET, max_size=3), inner, max_size=3)})
        ),
        max_leaves=6,
    )


@examples(75)
@given(raw=st.dictionaries(st.text(ALPHABET, max_size=5), wire(), max_size=4))
def test_any_attributes_are_ours_or_an_error(raw: dict[str, Any]) -> None:
    with contextlib.suppress(CorruptStateError):
        from_wire(raw)


VALUES: st.SearchStrategy[Value] = st.one_of(
    st.integers(-2, 9) | st.sampled_from((256, 257, 2**31, 2**63, 10**37, -(10**37))),
    st.text(ALPHABET, max_size=8),
    st.binary(max_size=24),
    st.lists(st.binary(max_size=24) | st.sampled_from(ENTRIES), max_size=4),
    st.dictionaries(st.text(ALPHABET, max_size=5), st.integers(-1, 4), max_size=3),
)
SORTS = st.one_of(
    st.sampled_from(sorted({key.sort for key in WHOLE.items})),
    st.sampled_from(("meta", "list/", "list/x", "snapshot/", "snapshot/1/2", "schema/", "journal", "list/~", "metal")),
    st.text(alphabet="list/group/snapshotmeta0123456789abcdef~", min_size=1, max_size=70),
)
ROLES: tuple[Role, ...] = ("delta", "snapshot")
ATTRIBUTES = st.sampled_from(sorted({name for item in WHOLE.items.values() for name in item} | {"strange"}))


@st.composite
def foreign_items(draw: st.DrawFn, items: dict[Key, Item], sorts: st.SearchStrategy[str]) -> dict[Key, Item]:
    """Items of whatever attributes, in the place of ours, or beside them under our partition keys."""
    foreign: dict[Key, Item] = {}
    for _ in range(draw(st.integers(1, 4))):
        role: Role = draw(st.sampled_from(ROLES))
        sort = draw(sorts)
        here = [key for key in items if key.sort == sort and key.role == role]
        shard = store_shard(STORE, draw(st.integers(0, 3)))
        is_here = len(here) > 0 and draw(st.booleans())
        key = draw(st.sampled_from(here)) if is_here else Key(role, shard, sort)
        whole: Item = dict(items.get(key, {"format": FORMAT})) if draw(st.integers(0, 3)) else {}
        changed = draw(st.dictionaries(ATTRIBUTES, VALUES, max_size=3))
        foreign[key] = {**whole, **changed, **item_key(key)}
    return foreign


def everything(engine: Engine) -> Iterator[Callable[[], object]]:
    newest = VersionId(NEWEST, attempt(NEWEST))

    def write() -> None:
        under_way = begin(engine, STORE, attempt(99), {b"new": b"row"}, base=newest, run="run-3")
        under_way.commit({0: 1}, "{}")

    def take_snapshot() -> None:
        under_way, _ = engine.maintenance.snapshot(STORE, "run-2", *newest, state_bytes=1, min_deltas=1)
        if under_way is not None:
            under_way.abort()

    yield lambda: read(engine, STORE, *newest)
    yield lambda: [list(chunks) for _, chunks in engine.changes(STORE, 1, *newest).versions]
    yield lambda: fold(engine.buckets(STORE, *newest, 1, [0]).chunks)
    yield lambda: engine.lineage(STORE)
    yield lambda: fold(engine.lookup(STORE, *newest, 7).chunks)
    yield take_snapshot
    yield lambda: engine.maintenance.clean_up(STORE, "run-2", *newest, 4, 0, 0)
    yield write


@examples(35)
@given(items=foreign_items(WHOLE.items, SORTS))
def test_any_items_in_the_tables_are_state_or_an_error(items: dict[Key, Item]) -> None:
    """Whatever lies among a store's items, each operation does what it should or raises an error of ours."""
    tables = WHOLE.tables()
    tables.items.update(items)
    report = verify(tables, STORE)
    assert report.lines(tables.names)
    with contextlib.closing(make_engine(tables, parallel_requests=1)) as engine:
        for operation in everything(engine):
            with contextlib.suppress(DynastateError):
                operation()


@examples(25)
@given(sort=SORTS, shard=st.integers(0, 3), is_part=st.booleans())
def test_clean_up_leaves_foreign_items(sort: str, shard: int, is_part: bool) -> None:  # noqa: FBT001  # drawn
    """An item under one of our partition keys, with a sort key that dynastate never makes, is never deleted."""
    key = Key("delta" if is_part else "snapshot", store_shard(STORE, shard), sort)
    is_ours = any((maker(key) is not None) for maker in MAKERS) or key in WHOLE.items
    tables = WHOLE.tables()
    tables.items[key] = tables.items.get(key, item_key(key))
    with contextlib.closing(make_engine(tables, parallel_requests=1)) as engine, contextlib.suppress(CorruptStateError):
        engine.maintenance.clean_up(STORE, "run-2", NEWEST, attempt(NEWEST), 4, 0, 0)
    assert is_ours or key in tables.items


MAKERS = (maker_of_part, maker_of_manifest, maker_of_bucket)


@examples(40)
@given(data=st.data())
def test_the_version_graph_takes_any_item(data: st.DataObject) -> None:
    """What opening reads first, with its items changed in several ways at once: an error of ours or a history."""
    chance = random.Random(data.draw(st.integers(0, 2**32)))  # noqa: S311  # which damages, no secret
    items: dict[Key, Item | None] = dict(WHOLE.items)
    for damage in chance.sample(GRAPH_DAMAGES, 3):
        items.update(damage.changes)
    low, high = graph_range(0, NEWEST)
    shard = ("snapshot", store_shard(STORE, 0))
    listed = [(key, item) for key, item in items.items() if key[:2] == shard and low <= key.sort <= high and item]
    with contextlib.suppress(CorruptStateError, VersionMissingError):
        graph = VersionGraph(STORE, sorted(listed, key=lambda pair: pair[0]))
        base, entries = graph.route(NEWEST, NO_ATTEMPT)
        assert base[0] + len(entries) == NEWEST


GRAPH_DAMAGES = [each for each in damages(WHOLE.items, SEED, 4) if each.kind in ("list", "meta", "schema", "snapshot")]


UNSAFE_ROWS = json.loads((VECTORS / "unsafe_rows.json").read_text())
ROWS: list[dict[str, Any]] = UNSAFE_ROWS["rows"]
KEYS: list[dict[str, Any]] = UNSAFE_ROWS["keys"]
ROW_BYTES = [bytes.fromhex(each["bytes"]) for each in ROWS]
KEY_BYTES = [bytes.fromhex(each["bytes"]) for each in KEYS]


def most(described: dict[str, Any], raw: bytes) -> int:
    """How many bytes the values of a row may take: each of its types may read all of it."""
    return 100 * json.dumps(described).count('"type"') * (len(raw) + 100)


def shown(columns: Struct, values: dict[str, Any]) -> str:
    text = json_text(row_to_json(columns, values))
    assert text.encode()
    return text


@pytest.mark.parametrize("number", range(len(ROWS)), ids=[each["sql"][:30] for each in ROWS])
@examples(30)
@given(data=st.data())
def test_any_row_is_values_or_an_error(number: int, data: st.DataObject) -> None:
    """Rows of every type, changed anywhere: an error of ours, or values that can be shown, hashed and written again."""
    columns = parse_schema(ROWS[number]["schema"])
    raw = data.draw(mutated([ROW_BYTES[number]] * 20 + ROW_BYTES) | st.binary(max_size=200))
    values = None
    with bounded(most(ROWS[number]["schema"], raw)), contextlib.suppress(DynastateError):
        values = columns.decode(raw)
    if values is not None:
        text = shown(columns, values)
        assert shown(columns, columns.decode(columns.encode(values))) == text
        with contextlib.suppress(DynastateError):  # of a variant there is none
            columns.mix(values, HASH_SEED)


@pytest.mark.parametrize("number", range(len(KEYS)), ids=[each["sql"][:30] for each in KEYS])
@examples(30)
@given(data=st.data())
def test_any_key_is_columns_or_an_error(number: int, data: st.DataObject) -> None:
    """The same of keys, by each of Spark's encoders."""
    encoder = make_encoder(parse_schema(KEYS[number]["schema"]), KEYS[number]["spec"], "default")
    raw = data.draw(mutated([KEY_BYTES[number]] * 20 + KEY_BYTES) | st.binary(max_size=100))
    with bounded(most(KEYS[number]["schema"], raw)):
        try:
            key = encoder.decode(raw)
        except DynastateError:
            return
    text = shown(encoder.columns, key)
    assert 0 <= encoder.partition(key, 7) < 7
    with contextlib.suppress(DynastateError):  # booleans in order are read, and not made
        assert shown(encoder.columns, encoder.decode(encoder.encode(key))) == text


FAMILIES = json.dumps(
    {
        "families": [
            family(number, f"family-{number}", value=[("v", row["schema"])])
            | {"key": KEYS[number]["schema"], "key_encoder": KEYS[number]["spec"], "multiple": number % 2 == 0}
            # The values of every third family had the same schema before.
            | ({"earlier_values": [struct([("v", row["schema"])])]} if number % 3 == 0 else {})
            for number, row in enumerate(ROWS[: len(KEYS)])
        ]
    }
)
JUNK: st.SearchStrategy[Any] = st.sampled_from(
    (None, True, -1, 10**30, 1.5, float("inf"), float("nan"), "", "type", "interval ", "decimal(38,39)", [], {}, [[]])
) | st.sampled_from(("decimal(99,1)", "decimal(5,-99)", "time(6)", "void", "variant", {"type": "map"}, {"type": []}))


@st.composite
def schemas(draw: st.DrawFn) -> str:
    """The text of a schema item, changed in its bytes, or with other values somewhere in it."""
    if draw(st.booleans()):
        return draw(mutated([FAMILIES.encode()])).decode(errors="replace")
    families = json.loads(FAMILIES)
    for _ in range(draw(st.integers(1, 3))):
        at: Any = families
        while True:
            places: list[Any] = list(at) if isinstance(at, dict) else list(range(len(at)))
            place = draw(st.sampled_from(places))
            if not isinstance(at[place], (dict, list)) or not at[place] or draw(st.integers(0, 9)) == 0:
                break
            at = at[place]
        what = draw(st.sampled_from(("junk", "junk", "gone", "within itself")))
        if what == "gone":
            del at[place]
        else:
            at[place] = copy.deepcopy(draw(JUNK) if what == "junk" else families)
        if not families:
            break
    return json.dumps(families)


@examples(50)
@given(text=schemas(), data=st.data())
def test_any_schema_is_families_or_an_error(text: str, data: st.DataObject) -> None:
    """Whatever a schema item says: an error of ours, or families that rows are read with, or not, as with any."""
    with contextlib.suppress(DynastateError):
        assert json_text(described_families(text))
    families: dict[str, Any] = {}
    with contextlib.suppress(DynastateError):
        families = parse_families(text, "left-keyWithIndexToValue")
    for each in families.values():
        key, value = data.draw(st.sampled_from(KEY_BYTES)), data.draw(st.sampled_from(ROW_BYTES))
        with contextlib.suppress(DynastateError):
            columns = each.encoder.columns
            shown(columns, each.encoder.decode(key))
            each.encoder.partition(each.encoder.decode(key), 7)
        with contextlib.suppress(DynastateError):
            each.row(key, data.draw(st.sampled_from((value, [value], [value, value]))))


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"families":[' * 50_000, '{"families":' + "1" * 9_999 + "}", '"\\ud800"']
)
def test_hostile_schemas_are_refused(text: str) -> None:
    with pytest.raises(CorruptStateError):
        described_families(text)


def readable() -> dict[Key, Item]:
    """Make a store whose rows people can read: two column families, the one of lists, and a snapshot on the way."""
    tables = MemoryTables()
    with contextlib.closing(make_engine(tables, parallel_requests=1)) as engine:
        store = StoreBuilder(engine, STORE, family(), family(1, "lists", value=[("at", "long")], multiple=True))
        for number in range(1, 7):
            if number % 2:
                store.commit((user("a"), counted(number)), (user(f"b{number}"), counted(0, "note")))
            else:
                store.commit((user("a"), {"at": number}), (user("a"), {"at": 0}), of=1)
            if number == 3:
                compact_store(engine, tables, STORE)
    return tables.items


READABLE = readable()
LAST: VersionId = VersionId(6, attempt(6))


def looks(tables: MemoryTables) -> Iterator[Callable[[], object]]:
    yield lambda: asdict(inspect_store(tables, STORE))
    yield lambda: list_versions(tables, STORE)
    yield lambda: usage_of_namespace(tables, STORE.split("/")[0])
    for name in ("default", "lists"):
        settings_ = Settings(parallel_requests=1)
        with contextlib.suppress(DynastateError), StateReader(tables, settings_, STORE, name) as state:
            yield from reads(state)
    with contextlib.closing(make_engine(tables, parallel_requests=1)) as engine:
        yield lambda: compact_store(engine, tables, STORE)
        yield lambda: clean_store(engine, tables, STORE, 2)


def reads(state: StateReader) -> Iterator[Callable[[], object]]:
    yield lambda: (len(state), state.families, state.versions())
    yield lambda: state.get(user("a"))
    yield lambda: [shown(state.columns, row) for row in state]
    yield state.to_arrow
    yield lambda: list(state.at(2))
    yield lambda: list(state.changes(0))
    yield lambda: state.history(user("a"))
    yield lambda: list(state.diff(1, state.version))
    yield state.refresh


READABLE_SORTS = st.sampled_from(sorted({key.sort for key in READABLE}))


@examples(20)
@given(items=foreign_items(READABLE, READABLE_SORTS))
def test_any_items_are_rows_or_an_error(items: dict[Key, Item]) -> None:
    """Readers and operations get rows or a declared error, whatever items are among the store's."""
    tables = MemoryTables()
    tables.items = READABLE | items
    for look in looks(tables):
        with contextlib.suppress(DynastateError):
            look()


ENCODER = make_encoder(parse_schema(struct(USER)), RAW, "default")
RECORDS = [
    encode_changes([Change(operation, number, ENCODER.encode(user("a")), value)])
    for operation, number, value in (
        (PUT, 0, parse_schema(struct(COUNTS)).encode(counted(1, "note"))),
        (MERGE, 0, parse_schema(struct(COUNTS)).encode(counted(1, "note"))),
        (PUT, 1, bytes(16)),
        (MERGE, 1, bytes(16)),
        (PUT, 0, None),
    )
]


@examples(20)
@given(runs=st.lists(mutated(RECORDS), min_size=1, max_size=4))
def test_any_changes_that_are_committed_are_rows_or_an_error(runs: list[bytes]) -> None:
    """Readers get rows or a declared error, whatever an executor commits with valid checksums."""
    tables = MemoryTables()
    tables.items = dict(READABLE)
    with contextlib.closing(make_engine(tables, parallel_requests=1)) as engine:
        under_way = begin(engine, STORE, attempt(7), base=LAST)
        for run in runs:
            under_way.append(Chunk(1, 0, 2**32 - 1, run))
        schema = next(str(item["text"]) for key, item in READABLE.items() if key.sort.startswith("schema/"))
        under_way.commit({0: 4, 1: 1}, schema)
    for look in looks(tables):
        with contextlib.suppress(DynastateError):
            look()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_with_many_examples() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", __file__]
    subprocess.run(command, check=True, env=os.environ | {"DYNASTATE_FUZZ": str(4 * TIMES)}, timeout=900)
