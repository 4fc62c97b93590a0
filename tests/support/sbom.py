"""Lists of what an environment has, as CycloneDX: for `make sbom`, and its check by `make test-wheel`.

`python -m tests.support.sbom build/sbom/bin/python build` writes `build/dynastate-VERSION.cdx.json`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from tests.support.installed_wheel import Environment

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAM: Final = Path(sys.executable).with_name("cyclonedx-py")
#: The time of a list, as that of a wheel's files.
EPOCH: Final = "1767225600"
VERSION: Final = "import dynastate; print(dynastate.__version__)"
INSTALLED: Final = "from importlib.metadata import distributions; print(*(each.name for each in distributions()))"


def write_sbom(python: str, folder: Path, **variables: str) -> Path:
    """Write the list of the environment of an interpreter, which has the package, into a folder."""
    version = subprocess.run([python, "-c", VERSION], check=True, capture_output=True, text=True).stdout.strip()
    interpreter, output = Path(python).absolute(), folder.absolute() / f"dynastate-{version}.cdx.json"
    with tempfile.TemporaryDirectory() as scratch:
        project = Path(scratch) / "pyproject.toml"
        # cyclonedx-py does not know versions that a build finds.
        text = (ROOT / "pyproject.toml").read_text()
        project.write_text(re.sub(r"^dynamic = .*$", f'version = "{version}"', text, flags=re.MULTILINE))
        command: list[str | Path] = [PROGRAM, "environment", "--pyproject", project, "--mc-type", "library"]
        command += ["--output-reproducible", "--output-file", output, interpreter]
        environment = os.environ | {"SOURCE_DATE_EPOCH": EPOCH} | variables
        subprocess.run(command, check=True, cwd=scratch, env=environment)
    return output


def check_sbom(environment: Environment, folder: Path) -> None:
    """Two lists of an environment have the same bytes, and all that is installed; no path of the machine is in them."""
    documents = []
    for name, variables in (("one", {"TZ": "UTC"}), ("another", {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"})):
        (folder / name).mkdir(parents=True)
        documents.append(write_sbom(environment.python, folder / name, **variables).read_text())
    assert documents[0] == documents[1], "two lists differ"
    bom = json.loads(documents[0])
    listed = {canonicalize_name(each["name"]) for each in bom["components"]}
    installed = set(map(canonicalize_name, environment.run("python", "-c", INSTALLED).split()))
    assert listed == installed - {"dynastate"}, listed ^ installed
    about = bom["metadata"]["component"]
    assert (about["name"], about["version"]) == ("dynastate", environment.run("python", "-c", VERSION))
    assert about["licenses"][0]["license"]["id"] == "Apache-2.0"
    assert str(environment.place.parent) not in documents[0]
    print(f"the list of dependencies: {len(listed)} packages, the same bytes twice")


if __name__ == "__main__":
    print(write_sbom(sys.argv[1], Path(sys.argv[2])))
