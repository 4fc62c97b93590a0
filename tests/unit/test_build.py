"""The script that builds the bridge: the Sparks that it takes, and the next one that a registry has."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build", ROOT / "jvm-bridge" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a registry with pyspark, without a version of it yet."""
    folder = tmp_path / "registry" / "pyspark"
    folder.mkdir(parents=True)
    monkeypatch.setenv("UV_DEFAULT_INDEX", folder.parent.as_uri())
    monkeypatch.setenv("UV_NO_CACHE", "1")
    return folder


def release(registry: Path, version: str) -> None:
    """Put a version of pyspark, with nothing in it, into the registry."""
    with zipfile.ZipFile(registry / f"pyspark-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in {
            "METADATA": f"Metadata-Version: 2.1\nName: pyspark\nVersion: {version}\n",
            "WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "RECORD": "",
        }.items():
            wheel.writestr(f"pyspark-{version}.dist-info/{name}", text)
    links = [f'<a href="{each.name}">{each.name}</a>' for each in sorted(registry.glob("*.whl"))]
    (registry / "index.html").write_text("\n".join(links))


@pytest.mark.parametrize(
    ("released", "expected"), [("4.4.0.dev2", "4.4.0.dev2"), ("4.3.1", "4.3.1"), ("4.2.0.dev9", None)]
)
def test_next_spark(
    build: ModuleType, registry: Path, released: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pre-release or release after the newest supported one is the next; an older one is not."""
    monkeypatch.setattr(build, "SPARKS", {"4.2": "4.2.1", "4.3": "4.3.0"})
    for version in ("4.1.4", "4.3.0", released):
        release(registry, version)
    assert build.next_spark() == expected


def test_registry_without_the_newest_spark(build: ModuleType, registry: Path) -> None:
    """A registry that lacks what is supported is an error, not the news that there is no next one."""
    release(registry, "4.1.4")
    with pytest.raises(SystemExit, match="uv failed at pip compile"):
        build.next_spark()


def test_newer_minor_is_built(build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark that is not supported yet is taken, and one that is not supported any more is refused."""
    monkeypatch.setattr("pyspark.__version__", "4.4.0.dev2")
    assert build.pyspark()[0] == "4.4"
    monkeypatch.setattr("pyspark.__version__", "3.4.1")
    with pytest.raises(SystemExit, match=r"pyspark 3\.4\.1 is installed; the bridge is for Spark 3\.5"):
        build.pyspark()
