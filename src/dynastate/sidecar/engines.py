"""The engines of the process, one for each distinct settings."""

from __future__ import annotations

import contextlib
import json
import threading

from dynastate import runtime
from dynastate.dynamodb.boto_tables import BotoTables, open_tables
from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, MismatchError
from dynastate.settings import Settings

#: A ConfigurationError is repeated for this time before tables and endpoint are checked again.
FAILED_FOR_S = 5.0


class Engines:
    """One engine for each distinct settings. It is made for the first connection with them, or when it is first needed.

    Its tables are checked when it is first needed.
    """

    def __init__(self) -> None:
        self._by_settings: dict[Settings, tuple[BotoTables, Engine]] = {}
        self._fit: set[Settings] = set()
        self._failed: dict[Settings, tuple[float, ConfigurationError]] = {}
        self._lock = threading.Lock()

    def prepare(self, settings: Settings) -> None:
        """Make the engine for these settings, without a request to DynamoDB."""
        with contextlib.suppress(Exception), self._lock:  # `get` makes it again, and raises the same
            self._make(settings)

    def get(self, settings: Settings, *, was_reached: bool) -> Engine:
        """The engine for these settings, whose tables exist and fit.

        `was_reached`: a store of theirs has versions, so a DynamoDB that cannot be reached is an outage, to be waited
        for; without versions a wrong setting is likelier.
        """
        with self._lock:
            # Failed tasks are retried at once: they must not each wait for the same answer.
            since, error = self._failed.get(settings, (-FAILED_FOR_S, None))
            if error is not None and runtime.monotonic() < since + FAILED_FOR_S:
                raise error
            tables, engine = self._make(settings)
            is_fit = settings in self._fit
        if not is_fit:
            if was_reached:
                tables.expect_answers()
            self._check(settings, tables, engine)
            with self._lock:
                is_open = self._by_settings.get(settings) == (tables, engine)
                if is_open:
                    self._fit.add(settings)
            if not is_open:  # another task's check has failed meanwhile
                return self.get(settings, was_reached=was_reached)
        return engine

    def _make(self, settings: Settings) -> tuple[BotoTables, Engine]:
        if settings not in self._by_settings:
            tables = open_tables(settings)
            self._by_settings[settings] = tables, Engine(tables, settings)
        return self._by_settings[settings]

    def _check(self, settings: Settings, tables: BotoTables, engine: Engine) -> None:
        try:
            drift = tables.check()
            if drift:
                raise ConfigurationError(
                    "; ".join(drift) + "; 'dynastate tables check' says the same, infra/ makes tables that fit"
                )
        except ConfigurationError as wrong:
            with self._lock:
                if settings in self._fit:  # another task's check has passed, and it uses the engine
                    raise
                self._failed[settings] = (runtime.monotonic(), wrong)
                # The next task gets another client: boto3 looks for credentials once for each.
                is_ours = self._by_settings.get(settings) == (tables, engine)
                if is_ours:
                    del self._by_settings[settings]
            if is_ours:
                engine.close()
                tables.close()
            raise


def parse_settings(settings_json: str) -> Settings:
    try:
        conf = json.loads(settings_json)
    except (ValueError, RecursionError):
        raise MismatchError("settings in HELLO are not JSON") from None
    if not isinstance(conf, dict) or not all(isinstance(value, str) for value in conf.values()):
        raise MismatchError("settings in HELLO are not an object of text to text")
    return Settings.from_spark(conf)
