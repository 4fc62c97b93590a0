"""Commands and groups: help texts at 80 columns, as Typer's own break words, and values of options."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import partial
from typing import Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

_WIDTH_MAX: Final = 80
_NAME_CHARS: Final = 23
#: Columns below which a text is below its name, and not beside it.
NARROW: Final = 60
#: How lines of an epilog begin: of an item's further lines, and of examples.
_CONTINUED: Final = " " * 7
_EXAMPLE: Final = "  dynastate "


class Command(TyperCommand):
    """A command of `dynastate`. Its epilog is shown as it is. `obj` of its context has the names of texts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words behind the name of the command."""
        _process_by_ourselves(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help text."""
        formatter.write("\n\n".join(_sections(self, ctx, _options(self, ctx))) + "\n")


class Group(TyperGroup):
    """A group of commands. Without a command it shows its help and fails."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help text: commands by their panels."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            panel = getattr(command, "rich_help_panel", None) or "Commands"
            panels.setdefault(panel, []).append((name, first_sentence(command.help)))
        sections = (_section(panel, rows) for panel, rows in panels.items())
        formatter.write("\n\n".join(_sections(self, ctx, [*sections, *_options(self, ctx)], "COMMAND")) + "\n")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words behind the name of the group."""
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            raise typer.Exit(2)
        _process_by_ourselves(self.get_params(ctx))
        return super().parse_args(ctx, args)


def _process_by_ourselves(parameters: Iterable[Any]) -> None:
    for parameter in parameters:
        parameter.process_value = partial(_process, parameter, parameter.process_value)


def _process(parameter: Any, process: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """The value of an option or argument. Typer's own way imports pydantic; a text or a default need not be checked."""
    is_plain = value == parameter.default if value is not None else not parameter.required
    is_text = isinstance(value, str) and parameter.name in (ctx.obj or ())
    if not (is_plain or is_text) or parameter.nargs != 1 or parameter.multiple:
        return process(ctx, value)
    return parameter.callback(ctx, parameter, value) if parameter.callback else value


def _sections(command: Any, ctx: Any, middle: Iterable[str], *more: str) -> Iterator[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    names = [each.metavar if each.required else f"[{each.metavar}]" for each in arguments]
    yield _fill(" ".join(["Usage:", ctx.command_path, "[OPTIONS]", *names, *more]), "  ")
    yield from (_fill(paragraph) for paragraph in (command.help or "").split("\n\n"))
    yield from middle
    if command.epilog:
        yield _epilog(command.epilog)


def _options(command: Any, ctx: Any) -> Iterator[str]:
    panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], "Common options": []}
    for parameter in command.get_params(ctx):
        if parameter.param_type_name == "argument":
            panels["Arguments"].append((parameter.metavar, parameter.help))
            continue
        names = ", ".join(sorted(parameter.opts, key=len))
        described = parameter.help or ""
        if not parameter.is_flag:
            names += f" {parameter.metavar}"
            if parameter.default is not None and parameter.default != "":
                default = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
                described += f" Default: {default}".removesuffix(".0") + "."
            if parameter.envvar:
                described += f" Or {parameter.envvar}."
        panels[getattr(parameter, "rich_help_panel", None) or "Options"].append((names, described))
    yield from (_section(title, rows) for title, rows in panels.items() if rows)


def _section(title: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"{title}:"]
    is_narrow = _width() < NARROW
    for name, described in rows:
        head = f"  {name:{_NAME_CHARS}}  "
        if is_narrow:
            lines += [f"  {name}", _fill(described, " " * 6, " " * 6)]
        else:
            lines.append(_fill(described, " " * len(head), head))
    return "\n".join(lines)


def first_sentence(text: str | None) -> str:
    """The first sentence of a help text, on one line."""
    return " ".join((text or "").split("\n\n")[0].split()).split(". ")[0].rstrip(".") + "."


def _width() -> int:
    return min(_WIDTH_MAX, shutil.get_terminal_size().columns)


def _epilog(text: str) -> str:
    """The text below a help text, as it is, or on a narrow screen wrapped. Examples stay lines that can be copied."""
    if _width() >= _WIDTH_MAX:
        return text
    items: list[str] = []
    for line in text.split("\n"):
        if items and line.startswith(_CONTINUED):
            items[-1] += f" {line.strip()}"
        else:
            items.append(line)
    return "\n".join(
        item if item.startswith(_EXAMPLE) else _fill(item.strip(), _CONTINUED, "  " * (item[:1] == " "))
        for item in items
    )


def _fill(text: str, indent: str = "", head: str = "") -> str:
    """Wrap a text without breaking a word."""
    return textwrap.fill(
        " ".join(text.split()),
        _width(),
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
