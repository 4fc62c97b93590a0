"""Time and chance that a test decides."""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass
class Clock:
    """Time that passes only by sleeping, and by `answer_s` at each look."""

    now: float = 0.0
    answer_s: float = 0.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        self.now += self.answer_s
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Longest(random.Random):
    """Chance that always takes the upper bound; `bounds` are those it was asked for."""

    def __init__(self) -> None:
        super().__init__(0)
        self.bounds: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        self.bounds.append((a, b))
        return b
