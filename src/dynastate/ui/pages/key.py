"""Key: the value of a key, its history, and how it differs from another version."""

from __future__ import annotations

from collections import deque
from shlex import quote
from typing import Any, Final

from dynastate.counts import plural
from dynastate.reader.json_rows import json_text, key_from_json, parse_json, row_to_json
from dynastate.reader.view import StateView
from dynastate.storage.meter import Meter
from dynastate.ui.page import Ask, Page
from dynastate.ui.pages.operator import family_option, stores_of
from dynastate.ui.site import Site
from dynastate.ui.texts import shown, value_text
from dynastate.ui.watch import counted
from dynastate.unsaferow import types
from dynastate.unsaferow.nested import or_none

#: Types whose JSON is a text.
_TEXTS: Final = ("string", "binary", "date", "timestamp", "timestamp_ntz", "time")
#: Values of a list on a page, and characters of one value.
LIST_VALUES: Final = 50
VALUE_CHARS: Final = 4_000
#: The newest versions at which the row changed, that are shown.
HISTORY: Final = 100


def view(site: Site, ask: Ask) -> Page:
    spent = Meter()
    stores = stores_of(ask)
    with site.reader(stores, ask.text("family")) as reader, counted(reader.meter, spent):
        families = [each for each in reader.families if not each.startswith("$")]
        state: StateView = reader
        if not reader.family:
            return Page(
                f"Key in {stores}",
                "key.html",
                f"dynastate show {quote(reader.stores[0])}",
                {"families": families, "fields": []},
                spent=spent,
            )
        key_columns = dict(zip(state.key_columns.names, state.key_columns.types, strict=True))
        examples = {name: or_none(kind.to_json, kind.example) for name, kind in key_columns.items()}
        fields = [
            {
                "name": name,
                "type": kind.name,
                "given": ask.text(f"k.{name}"),
                "is_null": bool(ask.text(f"n.{name}")),
                "example": value_text(examples[name]),
            }
            for name, kind in key_columns.items()
        ]
        values: dict[str, Any] = {
            "families": families,
            "family": reader.family,
            "fields": fields,
            "newest": reader.version,
            "oldest": reader.versions()[0],
        }
        command = _command(stores, examples, ask, None)
        if any(f"k.{name}" in ask.parameters or f"n.{name}" in ask.parameters for name in key_columns):
            form_values = {name: _value(ask, name, kind) for name, kind in key_columns.items()}
            key = key_from_json(state.key_columns, form_values)
            json_key = row_to_json(state.key_columns, key) or {}
            version = ask.number("version", reader.version, least=1)
            past_state = reader if version == reader.version else reader.at(version)
            row = row_to_json(past_state.columns, past_state.get(key))
            command = _command(stores, json_key, ask, version if ask.text("version") else None)
            past = deque(
                (
                    (each.version, _cells(row_to_json(columns, each.row), state))
                    for each, columns in reader.history_with_columns(key)
                ),
                maxlen=HISTORY,
            )
            values |= {
                "key": json_key,
                "version": version,
                "row": _cells(row, state),
                "names": list(row or {}),
                "is_there": row is not None,
                "listed": _listed(row, ask, state),
                "history": list(reversed(past)),
                "times": _times(reader),
            }
            other = ask.number_or_none("other", least=1)
            if other is not None:
                other_row = row_to_json(reader.at(other).columns, reader.at(other).get(key))
                values |= {"other": other, "before": _cells(other_row, state)}
                values["names"] = list(dict.fromkeys([*(row or {}), *(other_row or {})]))
    return Page(f"Key in {stores}", "key.html", command, values, spent=spent)


def _value(ask: Ask, name: str, kind: types.DataType) -> Any:
    """A value of the form, as `key_from_json` takes it: texts as they are, other values parsed as JSON, if possible."""
    if ask.text(f"n.{name}"):
        return None
    text = ask.text(f"k.{name}")
    if kind.name in _TEXTS or not text:
        return text
    try:
        return parse_json(text)
    except ValueError:
        return text


def _cells(row: dict[str, Any] | None, state: StateView) -> dict[str, str | None] | None:
    """Values of a row as text, by column, except for a list of values, which only has its length."""
    if row is None:
        return None
    cells: dict[str, str | None] = {}
    for name, value in row.items():
        if state.has_lists and name == state.list_column:
            cells[name] = plural(len(value), "value")
            continue
        cells[name] = shown(value, VALUE_CHARS, 2 if isinstance(value, (dict, list)) else None)
    return cells


def _listed(row: dict[str, Any] | None, ask: Ask, state: StateView) -> dict[str, Any] | None:
    """The requested page of the list of values."""
    if row is None or not state.has_lists:
        return None
    every = row[state.list_column]
    page = ask.number("page", 1, least=1)
    first = (page - 1) * LIST_VALUES
    return {
        "values": [
            (first + number, shown(each, VALUE_CHARS)) for number, each in enumerate(every[first : first + LIST_VALUES])
        ],
        "count": len(every),
        "page": page,
        "has_next": len(every) > first + LIST_VALUES,
    }


def _times(reader: StateView) -> dict[int, int]:
    """The time of each version in its last partition, in milliseconds since 1970."""
    times: dict[int, int] = {}
    for _, entry, _ in reader.listed():
        times[entry.version] = max(times.get(entry.version, 0), entry.time_ms)
    return times


def _command(stores: str, key: dict[str, Any], ask: Ask, version: int | None) -> str:
    more = f" --version {version}" if version is not None else ""
    return f"dynastate get {quote(stores)} {quote(json_text(key))}{more}" + family_option(ask.text("family"))
