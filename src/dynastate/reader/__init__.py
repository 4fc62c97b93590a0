"""Committed state from plain Python, Arrow, pandas and SQL."""
