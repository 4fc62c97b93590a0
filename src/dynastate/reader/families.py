"""Column families, by the schema that is stored with a store: how their keys and values become rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from dynastate.engine.lineage import Lineage
from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.changes import Change as RowChange
from dynastate.format.changes import RowValue, schema_id
from dynastate.format.version_list import VersionEntry
from dynastate.unsaferow.evolution import EarlierSchema
from dynastate.unsaferow.key_encoders import KeyEncoder, make_encoder
from dynastate.unsaferow.nested import Array, Map, Struct, unique
from dynastate.unsaferow.schema import described_families, parse_schema
from dynastate.unsaferow.types import DataType

DEFAULT_FAMILY: Final = "default"
#: The column of lists of values.
VALUES: Final = "values"
#: Schemas whose column families are remembered.
SCHEMAS_MAX: Final = 100

Row = dict[str, Any]


@dataclass(frozen=True)
class Family:
    """A column family."""

    id: int
    name: str
    internal: bool
    multiple: bool
    encoder: KeyEncoder
    value: Struct
    #: Schemas that values were written with before, by id.
    earlier: tuple[EarlierSchema, ...] = ()
    #: How keys are stored, and the types of the values of each schema, by id.
    key_form: str = ""
    value_forms: tuple[str, ...] = ()

    @property
    def columns(self) -> Struct:
        key, value = self.encoder.columns, self.value
        fields = list(zip(key.names, key.types, strict=True))
        if self.multiple:
            return Struct([*fields, (self.list_column, Array(value))])
        return Struct([*fields, *zip(value.names, value.types, strict=True)])

    @property
    def list_column(self) -> str:
        """The column with the list of values, in a family with lists."""
        return unique([*self.encoder.columns.names, VALUES])[-1]

    def reads(self, other: Family) -> bool:
        """Whether it decodes the rows of an earlier version, whose columns may have other names.

        It does not if the family was removed since, and made again with another schema.
        """
        forms = self.value_forms[: len(other.value_forms)]
        return (self.key_form, self.multiple, forms) == (other.key_form, other.multiple, other.value_forms)

    def find(self, key: Mapping[str, Any]) -> Iterator[tuple[Row, bytes]]:
        """Yield a key and its bytes, then another form in which Spark stores keys that it groups as equal, if any."""
        encoder = self.encoder
        try:
            if not isinstance(key, Mapping):
                raise ConfigurationError("a key is a dict of its columns", got=repr(key)[:100])
            raw = encoder.encode(key)
        except ConfigurationError as wrong:
            add_example(wrong, repr(encoder.columns.example))
            raise
        exact = encoder.decode(raw)
        yield exact, raw
        normal = encoder.columns.normal(exact)
        if (other := encoder.encode(normal)) != raw:
            yield normal, other

    def row(self, raw: bytes, value: RowValue) -> Row:
        key = self.encoder.decode(raw)
        try:
            return self._row(key, value)
        except CorruptStateError as corrupt:
            corrupt.facts["key"] = repr(key)[:200]
            raise

    def _row(self, key: Row, value: RowValue) -> Row:
        if self.multiple:
            values = value if isinstance(value, list) else [value]
            return key | {self.list_column: [self._value(each) for each in values]}
        if isinstance(value, list):
            raise CorruptStateError("a key has several values in a column family of single ones", family=self.name)
        return key | self._value(value)

    def _value(self, raw: bytes) -> Row:
        if (schema := schema_id(raw)) == len(self.earlier):
            return self.value.decode(raw)
        if schema > len(self.earlier):
            raise CorruptStateError(
                "a row was written with a schema that its version does not have", family=self.name, schema_id=schema
            )
        return self.earlier[schema].decode(raw)

    def row_or_none(self, raw: bytes, value: RowValue | None) -> Row | None:
        return None if value is None else self.row(raw, value)

    def changed(self, change: RowChange) -> Row:
        """Decode a change: only the key, if it removes the key."""
        if change.value is None:
            return self.encoder.decode(change.key)
        return self.row(change.key, change.value)


@lru_cache(maxsize=SCHEMAS_MAX)
def parse_families(text: str, store_name: str) -> dict[str, Family]:
    """Parse the text of a schema item: its column families, without those that were dropped."""
    return {each["name"]: _family(each, store_name) for each in described_families(text)}


def _family(described: Mapping[str, Any], store_name: str) -> Family:
    key, value = parse_schema(described["key"]), parse_schema(described["value"])
    earlier = tuple(map(parse_schema, described.get("earlier_values", ())))
    names = value.names if described["multiple"] else unique([*key.names, *value.names])[len(key.names) :]
    return Family(
        id=described["id"],
        name=described["name"],
        internal=described["internal"],
        multiple=described["multiple"],
        encoder=make_encoder(key, described["key_encoder"], store_name),
        value=Struct(list(zip(names, value.types, strict=True))),
        earlier=tuple(EarlierSchema(each, value, names) for each in earlier),
        key_form=f"{described['key_encoder']} {_form(key)}",
        value_forms=tuple(map(_form, (*earlier, value))),
    )


def _form(kind: DataType) -> str:
    """A type without the names of columns: rows of equal forms have equal bytes."""
    if isinstance(kind, Struct):
        return f"struct<{', '.join(map(_form, kind.types))}>"
    if isinstance(kind, Array):
        return f"array<{_form(kind.element)}>"
    return f"map<{_form(kind.key)}, {_form(kind.value)}>" if isinstance(kind, Map) else kind.name


def families_at(lineage: Lineage, entry: VersionEntry) -> dict[str, Family]:
    return parse_families(lineage.schema(entry), lineage.store.rpartition("/")[2])


def nearest_family(lineage: Lineage, name: str, version: int) -> Family | None:
    """The column family at a version, or at the nearest listed version that has it, an earlier one if there is one.

    Returns None if no listed version has it.
    """
    entries = lineage.entries
    earlier = (entry for entry in reversed(entries) if entry.version <= version)
    for entry in chain(earlier, entries):
        family = families_at(lineage, entry).get(name)
        if family is not None:
            return family
    return None


def add_example(wrong: ConfigurationError, key: str) -> None:
    """Add a key of the right shape, to copy, to the error for a wrong key."""
    wrong.args = (f"{wrong.args[0]}; a key looks like {key}",)
