"""Random operations on a store of ours, on one of RocksDB's and on a plain model: after every step all three agree.

`DYNASTATE_SEED` chooses other examples than the ones of every run; a failure prints it, and the steps that lead there.
"""

from __future__ import annotations

import math
import os
import shutil
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from dynastate.settings import PREFIX
from tests.contract.provider.conftest import Programs
from tests.contract.provider.server import Change, Key, State, StoreServer, Value, change
from tests.support.jvm import SPARK

pytestmark = pytest.mark.every_spark
SEED = int(os.environ.get("DYNASTATE_SEED", "1"))
EXAMPLES = int(os.environ.get("DYNASTATE_EXAMPLES", "6"))
STEPS = 40
SLOW = pytest.mark.slow


def bits(double: float) -> int:
    """A double as it travels, so that -0.0 and NaN arrive."""
    return int(struct.unpack("<q", struct.pack("<d", double))[0])


def order_of_bits(number: int) -> int:
    """Sort doubles by their bits: -0.0 before 0.0, NaN behind infinity."""
    return number if number >= 0 else -1 - (number & (2**63 - 1))


def order(key: Key) -> Key:
    """What keys of the family `range` are ordered by: two columns, nulls last."""
    low, high = key[:2]
    return (low is None, low or 0, high is None, 0 if high is None else order_of_bits(high))


#: Three 1.5 MB are more than ours holds back until commit.
SIZES = st.sampled_from([0, 1, 7, 8, 9, 40, 300] * 4 + [1_500_000])
VALUES = st.tuples(st.integers(-2, 99), SIZES)
WORDS = st.sampled_from(["", "a", "aa", "b", "\u00fc", None])
NUMBERS = st.sampled_from([-1, 0, 1, 2, 2**31 - 1])
TIMES = st.sampled_from([-(2**63), -10, -1, 0, 5, 10, 2**40])
LOWS = st.sampled_from([-(2**63), -300, -1, 0, 1, 300, 2**63 - 1, None])
HIGHS = st.sampled_from([*map(bits, (-math.inf, -1.5, -0.0, 0.0, 1e-300, 1.5, math.inf, math.nan)), None])
RANGE_KEYS = st.tuples(LOWS, HIGHS, st.sampled_from(["", "x", None]))
WORD_KEYS = st.tuples(WORDS, NUMBERS)
TIME_KEYS = st.tuples(WORDS, TIMES)
#: As in StoreServer.scala. Column families are Spark's since 4.0, keys with a time since 4.2.
HAS_FAMILIES = SPARK != "3.5"
HAS_TIMES = SPARK not in ("3.5", "4.0", "4.1")
KEYS = {"hash": WORD_KEYS, "prefix": WORD_KEYS, "range": RANGE_KEYS, "lists": WORD_KEYS}
PREFIXES: tuple[str, ...] = ("prefix",)
LISTS: tuple[str, ...] = ("lists",)
if not HAS_FAMILIES:
    KEYS = {"default": WORD_KEYS}
    PREFIXES = ("default",)
if HAS_TIMES:
    KEYS |= {"times": TIME_KEYS, "index": TIME_KEYS}
    LISTS = ("lists", "times")
    PREFIXES = ("prefix", "times")
FAMILIES = st.sampled_from(sorted(KEYS))
ROWS = FAMILIES.flatmap(lambda family: st.tuples(st.just(family), KEYS[family]))


class Commit(NamedTuple):
    """A version that can be opened, as the driver knows it."""

    version: int
    ids: tuple[str | None, str | None]
    state: State


