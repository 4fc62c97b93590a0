"""Run a notebook without Jupyter, which would be 26 more packages: `python -m tests.support.notebook NOTEBOOK`.

Prints the notebook with new outputs, as Jupyter's kernel makes them. These are what cells print, the value of a last
expression, and the figures that are open at the end of a cell.
"""

from __future__ import annotations

import ast
import base64
import io
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")

from matplotlib import pyplot as plt


def run(notebook: dict[str, Any]) -> None:
    """Run the cells in order, and give each its number and outputs.

    Raises:
        Exception: what a cell raises.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        cell["execution_count"] = number
        cell["outputs"] = list(outputs("".join(cell["source"]), names, number))


def outputs(source: str, names: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """Run the source of a cell with the names of those before it."""
    tree = ast.parse(source)
    value = None
    with redirect_stdout(io.StringIO()) as printed:
        match tree.body:
            case [*statements, ast.Expr(last)]:
                exec(compile(ast.Module(statements, []), "cell", "exec"), names)  # noqa: S102  # a file of ours
                value = eval(compile(ast.Expression(last), "cell", "eval"), names)  # noqa: S307
            case _:
                exec(compile(tree, "cell", "exec"), names)  # noqa: S102
    if printed.getvalue():
        yield {"name": "stdout", "output_type": "stream", "text": printed.getvalue().splitlines(keepends=True)}
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        yield {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
    for figure in map(plt.figure, plt.get_fignums()):
        file = io.BytesIO()
        figure.savefig(file, format="png", metadata={"Software": None})
        picture = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": [repr(figure)]}
        yield {"data": picture, "metadata": {}, "output_type": "display_data"}
        plt.close(figure)


def main(path: Path) -> None:
    notebook = json.loads(path.read_text())
    sys.path.insert(0, str(path.parent))
    run(notebook)
    print(json.dumps(notebook, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
