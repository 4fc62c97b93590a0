"""Forks: the same rows without a part or a bucket written, whatever clean-up of the origin or a crash does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dynastate import forks, layout, spending, upkeep
from dynastate.errors import ConfigurationError, DynastateError, UnavailableError, VersionMissingError
from dynastate.forks import Forked
from dynastate.layout import Item, Key, Role
from dynastate.overview import overview
from dynastate.store import Engine
from dynastate.stores import find_stores
from dynastate.tables import Meter, Tables
from dynastate.verify import Report, verify
from tests.fakes import MemoryTables, Strike, StruckTables
from tests.states import (
    CHECKPOINT,
    SHARDS,
    Engines,
    State,
    Version,
    attempt,
    chunk,
    closing,
    history,
    parts_of,
    read,
    recover,
    take_snapshot,
    write,
    write_versions,
)

pytestmark = pytest.mark.usefixtures("always_worth_it")


def namespace_of(store: str) -> str:
    return store.split("/", maxsplit=1)[0]


def new_of(store: str, name: str = "new") -> str:
    """Name a store of a fork, in a namespace that no other test has."""
    return f"{namespace_of(store)}-{name}" + store.removeprefix(namespace_of(store))


def fork(tables: Tables, store: str, version: int | None = None, name: str = "new") -> Forked:
    return forks.fork(tables, namespace_of(store), namespace_of(new_of(store, name)), version, Meter())


def rows_until(version: int) -> State:
    """Give what `write_versions` has made."""
    return {b"%d" % number: b"%d" % number for number in range(1, version + 1)}


def since(version: int, newest: int) -> Callable[[int], set[bytes]]:
    return lambda base: {b"%d" % number for number in range(base + 1 if base else version, newest + 1)}


def snapshot_of(at: Engine, store: str, of: Version, state: State, base: int = 0, run: str = "run-1") -> None:
    under_way = take_snapshot(at, store, of, state, since(base + 1, of[0]), run=run)
    assert under_way is not None
    assert under_way.commit()


def data_items(tables: Tables, store: str) -> int:
    """Count parts and buckets of a store."""
    shards = [layout.store_shard(store, shard) for shard in range(4)]
    buckets = [tables.list_keys("snapshot", shard, "bucket/", "bucket/~", Meter()) for shard in shards]
    return len(parts_of(tables, store)) + sum(map(len, buckets))


@pytest.fixture
def made(at: Engine, store: str) -> list[Version]:
    """35 versions of one row each, and a snapshot of version 20."""
    made = write_versions(at, store, 20)
    snapshot_of(at, store, made[20], rows_until(20))
    return made + write_versions(at, store, 15, made[20])[1:]


def test_the_same_rows_and_nothing_written_anew(at: Engine, tables: Tables, store: str, made: list[Version]) -> None:
    """A fork reads as its origin, by number and by attempt; no part and no bucket is its own."""
    before = data_items(tables, store)
    said = fork(tables, store)
    new = new_of(store)
    assert (said.version, said.stores) == (35, 1)
    assert said.shared_bytes > 0
    assert data_items(tables, store) == before
    assert data_items(tables, new) == 0
    for version in made[21:]:
        assert read(at, new, *version) == read(at, store, *version) == rows_until(version[0])
    assert read(at, new, 35) == rows_until(35)
    assert [entry.version for entry in at.open(new, *made[35]).entries] == list(range(21, 36))
    assert verify(tables, new).is_whole
    assert verify(tables, store).is_whole


@pytest.mark.parametrize("version", [20, 22, 29, 30])
def test_any_version_that_is_there(at: Engine, tables: Tables, store: str, made: list[Version], version: int) -> None:
    """That of a snapshot too; none beyond it comes with it."""
    assert fork(tables, store, version).version == version
    assert read(at, new_of(store), *made[version]) == rows_until(version)
    with pytest.raises(VersionMissingError):
        at.open(new_of(store), *made[version + 1])


def test_a_fork_of_deltas_only(at: Engine, tables: Tables, store: str) -> None:
    """Where there is no snapshot, it stands on all versions."""
    made = write_versions(at, store, 12)
    fork(tables, store, 11)
    assert read(at, new_of(store), *made[11]) == rows_until(11)


def test_both_go_on(at: Engine, tables: Tables, store: str, made: list[Version]) -> None:
    """Each has its own rows from then on; the fork's snapshot carries on what it shares."""
    fork(tables, store, 30)
    new = new_of(store)
    mine = [made[30]]
    for number in range(31, 34):
        mine.append(write(at, new, attempt(900 + number), {b"%d" % number: b"fork"}, base=mine[-1], run="test"))
    expected = rows_until(30) | {b"31": b"fork", b"32": b"fork", b"33": b"fork"}
    snapshot_of(at, new, mine[-1], expected, 30, "test")
    assert read(at, new, *mine[-1]) == read(at, new, 33) == expected
    assert at.open(new, *mine[-1]).snapshot == 33
    assert read(at, store, *made[35]) == rows_until(35)
    with pytest.raises(VersionMissingError):
        at.open(new, *made[31])
    assert verify(tables, new).is_whole


