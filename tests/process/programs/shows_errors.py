"""Commands, and programs that use the package, each in a process of its own, with an environment of its own.

Reads a JSON object from standard input. It has the environment of each case, by name, and the words of a command, or
none for a program that opens state and shows the trace. Writes one: of each case everything that it put out, its exit
code, and the seconds it took.
"""

import json
import logging
import os
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path

import dynastate
from dynastate.cli.app import main


def run(environment: dict[str, str], words: list[str]) -> None:
    os.environ.update(environment)
    if words:
        main(words)
    logging.basicConfig(level=logging.INFO)
    try:
        dynastate.open_state("marked/0", region="us-east-1")
    except Exception:  # noqa: BLE001  # the trace is what is looked at
        traceback.print_exc()
        sys.exit(2)


def start(output: Path, environment: dict[str, str], words: list[str]) -> int:
    child = os.fork()
    if child == 0:
        file = os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        code = 3
        try:
            run(environment, words)
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    return child


def run_all(folder: Path) -> None:
    starts, results = dict[int, tuple[str, float]](), dict[str, dict[str, object]]()
    for number, (name, (environment, words)) in enumerate(json.load(sys.stdin).items()):
        starts[start(folder / str(number), environment, words)] = (name, time.monotonic())
    for number, child in enumerate(list(starts)):
        _, status = os.waitpid(child, 0)
        name, start_s = starts[child]
        output = (folder / str(number)).read_text(errors="replace")
        code = os.waitstatus_to_exitcode(status)
        results[name] = {"shown": output, "code": code, "seconds": time.monotonic() - start_s}
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        run_all(Path(place))
