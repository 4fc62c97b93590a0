"""Commands: the processor time that each takes, beside that of what it cannot do without.

    python benchmarks/commands.py
    python benchmarks/commands.py --rounds 3        to try it

Runs each command in a process of its own, some times, and takes the median of its processor time. The floors are the
import of Typer, and a client of botocore that reads the same credentials and sends one request. Prints the figures,
keeps them in build/benchmarks/commands.json, and exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from database import REGION, Database, add_arguments, database
from lookup import Writer
from rich.table import Table
from targets import Target, console, finish

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.engine.engine import Engine
from dynastate.settings import Settings

TYPER = "import typer"
CLIENT = """
import os, sys
from botocore.session import Session

client = Session().create_client("dynamodb", region_name=os.environ["DYNASTATE_REGION"], endpoint_url=sys.argv[1])
client.describe_table(TableName="dynastate-delta")
"""
STORE = "commands/0/0/default"
KEY = '{"user":"user-000000001","item":1}'
#: Commands that send no request, and those that do.
WITHOUT = ("jar", "config", "get --help")
WITH = ("tables check", "stores commands", f"show {STORE}", f"versions {STORE}", f"get {STORE} {KEY}")
#: Lines that a shell completes without a request, and one with a Query.
COMPLETED = {
    "bash: name of a command": ("bash", "dynastate sto"),
    "bash: option": ("bash", "dynastate stores --ab"),
    "zsh: name of a command": ("zsh", "dynastate sto"),
    "fish: option": ("fish", "dynastate stores --ab"),
}
COMPLETED_STORE = ("bash", "dynastate show commands/")


def asked(shell: str, line: str) -> dict[str, str]:
    """The variables by which a shell asks for completion."""
    variables = {"_DYNASTATE_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line, "COMP_WORDS": line}
    return variables | {"COMP_CWORD": str(len(line.split()) - 1), "_TYPER_COMPLETE_FISH_ACTION": "get-args"}


def processor_s(words: Sequence[str], environment: Mapping[str, str], rounds: int) -> float:
    """Seconds of processor time, the median of some runs."""
    seconds = []
    for _ in range(rounds):
        start = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, check=True)
        end = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime)
    return statistics.median(seconds)


def fill(where: Database) -> None:
    """Commit a store of a few rows."""
    os.environ.update(where.environment)
    with closing(BotoTables(Settings(endpoint=where.endpoint, region=REGION))) as tables:
        engine = Engine(tables, Settings())
        writer = Writer(engine, STORE)
        for version in range(3):
            writer.commit(range(10), version, 10 if version == 0 else 0)
        engine.close()


def targets(figures: Mapping[str, Any]) -> list[Target]:
    """A command without a request is little more than the import of Typer; one with requests, than a bare client."""
    commands_s, typer_s, client_s = figures["commands_s"], figures["typer_s"], figures["client_s"]
    return [
        Target("--version: processor time, s", commands_s["--version"], 0.1),
        *(
            Target(f"{each}: processor time above Typer's import, s", commands_s[each] - typer_s, 0.1)
            for each in WITHOUT
        ),
        *(Target(f"{each}: processor time above a client's, s", commands_s[each] - client_s, 0.2) for each in WITH),
        *(Target(f"completion, {name}: processor time, s", figures["completed_s"][name], 0.25) for name in COMPLETED),
        Target(
            "completion of a store: processor time above a client's, s", figures["completed_store_s"] - client_s, 0.2
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="runs of each command (default: %(default)s)")
    add_arguments(parser)
    options = parser.parse_args()
    dynastate = [sys.executable, "-m", "dynastate.cli"]
    with database(options.endpoint, options.engine) as where:
        fill(where)
        environment = dict(where.environment) | {"DYNASTATE_ENDPOINT": where.endpoint, "DYNASTATE_REGION": REGION}

        def measure(*words: str) -> float:
            return processor_s(words, environment, options.rounds)

        typer_s = measure(sys.executable, "-c", TYPER)
        client_s = measure(sys.executable, "-c", CLIENT, where.endpoint)
        commands_s = {name: measure(*dynastate, *name.split()) for name in ("--version", *WITHOUT, *WITH)}
        completed_s = {
            name: processor_s(dynastate, environment | asked(*line), options.rounds) for name, line in COMPLETED.items()
        }
        completed_store_s = processor_s(dynastate, environment | asked(*COMPLETED_STORE), options.rounds)
    out = console()
    table = Table(title="processor time, s")
    table.add_column("command")
    table.add_column("s", justify="right")
    every_s = {"import of Typer": typer_s, "client of botocore": client_s, **commands_s, **completed_s}
    for name, seconds in (every_s | {"bash: store": completed_store_s}).items():
        table.add_row(name, f"{seconds:.2f}")
    out.print(table)
    figures = {"typer_s": typer_s, "client_s": client_s, "commands_s": commands_s, "engine": where.engine}
    figures |= {"completed_s": completed_s, "completed_store_s": completed_store_s}
    finish(out, "commands", vars(options), figures, targets(figures))


if __name__ == "__main__":
    main()