def clean_to_death(at: Engine, store: str, made: list[Version]) -> Version:
    """Let the origin go on until clean-up has passed everything that was there."""
    newest = made[-1]
    for _ in range(3):
        more = write_versions(at, store, 10, newest)
        newest = more[-1]
        snapshot_of(at, store, newest, rows_until(newest[0]), newest[0] - 10)
        newest = write_versions(at, store, 4, newest)[-1]
        at.clean_up(store, "run-1", *newest, 2, 1, 0)
    return newest


def test_clean_up_of_the_origin_leaves_what_forks_stand_on(
    at: Engine, tables: Tables, store: str, made: list[Version]
) -> None:
    """And takes all else; when the fork is dropped, the next clean-up takes that too."""
    fork(tables, store, 32)
    newest = clean_to_death(at, store, made)
    kept = history(tables, store)
    assert min(kept.unpinned()) == newest[0] - 3
    assert [each.version for each in kept.snapshots()] == [20, newest[0] - 4]
    assert read(at, new_of(store), *made[32]) == rows_until(32)
    assert read(at, store, *newest) == rows_until(newest[0])
    assert verify(tables, store).is_whole
    assert verify(tables, new_of(store)).is_whole
    assert not at.clean_up(store, "run-1", *newest, 2, 1, 0)[0].items_deleted
    upkeep.drop_all(tables, [new_of(store)], Meter())
    at.clean_up(store, "run-1", *newest, 2, 1, 0)
    gone = history(tables, store)
    assert gone.versions() == list(range(newest[0] - 3, newest[0] + 1))
    assert [each.version for each in gone.snapshots()] == [newest[0] - 4]
    assert {int(key.sort[:20]) for key, _ in parts_of(tables, store)} == set(gone.versions())
    assert verify(tables, store).findings == ()


class Listing(StruckTables):
    """Tables that tell which keys of parts were listed."""

    def __init__(self, tables: Tables) -> None:
        super().__init__(tables)
        self.listed: list[Key] = []

    def list_keys(self, role: Role, store_shard: str, low: str, high: str, meter: Meter) -> list[Key]:
        assert low <= high, "DynamoDB refuses such a range"
        found = super().list_keys(role, store_shard, low, high, meter)
        self.listed += found if role == "delta" else []
        return found


def test_clean_up_does_not_pay_for_what_forks_stand_on(engines: Engines, tables: Tables, store: str) -> None:
    """It lists no part of the versions in lists that stay, and takes the orphans around them; those within, later."""
    told = Listing(tables)
    at = engines(told)
    made = write_versions(at, store, 45)
    snapshot_of(at, store, made[9], rows_until(9))
    snapshot_of(at, store, made[19], rows_until(19))
    snapshot_of(at, store, made[42], rows_until(42))
    fork(tables, store, 15, "early")  # on versions 10 to 15
    fork(tables, store, 43, "late")
    for number in (5, 12, 25, 41):
        orphan = layout.part_items(store, number, attempt(500 + number), 0, SHARDS, chunk({b"orphan": b""}))
        tables.write(orphan, Meter())
    at.clean_up(store, "run-1", *made[45], 2, 1, 0)  # those below 43
    assert {int(key.sort[:20]) for key in told.listed} == {5, 25}
    assert {int(key.sort[:20]) for key, _ in parts_of(tables, store)} == {*range(10, 20), *range(40, 46)}
    assert {each.items for each in verify(tables, store).findings} == {1}
    assert verify(tables, store).is_whole
    for name in ("early", "late"):
        assert verify(tables, new_of(store, name)).findings == ()
        upkeep.drop_all(tables, [new_of(store, name)], Meter())
    at.clean_up(store, "run-1", *made[45], 2, 1, 0)
    assert verify(tables, store).findings == ()


def test_forks_of_several_versions(at: Engine, tables: Tables, store: str) -> None:
    """Between what one and the other stand on, the origin has nothing any more; and nothing is wrong with any."""
    made = write_versions(at, store, 34)
    fork(tables, store, 12, "early")
    snapshot_of(at, store, made[34], rows_until(34))
    made += write_versions(at, store, 20, made[34])[1:]
    fork(tables, store, 52, "late")
    newest = clean_to_death(at, store, made)
    assert history(tables, store).versions() == [
        *range(1, 20),
        *range(30, 60),
        *range(newest[0] - 3, newest[0] + 1),
    ]
    for name, version in (("early", 12), ("late", 52)):
        assert read(at, new_of(store, name), *made[version]) == rows_until(version)
        assert verify(tables, new_of(store, name)).findings == ()
    found = verify(tables, store)
    assert found.findings == ()
    assert [each.version for each in found.versions if each.is_dead] == list(range(30, 34))
    assert read(at, store, *newest) == rows_until(newest[0])


