"""Values of state as text that hides nothing."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable
from datetime import datetime, timezone
from typing import Any, Final

from dynastate.reader.json_rows import json_text

#: A figure that does not apply, or is not known.
NONE: Final = "\N{EN DASH}"
#: The milliseconds of a day: times of a longer history have their day.
DAY_MS: Final = 86_400_000
#: Types whose values are figures, on the right of their column.
NUMERIC: Final = ("byte", "short", "integer", "long", "float", "double", "decimal")


def visible(text: str) -> str:
    r"""A text with characters that draw nothing, or change how others are drawn, as `\u202e`; lines stay."""
    return "".join(
        f"\\u{ord(each):04x}" if unicodedata.category(each) in ("Cc", "Cf", "Cs") and each not in "\n\t" else each
        for each in text
    )


def has_days(times_ms: Collection[float]) -> bool:
    """Whether times need their day: they span more than one."""
    return bool(times_ms) and max(times_ms) - min(times_ms) > DAY_MS


def clock_text(time_ms: float, *, has_day: bool) -> str:
    """A time in UTC as `14:31:05`, or as `28 Nov 14:31:05`."""
    instant = datetime.fromtimestamp(time_ms / 1000, timezone.utc)
    return f"{instant:%d %b %H:%M:%S}" if has_day else f"{instant:%H:%M:%S}"


def shown(value: Any, chars: int, indent: int | None = None) -> str | None:
    """A value of `to_json` as text, cut after `chars` characters. Returns None if it is null."""
    if value is None:
        return None
    text = value_text(value, indent)
    cut = visible(text[:chars])
    return f"{cut} … and {len(text) - chars:,} characters more" if len(text) > chars else cut


def text_bytes(cells: Iterable[str | None]) -> int:
    """The bytes of memory that texts take, about."""
    return sum(64 + 4 * len(each or "") for each in cells)


def value_text(value: Any, indent: int | None = None) -> str:
    """The whole text of a value of `to_json`, which a filter searches."""
    return value if isinstance(value, str) else json_text(value, indent)
