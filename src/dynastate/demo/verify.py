"""The same results computed by pandas in one batch, and the comparison of every value.

Values are compared exactly: delays and miles are whole numbers, whose sums are exact in doubles in any order, and
weather values are copied unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pandas as pd

from dynastate.demo.flights import Input
from dynastate.demo.process import Layout

_HOUR: Final = pd.Timedelta(hours=1)
_WEATHER: Final = ["temp", "wind_speed", "precip", "visib"]
_DELAYS: Final = ["flights", "departed", "mean_delay", "max_delay"]


@dataclass(frozen=True)
class Difference:
    """One wrong value; without `column` the number of rows with this key is wrong."""

    key: tuple[object, ...]
    column: str
    expected: object
    found: object


@dataclass(frozen=True)
class Comparison:
    """The result of one comparison: how much was compared, and the differences."""

    what: str
    rows: int
    values: int
    differences: tuple[Difference, ...]


def check(work: Layout, data: Input) -> list[Comparison]:
    """Compare both results, and the state of both queries, with the batch computation."""
    tails = expected_aircraft(data)
    hours = expected_hours(data)
    # Spark takes the watermark of the slower stream, and closes an hour at its end.
    watermark = min(data.flights["at"].max(), data.weather["at"].max()) - _HOUR
    is_closed = hours["hour"] + _HOUR <= watermark
    return [
        compare("aircraft, at the sink", tails, found_aircraft(work), ["tailnum"]),
        compare("aircraft, in the state", tails, state_of(work, "aircraft"), ["tailnum"]),
        compare("airport hours that are over, at the sink", hours[is_closed], found_hours(work), ["origin", "hour"]),
        compare(
            "airport hours still open, in the state",
            hours[~is_closed].drop(columns=_WEATHER),
            state_of(work, "airport_hours"),
            ["origin", "hour"],
        ),
    ]


def expected_aircraft(data: Input) -> pd.DataFrame:
    """One row for each tail number, with one for flights without."""
    departed = data.flights["dep_delay"].notna()
    rows = data.flights.assign(miles=data.flights["distance"].where(departed))
    return _delays(rows, ["tailnum"]).assign(
        miles=rows.groupby("tailnum", dropna=False)["miles"].sum(min_count=1).to_numpy()
    )


def expected_hours(data: Input) -> pd.DataFrame:
    """One row for each airport and hour with flights, with the weather where it is known."""
    weather = data.weather[["origin", "at", *_WEATHER]].rename(columns={"at": "hour"})
    flights = data.flights[["origin", "at", "dep_delay"]].rename(columns={"at": "hour"})
    return _delays(flights, ["origin", "hour"]).merge(weather, on=["origin", "hour"], how="left")


def _delays(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    delays = rows.groupby(keys, dropna=False)["dep_delay"]
    columns = zip(_DELAYS, (delays.size(), delays.count(), delays.mean(), delays.max()), strict=True)
    return pd.DataFrame(dict(columns)).reset_index()


def found_aircraft(work: Layout) -> pd.DataFrame:
    """The last row of every aircraft at the sink."""
    written = pd.read_parquet(work.outputs / "aircraft").sort_values("batch", kind="stable")
    return written.drop_duplicates("tailnum", keep="last")


def found_hours(work: Layout) -> pd.DataFrame:
    """All rows of the sink, which must have each hour once."""
    hours = pd.read_parquet(work.outputs / "airport_hours")
    return hours.assign(hour=hours["hour"].dt.tz_localize("UTC"))  # Spark writes UTC without a zone


def state_of(work: Layout, query: str) -> pd.DataFrame:
    """The rows that Spark's state reader found, by the column names of the results."""
    state = pd.read_parquet(work.states / query)
    state["mean_delay"] = state["sum"] / state["count"].where(state["count"] > 0)
    if "window" in state:
        state["hour"] = pd.to_datetime([window["start"] for window in state["window"]], utc=True)
    return state


def compare(what: str, expected: pd.DataFrame, found: pd.DataFrame, keys: Sequence[str]) -> Comparison:
    """Compare the columns of `expected`, row by row."""
    columns = [name for name in expected.columns if name not in keys]
    wanted, there = _rows(expected, keys, columns), _rows(found, keys, columns)
    differences = tuple(_differences(wanted, there, columns))
    return Comparison(what, len(wanted), len(wanted) * len(columns), differences)


_Rows = dict[tuple[object, ...], list[tuple[object, ...]]]


def _rows(frame: pd.DataFrame, keys: Sequence[str], columns: Sequence[str]) -> _Rows:
    """Rows by key, in a list, because a key may be there twice."""
    rows: _Rows = {}
    for row in frame[[*keys, *columns]].itertuples(index=False, name=None):
        values = tuple(None if pd.isna(value) else value for value in row)
        rows.setdefault(values[: len(keys)], []).append(values[len(keys) :])
    return rows


def _differences(wanted: _Rows, there: _Rows, columns: Sequence[str]) -> Iterator[Difference]:
    for key in [*wanted, *(key for key in there if key not in wanted)]:
        expected, found = wanted.get(key, []), there.get(key, [])
        if len(expected) != len(found):
            yield Difference(key, "", f"{len(expected)} rows", f"{len(found)} rows")
            continue
        for left, right in zip(expected, found, strict=True):
            for column, value, other in zip(columns, left, right, strict=True):
                if value != other:
                    yield Difference(key, column, value, other)
