"""Time, ids and threads. All of them come from here, so that a simulation can give its own, and repeat each run."""

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
class Runtime:
    """The source of time, ids and threads. Use it through the functions of this module."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], datetime] = _utc
    new_id: Callable[[], UUID] = uuid4
    lock: Callable[[], threading.Lock] = threading.Lock
    condition: Callable[[threading.Lock | None], threading.Condition] = threading.Condition
    thread: Callable[..., threading.Thread] = threading.Thread
    pool: Callable[..., Executor] = ThreadPoolExecutor


_runtime = Runtime()


@contextlib.contextmanager
def using(runtime: Runtime) -> Iterator[None]:
    """Take time, ids and threads of this process from elsewhere, within the block."""
    global _runtime  # noqa: PLW0603  # one value for the process is what this module is for
    previous, _runtime = _runtime, runtime
    try:
        yield
    finally:
        _runtime = previous


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
