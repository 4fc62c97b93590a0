"""Rows, arrays and maps."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.unsaferow import scalars
from dynastate.unsaferow.types import U32, WORD, DataType, String, Variable


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
        slots = [None if raw[begin + 8 + (n >> 3)] >> (n & 7) & 1 else first + n * width for n in range(count)]
        if isinstance(element, Variable):
            size = sum(WORD.unpack_from(raw, slot)[0] & U32 for slot in slots if slot is not None)
            if size > end - first - count * width:
                raise CorruptStateError("an array's elements take more than its room", bytes=size, at=begin)
        return [None if slot is None else element.read(raw, slot, begin, end) for slot in slots]

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

    @property
    def example(self) -> Any:
        return [self.element.example]

    def order(self, value: Any) -> Any:
        return tuple(_in_order(self.element, each) for each in value)

    def normal(self, value: Any) -> Any:
        return [or_none(self.element.normal, each) for each in value]

    def to_json(self, value: Any) -> Any:
        return [or_none(self.element.to_json, each) for each in value]

    def from_json(self, value: Any) -> Any:
        return [or_none(self.element.from_json, each) for each in scalars.checked(value, "a list", list)]

    def arrow(self, pa: Any, *, sql: bool = False) -> Any:
        return pa.list_(self.element.arrow(pa, sql=sql))

    def to_arrow(self, value: Any) -> Any:
        return [or_none(self.element.to_arrow, each) for each in value]


class Map(Variable):
    """Two arrays of equal length. In keys, Spark has entries in the order of their own keys: the normal form.

    A value is a dict, or a list of pairs where Spark keeps keys apart that Python takes for equal: 0.0 and -0.0.
    """

    name = "map"

    def __init__(self, key: DataType, value: DataType) -> None:
        self.key = key
        self.value = value
        self._keys = Array(key)
        self._values = Array(value)

    def load(self, raw: bytes, begin: int, end: int) -> dict[Any, Any] | list[tuple[Any, Any]]:
        middle = begin + 8 + WORD.unpack_from(raw, begin)[0]
        if middle > end:
            raise CorruptStateError("a map's keys end after the map", at=middle, end=end)
        keys, values = self._keys.load(raw, begin + 8, middle), self._values.load(raw, middle, end)
        if len(keys) != len(values) or None in keys:
            raise CorruptStateError(
                "a map has a null as a key, or not as many keys as values", keys=len(keys), values=len(values), at=begin
            )
        try:
            return _map_of(list(zip(keys, values, strict=True)))
        except ValueError as twice:
            raise CorruptStateError("a map has a key twice", keys=len(keys), at=begin) from twice

    def dump(self, value: Any) -> bytes:
        entries = self._entries(value)
        if not isinstance(value, Mapping):
            _map_of(entries)  # refuses a key that is there twice
        keys = self._keys.dump_all([key for key, _ in entries])
        return WORD.pack(len(keys)) + keys + self._values.dump_all([each for _, each in entries])

    def mix(self, value: Any, seed: int) -> int:
        for key, item in self._entries(value):
            seed = mix_all([(self.key, key), (self.value, item)], seed)
        return seed

    def _entries(self, value: Any) -> list[tuple[Any, Any]]:
        """The entries of a map, with keys as values of their type. The map may be pairs, as in pandas."""
        if isinstance(value, Mapping):
            return [(_keyed(self.key, key), each) for key, each in value.items()]
        return [(key, each) for key, each in scalars.checked(value, "a dict", (list, tuple))]

    @property
    def example(self) -> Any:
        return {hashable(self.key.example): self.value.example}

    def order(self, value: Any) -> Any:
        return tuple((self.key.order(key), _in_order(self.value, each)) for key, each in self._entries(value))

    def normal(self, value: Any) -> Any:
        # Spark keeps the zeros of keys apart, and takes the zeros of values for one.
        entries = [(key, or_none(self.value.normal, each)) for key, each in self._entries(value)]
        return _map_of(sorted(entries, key=lambda entry: self.key.order(entry[0])))

    def to_json(self, value: Any) -> Any:
        entries = [(self.key.to_json(key), or_none(self.value.to_json, each)) for key, each in self._entries(value)]
        return dict(entries) if isinstance(self.key, String) else [list(entry) for entry in entries]

    def from_json(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            value = list(value.items())
        pairs = [scalars.checked(pair, "a pair", (list, tuple)) for pair in scalars.checked(value, "a map", list)]
        if any(len(pair) != 2 for pair in pairs):
            raise ValueError("not a pair")
        return _map_of([(self.key.from_json(key), or_none(self.value.from_json, each)) for key, each in pairs])

    def arrow(self, pa: Any, *, sql: bool = False) -> Any:
        return pa.map_(self.key.arrow(pa, sql=sql), self.value.arrow(pa, sql=sql))

    def to_arrow(self, value: Any) -> Any:
        return [(self.key.to_arrow(key), or_none(self.value.to_arrow, each)) for key, each in self._entries(value)]


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
        """The bytes of a row, equal to Spark's. Refuse other columns, and values of other types."""
        self.check(values)
        out = bytearray(self._least_bytes)
        for name, kind, byte, bit, slot in self._columns:
            value = values[name]
            if value is None:
                out[byte] |= bit
                kind.write_null(out, slot)
                continue
            try:
                kind.write(value, out, slot)
            except (TypeError, ValueError, OverflowError, ArithmeticError, AttributeError, struct.error) as wrong:
                raise ConfigurationError(
                    f"column {name} must be of type {kind.name}, such as {kind.example!r}: {wrong}",
                    value=repr(value)[:100],
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
                name: None if raw[begin + byte] & bit else kind.read(raw, begin + slot, begin, end)
                for name, kind, byte, bit, slot in self._columns
            }
        except (struct.error, CorruptStateError) as wrong:
            raise self._located(raw, begin, end) or wrong from wrong

    def _located(self, raw: bytes, begin: int, end: int) -> CorruptStateError | None:
        """The error of the first column that cannot be read, with its name."""
        columns = ((name, kind, slot) for name, kind, byte, bit, slot in self._columns if not raw[begin + byte] & bit)
        for name, kind, slot in columns:
            if (corrupt := _fault(kind, raw, begin + slot, begin=begin, end=end)) is not None:
                return CorruptStateError(f"column {name}: {corrupt.args[0]}", **corrupt.facts)
        return None

    def dump(self, value: Any) -> bytes:
        return self.encode(scalars.checked(value, "a dict", Mapping))

    def mix(self, value: Any, seed: int) -> int:
        return mix_all(zip(self.types, (value[name] for name in self.names), strict=True), seed)

    @property
    def example(self) -> Any:
        return {name: kind.example for name, kind in zip(self.names, self.types, strict=True)}

    def order(self, value: Any) -> Any:
        return tuple(_in_order(kind, value[name]) for name, kind in zip(self.names, self.types, strict=True))

    def normal(self, value: Any) -> Any:
        return {name: or_none(kind.normal, value[name]) for name, kind in zip(self.names, self.types, strict=True)}

    def to_json(self, value: Any) -> Any:
        kinds = dict(zip(self.names, self.types, strict=True))
        return {name: or_none(kinds[name].to_json, each) for name, each in value.items()}

    def from_json(self, value: Any) -> Any:
        kinds = dict(zip(self.names, self.types, strict=True))
        values = scalars.checked(value, f"an object with {', '.join(self.names) or 'nothing'}", Mapping)
        self.check(values)
        return {name: or_none(kinds[name].from_json, each) for name, each in values.items()}

    def arrow(self, pa: Any, *, sql: bool = False) -> Any:
        return pa.struct(self.arrow_fields(pa, sql=sql))

    def arrow_fields(self, pa: Any, *, sql: bool = False) -> list[tuple[str, Any]]:
        """Names and types in Arrow. For DuckDB, which ignores case, the second of two names is numbered."""
        names = unique(self.names, str.casefold) if sql else self.names
        return [(name, kind.arrow(pa, sql=sql)) for name, kind in zip(names, self.types, strict=True)]

    def to_arrow(self, value: Any) -> Any:
        return tuple(or_none(kind.to_arrow, value[name]) for name, kind in zip(self.names, self.types, strict=True))


