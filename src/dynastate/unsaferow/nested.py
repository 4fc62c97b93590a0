"""Rows, arrays and maps."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.unsaferow import scalars
from dynastate.unsaferow.types import U32, WORD, DataType, Variable


class Array(Variable):
    """Elements of one type. They do not overlap, which bounds the memory of the values by the bytes of their row."""

    name = "array"

    def __init__(self, element: DataType) -> None:
        self.element = element

    def load(self, raw: bytes, begin: int, end: int) -> list[Any]:
        count = WORD.unpack_from(raw, begin)[0]
        first = begin + 8 + _nulls_bytes(count)
        element, width = self.element, self.element.width
        if first + count * width > end:
            raise CorruptStateError("an array has more elements than room", elements=count, at=begin)
        places = [None if raw[begin + 8 + (n >> 3)] >> (n & 7) & 1 else first + n * width for n in range(count)]
        if isinstance(element, Variable):
            taken = sum(WORD.unpack_from(raw, at)[0] & U32 for at in places if at is not None)
            if taken > end - first - count * width:
                raise CorruptStateError("an array's elements take more than its room", bytes=taken, at=begin)
        return [None if at is None else element.read(raw, at, begin, end) for at in places]

    def dump(self, value: Any) -> bytes:
        return self.dump_all(scalars.checked(value, "a list", (list, tuple)))

    def dump_all(self, values: Sequence[Any]) -> bytes:
        width, first = self.element.width, 8 + _nulls_bytes(len(values))
        out = bytearray(first + -(-len(values) * width // 8) * 8)
        WORD.pack_into(out, 0, len(values))
        for n, value in enumerate(values):
            if value is None:
                out[8 + (n >> 3)] |= 1 << (n & 7)
            else:
                self.element.write_element(value, out, first + n * width)
        return bytes(out)

    def mix(self, value: Any, seed: int) -> int:
        return mix_all(((self.element, each) for each in value), seed)


class Map(Variable):
    """Two arrays of equal length. Entries are written in the order of their keys, as Spark has them in keys."""

    name = "map"

    def __init__(self, key: DataType, value: DataType) -> None:
        self.key = key
        self.value = value
        self._keys = Array(key)
        self._values = Array(value)

    def load(self, raw: bytes, begin: int, end: int) -> dict[Any, Any]:
        middle = begin + 8 + WORD.unpack_from(raw, begin)[0]
        if middle > end:
            raise CorruptStateError("a map's keys end after the map", at=middle, end=end)
        keys, values = self._keys.load(raw, begin + 8, middle), self._values.load(raw, middle, end)
        if len(keys) != len(values) or None in keys:
            raise CorruptStateError(
                "a map has a null as a key, or not as many keys as values", keys=len(keys), values=len(values), at=begin
            )
        return dict(zip(map(hashable, keys), values, strict=True))

    def dump(self, value: Any) -> bytes:
        entries = _in_order(value)
        keys = self._keys.dump_all([self.unhashed(key) for key, _ in entries])
        return WORD.pack(len(keys)) + keys + self._values.dump_all([each for _, each in entries])

    def mix(self, value: Any, seed: int) -> int:
        for key, each in _in_order(value):
            seed = mix_all([(self.key, self.unhashed(key)), (self.value, each)], seed)
        return seed

    def unhashed(self, key: Any) -> Any:
        """The value of a key that `hashable` made."""
        return _keyed(self.key, key)


class Struct(Variable):
    """A row. Its columns have distinct names: repeated ones become name#2, name#3."""

    name = "struct"

    def __init__(self, fields: Sequence[tuple[str, DataType]]) -> None:
        self.names: tuple[str, ...] = unique(name for name, _ in fields)
        self.types: tuple[DataType, ...] = tuple(kind for _, kind in fields)
        self._slots = _nulls_bytes(len(self.types))
        self._columns = [
            (name, kind, n >> 3, 1 << (n & 7), self._slots + 8 * n)
            for n, (name, kind) in enumerate(zip(self.names, self.types, strict=True))
        ]
        self._least_bytes = self._slots + 8 * len(self.types)

    def at(self, ordinals: Sequence[int]) -> Struct:
        return Struct([(self.names[n], self.types[n]) for n in ordinals])

    def decode(self, raw: bytes) -> dict[str, Any]:
        """The columns of a row. Refuse values that Python's types cannot hold."""
        return self.load(raw, 0, len(raw))

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """The bytes of a row, equal to Spark's.

        Raises:
            ConfigurationError: a column is missing, unknown, or its value is not of its type.
        """
        self.check(values)
        out = bytearray(self._least_bytes)
        for name, kind, byte, bit, at in self._columns:
            value = values[name]
            if value is None:
                out[byte] |= bit
                kind.write_null(out, at)
                continue
            try:
                kind.write(value, out, at)
            except (TypeError, ValueError, OverflowError, ArithmeticError, AttributeError, struct.error) as wrong:
                raise ConfigurationError(
                    f"column {name} must be of type {kind.name}: {wrong}", value=repr(value)[:100]
                ) from wrong
        return bytes(out)

    def check(self, values: Mapping[str, Any]) -> None:
        """Refuse other columns."""
        unknown = [name for name in values if name not in self.names]
        missing = [name for name in self.names if name not in values]
        if unknown or missing:
            wrong = f"unknown are {', '.join(map(str, unknown))}" if unknown else f"missing are {', '.join(missing)}"
            raise ConfigurationError(f"the columns are {', '.join(self.names) or 'none'}; {wrong}")

    def load(self, raw: bytes, begin: int, end: int) -> dict[str, Any]:
        if end - begin < self._least_bytes:
            raise CorruptStateError("a row is shorter than its columns", bytes=end - begin, columns=len(self.names))
        try:
            return {
                name: None if raw[begin + byte] & bit else kind.read(raw, begin + at, begin, end)
                for name, kind, byte, bit, at in self._columns
            }
        except struct.error as short:
            raise CorruptStateError(f"a row ends too early: {short}", bytes=end - begin) from short

    def dump(self, value: Any) -> bytes:
        return self.encode(scalars.checked(value, "a dict", Mapping))

    def mix(self, value: Any, seed: int) -> int:
        return mix_all(zip(self.types, (value[name] for name in self.names), strict=True), seed)


