"""Corrupt, lost or moved items: an error that names them, or the right state.

In CI some places of each value are tried, and some values of each attribute. Every bit of every byte, and every length,
take half an hour: DYNASTATE_EVERY_BYTE=1 (and --timeout=0).
"""

from __future__ import annotations

import contextlib
import os
import random
from collections import defaultdict
from collections.abc import Iterator

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.wire import to_wire
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, CorruptStateError, VersionMissingError
from dynastate.format.items import FORMAT
from dynastate.format.keys import NO_ATTEMPT, Attempt, VersionId, version_list_key
from tests.support.clients import FailingClient
from tests.support.contents import items_of, parts_of
from tests.support.corruption import (
    NEWEST,
    SECOND_SNAPSHOT,
    STORE,
    Damage,
    IntactStore,
    damages,
    intact_store,
    is_harmless,
)
from tests.support.engine_driver import fold, make_engine, read, recover, write
from tests.support.samples import State, attempt

SEED = 20_250_105
EVERY_BYTE = bool(os.environ.get("DYNASTATE_EVERY_BYTE"))
KINDS = ("part", "list", "schema", "meta", "snapshot", "snapshot_manifest", "bucket")


def some_damages(whole: IntactStore, kind: str, each: int) -> list[Damage]:
    """Every damage to items of one kind; in CI at most `each` of an attribute."""
    print(f"seed={SEED} each={each}")  # noqa: T201  # shown by pytest when the test fails

    def chance(attribute: str) -> random.Random:
        return random.Random(f"{SEED}/{attribute}")  # noqa: S311  # which damages, no secret

    by_attribute: dict[str, list[Damage]] = defaultdict(list)
    for damage in damages(whole.items, SEED, 0 if EVERY_BYTE else 5):
        if damage.kind == kind:
            by_attribute[damage.attribute].append(damage)
    return [
        damage
        for attribute, choices in by_attribute.items()
        for damage in (choices if EVERY_BYTE or len(choices) <= each else chance(attribute).sample(choices, each))
    ]


def messages_of(engine: Engine, whole: IntactStore, damage: Damage, log: pytest.LogCaptureFixture) -> list[str]:
    """Read everything in every way, check what can be read, and return the messages of errors and of the log."""
    messages: list[str] = []
    log.clear()

    @contextlib.contextmanager
    def noted() -> Iterator[None]:
        try:
            yield
        except (CorruptStateError, VersionMissingError) as failed:
            engine.name_table(failed)
            messages.append(str(failed))

    def assert_state(rights: list[State], version: int, by: Attempt) -> None:
        with noted():
            assert recover(engine, STORE, version, by) in rights, f"{damage}: a wrong state of version {version}"

    for (version, by), state in whole.states.items():
        assert_state([state], version, by)
    for version in (7, NEWEST):
        # Without an attempt's id (checkpoint format v1) a list that lost an entry leaves another attempt to be found.
        lost = damage.attribute == "versions"
        states = [state for (number, _), state in whole.states.items() if number == version]
        assert_state(states if lost else [whole.states[VersionId(version, attempt(version))]], version, NO_ATTEMPT)
    oldest = min(version for version, _ in whole.states)
    with noted():
        feed = engine.changes(STORE, oldest, NEWEST, attempt(NEWEST))
        changed: State = {}
        for version, chunks in feed.versions:
            changed = fold(chunks, changed)
            if oldest == 1:
                assert changed == whole.states[VersionId(version, attempt(version))], (
                    f"{damage}: wrong changes of {version}"
                )
    return messages + [record.getMessage() for record in log.records]


def assert_named(damage: Damage, messages: list[str]) -> None:
    """Each error names a table as the user knows it, and an item of it; one of them the item that is wrong."""
    for each in messages:
        assert "table=dynastate-delta " in each or "table=dynastate-snapshot-group " in each, f"{damage}: {each}"
        assert " item=" in each, f"{damage}: {each}"
    # Where parts lie goes by the number of shards, so with another one it is parts that are not found.
    named = ["="] if damage.attribute == "shards" else [f"={key.sort}" for key in damage.changes]
    assert any(name in each for name in named for each in messages), f"{damage}: {messages}"
    if damage.attribute == "format" and damage.what == f"is {FORMAT + 1}":
        advice = f"format {FORMAT + 1}, this package reads {FORMAT}; upgrade dynastate"
        assert any(advice in each for each in messages), f"{damage}: {messages}"


