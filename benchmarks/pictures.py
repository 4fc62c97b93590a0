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
LABELS: Final = 200
SCALE: Final = 450
COLORS: Final = {"dynastate": "#2f6fde", "HDFS-backed": "#9aa3b2", "RocksDB with changelog": "#c98a3b"}
ROWS: Final = ("whole batch, ms", "open, ms", "commit, ms", "cold open, fresh process, ms")


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
    """Bars of the provider's figures, as benchmarks/results has them."""
    lines, y = [], 56
    for row in ROWS:
        lines.append(f'<text x="{LABELS - 12}" y="{y + 30}" text-anchor="end">{escape(row)}</text>')
        most = max(figures[row].values())
        for store, value in figures[row].items():
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
        x += 150
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
    (IMAGES / f"{which}.svg").write_text(record() if which == "demo" else draw(newest("provider")["figures"]))


if __name__ == "__main__":
    main()
