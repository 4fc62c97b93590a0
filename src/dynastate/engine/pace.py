"""The pace of work in the background, which yields to commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dynastate import runtime

#: While commits are under way, or the table throttles, a snapshot pauses after each request. A pause is this multiple
#: of the time of work since the last pause, up to a bound.
PAUSE: Final = 2.0
PAUSE_MAX_S: Final = 10.0
#: The time between two checks in a pause whether commits are still under way.
LOOK_S: Final = 0.05


class Pace:
    """Lets work in the background yield to commits, and to a table that throttles. `clock` and `sleep` are in seconds.

    `is_busy` says whether commits are under way.
    """

    def __init__(
        self,
        is_busy: Callable[[], bool],
        clock: Callable[[], float] = runtime.monotonic,
        sleep: Callable[[float], None] = runtime.sleep,
    ) -> None:
        self._is_busy = is_busy
        self._clock = clock
        self._sleep = sleep
        self._since_s = clock()

    def pause(self, *, is_throttled: bool) -> None:
        """Pause for `PAUSE` times the time since the last pause, or the beginning, while there is a reason."""
        time_s = self._clock()
        end_s = time_s + min(PAUSE_MAX_S, PAUSE * (time_s - self._since_s))
        while (pause_s := end_s - self._clock()) > 0 and (is_throttled or self._is_busy()):
            self._sleep(min(LOOK_S, pause_s))
        self._since_s = self._clock()