def test_a_fork_that_stands_on_its_own_gives_its_origin_free(
    at: Engine, tables: Tables, store: str, made: list[Version]
) -> None:
    """First the version lists, when its own snapshot has replaced them; then the rest, when no bucket is shared."""
    fork(tables, store, 21)
    new = new_of(store)
    newest = write(at, new, attempt(922), {b"22": b"fork"}, base=made[21], run="test")
    state = rows_until(21) | {b"22": b"fork"}
    snapshot_of(at, new, newest, state, 20, "test")
    for number in range(23, 40):
        newest = write(at, new, attempt(900 + number), base=newest, run="test")
    upkeep.clean(at, tables, new, 2)
    assert pins(tables, store) == {"meta", made_snapshot(made[20])}
    assert read(at, new, *newest) == state
    everything = {b"%d" % number: b"new" for number in range(1, 40)}
    newest = write(at, new, attempt(940), everything, base=newest, run="test")
    under_way = take_snapshot(at, new, newest, everything, lambda _: {b"%d" % n for n in range(2000)}, run="test")
    assert under_way is not None
    assert under_way.commit()
    for number in range(41, 44):
        newest = write(at, new, attempt(900 + number), base=newest, run="test")
    upkeep.clean(at, tables, new, 2)
    assert pins(tables, store) == set()
    assert read(at, new, *newest) == everything
    upkeep.drop_all(tables, [store], Meter())
    assert read(at, new, *newest) == everything
    assert verify(tables, new).findings == ()


def made_snapshot(version: Version) -> str:
    return layout.snapshot_key("", *version).sort


def stores_of(tables: Tables, namespace: str) -> list[str]:
    return [store for _, store in find_stores(tables, namespace, Meter())]


def drop_namespace(tables: Tables, namespace: str) -> None:
    """What `dynastate drop` does, of what is there."""
    upkeep.drop_all(tables, stores_of(tables, namespace), Meter())


def pins(tables: Tables, store: str) -> set[str]:
    """Sort keys of the items of a store that forks stand on."""
    found = tables.query("snapshot", layout.store_shard(store, 0), "a", "~", Meter())
    return {key.sort for key, item in found if layout.FORKS in item}


def test_drop_refuses_while_a_fork_stands_on_it(at: Engine, tables: Tables, store: str, made: list[Version]) -> None:
    """It names the fork, and deletes nothing; without the fork it goes."""
    fork(tables, store)
    before = data_items(tables, store)
    with pytest.raises(ConfigurationError, match=f"forks stand on this state: {namespace_of(new_of(store))};"):
        upkeep.drop_all(tables, [store], Meter())
    with pytest.raises(ConfigurationError, match="forks stand on this state"):
        forks.must_have_none(tables, [store], Meter())
    assert data_items(tables, store) == before
    assert read(at, store, *made[35]) == rows_until(35)
    upkeep.drop_all(tables, [new_of(store)], Meter())
    assert pins(tables, store) == set()
    upkeep.drop_all(tables, [store], Meter())
    assert data_items(tables, store) == 0


def test_a_fork_of_a_fork(at: Engine, tables: Tables, store: str, made: list[Version]) -> None:
    """It holds the fork, and that the origin; what lies in the origin is read from there."""
    fork(tables, store, 32)
    first, second = new_of(store), new_of(new_of(store))
    newest = write(at, first, attempt(933), {b"33": b"fork"}, base=made[32], run="test")
    fork(tables, first)
    expected = rows_until(32) | {b"33": b"fork"}
    assert read(at, second, *newest) == expected
    with pytest.raises(ConfigurationError, match="forks stand on this state"):
        upkeep.drop_all(tables, [first], Meter())
    # The first goes on until it needs nothing of the origin itself.
    for number in range(34, 38):
        newest = write(at, first, attempt(900 + number), {b"%d" % number: b"fork"}, base=newest, run="test")
    everything = {b"%d" % number: b"new" for number in range(1, 40)}
    newest = write(at, first, attempt(938), everything, base=newest, run="test")
    under_way = take_snapshot(at, first, newest, everything, lambda _: {b"%d" % n for n in range(2000)}, run="test")
    assert under_way is not None
    assert under_way.commit()
    for number in range(39, 43):
        newest = write(at, first, attempt(900 + number), base=newest, run="test")
    upkeep.clean(at, tables, first, 2)
    clean_to_death(at, store, made)
    assert read(at, second, 33) == expected
    assert verify(tables, second).is_whole
    assert verify(tables, first).is_whole
    upkeep.drop_all(tables, [second], Meter())
    upkeep.drop_all(tables, [first], Meter())
    assert pins(tables, store) == set()


