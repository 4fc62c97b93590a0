"""Pictures of the front page: `pictures.py demo` records the demo, `pictures.py figures` draws the figures."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"
IMAGES: Final = ROOT / "docs" / "images"
WIDTH: Final = 88
LABELS: Final = 300
SCALE: Final = 380
COLORS: Final = {"dynastate": "#2f6fde", "RocksDB with changelog": "#c98a3b", "no store": "#9aa3b2"}
#: The label of each figure that is drawn.
ROWS: Final = {
    "aggregation-64: batch, median, ms": "aggregation: batch, ms",
    "aggregation-64: part of state in it, ms": "aggregation: part of state, ms",
    "join-64: batch, median, ms": "join: batch, ms",
    "join-64: part of state in it, ms": "join: part of state, ms",
    "restart-mid-interval: part of state in it, ms": "first batch after a restart: part of state, ms",
}


def record() -> str:
    """Run `dynastate demo`, and give what a terminal shows at the end as SVG.

    Raises:
        subprocess.CalledProcessError: The demo failed.
    """
    environment = os.environ | {"COLUMNS": str(WIDTH), "TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "0"}
    command = [str(Path(sys.executable).with_name("dynastate")), "demo"]
    process = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123  # nowhere
    console.print(Text("$ make demo", style="bold"))
    console.print(Text.from_ansi(process.stdout))
    svg = console.export_svg(title="dynastate", unique_id="demo")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # fonts of another host


def draw(figures: Mapping[str, Mapping[str, float]]) -> str:
    """Bars of the figures at a distance, as benchmarks/results has them, all at one scale."""
    lines, y = [], 56
    most = max(value for row in ROWS for value in figures[row].values())
    for row, label in ROWS.items():
        lines.append(f'<text x="{LABELS - 12}" y="{y + 24}" text-anchor="end">{escape(label)}</text>')
        for store in (store for store in COLORS if store in figures[row]):
            value = figures[row][store]
            length = max(2, round(value / most * SCALE))
            lines.append(f'<rect x="{LABELS}" y="{y}" width="{length}" height="16" rx="2" fill="{COLORS[store]}"/>')
            text = f"{value:,.1f}".removesuffix(".0")
            lines.append(f'<text x="{LABELS + length + 6}" y="{y + 13}">{text}</text>')
            y += 19
        y += 14
    x = LABELS
    for store, color in COLORS.items():
        lines.append(f'<rect x="{x}" y="20" width="12" height="12" rx="2" fill="{color}"/>')
        lines.append(f'<text x="{x + 18}" y="31">{escape(store)}</text>')
        x += 185
    size = f'width="760" height="{y + 6}" viewBox="0 0 760 {y + 6}"'
    style = "text { font: 13px system-ui, sans-serif; fill: #24292f }"
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return "\n".join(
        [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<style>{style}</style>", background, *lines, "</svg>\n"]
    )


def newest(benchmark: str) -> dict[str, Any]:
    """The newest results of a benchmark."""
    results: dict[str, Any] = json.loads(max(RESULTS.glob(f"*-{benchmark}.json")).read_text())
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=["demo", "figures"])
    which = parser.parse_args().which
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / f"{which}.svg").write_text(record() if which == "demo" else draw(newest("distance")["figures"]))


if __name__ == "__main__":
    main()
