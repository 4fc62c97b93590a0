"""Checks of an engine that answers as DynamoDB.

Each check sends requests that dynastate depends on, for items of its own, and compares the answers. An engine that
fails a check loses or reorders writes, or answers differently from DynamoDB. A warning means that the engine does not
enforce a limit, which dynastate itself respects.
"""
