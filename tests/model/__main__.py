"""`make model`: Alloy solves the commands of all models, or those that are named, and prints their times.

    python -m tests.model [--write] [MODEL.als | COMMAND ...]

A check must have no counterexample, and a run must have an instance: so each weakened model has a counterexample.
`--write` writes the instances of the runs into counterexamples.json, which test_counterexamples.py replays.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree as ET

import pytest

from tests.upstream.maven import jars

MODELS: Final = Path(__file__).parent
COUNTEREXAMPLES: Final = MODELS / "counterexamples.json"
COMMAND: Final = re.compile(r"^(?:(?P<run>run) (\w+)|(\w+): check)\b", re.MULTILINE)
DEADLINE_S: Final = 900


class Command(NamedTuple):
    """A command of a model: a check, or a run."""

    model: Path
    name: str
    is_run: bool


class Outcome(NamedTuple):
    """The scope of a command, its instance, if it has one, and the seconds that it took."""

    scope: str
    instance: Mapping[str, Any] | None
    seconds: float


def commands() -> Iterator[Command]:
    """All commands of all models."""
    for model in sorted(MODELS.glob("*.als")):
        for match in COMMAND.finditer(model.read_text()):
            yield Command(model, match[2] or match[3], is_run=bool(match["run"]))


def solve(command: Command) -> Outcome:
    """Solve a command. Raises CalledProcessError if Alloy fails, and TimeoutExpired after `DEADLINE_S`."""
    (jar,) = jars("alloy").glob("org.alloytools.alloy.dist-*.jar")
    with tempfile.TemporaryDirectory(prefix="dynastate-model-") as folder:
        java = ["java", "-Xmx2g", "-jar", str(jar), "exec", "-q", "-f", "-s", "glucose", "-t", "xml"]
        started_s = time.monotonic()
        subprocess.run(
            [*java, "-c", command.name, "-o", folder, str(command.model)],
            check=True,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        seconds = time.monotonic() - started_s
        receipt = json.loads(Path(folder, "receipt.json").read_text())["commands"][command.name]
        # The receipt leaves atoms out; the XML has all.
        solutions = [ET.parse(each).getroot() for each in Path(folder).glob("*.xml")]  # noqa: S314  # Alloy wrote it
        instances = [instance_of(solution) for solution in solutions]
    return Outcome(receipt["source"].rpartition("} ")[2], next(iter(instances), None), seconds)


def instance_of(solution: ET.Element) -> dict[str, Any]:
    """What a solution has: the steps with their atoms, and the fields of these atoms that do not change."""
    states = list(solution.iter("instance"))
    steps = [{name: atom for name, owner, atom in _fields(state) if owner == "Step$0"} for state in states]
    fields: dict[str, dict[str, str]] = {}
    for name, owner, atom in _fields(states[0], is_constant=True):
        fields.setdefault(owner, {})[name] = atom
    atoms = {atom for step in steps for name, atom in step.items() if name != "action"}
    for _ in fields:  # what these name, and what that names
        atoms |= {other for atom in atoms for other in fields.get(atom, {}).values()}
    return {
        "atoms": {atom: fields[atom] for atom in sorted(atoms & {*fields})},
        "steps": [step for step in steps if step["action"] != "Nothing$0"],
    }


def _fields(state: ET.Element, *, is_constant: bool = False) -> Iterator[tuple[str, str, str]]:
    """The fields of a state, or only those that never change: name, atom that has it, and last atom of its value."""
    for field in state.iter("field"):
        if is_constant and "var" in field.attrib:
            continue
        for row in field.iter("tuple"):
            atoms = [atom.attrib["label"] for atom in row.iter("atom")]
            yield field.attrib["label"], atoms[0], atoms[-1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model")
    parser.add_argument("--write", action="store_true", help="write counterexamples.json")
    parser.add_argument("names", nargs="*", help="models or commands; by default all")
    options = parser.parse_args()
    counterexamples = json.loads(COUNTEREXAMPLES.read_text()) if COUNTEREXAMPLES.exists() else {}
    failures = 0
    for command in commands():
        if options.names and not {command.model.name, command.name} & {*options.names}:
            continue
        try:
            outcome = solve(command)
        except (pytest.skip.Exception, pytest.fail.Exception) as missing:
            sys.exit(f"dynastate: {missing}")
        except subprocess.CalledProcessError as failed:
            sys.exit(f"dynastate: Alloy failed at {command.model.name}: {failed.stdout}{failed.stderr}")
        except subprocess.TimeoutExpired:
            sys.exit(f"dynastate: {command.name} of {command.model.name} was not solved in {DEADLINE_S} s")
        is_wanted = command.is_run == (outcome.instance is not None)
        failures += not is_wanted
        what = "has an instance" if outcome.instance else "has none"
        sys.stdout.write(
            f"{command.model.stem:10} {'run' if command.is_run else 'check':5} {command.name:50} {what:15}"
            f" {outcome.seconds:5.0f} s  {outcome.scope}{'' if is_wanted else '  FAILED'}\n"
        )
        sys.stdout.flush()
        if outcome.instance and not is_wanted:
            sys.stdout.write(json.dumps(outcome.instance, indent=1) + "\n")
        if outcome.instance and is_wanted:
            counterexamples.setdefault(command.model.stem, {})[command.name] = outcome.instance
    if options.write:
        COUNTEREXAMPLES.write_text(json.dumps(counterexamples, indent=1, sort_keys=True) + "\n")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
