"""Install a wheel alone into a clean environment, and use it from there: `dynastate jar`, a short demo, the releases.

    python -m tests.support.installed_wheel dist/dynastate-*.whl
    python -m tests.support.installed_wheel 4.1 dist/dynastate-*.whl          with jars for 4.1 and the newest Spark
    python -m tests.support.installed_wheel --pythons dist/dynastate-*.whl    queries on each Python of this machine

Dependencies come from the package index, and no path leads into the checkout. `make test-wheel` builds the
wheel first. It also ships an environment to an executor, tries the image file, and lists dependencies.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from dynastate.spark.jar import MINORS, jar_name
from tests.support.sbom import check_sbom
from tests.support.shipped_environment import check_image, run_from_archive

ROOT = Path(__file__).resolve().parents[2]
DEMO_DEADLINE_S = 900
#: The version that was released last, which the package index has. None: there is none yet, so the wheel that is tested
#: takes both parts, and only the steps are tested. docs/releasing.md says when to set it.
LAST_RELEASE: Final[str | None] = None
QUERIES: Final = Path(__file__).with_name("continued_queries.py")
#: Minors of Python 3 that the wheel is tried on, and where pyenv keeps those that are not on the path.
PYTHONS: Final = range(10, 15)
PYENV: Final = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
#: What `constraints.txt` pins is for these.
PINNED: Final = range(11, 15)
#: `dynastate demo` on two weeks of flights in place of a year.
SHORT_DEMO: Final = """
from pathlib import Path
from rich.console import Console
from dynastate.demo import flights, play
from dynastate.demo.process import Layout
play._PICKY_S = 3.0  # there are few batches: kill in the next one
Path("demo").mkdir()
play.play(Layout(Path("demo").resolve()), flights.load(14), 2, Console())
"""
#: Input of the queries, a file a batch and two for each turn: users with amounts.
FILES: Final = (
    [("ann", 1), ("bob", 2)],
    [("ann", 3)],
    [("cid", 4), ("ann", 5)],
    [("bob", -2), ("cid", 0), ("dan", 7)],
    [("eve", 8), ("bob", 9)],
    [("ann", 10), ("fay", 2**40)],
)


class Environment:
    """A virtual environment in a folder of its own. Its programs see no path into the checkout."""

    def __init__(self, folder: Path, name: str, *options: str, by: str = sys.executable) -> None:
        self._folder = folder
        self.place = folder / name
        subprocess.run([by, "-m", "venv", *options, self.place], check=True)
        self.python = str(self.place / "bin" / "python")
        variables = {name: os.environ[name] for name in ("JAVA_HOME", "LANG", "TERM") if name in os.environ}
        path = f"{self.place / 'bin'}:{os.environ['PATH']}"
        self.variables = variables | {"PATH": path, "HOME": str(folder)}

    def run(self, *command: str, **more: str) -> str:
        """What a command prints, without the newline at its end."""
        completed = subprocess.run(
            command,
            cwd=self._folder,
            env=self.variables | more,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            timeout=DEMO_DEADLINE_S,
        )
        assert completed.returncode == 0, (
            f"{' '.join(command)} ended with {completed.returncode}: {completed.stdout[-4000:]}"
        )
        return completed.stdout.strip()

    def install(self, *what: str, pinned: bool = True) -> None:
        options = ["--constraint", str(ROOT / "constraints.txt")] if pinned else []
        install = [sys.executable, str(ROOT / "jvm-bridge" / "build.py"), "--install", self.python]
        subprocess.run([*install, *options, *what], cwd=self._folder, check=True)

    @property
    def packages(self) -> Path:
        (folder,) = self.place.glob("lib/python*/site-packages")
        return folder

    def check_package(self) -> Path:
        """The folder of the package that programs import here."""
        package = Path(self.run("python", "-c", "import dynastate; print(dynastate.__file__)")).parent
        assert package.is_relative_to(self.place), f"dynastate is used from {package}"
        return package


def main(wheel: Path, older: Sequence[str]) -> None:
    version = wheel.name.split("-")[1]
    names = [jar_name(minor) for minor in (*(older or MINORS[:-1]), MINORS[-1])]
    with zipfile.ZipFile(wheel) as archive:
        shipped = sorted(Path(name).name for name in archive.namelist() if name.endswith(".jar"))
    assert shipped == names, f"the wheel has {shipped}"

    with tempfile.TemporaryDirectory(prefix="dyn-") as scratch:
        folder = Path(scratch)
        new = Environment(folder, "clean")
        new.install(f"{wheel.resolve()}[demo]")
        package = new.check_package()
        assert new.run("dynastate", "--version").endswith(version)
        assert new.run("dynastate", "jar") == str(package / "jars" / names[-1])
        # With another pyspark first on the path.
        for name in names[:-1]:
            minor = name.split("-")[2].split("_")[0]
            (other,) = (ROOT / "build" / f"spark-{minor}").glob("lib/python*/site-packages")
            jar = new.run("dynastate", "jar", PYTHONPATH=str(other))
            assert jar == str(package / "jars" / name), f"for Spark {minor} the jar is {jar}"
        shown = new.run("python", "-c", SHORT_DEMO)
        assert shown.count(": equal") == 4, shown
        print(shown)
        continue_queries(last_release(folder, new, wheel), new, folder)
        ship(wheel, new, folder / "ship")
        image = Environment(folder, "image")
        check_image(wheel, image, Environment(folder, "lint"), folder / "image-root", minor="".join(older[:1]))
        print("the image file: its step runs, and hadolint finds nothing")
        check_sbom(image, folder / "sbom")


def ship(wheel: Path, driver: Environment, folder: Path) -> None:
    """Run the queries on an executor that has only the Python of a packed environment."""
    write_input(folder, range(2))
    with embedded_dynamodb(driver) as where:
        output = run_from_archive(wheel, driver, folder, shlex.join([str(QUERIES), "run", str(folder)]), where)
    totals = expected(FILES[:2])
    assert json.loads(output) == totals, output
    print("queries on an executor with the packed environment: every value is equal")


def on_each_python(wheel: Path) -> None:
    """Run queries, and read their state, on each Python that this machine has."""
    for minor in PYTHONS:
        interpreter = find_python(minor)
        if interpreter is None:
            print(f"Python 3.{minor}: not on this machine, not tried", flush=True)
            continue
        with tempfile.TemporaryDirectory(prefix="dyn-") as scratch:
            new = Environment(Path(scratch), "clean", by=interpreter)
            new.install(f"{wheel.resolve()}[demo]", pinned=minor in PINNED)
            new.check_package()
            versions = "import platform, pyspark; print(platform.python_version(), pyspark.__version__)"
            spark = new.run("python", "-c", versions)
            print("Python {}, PySpark {}:".format(*spark.split()), end=" ", flush=True)
            continue_queries(new, new, Path(scratch))


def find_python(minor: int) -> str | None:
    """An interpreter of Python 3.`minor`: on the path, or of pyenv, whose commands on the path do not always run."""
    name = f"python3.{minor}"
    for interpreter in (shutil.which(name), *map(str, sorted(PYENV.glob(f"3.{minor}.*/bin/{name}")))):
        if (
            interpreter
            and subprocess.run([interpreter, "-c", ""], stderr=subprocess.DEVNULL, check=False).returncode == 0
        ):
            return interpreter
    return None


def last_release(folder: Path, new: Environment, wheel: Path) -> Environment:
    """An environment with the last release, and for all else, PySpark included, the packages of the new one."""
    last = Environment(folder, "last", "--without-pip")
    requirement = f"dynastate=={LAST_RELEASE}" if LAST_RELEASE else str(wheel.resolve())
    last.install("--no-deps", requirement)
    (last.packages / "shared.pth").write_text(f"{new.packages}\n")
    last.check_package()
    if LAST_RELEASE:
        assert last.run("dynastate", "--version").endswith(LAST_RELEASE)
    return last


def continue_queries(last: Environment, new: Environment, folder: Path) -> None:
    """Begin queries with the last release, continue them with the new one, and again with the last.

    After each turn both releases read the state, and find nothing wrong. Each turn but the first finds a snapshot that
    the other release has made.
    """
    with embedded_dynamodb(new) as where:
        for turn, by in enumerate((last, new, last), 1):
            files = FILES[: 2 * turn]
            write_input(folder, range(len(files) - 2, len(files)))
            first_totals, totals = expected(FILES[: 2 * turn - 2]), expected(files)
            answer = json.loads(by.run("python", str(QUERIES), "run", str(folder), **where).splitlines()[-1])
            firsts = sorted({*totals["firsts"]} - {*first_totals["firsts"]})
            assert answer == totals | {"firsts": firsts}, f"turn {turn}: {answer}"
            for reader in (last, new):
                state = json.loads(reader.run("python", str(QUERIES), "read", **where))
                assert state == totals, f"turn {turn}, by {reader.place.name}: {state}"
                for name in ("totals", "firsts"):
                    reader.run("dynastate", "verify", f"{name}/0/0/default", **where)
            by.run("dynastate", "compact", "totals/0", **where)
    print(f"queries of {LAST_RELEASE or 'this wheel'} continue, and back: every value is equal")


def write_input(folder: Path, numbers: range) -> None:
    """Write files of `FILES`, from which the queries read."""
    place = folder / "in"
    place.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        lines = [json.dumps({"user": user, "amount": amount}) for user, amount in FILES[number]]
        (place / f"{number}.json").write_text("\n".join(lines))


def expected(files: Sequence[list[tuple[str, int]]]) -> dict[str, Any]:
    """The count and the sum of each user, and the users."""
    totals: dict[str, list[int]] = {}
    for user, amount in (row for rows in files for row in rows):
        events, sum_ = totals.get(user, [0, 0])
        totals[user] = [events + 1, sum_ + amount]
    return {"totals": totals, "firsts": sorted(totals)}


@contextmanager
def embedded_dynamodb(by: Environment) -> Iterator[dict[str, str]]:
    """Run `dynastate local`; yield the variables by which programs find it."""
    command = ["dynastate", "local", "--port", "0", "--json"]
    with subprocess.Popen(command, env=by.variables, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            answer = json.loads(server.stdout.readline())
            yield answer["environment"] | {"AWS_ENDPOINT_URL": answer["endpoint"], "AWS_REGION": answer["region"]}
        finally:
            server.terminate()


if __name__ == "__main__":
    *option, path = sys.argv[1:]
    if option == ["--pythons"]:
        on_each_python(Path(path))
    else:
        main(Path(path), option)
