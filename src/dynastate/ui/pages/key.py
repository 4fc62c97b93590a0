"""Key: the value of a key, its history, and how it differs from another version."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import chain, islice, pairwise
from shlex import quote
from typing import Any, Final

from dynastate.counts import plural
from dynastate.errors import ConfigurationError, VersionMissingError
from dynastate.reader.json_rows import json_text, key_from_json, parse_json, row_to_json
from dynastate.reader.state import StateReader
from dynastate.reader.view import StateView
from dynastate.storage.meter import Meter
from dynastate.ui.charts import Chart, Series
from dynastate.ui.page import Ask, Page
from dynastate.ui.pages.operator import family_option, stores_of
from dynastate.ui.site import Site
from dynastate.ui.texts import NUMERIC, has_days, shown, value_text
from dynastate.ui.watch import counted, now_utc
from dynastate.unsaferow import types
from dynastate.unsaferow.nested import or_none

#: Types whose JSON is a text.
_TEXTS: Final = ("string", "binary", "date", "timestamp", "timestamp_ntz", "time")
#: Values of a list on a page, and characters of one value.
LIST_VALUES: Final = 50
VALUE_CHARS: Final = 4_000
#: The newest versions at which the row changed, that are shown.
HISTORY: Final = 100
#: Characters of a value in the history, keys that are offered, and numeric columns that are charted.
CELL_CHARS: Final = 120
OFFERED: Final = 10
CHARTED: Final = 4

#: Earlier times that are offered, by their labels, in seconds before now.
EARLIER: Final = {"10 min ago": 600, "1 h ago": 3_600, "1 day ago": 86_400}

#: A version, and the row at it, or None.
Version = tuple[int, dict[str, Any] | None]


@dataclass(frozen=True)
class Cell:
    """A value in the history: its text, and of one that changed the text that it replaced, or the difference."""

    text: str | None
    is_changed: bool = False
    old: str | None = None
    difference: str = ""


@dataclass(frozen=True)
class Moment:
    """A version at which the row changed, or the oldest one: a cell for each column, or none of a removed row."""

    version: int
    cells: Mapping[str, Cell]
    is_removed: bool = False
    is_oldest: bool = False


def view(site: Site, ask: Ask) -> Page:
    spent = Meter()
    stores = stores_of(ask)
    with site.reader(stores, ask.text("family")) as reader, counted(reader.meter, spent):
        families = [each for each in reader.families if not each.startswith("$")]
        if not reader.family:
            return Page(
                f"Key in {stores}",
                "key.html",
                f"dynastate show {quote(reader.stores[0])}",
                {"families": families, "fields": []},
                spent=spent,
            )
        key_columns = dict(zip(reader.key_columns.names, reader.key_columns.types, strict=True))
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
        page = Page(f"Key in {stores}", "key.html", _command(stores, examples, ask, None), values, spent=spent)
        if not any(f"k.{name}" in ask.parameters or f"n.{name}" in ask.parameters for name in key_columns):
            values["offered"] = _offered(reader)
            return page
        try:
            _show(reader, ask, page, {name: _value(ask, name, kind) for name, kind in key_columns.items()})
        except (ConfigurationError, VersionMissingError) as wrong:
            values["wrong"] = str(wrong)  # the form stays as it was filled
            page.status = 404 if isinstance(wrong, VersionMissingError) else 400
    return page


def _show(reader: StateReader, ask: Ask, page: Page, form_values: dict[str, Any]) -> None:
    """Add the row of a key, its history, and its numbers over time."""
    key = key_from_json(reader.key_columns, form_values)
    json_key = row_to_json(reader.key_columns, key) or {}
    version = ask.number("version", reader.version, least=1)
    past_state = reader if version == reader.version else reader.at(version)
    row = row_to_json(past_state.columns, past_state.get(key))
    other = ask.number_or_none("other", least=1)
    other_row = None if other is None else row_to_json(reader.at(other).columns, reader.at(other).get(key))
    past = [(each.version, row_to_json(columns, each.row)) for each, columns in reader.history_with_columns(key)]
    times = _times(reader)
    lists = {reader.list_column} if reader.has_lists else set()
    every_name = chain(past_state.columns.names, *(past_row or {} for _, past_row in past))
    names = [name for name in dict.fromkeys(every_name) if name not in json_key]
    oldest = page.values["oldest"]
    types_by_name = {
        name: kind.name
        for columns in (reader.columns, past_state.columns)
        for name, kind in zip(columns.names, columns.types, strict=True)
    }
    numeric = {name for name, kind in types_by_name.items() if kind.partition("(")[0] in NUMERIC}
    history = _history(past, names, oldest=oldest, lists=lists, numeric=numeric)
    page.command = _command(stores_of(ask), json_key, ask, version if ask.text("version") else None)
    page.values |= {
        "key": json_key,
        "version": version,
        "row": _cells(row, lists),
        "types": types_by_name,
        "names": list(dict.fromkeys([*(row or {}), *(other_row or {})])),
        "since": _since(past, names, version, oldest),
        "is_there": row is not None,
        "listed": _listed(row, ask, reader),
        "columns": names,
        "history": history[: -HISTORY - 1 : -1],
        "changes": sum(1 for each in history if not each.is_oldest),
        "times": times,
        "has_days": has_days(times.values()),
        "earlier": _earlier(times, reader.version, now_utc().timestamp() * 1000),
        "chart": _numbers(past[-HISTORY:], names, times, reader),
    }
    if other is not None:
        page.values |= {"other": other, "old": _cells(other_row, lists)}


def _offered(reader: StateReader) -> list[dict[str, Any]]:
    """Some keys, as a scan meets them first."""
    names = reader.key_columns.names
    rows = islice(reader.rows_by_partition(), OFFERED)
    return [row_to_json(reader.key_columns, {name: row[name] for name in names}) or {} for _, row in rows]


def _earlier(times: Mapping[int, int], newest: int, now_ms: float) -> dict[str, int]:
    """The versions of some earlier times, by their labels, without those that are the newest or not readable."""
    earlier = {
        label: max((version for version, ms in times.items() if ms <= now_ms - 1000 * seconds), default=newest)
        for label, seconds in EARLIER.items()
    }
    return {label: version for label, version in earlier.items() if version != newest}


def _history(
    past: Sequence[Version], names: Sequence[str], *, oldest: int, lists: Collection[str], numeric: Collection[str]
) -> list[Moment]:
    """The changes of a row, the oldest first, column by column. A row that the oldest version lacks has been put."""
    moments = []
    for number, (version, row) in enumerate(past):
        if row is None:
            moments.append(Moment(version, {}, is_removed=True))
            continue
        old = past[number - 1][1] if number else None
        is_whole = old is None
        cells = {}
        for name in names:
            value, was = row.get(name), None if old is None else old.get(name)
            text = _text(value, is_list=name in lists, chars=CELL_CHARS)
            if not is_whole and value == was:
                cells[name] = Cell(text)
                continue
            difference = "" if old is None or name not in numeric else _difference(was, value)
            old_text = None if old is None or difference else _text(was, is_list=name in lists, chars=CELL_CHARS)
            is_changed = number > 0 or version > oldest
            cells[name] = Cell(text, is_changed=is_changed, old=old_text, difference=difference)
        moments.append(Moment(version, cells, is_oldest=number == 0 and version <= oldest))
    return moments


def _difference(old: Any, new: Any) -> str:
    """The difference of two numbers, with its sign; empty for other values."""
    one, other = _number(old), _number(new)
    if one is None or other is None:
        return ""
    return f"{other - one:+,}"


def _number(value: Any) -> Decimal | None:
    """A value as a number. Returns None if it is not one, or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _since(past: Sequence[Version], names: Sequence[str], version: int, oldest: int) -> dict[str, int | None]:
    """The version since which each column has its value, or None if it had it in the oldest one already."""
    rows = [each for each in past if each[0] <= version]
    since: dict[str, int | None] = {}
    for name in names:
        changed = rows[0][0] if rows and rows[0][0] > oldest else None
        for (_, old), (number, new) in pairwise(rows):
            if (old or {}).get(name) != (new or {}).get(name) or (old is None) != (new is None):
                changed = number
        since[name] = changed
    return since


