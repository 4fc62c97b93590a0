"""The keys to erase, and the rows that have them: by the columns of each column family's keys. No I/O."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.reader.json_rows import json_text, key_from_json, parse_key
from dynastate.unsaferow.key_encoders import KeyEncoder, make_encoder
from dynastate.unsaferow.nested import Struct, or_none
from dynastate.unsaferow.schema import described_families, parse_schema
from dynastate.unsaferow.types import DataType

#: A key to erase: values in JSON's types by the names of columns. It may have some of a family's columns only.
GivenKey = Mapping[str, Any]


@dataclass(frozen=True)
class GivenKeys:
    """The keys to erase. Refuse none at all, and a key without columns."""

    keys: Sequence[GivenKey]

    def __post_init__(self) -> None:
        if not self.keys:
            raise ConfigurationError("give at least one key to erase")
        for key in self.keys:
            if not isinstance(key, Mapping) or not key:
                raise ConfigurationError(
                    "a key to erase is an object of JSON with at least one column", got=repr(key)[:100]
                )

    @property
    def digest(self) -> str:
        """A text of 32 hex digits that names these keys, in whatever order they are given, and how often."""
        return hashlib.sha256("\n".join(sorted(set(map(canonical, self.keys)))).encode()).hexdigest()[:32]

    def hashes(self) -> list[str]:
        """SHA-256 of each key, as canonical JSON, in hex digits."""
        return [hashlib.sha256(canonical(key).encode()).hexdigest() for key in self.keys]


def keys_of_file(text: str) -> list[GivenKey]:
    """The keys of a file: a JSON object on each line, or one list of them, as `dynastate sql --json` prints it."""
    if text.lstrip().startswith("["):
        keys: list[GivenKey] = parse_key(text)
        return keys
    return [parse_key(line) for line in text.split("\n") if line.strip()]


def canonical(key: GivenKey) -> str:
    """A key as one text, whatever the order of its columns."""
    return json.dumps(key, sort_keys=True, separators=(",", ":"), default=str)


class _Column(NamedTuple):
    """A column of a key, or a field within one: the names that lead to it, and its type."""

    path: tuple[str, ...]
    kind: DataType

    def json_of(self, key: Mapping[str, Any]) -> Any:
        """Its value in a decoded key, in JSON's types."""
        value: Any = key
        for name in self.path:
            value = None if value is None else value[name]
        return or_none(lambda value: self.kind.to_json(self.kind.normal(value)), value)

    def json_of_given(self, value: Any) -> Any:
        """A given value as `json_of` gives it: as a stored row has it, 1.50 for 1.5. Refuse a value of another type."""
        name = self.path[-1]
        row = Struct([(name, self.kind)])
        return self._replace(path=(name,)).json_of(row.decode(row.encode(key_from_json(row, {name: value}))))


def _columns(struct: Struct, path: tuple[str, ...] = ()) -> Iterator[_Column]:
    """The columns of a struct, and then the fields within them."""
    columns = [_Column((*path, name), kind) for name, kind in zip(struct.names, struct.types, strict=True)]
    yield from columns
    for column in columns:
        if isinstance(column.kind, Struct):
            yield from _columns(column.kind, column.path)


@dataclass
class _Form:
    """One form of a family's keys: their encoder, and the given keys by the columns that they have."""

    encoder: KeyEncoder
    values: list[tuple[tuple[_Column, ...], set[str]]] = field(default_factory=list)

    def matches(self, raw: bytes) -> bool:
        if not self.values:
            return False
        key = self.encoder.decode(raw)
        return any(json_text([each.json_of(key) for each in columns]) in values for columns, values in self.values)


def _of_type(columns: Sequence[_Column], value: Any) -> list[tuple[_Column, Any]]:
    """The columns of one name that a value can be of, each with the value in JSON's types. Refuse it if there is none.

    A struct and a field within it may have the same name, as the keys of timers do.
    """
    typed: list[tuple[_Column, Any]] = []
    errors: list[ConfigurationError] = []
    for column in columns:
        answer = _json_or_error(column, value)
        if isinstance(answer, ConfigurationError):
            errors.append(answer)
        else:
            typed.append((column, answer))
    if not typed:
        raise errors[-1]
    return typed


def _json_or_error(column: _Column, value: Any) -> Any:
    try:
        return column.json_of_given(value)
    except ConfigurationError as wrong:
        return wrong


class KeyMatcher:
    """Tells which keys of a store's families are to be erased.

    A key of a family matches a given key if it has all columns of the given key, as columns or as fields within
    columns, with equal values. Values are equal that Spark groups as equal. `schemas` are the texts of the store's
    schema items, also of those that no version names.
    """

    def __init__(self, erased_keys: GivenKeys, store: str, schemas: Iterable[str]) -> None:
        self._store = store
        self._forms: dict[int, dict[str, _Form]] = {}
        self._names: dict[int, set[str]] = {}
        #: The given keys, as canonical texts, whose columns the keys of some family have.
        self.with_columns: set[str] = set()
        for text in schemas:
            for described in described_families(text, with_dropped=True):
                self._add(erased_keys, described)

    @property
    def has_families(self) -> bool:
        """Whether the store has a schema, which its first commit writes."""
        return bool(self._forms)

    def _add(self, erased_keys: GivenKeys, described: Mapping[str, Any]) -> None:
        forms = self._forms.setdefault(described["id"], {})
        self._names.setdefault(described["id"], set()).add(described["name"])
        name = json.dumps([described["key"], described["key_encoder"]], sort_keys=True)
        if name in forms:
            return
        key = parse_schema(described["key"])
        form = _Form(make_encoder(key, described["key_encoder"], self._store.rpartition("/")[2]))
        columns: dict[str, list[_Column]] = {}
        for column in _columns(form.encoder.columns):
            columns.setdefault(column.path[-1], []).append(column)
        by_columns: dict[tuple[_Column, ...], set[str]] = {}
        for given_key in erased_keys.keys:
            names = sorted(given_key)
            if all(each in columns for each in names):
                self.with_columns.add(canonical(given_key))
                try:
                    typed = [_of_type(columns[each], given_key[each]) for each in names]
                except ConfigurationError as wrong:
                    wrong.facts.setdefault("family", described["name"])
                    raise
                for pairs in product(*typed):
                    values = json_text([value for _, value in pairs])
                    by_columns.setdefault(tuple(column for column, _ in pairs), set()).add(values)
        form.values = list(by_columns.items())
        forms[name] = form

    @property
    def without_columns(self) -> set[str]:
        """The names of the families of whose keys no form has the columns of any given key."""
        without = [number for number, forms in self._forms.items() if not any(each.values for each in forms.values())]
        return {name for number in without for name in self._names[number]}

    def matches(self, family: int, raw: bytes) -> bool:
        """Whether a stored key is to be erased.

        Raises:
            CorruptStateError: the store has no such family, or the key is not one of its keys.
        """
        forms = self._forms.get(family)
        if not forms:
            raise CorruptStateError("a row is of a column family that no schema has", store=self._store, family=family)
        # A family that was removed and made again may have several forms.
        answers = [_answer(form, raw) for form in forms.values()]
        errors = [answer for answer in answers if isinstance(answer, CorruptStateError)]
        if len(errors) == len(forms):
            raise errors[0]
        return True in answers


def _answer(form: _Form, raw: bytes) -> bool | CorruptStateError:
    try:
        return form.matches(raw)
    except CorruptStateError as error:
        return error
