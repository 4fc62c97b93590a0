"""Benchmarks run end to end on small input, and judge all their targets."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import harness_command
from tests.support.jvm import ROOT
from tests.unit.test_benchmarks import FOLDER, MET

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: Less than the test's timeout, with the time to build the jar.
WITHIN_S = 800
TINY = {
    "provider": "--rows 500 --updates 50 --batches 2 --warmup 1 --providers ours,hdfs --heap 256m",
    "growth": "--rows 500 --updates 50 --versions 40 --turns 1 --heap 256m",
    "beyond_memory": "--rows 500 --updates 50 --batches 2 --warmup 1 --turns 1 --heap 256m",
    "queries_beyond_memory": "--queries sessions --scale 0.02 --fill 0 --batches 1 --heap 512m "
    "--stores ours,rocksdb --memory-mb 1",
    "scale": "--stores 4 --rows 5 --threads 2 --commits 60 --turns 1 --heap 256m",
}
#: Targets of queries and of a size that are not run here.
OMITTED = re.compile("^PySpark (?!sessions)|^5,000,000 rows|.*20,000,000 rows")
#: The sizes of these runs, and those of the targets.
SIZES = {"500 rows": "1,000,000 rows", "4 stores of 5 rows, 2 threads": "400 stores of 20 rows, 8 threads"}
#: The figures of each benchmark that its `targets` get.
JUDGED: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "provider": lambda figures: (figures,),
    "growth": lambda figures: (figures["small"], figures["small"]["recovery"], figures["large"]),
    "beyond_memory": lambda figures: (figures,),
    "queries_beyond_memory": lambda figures: (figures,),
    "scale": lambda figures: (figures,),
}


@pytest.fixture
def results() -> Iterator[Path]:
    """A folder of the checkout for results, so that a developer's own stay."""
    (ROOT / "build").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="benchmarks-", dir=ROOT / "build"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", TINY)
def test_a_benchmark_runs_end_to_end(
    name: str, results: Path, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its results have all targets, met or not; no file is left behind."""
    monkeypatch.syspath_prepend(FOLDER)
    targets = importlib.import_module(name).targets
    completed = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *TINY[name].split()],
        env=environment
        | {"BENCHMARK_RESULTS": str(results.relative_to(ROOT)), "TMPDIR": str(tmp_path)}
        | {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    output = completed.stdout + completed.stderr
    assert "Traceback" not in output, output
    assert completed.returncode in (0, 1), output
    assert f"kept in {results.relative_to(ROOT)}/{name}.json" in output
    result = json.loads((results / f"{name}.json").read_text())
    assert result["targets"] == [target.as_json for target in targets(*JUDGED[name](result["figures"]))]
    assert not any(each["measured"] is None for each in result["targets"])
    texts = [target.text for target in targets(*MET[name]) if not OMITTED.match(target.text)]
    figures = [re.sub("|".join(SIZES), lambda size: SIZES[size[0]], each["figure"]) for each in result["targets"]]
    assert figures == texts
    assert completed.returncode == (0 if all(each["verdict"] == "PASS" for each in result["targets"]) else 1)
    assert list(tmp_path.iterdir()) == []


def test_the_benchmarks_in_jmh_run(tmp_path: Path) -> None:
    """Each with few rows, once; no file is left behind."""
    small = ["-p", "rows=50000", "-f", "1", "-wi", "0", "-i", "1", "-r", "1ms", "-foe", "true"]
    results = tmp_path / "results.json"
    options = [*small, "-jvmArgsPrepend", f"-Djava.io.tmpdir={tmp_path}", "-rf", "json", "-rff", str(results)]
    command = harness_command("jmh", FOLDER / "jmh", options)
    completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    names = {each["benchmark"].rpartition(".")[2] for each in json.loads(results.read_text())}
    assert names == {"get", "put", "fold", "load"}
    assert list(tmp_path.iterdir()) == [results]