def test_every_attempt_at_the_version_comes_along(at: Engine, tables: Tables, store: str) -> None:
    """A driver that names attempts may have taken any of them; by number the same one is it."""
    made = write_versions(at, store, 5)
    twin = write(at, store, attempt(77), {b"twin": b""}, base=made[4])
    fork(tables, store)
    for version in (made[5], twin, (5, layout.NO_ATTEMPT)):
        assert read(at, new_of(store), *version) == read(at, store, *version)


def test_what_is_there_already_is_refused(at: Engine, tables: Tables, store: str, made: list[Version]) -> None:
    """A fork that is whole, another query's state, the namespace itself; and versions and namespaces that are not."""
    other = new_of(store, "other")
    write(at, other, attempt(1), {b"1": b"1"})
    with pytest.raises(ConfigurationError, match="has state already"):
        fork(tables, store, name="other")
    with pytest.raises(ConfigurationError, match="needs a namespace of its own"):
        forks.fork(tables, namespace_of(store), namespace_of(store), None, Meter())
    with pytest.raises(ConfigurationError, match="no store of this namespace"):
        forks.fork(tables, "nobody", "new", None, Meter())
    with pytest.raises(VersionMissingError, match="versions=1-35"):
        fork(tables, store, 36)
    fork(tables, store)
    with pytest.raises(ConfigurationError, match="has state already"):
        fork(tables, store)


def test_what_a_dropped_fork_left_behind_is_tidied(at: Engine, tables: Tables, store: str, made: list[Version]) -> None:
    """As when its items were deleted by hand: `clean` takes its pins away, and no others."""
    fork(tables, store)
    fork(tables, store, 21, "other")
    tables.delete([layout.meta_key(new_of(store))], Meter())
    upkeep.clean(at, tables, store, 2)
    upkeep.drop_all(tables, [new_of(store, "other")], Meter())
    assert pins(tables, store) == set()


def test_whatever_stops_clean_or_drop_a_fork_that_is_gone_does_not(
    at: Engine, tables: Tables, store: str, made: list[Version]
) -> None:
    """Of a query that died as it began again: its pins go before `clean` fails, and before `drop` may refuse."""
    at.session(store, "run-2", CHECKPOINT, 35, Meter())
    fork(tables, store)
    tables.delete([layout.meta_key(new_of(store))], Meter())
    with pytest.raises(ConfigurationError, match="a newer run of the query has begun"):
        upkeep.clean(at, tables, store, 2)
    assert pins(tables, store) == set()
    fork(tables, store, name="other")
    fork(tables, store, name="third")
    tables.delete([layout.meta_key(new_of(store, "other"))], Meter())
    with pytest.raises(ConfigurationError, match=f"forks stand on this state: {namespace_of(store)}-third; drop"):
        upkeep.drop_all(tables, [store], Meter())
    tables.delete([layout.meta_key(new_of(store, "third"))], Meter())
    upkeep.drop_all(tables, [store], Meter())
    assert not tables.query("snapshot", layout.store_shard(store, 0), "a", "~", Meter())


def test_verify_finds_a_pin_that_is_lost(tables: Tables, store: str, made: list[Version]) -> None:
    """Whoever took it away, clean-up of the origin may now take what the fork stands on."""
    fork(tables, store)
    key = layout.snapshot_key(store, *made[20])
    tables.remove_from_set(key, layout.FORKS, [new_of(store)], Meter())
    (finding,) = verify(tables, new_of(store)).findings
    assert (finding.what, finding.key) == ("missing", key)


# --------------------------------------------------------------------------------------------------- crashes and races


class Dying(StruckTables):
    """Tables that fail from one request on, before it is applied or after, as for a process that dies there."""

    def __init__(self, tables: Tables, last: int, *, applied: bool) -> None:
        super().__init__(tables)
        self.left, self.applied = last, applied

    def _call(self, verb: str, *arguments: object) -> object:
        self.left -= 1
        if self.left < 0 and not (self.applied and self.left == -1):
            raise UnavailableError("died")
        done = super()._call(verb, *arguments)
        if self.left == -1:
            raise UnavailableError("died")
        return done


def each_request(operation: Callable[[Tables], object], tables: MemoryTables) -> Iterator[None]:
    """Do something again and again on the same tables, each time dying one request later, until it ends."""
    begun = dict(tables.items)
    for applied in (False, True):
        for last in range(1_000):
            tables.items = dict(begun)
            try:
                operation(Dying(tables, last, applied=applied))
            except UnavailableError:
                yield
            else:
                break
        else:
            raise AssertionError("it does not end")


