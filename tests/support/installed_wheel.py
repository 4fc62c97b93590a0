"""Install a wheel alone into a clean environment, and use it from there: `dynastate jar` and the demo.

    python tests/support/installed_wheel.py dist/dynastate-*.whl

Dependencies come from the package index, and no path leads into the checkout. `make test-wheel` builds the
wheel first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DEMO_DEADLINE_S = 900


def main(wheel: Path) -> None:
    version = wheel.name.split("-")[1]
    names = [f"dynastate-spark-{minor}_2.13-{version}.jar" for minor in ("4.0", "4.1", "4.2", "4.3")]
    with zipfile.ZipFile(wheel) as archive:
        shipped = sorted(Path(name).name for name in archive.namelist() if name.endswith(".jar"))
    assert shipped == names, f"the wheel has {shipped}"

    with tempfile.TemporaryDirectory(prefix="dyn-") as scratch:
        folder = Path(scratch)
        subprocess.run([sys.executable, "-m", "venv", folder / "clean"], check=True)
        scripts = folder / "clean" / "bin"
        kept = {name: os.environ[name] for name in ("JAVA_HOME", "LANG", "TERM") if name in os.environ}
        environment = kept | {"PATH": f"{scripts}:{os.environ['PATH']}", "HOME": str(folder)}

        def run(*command: str, **more: str) -> str:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment | more,
                stdout=subprocess.PIPE,
                text=True,
                check=False,
                timeout=DEMO_DEADLINE_S,
            )
            assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-4000:]}"
            return done.stdout.strip()

        install = [str(scripts / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pins = ["--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*install, *pins, f"{wheel.resolve()}[demo]"], cwd=folder, check=True)
        package = Path(run("python", "-c", "import dynastate; print(dynastate.__file__)")).parent
        assert package.is_relative_to(folder), f"dynastate is used from {package}"
        assert run("dynastate", "--version").endswith(version)
        assert run("dynastate", "jar") == str(package / "jars" / names[-1])
        # With another pyspark first on the path.
        for name in names[:-1]:
            minor = name.split("-")[2].split("_")[0]
            (other,) = (ROOT / "build" / f"spark-{minor}").glob("lib/python*/site-packages")
            found = run("dynastate", "jar", PYTHONPATH=str(other))
            assert found == str(package / "jars" / name), f"for Spark {minor} the jar is {found}"
        shown = run("dynastate", "demo")
        assert shown.count(": equal") == 4, shown
        print(shown)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
