"""Names and calls of src: variables have nouns, `each` is for comprehensions, many arguments go by keyword."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "dynastate"
#: Folders whose names were revised, and files of theirs that still have to be.
FOLDERS = ("cli", "demo", "reader", "ui")
OPEN = {"ui/pages/cost.py", "ui/pages/plan.py"}
REFUSED = {
    *("found", "now", "made", "there", "before", "own", "known", "wanted", "kept", "held", "said", "given", "left"),
    *("done", "here", "gone", "shown", "seen", "taken", "needed"),
}
#: Public names of docs/api.md: `Difference.before`, and a parameter of `diff`.
PUBLIC = {("reader/view.py", "before")}
#: Functions of any number of arguments, which may be spread into.
VARIADIC = {
    "add_row",
    "agg",
    "chain",
    "command",
    "map",
    "max",
    "partial",
    "Path",
    "print",
    "Progress",
    "select",
    "Table",
}
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def names(node: ast.AST, *, within: bool = False) -> Iterator[str]:
    """The variables, parameters and attributes that a tree stores to, without `each` within comprehensions."""
    name = node.arg if isinstance(node, ast.arg) else ""
    if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
        name = node.id if isinstance(node, ast.Name) else node.attr
    if name != "each" or not within:
        yield name.lstrip("_")
    for child in ast.iter_child_nodes(node):
        yield from names(child, within=within or isinstance(node, COMPREHENSIONS))


def calls(tree: ast.AST) -> Iterator[str]:
    """Calls with more than four positional arguments, or with a starred one that is not a function's own `*args`."""
    forwarded = {node.vararg.arg for node in ast.walk(tree) if isinstance(node, ast.arguments) and node.vararg}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] not in {*VARIADIC, "zip"}:
            stars = [ast.unparse(each.value) for each in node.args if isinstance(each, ast.Starred)]
            if len(node.args) > 4 or set(stars) - forwarded:
                yield ast.unparse(node)


def findings(path: str, text: str) -> list[str]:
    tree = ast.parse(text)
    return [each for each in names(tree) if each in {*REFUSED, "each"} and (path, each) not in PUBLIC] + [*calls(tree)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_and_calls(folder: str) -> None:
    files = {path.relative_to(SOURCE).as_posix(): path.read_text() for path in (SOURCE / folder).rglob("*.py")}
    by_file = {path: findings(path, text) for path, text in files.items() if path not in OPEN}
    assert {path: each for path, each in by_file.items() if each} == {}


def test_findings() -> None:
    text = (
        "def f(found, *more):\n  self._now = [each for each in more]\n  f(*more), f(1, 2, 3, 4, 5), f(*pair), max(*a)"
    )
    assert findings("", text + "\nfor each in more: pass") == ["found", "now", "each", "f(1, 2, 3, 4, 5)", "f(*pair)"]
