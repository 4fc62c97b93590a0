"""Smaller limits for a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dynastate import runtime


def set_limits(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    """Give the engine these limits until the test ends."""
    changed = replace(runtime._runtime, limits=replace(runtime.limits(), **limits))
    monkeypatch.setattr(runtime, "_runtime", changed)
