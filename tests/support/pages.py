"""Pages of the documentation, and the blocks of code on them."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *DOCS.rglob("*.md"),
        *ROOT.glob("*.md"),
        *(ROOT / "infra").glob("**/README.md"),
        ROOT / "benchmarks" / "README.md",
        ROOT / "examples" / "README.md",
    ]
)


def code(page: Path) -> list[tuple[str, str]]:
    """Blocks of code of a page with their language, dedented, continued lines joined."""
    blocks = re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [(language, textwrap.dedent(body).replace("\\\n", " ")) for _, language, body in blocks]
