"""Names and calls of src: variables have nouns, `each` is for comprehensions, many arguments go by keyword."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "dynastate"
PATHS = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))
REFUSED = {
    *("found", "now", "made", "there", "before", "own", "known", "wanted", "kept", "held", "said", "given", "left"),
    *("done", "here", "gone", "shown", "seen", "taken", "needed"),
}
#: Public names: of docs/api.md, of the protocol, and of fields in JSON.
PUBLIC = {
    ("reader/view.py", "before"),
    ("operations/doctor/diagnosis.py", "seen"),
    ("operations/lifecycle/adopt.py", "before"),
    ("operations/lifecycle/clean.py", "kept"),
    ("runtime.py", "now"),
    ("sidecar/protocol.py", "held"),
    ("spark/transfer/rows.py", "before"),
}
#: Functions that take any number of arguments, or none by keyword.
VARIADIC = {
    *(
        "Progress",
        "Table",
        "agg",
        "command",
        "getattr(pa, function)",
        "info",
        "intersection",
        "labels",
        "makeCheckpoint",
    ),
    *("message_of", "move", "pack", "partial", "product", "select", "suppress", "zip"),
}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def names(node: ast.AST, *, is_inner: bool = False) -> Iterator[str]:
    """The variables, parameters and attributes that a tree stores to, without `each` within comprehensions."""
    name = node.arg if isinstance(node, ast.arg) else ""
    if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
        name = node.id if isinstance(node, ast.Name) else node.attr
    if name != "each" or not is_inner:
        yield name.lstrip("_")
    for child in ast.iter_child_nodes(node):
        yield from names(child, is_inner=is_inner or isinstance(node, COMPREHENSIONS))


def calls(tree: ast.AST) -> Iterator[str]:
    """Calls with more than four positional arguments, or with a starred one that is not a function's own `*args`."""
    varargs = {node.vararg.arg for node in ast.walk(tree) if isinstance(node, ast.arguments) and node.vararg}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] not in VARIADIC:
            values = [each.value for each in node.args if isinstance(each, ast.Starred)]
            stars = [ast.unparse(each) for each in values if isinstance(each, (ast.Name, ast.Attribute))]
            if len(node.args) > 4 or set(stars) - varargs:
                yield ast.unparse(node)


def findings(path: str, text: str) -> list[str]:
    tree = ast.parse(text)
    return [each for each in names(tree) if each in {*REFUSED, "each"} and (path, each) not in PUBLIC] + [*calls(tree)]


@pytest.mark.parametrize("path", PATHS)
def test_names_and_calls(path: str) -> None:
    assert findings(path, (SOURCE / path).read_text()) == []


def test_findings() -> None:
    text = (
        "def f(found, *more):\n  self._now = [each for each in more]\n  f(*more), f(1, 2, 3, 4, 5), f(*pair), zip(*a)"
    )
    assert findings("", text + "\nfor each in more: pass") == ["found", "now", "each", "f(1, 2, 3, 4, 5)", "f(*pair)"]
