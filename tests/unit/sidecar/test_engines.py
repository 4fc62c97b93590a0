"""The engines of a sidecar, shared by settings."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from io import BytesIO

import pytest

import dynastate
from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.embedded import EmbeddedDynamoDB, credentials
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError
from dynastate.settings import Settings
from dynastate.sidecar.connection import Connection
from dynastate.sidecar.engines import Engines
from tests.support.engine_driver import read, write
from tests.support.frames import TOKEN, hello
from tests.support.samples import A
from tests.support.sidecar import WITHIN_S


class PreparedEngines(Engines):
    """Keeps what it has prepared."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared: list[Engine] = []

    def prepare(self, settings: Settings) -> None:
        super().prepare(settings)
        self.prepared += [engine for _, engine in self._by_settings.values()]


def test_engines_are_shared_by_settings(embedded: EmbeddedDynamoDB, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections with equal settings share one engine, others have their own; a failed check is repeated."""
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    base = embedded.settings
    missing = replace(base, delta_table="not-there")
    engines = Engines()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="not-there"):
            engines.get(missing, was_reached=True)
    one = engines.get(base, was_reached=False)
    assert engines.get(replace(base), was_reached=True) is one
    other = engines.get(replace(base, shards=7), was_reached=True)
    assert other is not one
    for engine in (one, other):
        engine.close()
        engine._tables.close()  # type: ignore[attr-defined]  # these are BotoTables


def test_hello_prepares_the_engine(embedded: EmbeddedDynamoDB, dummy_credentials: None) -> None:
    """The engine is made before the first request, and DynamoDB is asked nothing; connections share it by settings."""
    engines = PreparedEngines()
    settings = {"endpoint": embedded.endpoint, "region": embedded.settings.region, "deltaTable": "not-there"}
    greeting = hello(TOKEN, dynastate.__version__, json.dumps(settings))
    for _ in range(2):
        Connection(BytesIO(greeting), lambda _: None, TOKEN, engines, lambda: True).serve()
    (one, other) = engines.prepared
    assert one is other
    one.close()
    one._tables.close()  # type: ignore[attr-defined]  # these are BotoTables


def test_a_failed_check_closes_no_engine_in_use(
    embedded: EmbeddedDynamoDB, dummy_credentials: None, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """Tasks check the same tables at once: where one has passed, another's failure does not close the engine."""
    engines, passed = Engines(), threading.Event()
    both = threading.Barrier(2)
    checks = iter([None, ConfigurationError("denied")])
    lock = threading.Lock()

    def check(_: BotoTables) -> list[str]:
        with lock:
            mine = next(checks)
        both.wait(WITHIN_S)
        if mine is not None:
            assert passed.wait(WITHIN_S)
            raise mine
        return []

    monkeypatch.setattr(BotoTables, "check", check)
    results: list[Engine | ConfigurationError] = []

    def ask() -> None:
        try:
            results.append(engines.get(embedded.settings, was_reached=True))
            passed.set()
        except ConfigurationError as wrong:
            results.append(wrong)

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(WITHIN_S)
    engine, wrong = results
    assert isinstance(engine, Engine)
    assert isinstance(wrong, ConfigurationError)
    version = write(engine, store, A, {b"a": b"1"})
    assert read(engine, store, *version) == {b"a": b"1"}
    assert engines.get(embedded.settings, was_reached=True) is engine
    engine.close()
    engine._tables.close()  # type: ignore[attr-defined]  # these are BotoTables
