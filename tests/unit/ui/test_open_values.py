"""Values that stay open between requests: one user at a time, the oldest closed, nothing used that is closed."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from dynastate.ui.open_values import OPEN_MAX, OpenValues


class Value:
    """Something that knows whether it is closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        assert not self.is_closed, "twice"
        self.is_closed = True


def broken() -> Value:
    raise ZeroDivisionError


def fail_beside(values: OpenValues[Value], second: Thread) -> None:
    """Fail with a value for which another thread waits."""
    with values.use("a", Value):
        second.start()
        raise ZeroDivisionError


def test_a_key_keeps_its_value() -> None:
    values: OpenValues[Value] = OpenValues()
    with values.use("a", Value) as first:
        pass
    with values.use("a", Value) as second, values.use("b", Value) as other:
        assert (second is first, other is first) == (True, False)
    values.close()
    assert (first.is_closed, other.is_closed) == (True, True)


def test_what_was_not_used_for_longest_is_closed() -> None:
    """Except what is in use."""
    values: OpenValues[Value] = OpenValues()
    others = {}
    with values.use(0, Value) as used:
        for number in range(1, OPEN_MAX + 2):
            with values.use(number, Value) as others[number]:
                pass
        assert [number for number, each in others.items() if each.is_closed] == [1, 2]
        assert not used.is_closed
    values.close()


def test_what_fails_is_closed_and_made_again() -> None:
    values: OpenValues[Value] = OpenValues()
    with pytest.raises(ZeroDivisionError), values.use("a", Value) as failed:
        raise ZeroDivisionError
    assert failed.is_closed
    with values.use("a", Value) as value:
        assert value is not failed
    with pytest.raises(ZeroDivisionError), values.use("b", broken):
        pass
    with values.use("b", Value) as second:
        assert not second.is_closed
    values.close()


def test_one_user_at_a_time_and_others_do_not_wait() -> None:
    """A second user of a key waits for the first; one of another key does not."""
    values: OpenValues[Value] = OpenValues()
    entered = Event()

    def use() -> None:
        with values.use("a", Value):
            entered.set()

    with values.use("a", Value):
        second = Thread(target=use)
        second.start()
        with values.use("b", Value):
            assert not entered.wait(0.05)
    second.join(10)
    assert entered.is_set()
    values.close()


def test_who_waited_for_a_value_that_failed_gets_a_new_one() -> None:
    values: OpenValues[Value] = OpenValues()
    got: list[Value] = []

    def use() -> None:
        with values.use("a", Value) as value:
            got.append(value)

    second = Thread(target=use)
    with pytest.raises(ZeroDivisionError):
        fail_beside(values, second)
    second.join(10)
    assert [each.is_closed for each in got] == [False]
    values.close()
