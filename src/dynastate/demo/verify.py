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
    actual: object


@dataclass(frozen=True)
class Comparison:
    """The result of one comparison: how much was compared, and the differences."""

    subject: str
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
        compare("aircraft, at the sink", tails, sink_aircraft(work), ["tailnum"]),
        compare("aircraft, in the state", tails, state_of(work, "aircraft"), ["tailnum"]),
        compare("airport hours that are over, at the sink", hours[is_closed], sink_hours(work), ["origin", "hour"]),
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


def sink_aircraft(work: Layout) -> pd.DataFrame:
    """The last row of every aircraft at the sink."""
    rows = pd.read_parquet(work.outputs / "aircraft").sort_values("batch", kind="stable")
    return rows.drop_duplicates("tailnum", keep="last")


def sink_hours(work: Layout) -> pd.DataFrame:
    """All rows of the sink, which must have each hour once."""
    hours = pd.read_parquet(work.outputs / "airport_hours")
    return hours.assign(hour=hours["hour"].dt.tz_localize("UTC"))  # Spark writes UTC without a zone


def state_of(work: Layout, query: str) -> pd.DataFrame:
    """The rows of Spark's state reader, by the column names of the results."""
    state = pd.read_parquet(work.states / query)
    state["mean_delay"] = state["sum"] / state["count"].where(state["count"] > 0)
    if "window" in state:
        state["hour"] = pd.to_datetime([window["start"] for window in state["window"]], utc=True)
    return state


def compare(subject: str, expected: pd.DataFrame, actual: pd.DataFrame, keys: Sequence[str]) -> Comparison:
    """Compare the columns of `expected`, row by row."""
    columns = [name for name in expected.columns if name not in keys]
    expected_rows, actual_rows = _rows(expected, keys, columns), _rows(actual, keys, columns)
    differences = tuple(_differences(expected_rows, actual_rows, columns))
    return Comparison(subject, len(expected_rows), len(expected_rows) * len(columns), differences)


_Rows = dict[tuple[object, ...], list[tuple[object, ...]]]


def _rows(frame: pd.DataFrame, keys: Sequence[str], columns: Sequence[str]) -> _Rows:
    """Rows by key, in a list, because a key may be there twice."""
    rows: _Rows = {}
    for row in frame[[*keys, *columns]].itertuples(index=False, name=None):
        values = tuple(None if pd.isna(value) else value for value in row)
        rows.setdefault(values[: len(keys)], []).append(values[len(keys) :])
    return rows


def _differences(expected_rows: _Rows, actual_rows: _Rows, columns: Sequence[str]) -> Iterator[Difference]:
    for key in [*expected_rows, *(key for key in actual_rows if key not in expected_rows)]:
        expected, actual = expected_rows.get(key, []), actual_rows.get(key, [])
        if len(expected) != len(actual):
            yield Difference(key, "", f"{len(expected)} rows", f"{len(actual)} rows")
            continue
        for expected_row, actual_row in zip(expected, actual, strict=True):
            for column, value, other in zip(columns, expected_row, actual_row, strict=True):
                if value != other:
                    yield Difference(key, column, value, other)
