"""Column families, by the schema that is stored with a store: how their keys and values become rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from dynastate.engine.reader import Lineage
from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.format.changes import Change as RowChange
from dynastate.format.changes import RowValue, schema_id
from dynastate.format.version_list import VersionEntry
from dynastate.unsaferow.evolution import EarlierSchema
from dynastate.unsaferow.examples import example
from dynastate.unsaferow.key_encoders import KeyEncoder, make_encoder
from dynastate.unsaferow.nested import Array, Struct, unique
from dynastate.unsaferow.schema import described_families, parse_schema

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

    def encode(self, key: Mapping[str, Any]) -> bytes:
        """Encode a key.

        Raises:
            ConfigurationError: a column is missing, unknown, or its value is not of its type; with an example.
        """
        try:
            if not isinstance(key, Mapping):
                raise ConfigurationError("a key is a dict of its columns", got=repr(key)[:100])
            return self.encoder.encode(key)
        except ConfigurationError as wrong:
            add_example(wrong, repr(example(self.encoder.columns)))
            raise

    def row(self, raw: bytes, value: RowValue) -> Row:
        key = self.encoder.decode(raw)
        if self.multiple:
            values = value if isinstance(value, list) else [value]
            return key | {self.list_column: [self._value(each) for each in values]}
        if isinstance(value, list):
            raise CorruptStateError("a key has several values in a column family of single ones", family=self.name)
        return key | self._value(value)

    def _value(self, raw: bytes) -> Row:
        if (written := schema_id(raw)) == len(self.earlier):
            return self.value.decode(raw)
        if written > len(self.earlier):
            raise CorruptStateError(
                "a row was written with a schema that its version does not have",
                family=self.name,
                schema_id=written,
            )
        return self.earlier[written].decode(raw)

    def row_or_none(self, raw: bytes, value: RowValue | None) -> Row | None:
        return None if value is None else self.row(raw, value)

    def changed(self, change: RowChange) -> Row:
        """Decode a change: of a removed key only the key."""
        if change.value is None:
            return self.encoder.decode(change.key)
        return self.row(change.key, change.value)


@lru_cache(maxsize=SCHEMAS_MAX)
def parse_families(text: str, store_name: str) -> dict[str, Family]:
    """Parse the text of a schema item: its column families, without those that were dropped."""
    return {each["name"]: _family(each, store_name) for each in described_families(text)}


def _family(described: Mapping[str, Any], store_name: str) -> Family:
    key, now = parse_schema(described["key"]), parse_schema(described["value"])
    names = now.names if described["multiple"] else unique([*key.names, *now.names])[len(key.names) :]
    return Family(
        id=described["id"],
        name=described["name"],
        internal=described["internal"],
        multiple=described["multiple"],
        encoder=make_encoder(key, described["key_encoder"], store_name),
        value=Struct(list(zip(names, now.types, strict=True))),
        earlier=tuple(EarlierSchema(parse_schema(each), now, names) for each in described.get("earlier_values", ())),
    )


def families_at(lineage: Lineage, entry: VersionEntry) -> dict[str, Family]:
    return parse_families(lineage.schema(entry), lineage.store.rpartition("/")[2])


def add_example(wrong: ConfigurationError, key: str) -> None:
    """Add a key of the right shape, to copy, to the error for a wrong one."""
    wrong.args = (f"{wrong.args[0]}; a key looks like {key}",)
