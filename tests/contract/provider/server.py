"""A JVM that carries out orders on stores; scala/StoreServer.scala describes them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

Key = tuple[Any, ...]
#: A number, and the length of the text that is made of it.
Value = tuple[int, int]
#: Values by key by family; a family without lists has lists of one.
State = dict[str, dict[Key, tuple[Value, ...]]]
#: Put, merge, remove or putList; family, key, and a value or several.
Change = tuple[Any, ...]


def change(state: State, changes: Iterable[Change]) -> None:
    """Change a model of the state as the order `batch` changes a store."""
    for operation, family, key, *value in changes:
        rows = state[family]
        if operation == "remove":
            rows.pop(key, None)
        elif operation == "merge":
            rows[key] = (*rows.get(key, ()), value[0])
        else:
            rows[key] = tuple(value[0]) if operation == "putList" else (value[0],)


@final
class StoreServer:
    """The process, for as long as the `with` block runs. Its log goes to a file."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("w") as file:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> StoreServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def answers(self, op: str, **order: Any) -> dict[str, dict[str, Any]]:
        """Give an order; by kind of store, what came of it: `ok` with the answer, or `error` with what was wrong."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.poll() is None, f"the JVM has ended:\n{self._log.read_text()[-4000:]}"
        self._process.stdin.write(json.dumps({"op": op} | order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the JVM ended with {self._process.wait(10)}:\n{self._log.read_text()[-4000:]}"
        answers: dict[str, dict[str, Any]] = json.loads(line)
        return answers

    def tell(self, op: str, **order: Any) -> dict[str, Any]:
        """Give an order that must be carried out; the answers by kind of store."""
        answers = self.answers(op, **order)
        for side, answer in answers.items():
            assert "error" not in answer, f"{op} {str(order)[:400]} failed, {side}: {answer['error']}"
        return {side: answer["ok"] for side, answer in answers.items()}
