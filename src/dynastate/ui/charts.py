"""Places of bars in a chart; the template `chart.html` draws them as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

HEIGHT: Final = 80
#: Width of a chart, in the units of its own coordinates.
WIDTH: Final = 960
#: The greatest width of a bar, and the least height of a bar above zero.
BAR_MAX: Final = 24
BAR_MIN: Final = 1.5


@dataclass(frozen=True)
class Bar:
    """One bar: its size, its kind (a class of the style sheet), its title, and its link."""

    size: float
    kind: str
    title: str
    link: str = ""
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Placed:
    """A bar and its place."""

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
    width: ClassVar[int] = WIDTH
    height: ClassVar[int] = HEIGHT

    @property
    def placed(self) -> list[Placed]:
        most = max((each.size for each in self.bars), default=0) or 1
        step = min(BAR_MAX, WIDTH / max(1, len(self.bars)))
        bars = []
        for number, bar in enumerate(self.bars):
            height = max(BAR_MIN, bar.size / most * HEIGHT) if bar.size else 0
            bars.append(
                Placed(
                    bar,
                    x=round(number * step, 2),
                    y=round(HEIGHT - height, 2),
                    width=round(max(1, step * 0.8), 2),
                    height=round(height, 2),
                )
            )
        return bars
