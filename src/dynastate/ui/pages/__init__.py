"""A module for each view."""