def _numbers(
    past: Sequence[Version], names: Sequence[str], times: Mapping[int, int], reader: StateReader
) -> Chart | None:
    """The numeric columns over time, up to the newest version."""
    kinds = dict(zip(reader.columns.names, reader.columns.types, strict=True))
    numeric = [name for name in names if name in kinds and kinds[name].name.partition("(")[0] in NUMERIC][:CHARTED]
    points = [each for each in past if each[0] in times]
    if points and points[-1][0] != reader.version and reader.version in times:
        points.append((reader.version, points[-1][1]))
    if not numeric or len(points) < 2:
        return None
    series = []
    for name, colour in zip(numeric, ("c1", "c2", "c4", "ink"), strict=False):
        numbers = [_number((row or {}).get(name)) for _, row in points]
        digits = max((max(0, -int(each.as_tuple().exponent)) for each in numbers if each is not None), default=0)
        figures = [None if each is None else float(each) for each in numbers]
        series.append(Series(name, name, figures, draw="step", colour=colour, digits=min(4, digits)))
    return Chart(
        "numbers",
        "numbers over versions",
        noun="time",
        places=[times[version] for version, _ in points],
        series=series,
        labels=[f"{version:,}" for version, _ in points],
        label_noun="version",
    )


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


def _cells(row: dict[str, Any] | None, lists: Collection[str]) -> dict[str, str | None] | None:
    """Values of a row as text, by column, except for a list of values, which only has its length."""
    if row is None:
        return None
    return {
        name: _text(
            value, is_list=name in lists, chars=VALUE_CHARS, indent=2 if isinstance(value, (dict, list)) else None
        )
        for name, value in row.items()
    }


def _text(value: Any, *, is_list: bool, chars: int, indent: int | None = None) -> str | None:
    """A value as text; the list of values by its length."""
    return plural(len(value), "value") if is_list and value is not None else shown(value, chars, indent)


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
