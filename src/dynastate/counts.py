"""Counts in texts for people."""

from __future__ import annotations


def plural(number: int, noun: str) -> str:
    """A number with its noun, which is given in the singular."""
    ending = "es" if noun.endswith(("ch", "sh", "s", "x")) else "s"
    return f"{number:,} {noun}" + ("" if number == 1 else ending)