@pytest.fixture
def make(memory: MemoryTables) -> Iterator[Engines]:
    """Make engines on tables in memory."""
    yield from closing(memory)


@pytest.fixture
def small(make: Engines, store: str) -> tuple[Engine, list[Version]]:
    """Two stores on tables in memory, with a snapshot and versions in two groups, to be forked."""
    at, made = make(), []
    for each in (store, store.replace("/0/0/", "/0/1/")):
        made = write_versions(at, each, 7)
        snapshot_of(at, each, made[7], rows_until(7))
        made += write_versions(at, each, 5, made[7])[1:]
    return at, made


def is_nowhere(tables: MemoryTables, namespace: str) -> bool:
    return not any(key.store_shard.startswith(f"{namespace}/") for key in tables.items) and not any(
        layout.FORKS in item for item in tables.items.values()
    )


def test_a_fork_that_dies_anywhere_is_gone_on_with(
    memory: MemoryTables, store: str, small: tuple[Engine, list[Version]]
) -> None:
    """Made again, it ends as if nothing had been; though the query has gone on, it is of the same version."""
    at, made = small
    other = store.replace("/0/0/", "/0/1/")
    for _ in each_request(lambda tables: fork(tables, store, 11), memory):
        if forks._has_version(memory, new_of(other), 11, Meter()):  # only the last answer did not come
            with pytest.raises(ConfigurationError, match="has state already"):
                fork(memory, store)
        else:
            begun = layout.meta_key(new_of(store)) in memory.items
            if begun:
                with pytest.raises(ConfigurationError, match="at another version has begun there and was cut off"):
                    fork(memory, store, 12)
            assert fork(memory, store, None if begun else 11).version == 11
        for each in (store, other):
            assert read(at, new_of(each), *made[11]) == rows_until(11)
            assert verify(memory, new_of(each)).findings == ()
        upkeep.drop_all(memory, [new_of(each) for each in (store, other)], Meter())
        assert is_nowhere(memory, namespace_of(new_of(store)))


def test_a_fork_that_dies_anywhere_is_dropped(
    memory: MemoryTables, store: str, small: tuple[Engine, list[Version]]
) -> None:
    """Nothing is left of it, and the origin is as it was."""
    at, made = small
    before = dict(memory.items)
    new = namespace_of(new_of(store))
    for _ in each_request(lambda tables: fork(tables, store, 11), memory):
        drop_namespace(memory, new)
        assert memory.items == before
    assert read(at, store, *made[12]) == rows_until(12)


def test_a_drop_that_dies_anywhere_is_dropped_again(
    memory: MemoryTables, store: str, small: tuple[Engine, list[Version]]
) -> None:
    """Nothing is left of a fork, and nothing is held for it."""
    at, made = small
    before = dict(memory.items)
    fork(memory, store, 11)
    stores = [new_of(store), new_of(store.replace("/0/0/", "/0/1/"))]
    for _ in each_request(lambda tables: upkeep.drop_all(tables, stores, Meter()), memory):
        left = stores_of(memory, namespace_of(stores[0]))
        upkeep.drop_all(memory, left, Meter())
        assert memory.items == before
    assert read(at, store, *made[12]) == rows_until(12)


def test_a_run_that_begins_takes_back_a_drop_that_was_cut_off(
    make: Engines, memory: MemoryTables, store: str, small: tuple[Engine, list[Version]]
) -> None:
    """Nothing was deleted, and the query goes on: it can be forked, and dropped later."""
    _, made = small
    stores = [store, store.replace("/0/0/", "/0/1/")]
    tables = StruckTables(memory)
    tables.strike("list_keys", Strike(UnavailableError("died")))
    with pytest.raises(UnavailableError, match="died"):
        upkeep.drop_all(tables, stores, Meter())
    with pytest.raises(ConfigurationError, match="is being dropped"):
        fork(memory, store)
    upkeep.drop_all(memory, [new_of(store)], Meter())
    for each in stores:
        write(make(), each, attempt(13), base=made[12], run="run-2")
    assert fork(memory, store).version == 13
    upkeep.drop_all(memory, [new_of(each) for each in stores], Meter())
    upkeep.drop_all(memory, stores, Meter())
    assert not memory.items


