"""Charts: series of figures over time, or over numbers, which the page draws from a table.

The template writes a chart as a figure with its data as a table; `static/charts.js` draws it with uPlot. So a page
without scripts, and a screen reader, have the same figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Final

from dynastate.ui.texts import NONE, clock_text, has_days

#: Points of a sparkline, the seconds that it shows, and its size in units of its own coordinates.
SPARK_POINTS: Final = 36
SPARK_S: Final = 3_600.0
SPARK_WIDTH: Final = 120
SPARK_HEIGHT: Final = 28


@dataclass(frozen=True)
class Series:
    """Figures by point, None where there is none.

    `axis` names the axis of its panel, with the unit; series of one axis share a panel. `draw` is bars, stack, line or
    step, and `colour` a token of the style sheet. A line that `is_dashed` is a prediction.
    """

    name: str
    axis: str
    values: Sequence[float | None]
    draw: str = "bars"
    colour: str = "c1"
    digits: int = 0
    prefix: str = ""
    unit: str = ""
    is_dashed: bool = False

    def text(self, number: int) -> str:
        """The figure of a point."""
        value = self.values[number]
        return NONE if value is None else f"{value:,.{self.digits}f}"


@dataclass(frozen=True)
class Lane:
    """Events by point: a text, or an empty one. `form` is diamond, cross or triangle."""

    name: str
    events: Sequence[str]
    form: str
    colour: str


@dataclass(frozen=True)
class Chart:
    """Series over `places`: milliseconds since 1970 if `is_time`, else numbers of what `noun` says.

    `title` says in words what it shows. `labels` name the points, as versions do, and `links` lead from them; `starts`
    marks points where a run began. `hot` is the number of a point that is unlike the others. Charts with one `sync`
    share cursor and zoom.
    """

    name: str
    title: str
    noun: str
    places: Sequence[float]
    series: Sequence[Series]
    lanes: Sequence[Lane] = ()
    is_time: bool = True
    labels: Sequence[str] = ()
    label_noun: str = ""
    links: Sequence[str] = ()
    starts: Sequence[str] = ()
    hot: int | None = None
    sync: str = ""

    @property
    def shown_lanes(self) -> list[Lane]:
        """The lanes with an event."""
        return [each for each in self.lanes if any(each.events)]

    @property
    def shown_starts(self) -> Sequence[str]:
        """The starts, if there is one."""
        return self.starts if any(self.starts) else ()

    @cached_property
    def has_days(self) -> bool:
        """Whether its times have their day."""
        return self.is_time and has_days(self.places)

    def time_text(self, number: int) -> str:
        return clock_text(self.places[number], has_day=self.has_days)

    def time(self, number: int) -> datetime:
        return datetime.fromtimestamp(self.places[number] / 1000, timezone.utc)


@dataclass(frozen=True)
class Spark:
    """A small line of the last hour: `line` and `area` are points of SVG; `title` says its range."""

    line: str
    area: str
    last: tuple[float, float]
    title: str


def spark(points: Sequence[tuple[float, float]], now_s: float, name: str, *, from_zero: bool) -> Spark | None:
    """The line of (second, figure) points, on an axis of the last hour. Returns None if it would be a dot.

    It begins at zero, or lies between its smallest and its largest figure.
    """
    recent = [each for each in points if now_s - SPARK_S <= each[0] <= now_s]
    if len(recent) < 2 or recent[-1][0] - recent[0][0] < SPARK_S / SPARK_WIDTH:
        return None
    recent = _thinned(recent)
    figures = [figure for _, figure in recent]
    low, high = (0.0 if from_zero else min(figures)), max(figures)
    places = [
        (
            round(1 + (second - now_s + SPARK_S) / SPARK_S * (SPARK_WIDTH - 2), 1),
            round(SPARK_HEIGHT - 3 - ((figure - low) / (high - low) if high > low else 0.5) * (SPARK_HEIGHT - 6), 1),
        )
        for second, figure in recent
    ]
    line = " ".join(f"{x},{y}" for x, y in places)
    foot = SPARK_HEIGHT - 1
    area = f"{places[0][0]},{foot} {line} {places[-1][0]},{foot}" if from_zero else ""
    digits = 0 if all(float(each).is_integer() for each in figures) else 1
    title = f"{name} in the last hour: {min(figures):,.{digits}f} to {high:,.{digits}f}"
    return Spark(line, area, places[-1], title)


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The largest of each of `SPARK_POINTS` parts, so that a peak stays; the last point stays too."""
    if len(points) <= SPARK_POINTS:
        return list(points)
    step = len(points) / SPARK_POINTS
    parts = [points[int(number * step) : int((number + 1) * step)] for number in range(SPARK_POINTS)]
    return [*(max(part, key=lambda point: point[1]) for part in parts if part), points[-1]]
