"""The version of this package: the only place that has it."""

from __future__ import annotations

__version__ = "0.2.0"
