"""Erasing rows by their keys from all versions of a query's state (docs/decisions/0042)."""
