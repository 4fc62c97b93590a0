"""Meta items: each attribute is declared, described and checked."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dynastate.errors import CorruptStateError
from dynastate.format.items import item_key
from dynastate.format.keys import meta_key
from dynastate.format.meta import ATTRIBUTES, DELETING, SHOWN, StoreMeta, meta_item, parse_meta
from tests.support.pages import DOCS

STORE = "ns/0/0/default"
LOCATION = "file:/state"
OPTIONAL: dict[str, Any] = {
    "bases": {1: 3},
    "heights": {2: 5},
    "origin": "of/0/0/default",
    "origin_version": 3,
    "pin": "id",
    **dict.fromkeys(("objects", "pins", "forks", "forked"), frozenset(["text"])),
    "dropped": DELETING,
    "erasing": "digest",
    "erasures": 3,
    "erase_id": "id of the erase",
    "package": "0.2.0",
    "created": "2025-01-01",
}
WHOLE = StoreMeta(4, {"run-1": 1, "run-2": 2}, {1: "query"}, "2025-01-01", locations={1: LOCATION}, **OPTIONAL)
ITEM = meta_item(STORE, WHOLE)


def test_every_attribute_is_declared_and_described() -> None:
    """The written attributes, the declared ones and those of docs/storage-format.md are the same, and are read back."""
    assert ITEM.keys() - item_key(meta_key(STORE)).keys() == ATTRIBUTES
    assert parse_meta(STORE, ITEM) == WHOLE
    chapters = re.split("\n##+ ", (DOCS / "storage-format.md").read_text())
    store, forks = (next(each for each in chapters if each.startswith(title)) for title in ("`meta`", "Forks"))
    rows = re.findall(r"^\| (`.*?) \| [A-Z]", store, re.MULTILINE)
    rows += re.findall(r"^\| (`.*?) \| [^|]*`meta`[^|]* \| [A-Z]", forks, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(ATTRIBUTES)


@pytest.mark.parametrize("name", sorted(ATTRIBUTES))
def test_an_attribute_of_another_type_is_corrupt(name: str) -> None:
    """One that is only shown may be of any type, or not there, so that rows can be read."""
    if name in SHOWN - {"began"}:
        assert getattr(parse_meta(STORE, ITEM | {name: b""}), name) == ""
    else:
        with pytest.raises(CorruptStateError, match=f"store_shard={STORE}#0 item=meta"):
            parse_meta(STORE, ITEM | {name: b""})


@pytest.mark.parametrize("locations", [{"1": 7}, {"\u00b2": LOCATION}, {"3": LOCATION}])
def test_locations_are_by_epochs_that_were_given_out(locations: dict[str, int | str]) -> None:
    """The epochs are decimal numbers."""
    with pytest.raises(CorruptStateError, match="meta item is corrupt"):
        parse_meta(STORE, ITEM | {"locations": locations})


def test_whose_a_version_is() -> None:
    """A query's own versions, those that it resumed from, and those of queries whose ids are not known, are its own."""
    meta = StoreMeta(1, {"run": 9}, {1: "d", 2: "a", 4: "b", 6: "", 8: "a"}, "", {}, bases={4: 3, 8: 5})
    foreign = {of: [epoch for epoch in range(1, 10) if meta.is_foreign(4, epoch, of)] for of in ("a", "b", "c", "")}
    assert foreign == {"a": [4, 5], "b": [1, 2, 3, 8, 9], "c": [1, 2, 3, 4, 5, 8, 9], "": []}
    first = StoreMeta(1, {"run": 1}, {1: "a"}, "", {})
    assert [first.is_foreign(1, 1, query) for query in ("a", "b", "")] == [False, True, False]
    assert [version for version in range(1, 6) if meta.is_foreign(version, 1, "b")] == [4, 5], "it resumed from 3"
