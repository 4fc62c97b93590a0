"""The rate at which a throttled table is written to: it follows what the table takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from dynastate import runtime

#: Units under way at first. The bound grows with what is taken, until the table throttles for the first time.
WINDOW_FIRST: Final = 500
#: No rate is lower, however often the table throttles: it must rise again when the table takes more.
RATE_MIN: Final = 100.0
#: A throttled request multiplies the rate by this.
DECREASE: Final = 0.75
#: While requests wait for the rate, it grows by this part of itself a second, and by `STEP_MAX` at most a request.
#: After `FASTER_S` without throttling it grows twice as fast, and so on, up to `FASTER_MAX` times.
GROWTH_S: Final = 0.5
STEP_MAX: Final = 0.1
FASTER_S: Final = 10.0
FASTER_MAX: Final = 4.0
#: What was not taken takes up this part of the time that it would have taken otherwise.
LOST: Final = 0.25
#: A request holds the units of this time, or one item; and all those under way the units of that time.
REQUEST_S: Final = 0.1
UNDER_WAY_S: Final = 0.25
#: The longest time from one request to the next.
SPACING_MAX_S: Final = 5.0
#: DynamoDB lets units that were not used be used later, for so long.
BURST_S: Final = 300.0


@dataclass
class Turn:
    """One request: the number of items that it may have, and their outcome."""

    count: int
    units: int
    begun: float
    has_waited: bool
    #: Units of the items that were written, or None if they are unknown for a reason other than throttling.
    units_written: int | None = None


class WriteRate:
    """The write units a second that one table takes, as far as is known: AIMD. Safe for threads.

    Until the table throttles there is no rate: only the units under way are bounded, by the units written so far. After
    that, requests are spaced. The first rate is the units written in the last second. The rate grows while requests
    wait for it, and falls when the table throttles.
    """

    def __init__(self, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        #: When the table last took anything.
        self.took_at = float("-inf")
        self._clock = clock
        self._sleep = sleep
        self._changed = runtime.condition()
        self._window: float = WINDOW_FIRST
        self._under_way = 0
        self._rate: float | None = None
        self._free_at = self._lowered_at = float("-inf")
        #: Units taken in the second that began then, and in the one before.
        self._second, self._units, self._previous_units = 0.0, 0, 0

    @contextmanager
    def turn(self, units: Sequence[int]) -> Iterator[Turn]:
        """Wait until a request with items of these units may be sent; at the end, learn from its answer."""
        with self._changed:
            has_waited = not self._has_room(units[0])
            self._changed.wait_for(lambda: self._has_room(units[0]))
            room = self._window - self._under_way if self._rate is None else self._rate * REQUEST_S
            count = max(1, sum(total <= room for total in accumulate(units)))
            turn = Turn(count, sum(units[:count]), 0.0, has_waited)
            self._under_way += turn.units
        while (pause_s := self._free_at - self._clock()) > 0:
            turn.has_waited = True
            self._sleep(pause_s)
        turn.begun = self._clock()
        try:
            yield turn
        finally:
            with self._changed:
                self._under_way -= turn.units
                if turn.units_written is not None:
                    time_s = self._clock()
                    self._count(turn.units_written, time_s)
                    if turn.units_written == turn.units:
                        self._all_taken(turn, time_s)
                    else:
                        self._throttled(turn, turn.units_written, time_s)
                self._changed.notify_all()

    def _has_room(self, units: int) -> bool:
        most = self._window if self._rate is None else self._rate * UNDER_WAY_S
        return not self._under_way or self._under_way + units <= most

    def _count(self, units: int, time_s: float) -> None:
        if units:
            self.took_at = time_s
        if time_s >= self._second + 1:
            self._previous_units = self._units if time_s < self._second + 2 else 0
            self._second, self._units = time_s, 0
        self._units += units

    def _all_taken(self, turn: Turn, time_s: float) -> None:
        if self._rate is None:
            self._window += turn.units
            return
        spacing_s = turn.units / self._rate
        self._free_at = max(self._free_at, time_s - BURST_S) + min(SPACING_MAX_S, spacing_s)
        if turn.has_waited:
            faster = min(FASTER_MAX, 1 + (time_s - self._lowered_at) / FASTER_S)
            self._rate *= 1 + faster * min(STEP_MAX, GROWTH_S * spacing_s)

    def _throttled(self, turn: Turn, units: int, time_s: float) -> None:
        rate = self._rate
        if rate is None or turn.begun >= self._lowered_at:  # else it was lowered for that time already
            recent = max(self._units, self._previous_units) if rate is None else rate
            rate = self._rate = max(RATE_MIN, DECREASE * recent)
            self._lowered_at = time_s
        spacing_s = (units + LOST * (turn.units - units)) / rate
        self._free_at = max(self._free_at, time_s) + min(SPACING_MAX_S, spacing_s)
