"""Checks of an engine that answers as DynamoDB.

Each check does what dynastate depends on, with items of its own, and compares. One that fails loses or reorders writes,
or answers otherwise than DynamoDB; a warning is a limit that is not enforced, which dynastate keeps to by itself.
"""
