"""The steps of a transfer, on folders in memory: two runs of the same command at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import MagicMock

import pytest

from dynastate.errors import ConfigurationError
from dynastate.format.meta import StoreMeta
from dynastate.settings import PREFIX
from dynastate.spark.transfer import steps
from dynastate.spark.transfer.steps import Source, Target, Transfer

PLAN = {"batch": 1, "offsets": 1, "query": "q", "stores": [{"operator": 0, "name": "default", "partitions": 1}]}
STORE = "new/0/0/default"


class Place:
    """Folders and tables that several runs share. `on_request` is called before each request to either."""

    def __init__(self) -> None:
        self.files = dict.fromkeys(("old/offsets/1", "old/commits/1"), "")
        #: The ids of the runs whose attempts the store has, and the one that the checkpoint names.
        self.store: set[str] = set()
        self.named = ""
        self.on_request: Callable[[], object] = lambda: None

    def names(self, root: str, *below: str) -> list[str]:
        self.on_request()
        prefix = "/".join((root, *below)) + "/"
        return sorted({each.removeprefix(prefix).split("/")[0] for each in self.files if each.startswith(prefix)})

    def write(self, root: str, name: str, text: str) -> None:
        self.on_request()
        self.files[f"{root}/{name}"] = text

    def read(self, root: str, name: str) -> str:
        self.on_request()
        return self.files.get(f"{root}/{name}", "")

    def delete(self, root: str, name: str) -> None:
        self.on_request()
        prefix = f"{root}/{name}/"
        self.files = {each: text for each, text in self.files.items() if not f"{each}/".startswith(prefix)}

    def drop(self) -> None:
        self.on_request()
        self.store = set()


class Run:
    """The Spark of one run: what it moves has its id."""

    def __init__(self, place: Place, run: str) -> None:
        self._place, self._run = place, run
        self.session = None
        self.transfer = self
        self.names, self.write, self.read, self.delete = place.names, place.write, place.read, place.delete

    def qualified(self, folder: str) -> str:
        return folder

    def describe(self, *_: object) -> str:
        return json.dumps(PLAN)

    def move(self, *_: object) -> str:
        self._place.on_request()
        self._place.store |= {self._run}
        return json.dumps([{"rows": 1, "bytes": 1, "bytes_written": 1, "write_units": 1}])

    def makeCheckpoint(self, *_: object) -> None:  # noqa: N802  # as Scala has it
        self._place.on_request()
        if "target/commits/1" in self._place.files:
            raise ConfigurationError("the new checkpoint has this batch already")
        self._place.named = self._run
        self._place.files["target/commits/1"] = ""


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Callable[[Place, str], Exception | None]:
    """Run one transfer on a place; the error that it fails with."""

    def run(place: Place, name: str) -> Exception | None:
        @contextmanager
        def tables_of(_: object) -> Iterator[Any]:
            yield place

        def existing(*_: object) -> dict[str, StoreMeta]:
            place.on_request()
            return {STORE: StoreMeta(1, {"run": 1}, {1: "q"}, "", {1: "target/state"})} if place.store else {}

        with monkeypatch.context() as patched:
            patched.setattr(steps, "Jvm", lambda *_: Run(place, name))
            patched.setattr(steps, "tables_of", tables_of)
            patched.setattr(steps, "_existing", existing)
            patched.setattr(steps, "drop_stores", lambda _, stores: place.drop() if stores else None)
            patched.setattr(steps, "location_of", lambda folder: folder)
            try:
                Transfer(MagicMock(), "import", "old", "fresh").run(Target("ours", 0, "new", {}), Source(), MagicMock())
            except ConfigurationError as refused:
                return refused
        return None

    return run


def test_two_runs_of_one_transfer(start: Callable[[Place, str], Exception | None]) -> None:
    """A second run at each request of the first: one fails at least, and the other's stores are there."""
    outcomes, at = set(), 0
    while True:
        place, requests = Place(), iter(range(1_000))
        second: list[Exception | None] = []

        def on_request(place: Place = place, requests: Iterator[int] = requests, second: list[Any] = second) -> None:
            if next(requests) == at:  # noqa: B023  # it is called in this round
                place.on_request = lambda: None
                second.append(start(place, "second"))

        place.on_request = on_request
        first = start(place, "first")
        if not second:
            break
        assert first is not None or second[0] is not None
        if first is None or second[0] is None:
            assert place.named == ("first" if first is None else "second")
            assert place.named in place.store, at
            assert "target/commits/1" in place.files
        outcomes.add((first is None, second[0] is None))
        at += 1
    assert start(place, "third") is not None
    assert {(False, True), (True, False)} <= outcomes


@pytest.mark.parametrize(
    ("new", "namespace", "conf", "expected"),
    [
        ("fresh", None, None, "of the path"),
        ("fresh", None, "session", "session"),
        ("fresh", "given", "session", "given"),
        ("dynastate://orders/query", None, None, "orders"),
        ("dynastate://orders/query", None, "session", "orders"),
        ("dynastate://orders/query", "orders", None, "orders"),
    ],
)
def test_namespace_of_new_stores(
    monkeypatch: pytest.MonkeyPatch, new: str, namespace: str | None, conf: str | None, expected: str
) -> None:
    """The location of a checkpoint in DynamoDB names it, whatever the session has; nothing else may be given."""
    run = Run(Place(), "run")
    monkeypatch.setattr(run, "namespaceOf", lambda *_: "of the path", raising=False)
    monkeypatch.setattr(steps, "Jvm", lambda *_: run)
    spark = MagicMock()
    spark.conf.getAll = {} if conf is None else {f"{PREFIX}namespace": conf}
    target = Transfer(spark, "import", "old", new).ours(namespace)
    assert target.namespace == expected
    assert (target.settings or {}).get(f"{PREFIX}namespace", "of the path") == expected
    if new.startswith("dynastate:"):
        with pytest.raises(ConfigurationError, match="the new checkpoint is in the namespace orders, and so is its"):
            Transfer(spark, "import", "old", new).ours("other")
        with pytest.raises(ConfigurationError, match="the new state needs a namespace of its own"):
            Transfer(spark, "import", "old", new).ours(None, other="orders")
