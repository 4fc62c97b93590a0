"""Output of commands: lines and tables that fit the terminal, JSON for programs, progress bars."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

import typer

from dynastate.cli.help import NARROW
from dynastate.cli.table import Table
from dynastate.settings import PREFIX

_SETTING: Final = re.compile(rf"{re.escape(PREFIX)}(endpoint|region|namespace|(?:\w+)(?:Table|Price))\b")


@dataclass(frozen=True)
class Output:
    """Standard output as the options `--json` and `--wide` want it."""

    as_json: bool = False
    wide: bool = False

    @property
    def width(self) -> int | None:
        """Columns of the terminal. Returns None if no line is shortened: with `--wide`, and into a file or pipe.

        An exported COLUMNS asks for lines of that width in a pipe, too.
        """
        is_narrow = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
        return shutil.get_terminal_size().columns if is_narrow and not self.wide else None

    @property
    def is_narrow(self) -> bool:
        """Whether a long value does not fit beside its name."""
        return self.width is not None and self.width < NARROW

    def json(self, value: Any) -> bool:
        """Print a value as JSON, if `--json` is given; return whether it is."""
        if self.as_json:
            typer.echo(_json(value))
        return self.as_json

    def json_list(self, values: Iterable[Any]) -> int:
        """Print values as a JSON list, each as it comes; return how many."""
        count = 0
        typer.echo("[", nl=False)
        for count, value in enumerate(values, 1):
            typer.echo("," * (count > 1) + "\n" + textwrap.indent(_json(value), "  "), nl=False)
        typer.echo("\n]" if count else "]")
        return count

    def say(self, text: str, style: str = "", indent: str = "  ") -> None:
        """Print a text, on several lines where it is longer than one, without breaking a word."""
        for line in self.wrapped(text, indent):
            print_line(line, style)

    def wrapped(self, text: str, indent: str = "  ") -> list[str]:
        """The lines of a text, without breaking a word."""
        if self.width is None:
            return [text]
        return textwrap.wrap(
            text, self.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]

    def table(
        self,
        rows: Sequence[Mapping[str, Any]],
        columns: Mapping[str, str],
        *,
        title: str = "",
        figures: bool = False,
        **fit: Any,
    ) -> None:
        """Print a table with a title above it; `fit` says which columns it drops if the terminal is too narrow."""
        if title:
            self.say(title, "bold")
        for line, is_header in Table(rows, columns, self.width, figures=figures).fit(**fit).lines():
            print_line(line, "bold" if is_header else "")


def _json(value: Any) -> str:
    """A value as JSON. If standard output lacks a character, all except ASCII are escaped."""
    text = json_text(value, indent=2)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, indent=2)
    return text


def facts(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass for JSON, with null in place of an empty text."""
    return {name: None if value == "" else value for name, value in asdict(instance).items()}


def in_options(message: object) -> str:
    """An error or its message in the words of a command line: settings are options."""
    return _SETTING.sub(_as_typed, str(message))


def _as_typed(setting: re.Match[str]) -> str:
    """The option, or the argument NAMESPACE, that gives a setting on a command line."""
    name = re.sub("[A-Z]", lambda capital: f"-{capital[0].lower()}", setting[1])
    return name if name == "namespace" else f"--{name}"


def dollars(amount: float | None, digits: int = 4) -> str:
    """An amount of money; one below the last digit is not shown as zero."""
    if amount is None:
        return "-"
    least = 10**-digits
    return f"< {least:.{digits}f}" if 0 < amount < least else f"{amount:,.{digits}f}"


def is_terminal() -> bool:
    """Whether standard output is a terminal, or `FORCE_COLOR` asks for what one gets."""
    return sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR"))


def print_line(text: str, style: str = "") -> None:
    """Print a line in bold or in a colour, where `styled` has one."""
    typer.echo(styled(text, style), color=is_terminal())


def styled(text: str, style: str) -> str:
    """A text in bold or in a colour, if standard output is a terminal, and `NO_COLOR` does not ask for plain text."""
    if not style or not is_terminal() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return typer.style(text, bold=True) if style == "bold" else typer.style(text, fg=style)


def json_text(value: Any, indent: int | None = None) -> str:
    """A value as JSON, as all commands spell it."""
    from dynastate.reader import json_rows

    return json_rows.json_text(value, indent)


@contextmanager
def progress(unit: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on standard error, if it is a terminal; the function takes the count and the total."""
    if not sys.stderr.isatty():  # Rich takes time to import
        yield lambda _count, _total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True, highlight=False), transient=True) as bar:
        task = bar.add_task(unit, total=None)
        yield lambda count, total: bar.update(task, completed=count, total=total)
