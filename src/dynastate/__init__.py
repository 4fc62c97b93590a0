"""Spark Structured Streaming state in Amazon DynamoDB.

`configure` is what a PySpark program needs, `open_state` reads its state from anywhere; everything else is reached
through the command `dynastate`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from dynastate.errors import DynastateError
from dynastate.settings import Settings

if TYPE_CHECKING:
    from dynastate.reader.state import StateReader, open_state
    from dynastate.spark.configure import configure
    from dynastate.spark.exporting import export_metrics
    from dynastate.spark.importing import import_checkpoint

__version__ = "0.2.0"

# What to show of our log is for whoever uses the package to say, as the sidecar does.
logging.getLogger("dynastate").addHandler(logging.NullHandler())

__all__ = [
    "DynastateError",
    "Settings",
    "StateReader",
    "__version__",
    "configure",
    "export_metrics",
    "import_checkpoint",
    "open_state",
]


def __getattr__(name: str) -> object:
    # `configure` lives in the only module that imports pyspark; the sidecar and the reader must start without it. What
    # `open_state` imports, boto3 among it, takes time that `configure` need not wait for.
    if name == "configure":
        from dynastate.spark.configure import configure

        return configure
    if name == "export_metrics":
        from dynastate.spark.exporting import export_metrics

        return export_metrics
    if name == "import_checkpoint":
        from dynastate.spark.importing import import_checkpoint

        return import_checkpoint
    if name in ("StateReader", "open_state"):
        from dynastate.reader import state

        return getattr(state, name)
    raise AttributeError(f"module 'dynastate' has no attribute {name!r}")