class Server:
    """A store of ours and one of RocksDB's, in one JVM."""

    def __init__(self, jvm: StoreServer, folder: Path) -> None:
        self._jvm = jvm
        self._folder = folder
        self._roots = count()

    def begin(self, checkpoint_format: int, memory_mb: int, retain: int) -> None:
        """Start again from nothing, and throw away what was."""
        number = next(self._roots)
        root = (self._folder / str(number)).as_uri()
        conf = {f"{PREFIX}memoryMb": str(memory_mb), f"{PREFIX}diskMb": "0"}
        self.tell("begin", root=root, format=checkpoint_format, conf=conf, retain=retain, families=HAS_FAMILIES)
        shutil.rmtree(self._folder / str(number - 1), ignore_errors=True)

    def tell(self, op: str, **order: Any) -> tuple[Any, Any]:
        """Have both do it; the answers of ours and of RocksDB's."""
        answers = self._jvm.tell(op, **order)
        return answers["ours"], answers["rocksdb"]


class StoresAndModel(RuleBasedStateMachine):
    """A partition's life: batches, failed tasks, rewinds, restarts."""

    def __init__(self, server: Server, checkpoint_format: int, memory_mb: int) -> None:
        super().__init__()
        self.server = server
        self.format = checkpoint_format
        self.memory_mb = memory_mb
        self.commits: list[Commit] = []
        self.base = Commit(0, (None, None), {family: {} for family in KEYS})
        self.state: State = {}

    @initialize(retain=st.sampled_from([1, 2, 5]))
    def begin(self, retain: int) -> None:
        self.server.begin(self.format, self.memory_mb, retain)
        self._open(self.base)

    @rule(cold=st.booleans(), maintained=st.booleans())
    def commit(self, *, cold: bool, maintained: bool) -> None:
        """The batch ends, and the next one begins, perhaps after maintenance, or where nothing is in memory."""
        base = self._commit()
        if maintained:
            self.server.tell("maintain")
        if cold:
            self.server.tell("restart")
        self._open(base)

    @rule()
    def run_again(self) -> None:
        """The task fails after its commit."""
        base = self.base
        self._commit()
        self._open(base)

    @precondition(lambda self: self.format == 2)
    @rule(data=st.data())
    def twins(self, data: st.DataObject) -> None:
        """Two tasks make the same version, and the driver takes the first."""
        base = self.base
        self.put(data, data.draw(VALUES, label="value"))
        first = self._commit()
        self._open(base)
        self.put(data, data.draw(VALUES, label="value"))
        self._commit()
        self._open(first)

    @rule()
    def abort(self) -> None:
        self.server.tell("abort")
        self._open(self.base)

    @precondition(lambda self: self.commits)
    @rule(data=st.data())
    def open_an_older_version(self, data: st.DataObject) -> None:
        """A retry after its own commit, or a query rewound by hand."""
        self._open(data.draw(st.sampled_from(self.commits[-6:]), label="which"))

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """Other executors take the partition over; a reader may have opened an older version there before."""
        base = self.base
        self.server.tell("restart")
        older = data.draw(st.sampled_from([None, *self.commits[-4:]]), label="older")
        if older is not None:
            self._open(older)
        self._open(base)

    @rule()
    def maintain(self) -> None:
        self.server.tell("maintain")

    @precondition(lambda self: self.format == 2)
    @rule(family=FAMILIES)
    def drop_family(self, family: str) -> None:
        """A family is removed and made again, which in format 1 RocksDB does not do right over a retry."""
        self.server.tell("dropFamily", family=family)
        self.state[family].clear()
        self.rows(family)

    @rule(data=st.data(), value=VALUES)
    def put(self, data: st.DataObject, value: Value) -> None:
        family, key = self._row(data)
        self._change_row(("put", family, key, value))

    @rule(rows=st.lists(st.tuples(ROWS, VALUES), min_size=5, max_size=30))
    def put_many(self, rows: list[tuple[tuple[str, Key], Value]]) -> None:
        self._change(*(("put", family, key, value) for (family, key), value in rows))
        for family in {family for (family, _), _ in rows}:
            self.rows(family)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        self._change_row(("remove", *self._row(data)))

    @rule(family=FAMILIES, data=st.data())
    def evict(self, family: str, data: st.DataObject) -> None:
        """Several keys that are there."""
        if row_keys := sorted(self.state[family], key=repr):
            keys = data.draw(st.lists(st.sampled_from(row_keys), unique=True, max_size=8), label="which")
            self._change(*(("remove", family, key) for key in keys))
        self.rows(family)

    @precondition(lambda _: HAS_FAMILIES)
    @rule(data=st.data(), values=st.lists(VALUES, min_size=1, max_size=4))
    def merge(self, data: st.DataObject, values: list[Value]) -> None:
        family, key = self._row(data, LISTS)
        self._change_row(*(("merge", family, key, value) for value in values))

    @precondition(lambda _: HAS_FAMILIES)
    @rule(data=st.data(), values=st.lists(VALUES, min_size=1, max_size=4))
    def put_list(self, data: st.DataObject, values: list[Value]) -> None:
        family, key = self._row(data, LISTS)
        self._change_row(("putList", family, key, values))

    @precondition(lambda _: HAS_FAMILIES)
    @rule(data=st.data())
    def rewrite_list(self, data: st.DataObject) -> None:
        """As list state drops values that expired: the first that stays is put, the others are merged."""
        family, key = self._row(data, LISTS)
        first, *others = self.state[family].get(key, ())[1:] or (None,)
        if first is not None:
            self._change_row(("put", family, key, first), *(("merge", family, key, value) for value in others))

    @rule(data=st.data())
    def get(self, data: st.DataObject) -> None:
        self._get(*self._row(data))

    @rule(family=FAMILIES)
    def rows(self, family: str) -> None:
        ordered = {"range": order, "index": lambda key: key[1:]}.get(family)
        self._agree(family, self.server.tell("rows", family=family), lambda _: True, ordered)

    @rule(family=st.sampled_from(PREFIXES), word=WORDS)
    def prefix(self, family: str, word: str | None) -> None:
        answers = self.server.tell("prefix", family=family, prefix=[word])
        self._agree(family, answers, lambda key: key[0] == word, (lambda key: key[1:]) if family == "times" else None)

    @precondition(lambda _: HAS_FAMILIES)
    @rule(low=LOWS, high=HIGHS)
    def prefix_of_ordering_columns(self, low: int | None, high: int | None) -> None:
        answers = self.server.tell("prefix", family="range", prefix=[low, high])
        self._agree("range", answers, lambda key: key[:2] == (low, high), order)

    @precondition(lambda _: HAS_FAMILIES)
    @rule(ends=st.tuples(*2 * [st.none() | st.tuples(LOWS, HIGHS, st.just(""))]))
    def range(self, ends: tuple[Key | None, Key | None]) -> None:
        """From a key to another; an empty name is the smallest, so the end has no part in it."""
        self._range("range", ends, order)

    @precondition(lambda _: HAS_TIMES)
    @rule(ends=st.tuples(*2 * [st.none() | st.tuples(st.just(""), TIMES)]))
    def range_of_times(self, ends: tuple[Key | None, Key | None]) -> None:
        self._range("index", ends, lambda key: key[1:])

    @precondition(lambda _: HAS_TIMES)
    @rule(word=WORDS, times=st.tuples(TIMES, TIMES))
    def range_of_one_word(self, word: str | None, times: tuple[int, int]) -> None:
        answers = self.server.tell("range", family="times", **{"from": (word, times[0]), "until": (word, times[1])})
        self._agree("times", answers, lambda key: key[0] == word and times[0] <= key[1] < times[1], lambda key: key[1:])

    def _range(self, family: str, ends: tuple[Key | None, Key | None], ordered: Callable[[Key], Key]) -> None:
        start, end = ends
        answers = self.server.tell("range", family=family, **{"from": start, "until": end})
        self._agree(
            family,
            answers,
            lambda key: (
                (start is None or ordered(start) <= ordered(key)) and (end is None or ordered(key) < ordered(end))
            ),
            ordered,
        )

    def _row(self, data: st.DataObject, families: tuple[str, ...] = tuple(sorted(KEYS))) -> tuple[str, Key]:
        """A family and a key, of those that are there more often than not."""
        family = data.draw(st.sampled_from(families), label="family")
        row_keys = sorted(self.state[family], key=repr)
        key: Key = data.draw(st.sampled_from(row_keys) | KEYS[family] if row_keys else KEYS[family], label="key")
        return family, key

    def _change(self, *changes: Change) -> None:
        self.server.tell("batch", changes=changes)
        change(self.state, changes)

    def _change_row(self, *changes: Change) -> None:
        self._change(*changes)
        self._get(*changes[0][1:3])

    def _get(self, family: str, key: Key) -> None:
        expected = self.state[family].get(key, ())
        first = list(expected[0]) if expected else None
        assert self.server.tell("get", family=family, key=key) == (first, first)
        if family in LISTS:
            values = [list(value) for value in expected]
            assert self.server.tell("list", family=family, key=key) == (values, values)

    def _commit(self) -> Commit:
        ours, rocksdb = self.server.tell("commit")
        version = self.base.version + 1
        keys = sum(map(len, self.state.values()))
        assert (ours[0], ours[2]) == (rocksdb[0], rocksdb[2]) == (version, keys)
        commit = Commit(version, (ours[1], rocksdb[1]), self.state)
        assert all(map(bool, commit.ids)) == (self.format == 2)
        if self.format == 1:
            # By number: what was made on top of another attempt at this version is never read again.
            self.commits = [each for each in self.commits if each.version < version]
        self.commits.append(commit)
        return commit

    def _open(self, commit: Commit) -> None:
        self.server.tell("open", version=commit.version, ids=commit.ids if commit.ids[0] else None)
        self.base = commit
        self.state = deepcopy(commit.state)
        for family in KEYS:
            self.rows(family)

    def _agree(
        self,
        family: str,
        answers: tuple[Any, Any],
        is_expected: Callable[[Key], bool],
        ordered: Callable[[Key], Key] | None,
    ) -> None:
        """Both found what the model has, in the order that is promised; `ordered` is None where none is."""
        ours, rocksdb = ([(tuple(key), tuple(value)) for key, value in side] for side in answers)
        expected = {key: values for key, values in self.state[family].items() if is_expected(key)}
        for side in (ours, rocksdb):
            by_key: Mapping[Key, list[Value]] = defaultdict(list)
            for key, value in side:
                by_key[key].append(value)
            assert {key: tuple(values) for key, values in by_key.items()} == expected
            if ordered is not None:
                keys = [ordered(key) for key, _ in side]
                assert keys == sorted(keys)
        # Where the model leaves the order open, bytes decide it, in both.
        assert ours == rocksdb if ordered is not None else len(ours) == len(rocksdb)


@pytest.fixture(scope="module")
def server(programs: Programs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("random")
    with StoreServer(programs.command("StoreServer"), programs.environment, folder / "log") as jvm:
        yield Server(jvm, folder)


@pytest.mark.timeout(900)  # a failure is made small, which takes Hypothesis up to five minutes
@pytest.mark.parametrize(
    ("checkpoint_format", "memory_mb"),
    [pytest.param(1, 0, marks=SLOW), pytest.param(2, 0, marks=SLOW), (2, 1)]
    if HAS_FAMILIES
    else [pytest.param(1, 0, marks=SLOW), (1, 1)],
)
def test_random_operations(server: Server, checkpoint_format: int, memory_mb: int) -> None:
    """Ours, RocksDB's and a dict hold the same rows, also where 1 MiB of memory makes ours read again all the time."""
    print(f"DYNASTATE_SEED={SEED}")  # noqa: T201  # shown with a failure
    run_state_machine_as_test(
        seed(SEED)(lambda: StoresAndModel(server, checkpoint_format, memory_mb)),  # type: ignore[arg-type]  # called, nothing else
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            derandomize=False,
            phases=(Phase.generate, Phase.shrink),
            # An example is forty steps, each told to two stores over a pipe.
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