def unique(names: Iterable[str]) -> tuple[str, ...]:
    """The names, with repeated ones numbered: name#2, name#3."""
    seen: dict[str, int] = {}
    found: list[str] = []
    for name in names:
        count = seen[name] = seen.get(name, 0) + 1
        found.append(name if count == 1 else f"{name}#{count}")
    return tuple(found)


def _nulls_bytes(count: int) -> int:
    return (count + 63) // 64 * 8


def hashable(value: Any) -> Any:
    """A value as a key of a dict."""
    if isinstance(value, dict):
        return tuple(map(hashable, value.values()))
    return tuple(map(hashable, value)) if isinstance(value, list) else value


def _in_order(value: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """A map's entries in the order of their keys, as Spark orders them: a null in a key comes first."""
    return sorted(value.items(), key=lambda entry: _ordered(entry[0]))


def _ordered(key: Any) -> Any:
    return (key is not None, tuple(map(_ordered, key)) if isinstance(key, tuple) else key)


def _keyed(kind: DataType, value: Any) -> Any:
    """The value that `hashable` made a tuple of."""
    if value is None:
        return None
    if isinstance(kind, Struct):
        return {n: _keyed(t, each) for n, t, each in zip(kind.names, kind.types, value, strict=True)}
    return [_keyed(kind.element, each) for each in value] if isinstance(kind, Array) else value


def mix_all(typed: Iterable[tuple[DataType, Any]], seed: int) -> int:
    """Mix values one after the other; nulls do not count."""
    for kind, value in typed:
        if value is not None:
            seed = kind.mix(value, seed)
    return seed
