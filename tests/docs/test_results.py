"""Results of benchmarks: the table of benchmarks/README.md against the files beside it."""

from __future__ import annotations

import json

import pytest

from tests.support.pages import ROOT

FOLDER = ROOT / "benchmarks"
STORES = ("dynastate", "HDFS-backed", "RocksDB", "RocksDB with changelog")
FILES = sorted((FOLDER / "results").glob("*.json"))
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (FOLDER / "README.md").read_text().splitlines()
    if line.startswith("| [")
]


def shown(value: float | list[float]) -> str:
    """A value as the table has it: several runs after one another."""
    return ", ".join(f"{each:,}" for each in (value if isinstance(value, list) else [value]))


@pytest.mark.parametrize("name", [file.name for file in FILES])
def test_table_has_the_results_of_the_file(name: str) -> None:
    results = json.loads((FOLDER / "results" / name).read_text())
    expected = []
    for figure, values in results["figures"].items():
        ours, *others = [shown(values[store]) if store in values else "" for store in STORES]
        variants = "; ".join(f"{key}: {shown(value)}" for key, value in values.items() if key not in STORES)
        expected.append([figure, ours, variants, *others])
    rows = [row for row in ROWS if f"(results/{name})" in row[0]]
    assert [row[1:-1] for row in rows] == expected
    assert {row[-1].partition(",")[0] for row in rows} == {results["date"]}
    assert {"idle" in row[-1] for row in rows} == {"idle" in results["machine"]}


def test_every_row_names_a_file() -> None:
    assert FILES
    assert len(ROWS) == sum(len(json.loads(file.read_text())["figures"]) for file in FILES)
