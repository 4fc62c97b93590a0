"""File formats of an export, in a module of their own because the others take time to import."""

from __future__ import annotations

from enum import Enum


class Format(str, Enum):
    """The file format of an export."""

    PARQUET = "parquet"
    NDJSON = "ndjson"
