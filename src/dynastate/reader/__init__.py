"""Committed state from plain Python, Arrow and pandas."""
