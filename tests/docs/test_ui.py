"""Numbers on the page about the page are those of its code."""

from __future__ import annotations

import pytest

from dynastate.ui.app import PULSE_S
from dynastate.ui.cursor import BUDGET_S, KEPT, KEPT_BYTES, PAGE_ROWS
from dynastate.ui.open_values import OPEN_MAX
from dynastate.ui.pages.compare import COMPARED_BYTES
from dynastate.ui.pages.operator import REFRESH_S
from dynastate.ui.site import CACHE_MB, NAMESPACES_S, NAMESPACES_UNIT_S
from dynastate.ui.watch import (
    FIRST_BATCH_S,
    LOADS_OF_A_VERSION,
    LOADS_S,
    LOOK_DEADLINE_S,
    LOOK_S,
    OLD_S,
    STOPPED_MIN_S,
    STOPPED_TIMES,
    STORES_S,
    WAIT_S,
)
from tests.support.pages import DOCS

WORDS = {0.5: "half a", 1: "a", 2: "twice", 3: "three"}


@pytest.mark.parametrize(
    "sentence",
    [
        f"the last commit was more than {STOPPED_MIN_S:g} seconds, and more than {WORDS[STOPPED_TIMES]} of its batches",
        f"the last look that DynamoDB has answered is more than {OLD_S:g} seconds old",
        f"looks again if the last look is more than {LOOK_S:g} seconds old, and waits for it",
        f"but no longer than {WAIT_S:g} seconds",
        f"Queries and Health are read again every {LOOK_S:g} seconds, Operator every {REFRESH_S:g}",
        f"ask every {PULSE_S:g} seconds whether DynamoDB still answers",
        f"looks fail after {WORDS[LOOK_DEADLINE_S]} second or so",
        f"every {FIRST_BATCH_S:g} seconds during the first batch, else every {STORES_S / 60:g} minutes",
        f"every {LOADS_S:g} seconds at most, and at most {WORDS[LOADS_OF_A_VERSION]} for each of its versions",
        f"every {NAMESPACES_S:g} seconds, or less often: after as many seconds as it took read units",
        f"{PAGE_ROWS} on a page",
        f"reads on by itself, {WORDS[BUDGET_S]} second at a time",
        f"A result keeps {KEPT:,} rows, of which up to {KEPT_BYTES >> 20} MiB are in memory",
        f"{ {8: 'Eight'}[OPEN_MAX] } results and eight readers stay open, each reader with a cache of {CACHE_MB} MiB",
        f"up to {COMPARED_BYTES >> 20} MiB of changes",
    ],
)
def test_the_page_of_the_page_has_its_numbers(sentence: str) -> None:
    assert NAMESPACES_UNIT_S == 1
    assert sentence in (DOCS / "ui.md").read_text()