def test_a_run_that_begins_while_the_query_is_dropped(
    make: Engines, memory: MemoryTables, store: str, small: tuple[Engine, list[Version]]
) -> None:
    """The store that it has begun in stays as it is, and the drop says so."""
    _, made = small
    stores = [store, store.replace("/0/0/", "/0/1/")]
    begun: list[Version] = []

    def begin(verb: str) -> None:
        if verb == "delete" and not begun:  # of the second store
            begun.append(write(make(), store, attempt(13), base=made[12], run="run-2"))

    with pytest.raises(ConfigurationError, match="a run of the query has begun meanwhile"):
        upkeep.drop_all(StruckTables(memory, begin), stores, Meter())
    assert read(make(), store, *begun[0]) == rows_until(12)
    assert not any(key.store_shard.startswith(stores[1]) for key in memory.items)
    upkeep.drop_all(memory, stores[:1], Meter())
    assert not memory.items


class Beside(StruckTables):
    """Tables on which something else happens before one of the requests."""

    def __init__(self, tables: Tables, before: int, happens: Callable[[], object]) -> None:
        super().__init__(tables)
        self.left, self.happens = before, happens

    def _call(self, verb: str, *arguments: object) -> object:
        self.left -= 1
        if self.left == -1:
            self.happens()
        return super()._call(verb, *arguments)


def races(
    memory: MemoryTables, first: Callable[[Tables], object], second: Callable[[], object]
) -> Iterator[tuple[Exception | None, Exception | None]]:
    """Let one thing happen between any two requests of another; what became of both."""
    begun = dict(memory.items)
    for before in range(1_000):
        memory.items = dict(begun)
        failures: list[Exception | None] = [None, None]

        def happens(failures: list[Exception | None] = failures) -> None:
            try:
                second()
            except DynastateError as failed:
                failures[1] = failed

        tables = Beside(memory, before, happens)
        try:
            first(tables)
        except DynastateError as failed:
            failures[0] = failed
        if tables.left >= 0:  # it had ended before
            return
        yield failures[0], failures[1]
    raise AssertionError("it does not end")


def test_verify_beside_what_holds_and_gives_free(
    make: Engines, memory: MemoryTables, store: str, small: tuple[Engine, list[Version]]
) -> None:
    """Names that a fork does not stand on yet, or no more, need not be held: nothing is wrong, at whatever moment."""
    at, made = small
    new = new_of(store)
    for _ in each_request(lambda tables: fork(tables, store, 11), memory):
        if layout.meta_key(new) in memory.items:
            assert verify(memory, new).is_whole
    everything = rows_until(12)
    newest = write(at, new, attempt(512), everything, base=made[11], run="test")
    under_way = take_snapshot(at, new, newest, everything, lambda _: {b"%d" % n for n in range(2000)}, run="test")
    assert under_way is not None
    assert under_way.commit()
    write_versions(at, new, 3, newest, run="test")
    held = pins(memory, store)
    reports: list[Report] = []
    for failures in races(
        memory, lambda tables: reports.append(verify(tables, new)), lambda: upkeep.clean(make(), memory, new, 2)
    ):
        assert failures == (None, None)
        assert reports[-1].is_whole, reports[-1].findings
        assert pins(memory, store) < held
    for _ in each_request(lambda tables: upkeep.clean(make(tables), tables, new, 2), memory):
        assert verify(memory, new).is_whole, verify(memory, new).findings


@pytest.mark.parametrize("version", [13, 16])
@pytest.mark.parametrize("is_fork_first", [True, False])
def test_clean_up_beside_a_fork(
    make: Engines, memory: MemoryTables, store: str, version: int, *, is_fork_first: bool
) -> None:
    """At whatever moment it goes by: the fork is whole, or refused with what to do; the origin is whole anyhow."""
    at = make()
    made = write_versions(at, store, 12)
    snapshot_of(at, store, made[12], rows_until(12))
    made += write_versions(at, store, 9, made[12])[1:]
    snapshot_of(at, store, made[21], rows_until(21), 12)
    made += write_versions(at, store, 3, made[21])[1:]

    def clean(on: Tables) -> None:
        make(on).clean_up(store, "run-1", *made[24], 2, 1, 0)

    def fork_it(on: Tables) -> None:
        fork(on, store, version)

    first, second = (fork_it, clean) if is_fork_first else (clean, fork_it)
    outcomes = set()
    for failures in races(memory, first, lambda: second(memory)):
        forked, cleaned = failures if is_fork_first else failures[::-1]
        assert cleaned is None
        outcomes.add(forked is None)
        if forked is None:
            assert recover(make(), new_of(store), *made[version]) == rows_until(version)
            assert verify(memory, new_of(store)).findings == ()
        for each in made[23:]:
            assert read(make(), store, *each) == rows_until(each[0])
        assert verify(memory, store).is_whole
    assert outcomes == {True, False}


