"""Clients of sidecars that may die at any moment, which note their calls; and the hosts of these sidecars."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import dynastate
from dynastate.dynamodb.embedded import credentials
from dynastate.format.changes import key_hash
from dynastate.format.keys import Attempt, VersionId
from dynastate.format.parts import StoredChunk
from dynastate.settings import Settings
from dynastate.sidecar import protocol
from dynastate.sidecar.protocol import Begin, Bucket, CleanUp, Commit, Open, Snapshot, SnapshotEnd
from tests.judged.calls import ABORTED, OK, OUTCOMES, Call, Record, digests, named
from tests.judged.launcher import MODULE, MUTATION
from tests.judged.network import Network
from tests.simulation.actors import SCHEMA
from tests.support.engine_driver import fold
from tests.support.frames import ABORT, TOKEN, append, hello
from tests.support.samples import Changes, State
from tests.support.sidecar import ROWS, Sidecar, Talk, chunk_of, spark_names

#: So long a client waits for a message. Then it closes the connection, as Spark does that kills a task.
PATIENCE_S: Final = 4.0
#: Probabilities: a task aborts; is killed while it commits; is suspended before it commits.
ABORTS, KILLED, NAPS = 0.05, 0.08, 0.15
NAP_S: Final = 1.5
#: The size of a state, as a snapshot says it, for several buckets.
STATE_BYTES: Final = 4 << 20


class Host:
    """Runs one sidecar at a time, mutated or not."""

    def __init__(self, settings: Settings, network: Network, mutation: str) -> None:
        self.network = network
        self.is_stopped = False
        self._lock = threading.Lock()
        self._hello = hello(TOKEN, dynastate.__version__, json.dumps(spark_names(settings)))
        self._environment = credentials() | {MUTATION: mutation}
        self._sidecars = [self._start()]

    def _start(self) -> Sidecar:
        return Sidecar(environment=self._environment, module=MODULE)

    def connect(self) -> Talk | None:
        """A connection after HELLO, or None if the sidecar has died, or is stopped."""
        with suppress(OSError):
            talk = self._sidecars[-1].connect(PATIENCE_S)
            with suppress(OSError):
                talk.send(self._hello)
                if talk.receive() is not None:
                    return talk
            talk.close()
        return None

    def kill(self) -> None:
        """Kill the sidecar (-9), and start another."""
        with self._lock:
            self._sidecars[-1].process.kill()
            self._sidecars.append(self._start())
            self.is_stopped = False

    def stop(self) -> None:
        """Stop the sidecar (SIGSTOP), wherever it is."""
        with self._lock:
            self.is_stopped = True
            os.kill(self._sidecars[-1].process.pid, signal.SIGSTOP)

    def stop_and_wait(self) -> None:
        """Stop the sidecar, and return when it continues."""
        self.stop()
        while self.is_stopped:
            time.sleep(0.005)

    def go_on(self) -> None:
        with self._lock:
            os.kill(self._sidecars[-1].process.pid, signal.SIGCONT)
            self.is_stopped = False

    def log(self) -> str:
        return "".join(sidecar.log() for sidecar in self._sidecars)

    def close(self) -> None:
        for sidecar in self._sidecars:
            sidecar.close()


@dataclass
class Client:
    """A task, a reader, or maintenance: one thread with a connection."""

    number: int
    record: Record
    talk: Talk
    #: What was opened last.
    rows: State = field(default_factory=dict)

    def open(self, store: str, version: int, by: Attempt) -> VersionId | None:
        """Open a version and read all of it. Returns what was found, or None."""
        call = Call(self.number, "open", store, version, named(by))
        with self.record.noting(call), suppress(OSError):
            self.talk.send(protocol.encode(Open(store, version, by, ())))
            return self._opened(call)
        return None

    def _opened(self, call: Call) -> VersionId | None:
        chunks: list[StoredChunk] = []
        found: VersionId | None = None
        while (answer := self.talk.receive()) is not None:
            if isinstance(answer, protocol.Found):  # it voids all before
                found, chunks = VersionId(answer.version, answer.attempt), []
            elif isinstance(answer, ROWS):
                chunks.append(chunk_of(answer))
            elif isinstance(answer, protocol.Opened):
                assert found is not None
                self.rows = fold(chunks)
                call.outcome, call.found, call.rows = OK, named(found.attempt), digests(self.rows)
                return found
            elif _failed(call, answer):
                return None
        return None

    def commit(self, begin: Begin, run: int, life: int, chunks: list[Changes], *, chance: random.Random) -> str:
        """Make an attempt of a run at the version after a base, or abort it. Returns the outcome."""
        call = Call(self.number, "commit", begin.store, begin.base + 1, named(begin.attempt), run=run, life=life)
        call.parent = named(begin.parent)
        with self.record.noting(call), suppress(OSError):
            self.talk.send(protocol.encode(begin))
            for changes in chunks:
                call.changes |= dict.fromkeys(_texts(changes)) | digests(_puts(changes))
                self.talk.send(append(changes))
            if chance.random() < NAPS:
                time.sleep(chance.uniform(0, NAP_S))
            if chance.random() < ABORTS:
                call.outcome = ABORTED
                self.talk.send(ABORT)
                return call.outcome
            self.talk.send(protocol.encode(Commit({0: 0}, SCHEMA)))
            if chance.random() < KILLED:
                time.sleep(chance.uniform(0, 0.1))
                self.talk.close()
                return call.outcome
            _end(call, self.talk.receive(), protocol.Committed)
        return call.outcome

    def snapshot(self, store: str, run: int, of: VersionId, changed: Callable[[int], set[bytes]]) -> None:
        """Send a snapshot of what was opened last. `changed` are the keys that changed since a version."""
        call = Call(self.number, "snapshot", store, of.version, named(of.attempt), run=run)
        with self.record.noting(call), suppress(OSError):
            self.talk.send(protocol.encode(Snapshot(store, f"run-{run}", *of, STATE_BYTES, 0)))
            answer = self.talk.receive()
            if isinstance(answer, protocol.Wanted):
                self._send_buckets(answer, changed)
                answer = self.talk.receive()
            _end(call, answer, protocol.Maintained)

    def _send_buckets(self, wanted: protocol.Wanted, changed: Callable[[int], set[bytes]]) -> None:
        def bucket_of(key: bytes) -> int:
            return key_hash(key) >> (32 - wanted.bits)

        all_buckets = set(range(1 << wanted.bits))
        for bucket in sorted(set(map(bucket_of, changed(wanted.base))) if wanted.base else all_buckets):
            self.talk.send(protocol.encode(Bucket(bucket)))
            if rows := {key: value for key, value in self.rows.items() if bucket_of(key) == bucket}:
                self.talk.send(append(rows))
        self.talk.send(protocol.encode(SnapshotEnd()))

    def clean_up(self, store: str, run: int, of: VersionId, retain: int) -> None:
        """Delete what the last versions up to one do not need."""
        call = Call(self.number, "clean-up", store, of.version, named(of.attempt), run=run, retain=retain)
        with self.record.noting(call), suppress(OSError):
            self.talk.send(protocol.encode(CleanUp(store, f"run-{run}", *of, retain, 1, 0)))
            _end(call, self.talk.receive(), protocol.Maintained)


def _end(call: Call, answer: Any, expected: type[Any]) -> None:
    """Note the outcome of a call by its last answer, or that there is none."""
    if isinstance(answer, expected):
        call.outcome = OK
    elif answer is not None:
        assert _failed(call, answer), answer


def _texts(changes: Changes) -> list[str]:
    return [key.decode() for key in changes]


def _puts(changes: Changes) -> dict[bytes, bytes]:
    return {key: value for key, value in changes.items() if value is not None}


def _failed(call: Call, answer: Any) -> bool:
    """Note an error. Other answers are of no interest."""
    if not isinstance(answer, protocol.Error):
        return False
    call.outcome, call.error = OUTCOMES[answer.kind], answer.message
    return True
