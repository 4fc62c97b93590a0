"""Options with a fixed set of values, in a module of their own because the others take time to import."""

from __future__ import annotations

from enum import Enum


class Order(str, Enum):
    """The column by which operators are sorted: by name, or the largest first."""

    NAME = "name"
    VERSION = "version"
    LAG = "lag"
    ROWS = "rows"
    BATCH = "batch"
    CHANGES = "changes"
    UNITS = "units"
    DOLLARS = "dollars"
    COMMIT = "commit"
    THROTTLES = "throttles"
