"""Stored bytes and values: keys, items, codec, changes, version list, snapshot manifest, version graph. No I/O."""