def _fault(kind: DataType, raw: bytes, slot: int, begin: int, end: int) -> CorruptStateError | None:
    """The error of a value that cannot be read."""
    try:
        kind.read(raw, slot, begin, end)
    except struct.error as short:
        return CorruptStateError(f"a row ends too early: {short}", bytes=end - begin)
    except CorruptStateError as corrupt:
        return corrupt
    return None


def unique(names: Iterable[str], fold: Callable[[str], str] = str) -> tuple[str, ...]:
    """The names, with repeated ones numbered: name#2, name#3, without the name of another."""
    originals = list(names)
    folded, used = set(map(fold, originals)), set[str]()
    chosen: list[str] = []
    for name in originals:
        unlike = name
        if fold(name) in used:
            unlike = next(other for n in count(2) if fold(other := f"{name}#{n}") not in folded)
        used.add(fold(unlike))
        folded.add(fold(unlike))
        chosen.append(unlike)
    return tuple(chosen)


def or_none(function: Callable[[Any], Any], value: Any) -> Any:
    """The function's result for a value; a null stays one."""
    return None if value is None else function(value)


def _nulls_bytes(count: int) -> int:
    return (count + 63) // 64 * 8


def hashable(value: Any) -> Any:
    """A value as a key of a dict."""
    if isinstance(value, dict):
        return tuple(map(hashable, value.values()))
    return tuple(map(hashable, value)) if isinstance(value, list) else value


def _map_of(entries: list[tuple[Any, Any]]) -> dict[Any, Any] | list[tuple[Any, Any]]:
    """A map of its entries: a dict, or the entries if keys differ only in the sign of a zero. Refuse equal keys."""
    keys = [hashable(key) for key, _ in entries]
    if len(whole := dict(zip(keys, (each for _, each in entries), strict=True))) == len(keys):
        return whole
    if len(set(zip(keys, map(repr, keys), strict=True))) < len(keys):
        raise ValueError("a key of a map twice")
    return entries


def _in_order(kind: DataType, value: Any) -> tuple[Any, ...]:
    """A value that sorts as in Spark: a null comes first."""
    return (False,) if value is None else (True, kind.order(value))


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