@pytest.mark.parametrize("what", ["clean", "drop"])
def test_a_fork_is_made_while_what_is_held_for_others_is_looked_at(
    make: Engines, memory: MemoryTables, small: tuple[Engine, list[Version]], store: str, what: str
) -> None:
    """Beside a fork that is there already: one that comes meanwhile keeps what it stands on."""
    _, made = small
    fork(memory, store, 11, "other")

    def look(on: Tables) -> None:
        if what == "clean":
            upkeep.clean(make(on), on, store, 1)
        else:
            upkeep.drop_all(on, [store], Meter())

    kept = 0
    for looked, forked in races(memory, look, lambda: fork(memory, store, 11)):
        assert (looked is None) == (what == "clean")
        assert forked is None
        kept += 1
        assert recover(make(), new_of(store), *made[11]) == rows_until(11)
        assert verify(memory, new_of(store)).findings == ()
    assert kept > 2


def test_clean_of_a_fork_that_is_being_made(
    make: Engines, memory: MemoryTables, store: str, small: tuple[Engine, list[Version]]
) -> None:
    """At whatever moment it comes by: it gives nothing free that the fork stands on in the end."""
    _, made = small
    new = new_of(store)
    cleaned = set()
    for failures in races(memory, lambda tables: fork(tables, store, 11), lambda: upkeep.clean(make(), memory, new, 2)):
        assert failures[0] is None
        assert read(make(), new, *made[11]) == rows_until(11)
        groups = {layout.group_key(store, version).sort for version in (8, 11)}
        assert pins(memory, store) == {"meta", made_snapshot(made[7])} | groups
        cleaned.add(type(failures[1]))
    assert cleaned == {type(None), VersionMissingError}


def test_clean_of_a_fork_beside_its_query(
    make: Engines, memory: MemoryTables, store: str, small: tuple[Engine, list[Version]]
) -> None:
    """The query's own clean-up may take a snapshot away at whatever moment."""
    at, made = small
    fork(memory, store, 11)
    new = new_of(store)
    made = write_versions(at, new, 3, made[11], run="test")
    snapshot_of(at, new, made[2], rows_until(13), 7, "test")
    newest = write_versions(at, new, 3, made[3], run="test")[-1]
    for failures in races(
        memory,
        lambda tables: upkeep.clean(make(tables), tables, new, 100),
        lambda: make().clean_up(new, "test", *newest, 2, 1, 0),
    ):
        assert failures == (None, None)
        assert read(make(), new, *newest) == rows_until(17)
        assert verify(memory, new).findings == ()


def test_drop_of_a_fork_that_is_being_made(
    memory: MemoryTables, store: str, small: tuple[Engine, list[Version]]
) -> None:
    """At whatever moment: the fork is whole, or refused; and so is one of another version after it."""
    at, made = small
    before = dict(memory.items)
    namespace = namespace_of(new_of(store))
    stores = [new_of(store), new_of(store.replace("/0/0/", "/0/1/"))]

    def drop() -> None:
        drop_namespace(memory, namespace)

    outcomes = set()
    for failures in races(memory, lambda tables: fork(tables, store, 11), drop):
        assert failures[1] is None
        outcomes.add(failures[0] is None)
        for version in (11, 12):
            if version == 12:
                try:
                    fork(memory, store, 12)
                except DynastateError:
                    drop()
                    fork(memory, store, 12)
            if version == 12 or failures[0] is None:
                for each in stores:
                    assert read(at, each, *made[version]) == read(at, each, version) == rows_until(version)
                    assert verify(memory, each).findings == ()
        drop()
        assert memory.items == before
    assert outcomes == {True, False}


def test_a_fork_is_not_gone_on_with_when_other_attempts_were_made(
    make: Engines, memory: MemoryTables, store: str, small: tuple[Engine, list[Version]]
) -> None:
    """It is whole with all that are listed, or refused: no list names what stands on an attempt that another lacks."""
    _, made = small
    outcomes = set()
    for _ in each_request(lambda tables: fork(tables, store, 11), memory):
        twin = made[8]
        for number in range(9, 12):  # the second stands in another list than the first
            twin = write(make(), store, attempt(100 + number), {b"%d" % number: b"%d" % number}, base=twin)
        try:
            fork(memory, store, 11)
        except DynastateError as refused:
            outcomes.add("changed" if "what the fork was begun with has changed" in str(refused) else "there")
        for entry in history(memory, new_of(store)).entries():
            if entry.version == 11:
                assert read(make(), new_of(store), 11, entry.attempt) == rows_until(11)
                outcomes.add("with the twin" if entry.attempt == twin[1] else "without it")
    assert outcomes == {"changed", "there", "with the twin", "without it"}


