"""Time, ids, threads and limits. A simulation replaces all of them here, so it can repeat each run."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from uuid import UUID, uuid4


def _utc() -> datetime:
    return datetime.now(timezone.utc)


@dataclass(frozen=True)
class Limits:
    """Limits of the engine. A simulation has smaller ones, so that its schedules reach them."""

    #: Versions in one version list. It is stored: no other number reads the state of a production table.
    list_size: int = 10
    #: A compressed chunk longer than this is cut into fragments. Well under DynamoDB's 400 KB with every attribute.
    fragment_bytes_max: int = 380_000
    #: The size of every object of a stream but the last. It is stored, as `list_size` is.
    object_bytes: int = 8 * 1024 * 1024
    #: The most parts of an attempt that are in objects: its version entry has a size for each.
    object_parts_max: int = 2_000
    #: Items that one BatchWriteItem puts or deletes.
    writes_max: int = 25
    #: The most parts read by one BatchGetItem: with parts near 100 KB about 2.5 MB, and several of them are under way.
    window_parts: int = 25
    #: An attempt queues its parts when it has a full request, or this many bytes.
    submit_bytes: int = 512 * 1024
    #: Bytes of a snapshot's request: small, so that requests of commits come through between requests of a snapshot.
    snapshot_request_bytes: int = 512 * 1024
    #: A request of the queue is full at this size: large enough to amortise its cost, small enough that a table which
    #: suddenly throttles gets little in vain.
    request_bytes: int = 1024 * 1024
    #: Bytes of items that may wait or be under way in one executor, all its sidecars together; callers with more wait.
    queued_bytes_max: int = 32 * 1024 * 1024


@dataclass(frozen=True)
class Runtime:
    """The source of time, ids, threads and limits. Use it through the functions of this module."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], datetime] = _utc
    new_id: Callable[[], UUID] = uuid4
    lock: Callable[[], threading.Lock] = threading.Lock
    condition: Callable[[threading.Lock | None], threading.Condition] = threading.Condition
    thread: Callable[..., threading.Thread] = threading.Thread
    pool: Callable[..., Executor] = ThreadPoolExecutor
    limits: Limits = Limits()


_runtime = Runtime()


@contextlib.contextmanager
def using(runtime: Runtime) -> Iterator[None]:
    """Take time, ids, threads and limits of this process from elsewhere, within the block."""
    global _runtime  # noqa: PLW0603  # one value for the process is what this module is for
    previous, _runtime = _runtime, runtime
    try:
        yield
    finally:
        _runtime = previous


def limits() -> Limits:
    """The limits of this process."""
    return _runtime.limits


def monotonic() -> float:
    """Seconds of a clock that never goes back."""
    return _runtime.monotonic()


def sleep(seconds: float) -> None:
    """Wait."""
    _runtime.sleep(seconds)


def now() -> datetime:
    """The wall clock, in UTC, for what people read. No decision depends on it."""
    return _runtime.now()


def new_id() -> UUID:
    """A random id."""
    return _runtime.new_id()


def lock() -> threading.Lock:
    """A lock for conditions; one that is held for moments only may be of `threading`."""
    return _runtime.lock()


def condition(base_lock: threading.Lock | None = None) -> threading.Condition:
    """A condition variable, with a lock of its own unless one is given."""
    return _runtime.condition(base_lock)


def thread(target: Callable[[], None], name: str) -> threading.Thread:
    """A thread, not started, that does not keep the process alive."""
    return _runtime.thread(target=target, name=name, daemon=True)


def pool(threads: int, name: str) -> Executor:
    """A pool of at most so many threads, with a prefix of their names."""
    return _runtime.pool(threads, thread_name_prefix=name)
