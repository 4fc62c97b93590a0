"""The cache."""

from __future__ import annotations

from dynastate.engine.cache import Cache


def test_least_recently_used_values_are_evicted() -> None:
    """A cache holds what was used last, up to its bytes; a value that is larger than all of it is not held."""
    cache: Cache[str, int] = Cache(10)
    for number, key in enumerate("abc"):
        cache.put(key, number, 4)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), cache.bytes) == (None, 1, 2, 8)
    assert cache.get("b") == 1
    cache.put("d", 3, 4)
    assert (cache.get("b"), cache.get("c"), cache.get("d")) == (1, None, 3)
    cache.put("b", 7, 11)
    assert (cache.get("b"), cache.get("d"), cache.bytes) == (None, 3, 4)
    cache.put("d", 4, 2)
    assert (cache.get("d"), cache.bytes) == (4, 2)
    cache.drop("d")
    cache.drop("d")
    assert (cache.get("d"), cache.bytes) == (None, 0)
