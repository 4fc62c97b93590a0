"""What a benchmark has to reach, and how that is shown and kept."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
#: What is kept. Another folder of the checkout is for runs that are not to replace what was measured.
RESULTS = ROOT / os.environ.get("BENCHMARK_RESULTS", "build/benchmarks")


@dataclass(frozen=True)
class Target:
    """One figure and the most it may be, in the same unit: a ratio, or what the text names."""

    text: str
    measured: float
    limit: float

    @property
    def met(self) -> bool:
        return self.measured <= self.limit

    @property
    def as_json(self) -> dict[str, Any]:
        # JSON has no "not a number", which is what could not be measured.
        measured = self.measured if math.isfinite(self.measured) else None
        return {"figure": self.text, "measured": measured, "at_most": self.limit, "verdict": self.verdict}

    @property
    def verdict(self) -> str:
        return "PASS" if self.met else "FAIL"


def console() -> Console:
    """Standard output: as wide as the terminal, or wide enough for the tables where there is none."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=120)


def finish(
    out: Console,
    name: str,
    options: dict[str, Any],
    figures: dict[str, Any],
    targets: Sequence[Target],
    *,
    unjudged: str = "",
) -> NoReturn:
    """Print a line for each target, or `unjudged`; keep all in <name>.json; exit with 1 if a target is missed."""
    table = Table()
    table.add_column("figure")
    for heading in ("measured", "at most"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for target in targets:
        table.add_row(target.text, f"{target.measured:.3g}", f"{target.limit:g}", target.verdict)
    out.print(table if targets else unjudged)
    out.print(f"kept in {save(name, options, figures, targets).relative_to(ROOT)}")
    sys.exit(0 if all(target.met for target in targets) else 1)


def save(name: str, options: dict[str, Any], figures: dict[str, Any], targets: Sequence[Target]) -> Path:
    """Write what was asked, found and judged to <name>.json of the results; returns the file."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / f"{name}.json"
    content = {
        "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": {"cpus": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "asked": options,
        "figures": figures,
        "targets": [target.as_json for target in targets],
    }
    file.write_text(json.dumps(content, indent=2) + "\n")
    return file
