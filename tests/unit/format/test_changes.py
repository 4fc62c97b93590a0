"""Changes as records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynastate.errors import CorruptStateError
from dynastate.format.changes import FAMILY_MAX, MERGE, PUT, Change, decode_changes, encode_changes

KEYS = st.binary(max_size=40)
CHANGES = st.one_of(
    st.builds(Change, st.just(PUT), st.integers(0, FAMILY_MAX), KEYS, st.none() | st.binary(max_size=60)),
    st.builds(Change, st.just(MERGE), st.integers(0, FAMILY_MAX), KEYS, st.binary()),
)


@given(st.lists(CHANGES, max_size=8))
def test_round_trip(changes: list[Change]) -> None:
    assert list(decode_changes(encode_changes(changes))) == changes


@given(st.lists(CHANGES, min_size=1, max_size=4), st.data())
def test_cut_records_are_refused(changes: list[Change], data: st.DataObject) -> None:
    """Bytes that end within a record are refused, never read as fewer or shorter changes."""
    run = encode_changes(changes)
    ends = {len(encode_changes(changes[:count])) for count in range(len(changes) + 1)}
    at = data.draw(st.sampled_from(sorted(set(range(len(run))) - ends)))
    with pytest.raises(CorruptStateError, match="ends within"):
        list(decode_changes(run[:at]))


@pytest.mark.parametrize("value_length", [-2, -(2**31)])
def test_other_negative_lengths_are_refused(value_length: int) -> None:
    """-1 is the only negative length that means something."""
    run = bytes(2) + (1).to_bytes(4, "little") + value_length.to_bytes(4, "little", signed=True) + b"k"
    with pytest.raises(CorruptStateError, match="ends within a record"):
        list(decode_changes(run))
