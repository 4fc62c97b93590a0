"""Spark Structured Streaming state in Amazon DynamoDB.

`configure` is what a PySpark program needs, `open_state` reads its state from anywhere; everything else is reached
through the command `dynastate`.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING

from dynastate.errors import DynastateError
from dynastate.settings import Settings
from dynastate.version import __version__

if TYPE_CHECKING:
    from dynastate.reader.follow import StateFollower
    from dynastate.reader.state import StateReader, open_state
    from dynastate.spark.configure import configure
    from dynastate.spark.exporting import export_metrics
    from dynastate.spark.transfer.export import export_checkpoint
    from dynastate.spark.transfer.importing import import_checkpoint
    from dynastate.spark.transfer.recovery import recover_checkpoint
    from dynastate.spark.transfer.repartition import repartition
    from dynastate.spark.transfer.rows import bootstrap, migrate

# A program that uses the package decides what to show of its log, as the sidecar does.
logging.getLogger("dynastate").addHandler(logging.NullHandler())

__all__ = [
    "DynastateError",
    "Settings",
    "StateFollower",
    "StateReader",
    "__version__",
    "bootstrap",
    "configure",
    "export_checkpoint",
    "export_metrics",
    "import_checkpoint",
    "migrate",
    "open_state",
    "recover_checkpoint",
    "repartition",
]


#: Public names by their modules. Only `spark` imports pyspark; the sidecar and the reader must start without it. What
#: `open_state` imports, boto3 among it, takes time that `configure` need not wait for.
_MODULES = {
    "StateFollower": "dynastate.reader.follow",
    "StateReader": "dynastate.reader.state",
    "bootstrap": "dynastate.spark.transfer.rows",
    "configure": "dynastate.spark.configure",
    "export_checkpoint": "dynastate.spark.transfer.export",
    "export_metrics": "dynastate.spark.exporting",
    "import_checkpoint": "dynastate.spark.transfer.importing",
    "migrate": "dynastate.spark.transfer.rows",
    "open_state": "dynastate.reader.state",
    "recover_checkpoint": "dynastate.spark.transfer.recovery",
    "repartition": "dynastate.spark.transfer.repartition",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'dynastate' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
