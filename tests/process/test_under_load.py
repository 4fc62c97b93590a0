"""The real sidecar under load: many stores, and a throttled, slow or absent DynamoDB."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

import pytest

from dynastate.dynamodb.embedded import EmbeddedDynamoDB, credentials
from dynastate.errors import UnavailableError, UnknownOutcomeError, VersionMissingError
from dynastate.format.keys import EMPTY, NO_ATTEMPT, VersionId
from dynastate.runtime import Limits
from dynastate.settings import Settings
from dynastate.sidecar import protocol
from dynastate.sidecar.protocol import Commit, Find, Open
from tests.support.dynoxide import Dynoxide, fast_dynamodb
from tests.support.fault_proxy import FaultProxy, Forward, Reply, Request, Throttle, let_pass
from tests.support.frames import append
from tests.support.processes import memory_mib
from tests.support.samples import SCHEMA, State, attempt
from tests.support.sidecar import Sidecar, Talk, error_of, spark_names

pytestmark = pytest.mark.slow

WITHIN_S = 120.0
MIB = 1024 * 1024
#: boto3 waits so long for a connection, and for an answer.
CONNECT_S, ANSWER_S = 2, 10
STORES = 200
#: What a sidecar may have in memory, in MiB: itself and its libraries, the cache, items that wait (twice that while
#: they are made), and requests on the wire.
MEMORY_MIB = 100 + Settings().cache_mb + 2 * Limits.queued_bytes_max // MIB + 8 * Settings().parallel_requests
#: And what each connection has in hand.
MEMORY_MIB_STORE = 2
Result = TypeVar("Result")
PARALLEL = Settings().parallel_requests


@pytest.fixture(scope="module")
def dynamodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedDynamoDB | Dynoxide]:
    """A DynamoDB that keeps up: the embedded one serves a request at a time, and the next two hundred wait."""
    with fast_dynamodb(tmp_path_factory.mktemp("dynamodb") / "dynoxide") as database:
        yield database


@pytest.fixture
def proxy(dynamodb: EmbeddedDynamoDB | Dynoxide) -> Iterator[FaultProxy]:
    with FaultProxy(dynamodb.endpoint) as fault_proxy:
        yield fault_proxy


@pytest.fixture
def sidecar() -> Iterator[Sidecar]:
    with closing(Sidecar(environment=credentials() | {"MALLOC_ARENA_MAX": "2"})) as server:
        assert server.said == "ready\n", server.log()
        yield server


@pytest.fixture
def connect(sidecar: Sidecar, proxy: FaultProxy, dynamodb: EmbeddedDynamoDB | Dynoxide) -> Callable[..., Talk]:
    """Make connections that are welcome, to DynamoDB behind the fault proxy."""

    def make(**settings: str) -> Talk:
        talk = sidecar.connect()
        talk._socket.settimeout(WITHIN_S)
        return talk.hello(spark_names(dynamodb.settings) | {"endpoint": proxy.endpoint} | settings)

    return make


def rows(seed: int, count: int, length: int = 1000) -> State:
    """Rows that LZ4 cannot make smaller."""
    choose = random.Random(seed)  # noqa: S311  # test data
    return {b"%d" % number: choose.randbytes(length) for number in range(count)}


def commit(talk: Talk) -> Any:
    talk.send(protocol.encode(Commit({0: 0}, SCHEMA)))
    return talk.answer()


def name(store: str, partition: int) -> str:
    return f"{store[:8]}/0/{partition}/default"


class Meeting:
    """Holds the first commit of each store at its commit point, until so many of them are there."""

    def __init__(self, stores: int) -> None:
        self._stores = stores
        self._there: set[str] = set()
        self._lock = threading.Lock()
        self.all_there = threading.Event()

    def __call__(self, request: Request, forward: Forward) -> Reply:
        if request.operation == "UpdateItem" and "list_append" in request.body["UpdateExpression"]:
            store = request.body["Key"]["store_shard"]["S"]
            with self._lock:
                is_first = store not in self._there
                self._there.add(store)
                if len(self._there) == self._stores:
                    self.all_there.set()
            if is_first:
                self.all_there.wait(ANSWER_S - 2)
        return forward(request)


@pytest.mark.serial
def test_200_stores_at_once(sidecar: Sidecar, proxy: FaultProxy, connect: Callable[..., Talk], store: str) -> None:
    """200 stores reach their commit point together; all succeed, in bounded memory."""
    versions = 2
    meeting = Meeting(STORES)
    proxy.rule = meeting
    talks = [connect() for _ in range(STORES)]

    def chunks(partition: int, version: int) -> list[State]:
        """A row, so that all stores are soon at the commit point of their first version; then 200 KB."""
        return [rows(partition * 1000 + version * 10 + number, 100 if version > 1 else 1) for number in range(version)]

    def work(partition: int) -> None:
        base = EMPTY
        for version in range(1, versions + 1):
            talk = talks[partition]
            talk.begin(name(store, partition), attempt(version), base)
            for changes in chunks(partition, version):
                talk.send(append(changes))
            talk.commit()
            base = VersionId(version, attempt(version))

    in_parallel(work, range(STORES))
    assert meeting.all_there.is_set()
    peak = memory_mib(sidecar.process.pid)
    assert peak < MEMORY_MIB + MEMORY_MIB_STORE * STORES, f"{peak} MiB"
    assert "pool is full" not in sidecar.log()

    proxy.rule = let_pass
    fresh = connect(cacheMb="0")
    for partition in range(0, STORES, 10):
        changes_made = [changes for version in range(1, versions + 1) for changes in chunks(partition, version)]
        expected = {key: value for changes in changes_made for key, value in changes.items()}
        assert fresh.state(name(store, partition), versions) == expected


def in_parallel(work: Callable[[int], Result], numbers: Sequence[int]) -> list[Result]:
    with ThreadPoolExecutor(len(numbers)) as pool:
        return list(pool.map(work, numbers))


def test_throttles_hold_up_tasks(sidecar: Sidecar, proxy: FaultProxy, connect: Callable[..., Talk], store: str) -> None:
    """While DynamoDB takes nothing, APPEND blocks once 32 MiB wait: the sidecar reads no more into memory."""
    writers, chunks = 4, 250  # 50 MB each
    throttle = Throttle()
    proxy.rule = throttle
    talks = [connect() for _ in range(writers)]
    sent_bytes = [0] * writers

    def work(partition: int) -> dict[str, int]:
        talk = talks[partition]
        talk.begin(name(store, partition), attempt(2), bases[partition])
        for number in range(chunks):
            frame = append(rows(partition * 1000 + number, 200))
            talk.send(frame)
            sent_bytes[partition] += len(frame)
        return talk.commit()

    bases = in_parallel(lambda n: talks[n].write(name(store, n), attempt(1), {b"a": b"1"}), range(writers))
    throttle.rate = 0
    with ThreadPoolExecutor(writers) as pool:
        futures = [pool.submit(work, partition) for partition in range(writers)]
        level = wait_until_settled(lambda: sum(sent_bytes))
        memory = memory_mib(sidecar.process.pid)
        time.sleep(3)
        # Each retry is a new request.
        assert memory_mib(sidecar.process.pid) <= memory + 8 * PARALLEL
        # What waits; what every connection has in hand and in its socket; nothing else.
        assert Limits.queued_bytes_max / 2 < level <= sum(sent_bytes) < Limits.queued_bytes_max + writers * 2 * MIB
        assert memory < MEMORY_MIB, f"{memory} MiB"
        throttle.rate = None
        counters = [future.result(WITHIN_S) for future in futures]
    assert sum(sent_bytes) > 4 * level
    assert sum(each["throttles"] for each in counters) > 0
    assert "DynamoDB throttles reasons=TableWriteProvisionedThroughputExceeded:arn:" in sidecar.log()
    fresh = connect(cacheMb="0")
    for partition in range(writers):
        batches = [rows(partition * 1000 + number, 200) for number in range(chunks)]
        expected = {b"a": b"1"} | {key: value for each in batches for key, value in each.items()}
        assert fresh.state(name(store, partition), 2) == expected


def wait_until_settled(value: Callable[[], int], still_s: float = 2.0) -> int:
    """Wait until a number has not changed for a while; the number."""
    deadline = time.monotonic() + WITHIN_S
    last, start_s = value(), time.monotonic()
    while time.monotonic() < start_s + still_s:
        assert time.monotonic() < deadline, "it does not settle"
        time.sleep(0.05)
        if value() != last:
            last, start_s = value(), time.monotonic()
    return last


class Crowd:
    """Answers no request of an operation before so many of them are under way at once, or some time has passed."""

    def __init__(self, operation: str, size: int) -> None:
        self._operation, self._wanted = operation, size
        self._now = 0
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self.was_there = False

    def __call__(self, request: Request, forward: Forward) -> Reply:
        if request.operation == self._operation and not self._is_over.is_set():
            with self._lock:
                self._now += 1
                self.was_there |= self._now == self._wanted
            if not self.was_there:
                self._is_over.wait(ANSWER_S - 2)
            self._is_over.set()
        return forward(request)


def test_parallel_requests_offset_a_slow_dynamodb(proxy: FaultProxy, connect: Callable[..., Talk], store: str) -> None:
    """However long DynamoDB takes for an answer, parts are written and read several requests at a time."""
    parts = 800
    talk = connect(cacheMb="0")
    assert isinstance(talk.check(), protocol.Checked)
    writes = proxy.rule = Crowd("BatchWriteItem", PARALLEL)
    expected: State = {}
    talk.begin(store, attempt(1))
    for number in range(parts):
        part = {b"%d/%d" % (number, row): b"x" for row in range(3)}
        expected |= part
        talk.send(append(part))
    talk.commit()
    assert writes.was_there
    assert sum(request.operation == "BatchWriteItem" for request in proxy.requests) >= parts / 25

    proxy.requests.clear()
    reads = proxy.rule = Crowd("BatchGetItem", PARALLEL)
    assert talk.state(store, 1) == expected
    assert reads.was_there
    assert sum(request.operation == "BatchGetItem" for request in proxy.requests) == parts / 25


def hung(_: Request, forward: Forward) -> Reply:
    time.sleep(ANSWER_S + 5)
    raise ConnectionResetError


class Partition:
    """One store and its task: each commit has three parts of 100 KB."""

    def __init__(self, connect: Callable[..., Talk], store: str, number: int) -> None:
        self._connect = connect
        self._store = name(store, number)
        self._number = number
        self._talk = connect()
        self.base = EMPTY
        self.state: State = {}

    def begin(self, by: int) -> State:
        """Begin an attempt and append; what it changes."""
        self._talk.begin(self._store, attempt(by), self.base)
        changes: State = {}
        for number in range(3):
            part = rows(self._number * 100 + by * 10 + number, 100)
            changes |= part
            self._talk.send(append(part))
        return changes

    def commit(self, by: int) -> None:
        changes = self.begin(by)
        self._talk.commit()
        self.base = VersionId(self.base[0] + 1, attempt(by))
        self.state |= changes

    def fail(self, by: int) -> tuple[float, int, str]:
        """Commit, which must fail; the time until the error came, its kind and message."""
        self.begin(by)
        start_s = time.monotonic()
        kind, _, message = error_of(commit(self._talk))
        self._talk.close()
        return time.monotonic() - start_s, kind, message

    def connect(self) -> None:
        self._talk = self._connect()

    def read(self) -> State:
        return self._talk.state(self._store, self.base[0])


@pytest.mark.parametrize("how", ["refused", "hung"])
def test_an_outage_fails_tasks_by_the_deadline(
    sidecar: Sidecar, proxy: FaultProxy, connect: Callable[..., Talk], store: str, how: str
) -> None:
    """Forty stores are within a commit when DynamoDB fails: each gets an error in time, and commits afterwards."""
    deadline_s = 3
    partitions = [
        Partition(lambda: connect(requestDeadlineS=str(deadline_s), cacheMb="0"), store, number) for number in range(40)
    ]
    numbers = range(len(partitions))
    in_parallel(lambda number: partitions[number].commit(by=1), numbers)
    if how == "refused":
        proxy.shut()
    else:
        proxy.rule = hung

    for seconds, kind, message in in_parallel(lambda number: partitions[number].fail(by=2), numbers):
        assert seconds < 2 * (deadline_s + CONNECT_S + ANSWER_S)
        assert kind in (UnavailableError.kind, UnknownOutcomeError.kind), message
        assert "until the deadline" in message
    assert "DynamoDB gives no proper answer" in sidecar.log()

    if how == "refused":
        proxy.open()
    proxy.rule = let_pass
    for partition in partitions:
        partition.connect()
    in_parallel(lambda number: partitions[number].commit(by=3), numbers)
    assert in_parallel(lambda number: partitions[number].read(), numbers) == [each.state for each in partitions]


@pytest.mark.parametrize("asked", [Open("", 1, NO_ATTEMPT, ()), Find("", 1, NO_ATTEMPT)], ids=["OPEN", "FIND"])
def test_an_outage_at_the_start_of_the_sidecar_is_waited_for(
    proxy: FaultProxy, connect: Callable[..., Talk], store: str, asked: Open | Find
) -> None:
    """A query that asks for a version has reached DynamoDB before: it is an outage, and the task is soon retried."""
    proxy.shut()
    talk = connect(requestDeadlineS="1")
    frame = protocol.encode(asked._replace(store=store))
    for _ in range(2):
        talk.send(frame)
        kind, _, message = error_of(talk.answer())
        assert (kind, "no proper answer until the deadline" in message) == (UnavailableError.kind, True), message
    proxy.open()
    talk.send(frame)
    assert error_of(talk.answer())[0] == VersionMissingError.kind
