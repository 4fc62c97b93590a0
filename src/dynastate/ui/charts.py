"""Places of bars in a chart; the template `chart.html` draws them as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

HEIGHT: Final = 80
#: Width of a chart, in the units of its own coordinates.
WIDTH: Final = 960
#: The widest that a bar is, and the least height of one that is not zero.
BAR_MAX: Final = 24
BAR_MIN: Final = 1.5


@dataclass(frozen=True)
class Bar:
    """One bar: its size, its kind (a class of the style sheet), what it is in words, and where it leads."""

    size: float
    kind: str
    title: str
    link: str = ""
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Placed:
    """A bar, and where it is."""

    bar: Bar
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Chart:
    """Bars side by side, the largest as high as the chart; `label` says in words what it shows."""

    label: str
    bars: Sequence[Bar]

    @property
    def width(self) -> int:
        return WIDTH

    @property
    def height(self) -> int:
        return HEIGHT

    @property
    def placed(self) -> list[Placed]:
        most = max((each.size for each in self.bars), default=0) or 1
        step = min(BAR_MAX, WIDTH / max(1, len(self.bars)))
        found = []
        for number, each in enumerate(self.bars):
            height = max(BAR_MIN, each.size / most * HEIGHT) if each.size else 0
            found.append(
                Placed(
                    each,
                    round(number * step, 2),
                    round(HEIGHT - height, 2),
                    round(max(1, step * 0.8), 2),
                    round(height, 2),
                )
            )
        return found