@pytest.mark.slow
@pytest.mark.parametrize("cleaned", [False, True], ids=["all versions", "cleaned up"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_corrupt_item_is_named_and_never_read(kind: str, caplog: pytest.LogCaptureFixture, *, cleaned: bool) -> None:
    """A reader gets the right state or an error, and error or log name table, item and reason."""
    whole = intact_store(cleaned=cleaned)
    noticed = 0
    for damage in some_damages(whole, kind, 20):
        engine = make_engine(whole.tables(damage), parallel_requests=1)
        messages = messages_of(engine, whole, damage, caplog)
        engine.close()
        if messages:
            assert_named(damage, messages)
            noticed += 1
        else:
            assert is_harmless(damage, cleaned=cleaned), f"not noticed: {damage}"
    assert noticed > 20


def test_a_corrupt_meta_item_refuses_new_runs() -> None:
    """A run that begins to write gets an error that names the meta item, or continues; it never makes a new one."""
    whole = intact_store(cleaned=False)
    newest, state = VersionId(NEWEST, attempt(NEWEST)), whole.states[VersionId(NEWEST, attempt(NEWEST))]
    refused = 0
    for damage in some_damages(whole, "meta", 10):
        tables = whole.tables(damage)
        engine = make_engine(tables, parallel_requests=1)
        message = ""
        try:
            version = write(engine, STORE, attempt(99), {b"new": b"row"}, base=newest, run="run-3")
            assert read(engine, STORE, *version) == state | {b"new": b"row"}, damage
        except (ConfigurationError, CorruptStateError) as failed:
            message = str(failed)
        engine.close()
        assert not message or "item=meta" in message or damage.attribute in ("shards", "locations"), (
            f"{damage}: {message}"
        )
        refused += bool(message)
        assert (damage.key in tables.items) == (damage.changes[damage.key] is not None), f"{damage}: made again"
    assert refused > 20


@pytest.mark.parametrize("kind", KINDS)
def test_clean_up_retains_the_data_to_fall_back_to(kind: str) -> None:
    """Clean-up stops at a corrupt item, or leaves every retained version as readable as it was."""
    whole = intact_store(cleaned=False)
    retain = NEWEST - SECOND_SNAPSHOT + 1
    stay = [node for node in whole.states if node[0] > NEWEST - retain]
    went = 0
    for damage in some_damages(whole, kind, 6):
        tables = whole.tables(damage)
        engine = make_engine(tables, parallel_requests=1)
        readable = [node for node in stay if is_right(engine, whole, node)]
        count = len(tables.items)
        with contextlib.suppress(CorruptStateError, VersionMissingError):
            engine.maintenance.clean_up(STORE, "run-2", NEWEST, attempt(NEWEST), retain, 0, 0)
        engine.close()
        engine = make_engine(tables, parallel_requests=1)
        assert [node for node in readable if not is_right(engine, whole, node)] == [], f"{damage}"
        engine.close()
        went += len(tables.items) < count
    assert went or kind in ("meta", "schema")


def is_right(engine: Engine, whole: IntactStore, node: VersionId) -> bool:
    """Whether a version reads back as it was; it must not read back otherwise."""
    try:
        state = recover(engine, STORE, *node)
    except (CorruptStateError, VersionMissingError):
        return False
    assert state == whole.states[node], node
    return True


WRONG_KINDS: dict[str, dict[str, object]] = {
    "true or false": {"BOOL": True},
    "null": {"NULL": True},
    "a number that is none of ours": {"N": "1.5"},
    "a set of numbers": {"NS": ["1"]},
    "a set of bytes": {"BS": [b"bytes"]},
    "a list of numbers": {"L": [{"N": "1"}]},
    "a map of bytes": {"M": {"name": {"B": b"bytes"}}},
}


@pytest.mark.parametrize("kind", WRONG_KINDS)
def test_values_of_kinds_never_written(moto: BotoTables, failing_client: FailingClient, store: str, kind: str) -> None:
    """An attribute with a value of another kind, read by Query or by BatchGetItem: the error names table and item."""
    engine = make_engine(moto)
    version = write(engine, store, attempt(1), {b"a": b"1"})
    ((part, item),) = parts_of(moto, store)
    group = version_list_key(store, 1)
    for key, whole in ((part, item), (group, items_of(moto, store)[group.sort])):
        failing_client.put_item(TableName=moto.names[key.role], Item=to_wire(whole) | {"strange": WRONG_KINDS[kind]})
        with pytest.raises(CorruptStateError, match="an item holds a value that dynastate never writes") as failed:
            read(engine, store, *version)
        engine.name_table(failed.value)
        message = str(failed.value)
        assert f"attribute=strange kind={next(iter(WRONG_KINDS[kind]))} table={moto.names[key.role]} " in message
        assert f"store_shard={key.store_shard} item={key.sort}" in message
        moto.write([(key, whole)])
    assert read(engine, store, *version) == {b"a": b"1"}
    engine.close()
