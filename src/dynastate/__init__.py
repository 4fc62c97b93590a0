"""Spark Structured Streaming state in Amazon DynamoDB.

`configure` is what a PySpark program needs; everything else is reached through the command `dynastate`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dynastate.errors import DynastateError
from dynastate.settings import Settings

if TYPE_CHECKING:
    from dynastate.spark import configure

__version__ = "0.1.0"

# What to show of our log is for whoever uses the package to say, as the sidecar does.
logging.getLogger("dynastate").addHandler(logging.NullHandler())

__all__ = ["DynastateError", "Settings", "__version__", "configure"]


def __getattr__(name: str) -> object:
    # `configure` lives in the only module that imports pyspark; the sidecar and the reader must start without it.
    if name == "configure":
        from dynastate.spark import configure

        return configure
    raise AttributeError(f"module 'dynastate' has no attribute {name!r}")