def test_drop_beside_a_fork(memory: MemoryTables, store: str, small: tuple[Engine, list[Version]]) -> None:
    """One of both is refused, whoever comes first at whatever moment; no fork stands on what is gone."""
    at, made = small
    stores = [store, store.replace("/0/0/", "/0/1/")]
    outcomes = set()
    for both in (
        races(memory, lambda tables: fork(tables, store, 11), lambda: upkeep.drop_all(memory, stores, Meter())),
        races(memory, lambda tables: upkeep.drop_all(tables, stores, Meter()), lambda: fork(memory, store, 11)),
    ):
        for failures in both:
            is_whole = all(forks._has_version(memory, new_of(each), 11, Meter()) for each in stores)
            outcomes.add(is_whole)
            assert any(failures), failures
            for each in stores if is_whole else ():
                assert read(at, new_of(each), *made[11]) == rows_until(11)
                assert verify(memory, new_of(each)).findings == ()
    assert outcomes == {True, False}


def test_a_commit_that_finds_a_long_list_leaves_it_to_a_fork(
    at: Engine, tables: Tables, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts of runs long over are struck off a list, but off none that a fork stands on."""
    monkeypatch.setattr("dynastate.store.LISTED_MAX", 5)
    made = write_versions(at, store, 3)
    for number in range(1, 30):
        write(at, store, attempt(100 + number), {b"%d" % number: b""}, base=made[3], run=f"run-{number + 1}")
        if number == 1:
            fork(tables, store, 4)
    assert read(at, new_of(store), 4) == rows_until(3) | {b"1": b""}
    assert len(history(tables, store).groups[layout.group_key(store, 4)]) == 3 + 29


def test_an_item_that_a_fork_stands_on_is_neither_replaced_nor_deleted(tables: Tables, store: str) -> None:
    """By the verbs themselves, on every kind of tables; sets grow and shrink, and vanish with their last text."""
    key = layout.group_key(store, 1)
    item: Item = layout.item_key(key) | {"format": 1, "versions": [b"a"]}
    assert tables.add_to_set(key, layout.FORKS, ["one"], Meter()) is None
    assert tables.put_new(key, item, Meter())
    assert tables.add_to_set(key, layout.FORKS, ["one"], Meter()) == item | {layout.FORKS: frozenset(["one"])}
    now = tables.add_to_set(key, layout.FORKS, ["one", "two"], Meter())
    assert now == item | {layout.FORKS: frozenset(["one", "two"])}
    before: Item = {"versions": [b"a"]}
    assert not tables.put_over(key, item, before, Meter())
    assert not tables.delete_over(key, before, Meter())
    assert tables.append_version(key, b"b", Meter()) == [b"a", b"b"]
    now = tables.remove_from_set(key, layout.FORKS, ["two", "three"], Meter())
    assert now is not None
    assert forks.forks_of(now) == ["one"]
    now = tables.remove_from_set(key, layout.FORKS, ["one"], Meter())
    assert now == item | {"versions": [b"a", b"b"]}
    assert tables.remove_from_set(key, layout.FORKS, ["one"], Meter()) == now
    assert tables.put_over(key, item, {"versions": [b"a", b"b"]}, Meter())
    assert tables.delete_over(key, before, Meter())
    assert tables.remove_from_set(key, layout.FORKS, ["one"], Meter()) is None
    assert tables.get([key], Meter()) == {}


def test_what_is_shared_counts_where_it_lies(
    make: Engines, memory: MemoryTables, store: str, small: tuple[Engine, list[Version]]
) -> None:
    """A fork is as large as its own items, for `stores`, for `cost`, and in the metrics of an executor."""
    _, made = small
    fork(memory, store, 11)
    for name in (new_of(store), store):
        own = [item for key, item in memory.items.items() if key.store_shard.startswith(f"{name}#")]
        at = make()
        assert recover(at, name, *made[11]) == rows_until(11)
        at.lineage(name)
        said = overview(memory, name, Meter())
        assert said.items == spending.holding(memory, name, Meter()).stored.items == len(own)
        assert at.accounts.stored(name).items == len(own)
        if name != store:
            assert said.bytes == at.accounts.stored(name).bytes == sum(map(layout.item_bytes, own))
    assert (said.origin, said.forks) == ("", (new_of(store),))


def test_a_key_of_a_fork_is_read_like_any_other(at: Engine, tables: Tables, store: str, made: list[Version]) -> None:
    """By bucket, by key, as changes."""
    fork(tables, store, 32)
    new = new_of(store)
    for bucket in range(8):
        opening = at.bucket(new, *made[32], 3, bucket)
        twin = at.bucket(store, *made[32], 3, bucket)
        assert list(opening.snapshot_chunks) == list(twin.snapshot_chunks)
        assert list(opening.chunks) == list(twin.chunks)
    feed = at.changes(new, 25, 32, made[32][1])
    twin_feed = at.changes(store, 25, 32, made[32][1])
    assert [(version, list(each)) for version, each in feed.versions] == [
        (version, list(each)) for version, each in twin_feed.versions
    ]
