"""Stores with rows that people can read, written through the engine as executors would write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dynastate.engine.engine import Engine
from dynastate.format.changes import MERGE, PUT, Change
from dynastate.format.keys import EMPTY, Attempt, VersionId
from dynastate.unsaferow.key_encoders import make_encoder
from dynastate.unsaferow.schema import parse_schema
from tests.support.samples import CHECKPOINT, QUERY, attempt, chunk_of, query_run

RAW = {"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"}
USER = (("user", "string"),)
COUNTS = (("count", "long"), ("note", "string"))
Row = Mapping[str, Any]
Columns = Sequence[tuple[str, Any]]


def struct(columns: Columns) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in columns]}


def family(
    number: int = 0, name: str = "default", key: Columns = USER, value: Columns = COUNTS, **others: Any
) -> dict[str, Any]:
    described = {"id": number, "internal": False, "key": struct(key), "key_encoder": RAW, "multiple": False}
    return described | {"name": name, "value": struct(value)} | others


class StoreBuilder:
    """One store that grows version by version. `families` are as in its schema item; counts of keys are kept."""

    def __init__(
        self,
        engine: Engine,
        store: str,
        *families: Mapping[str, Any],
        run: str = "run-1",
        query: str = QUERY,
        location: str = CHECKPOINT,
    ) -> None:
        self.store = store
        self.version: VersionId = EMPTY
        self.run = run
        self.query = query
        self.location = location
        #: Whether versions say how many values they add, as those of executors do.
        self.counts_values = False
        self.state: dict[tuple[int, bytes], list[bytes]] = {}
        self._engine = engine
        self.families = list(families) or [family()]

    def commit(self, *changes: tuple[Row, Row | None], of: int = 0, by: Attempt | None = None) -> VersionId:
        """Put rows by their keys; None removes one; in a family with lists one more value appends."""
        return self.commit_families(*((of, key, value) for key, value in changes), by=by)

    def commit_families(self, *changes: tuple[int, Row, Row | None], by: Attempt | None = None) -> VersionId:
        """`commit` with the family of each change."""
        old_count = sum(map(len, self.state.values()))
        records = [self._record(*change) for change in changes]
        new = by or attempt(self.version[0] + 1)
        under_way = self._engine.begin(self.store, query_run(self.run, self.location, self.query), *self.version, new)
        if records:
            under_way.append(chunk_of(*records))
        keys = {each["id"]: sum(1 for number, _ in self.state if number == each["id"]) for each in self.families}
        if self.counts_values:
            under_way.added = sum(map(len, self.state.values())) - old_count
        under_way.commit(keys, json.dumps({"families": self.families}, separators=(",", ":")))
        self.version = VersionId(self.version[0] + 1, new)
        return self.version

    def count_to(self, last: int) -> StoreBuilder:
        """Commit versions up to `last`; in each, the count of user a is the version's number."""
        while self.version.version < last:
            self.commit((user("a"), counted(self.version.version + 1)))
        return self

    def take_back(self, version: int, run: str = "run-2") -> StoreBuilder:
        """Continue from a version of an attempt of the same number, in another run."""
        self.version, self.run = VersionId(version, attempt(version)), run
        return self

    def count(self, *numbers: int) -> StoreBuilder:
        """Commit a version for each number, which is its attempt's and the count of user a."""
        for number in numbers:
            self.commit((user("a"), counted(number)), by=attempt(number))
        return self

    def _record(self, number: int, key: Row, value: Row | None) -> Change:
        described = next(each for each in self.families if each["id"] == number)
        keys = make_encoder(parse_schema(described["key"]), described["key_encoder"], self.store.rpartition("/")[2])
        place = number, keys.encode(key)
        if value is None:
            self.state.pop(place, None)
            return Change(PUT, number, place[1], None)
        raw = parse_schema(described["value"]).encode(value)
        if earlier := described.get("earlier_values"):
            raw += len(earlier).to_bytes(2, "little")
        is_merge = described["multiple"] and place in self.state
        self.state[place] = [*(self.state.get(place, []) if is_merge else []), raw]
        return Change(MERGE if is_merge else PUT, number, place[1], raw)


def counted(number: int, note: str = "") -> Row:
    return {"count": number, "note": note}


def user(name: str) -> Row:
    return {"user": name}
