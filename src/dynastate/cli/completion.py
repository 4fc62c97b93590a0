"""Completion of a command line, as the scripts of `--show-completion` ask for it.

Typer's own imports Rich for each help text, and knows no stores.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import typer

from dynastate.cli.help import first_sentence
from dynastate.errors import DynastateError

if TYPE_CHECKING:
    from dynastate.dynamodb.boto_tables import BotoTables

#: The variable by which a shell asks for completion.
VARIABLE: Final = "_DYNASTATE_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish", "powershell", "pwsh")
#: A user waits for requests, so they end soon.
DEADLINE_S: Final = 2
#: Arguments that are names of stores, with the parts that each has at least.
_PARTS_MIN: Final = {"NAMESPACE": 1, "SCOPE": 1, "STORES": 2, "STORE": 4}
#: Arguments that may be checkpoints in DynamoDB.
_CHECKPOINTS: Final = ("CHECKPOINT", "OLD", "NEW", "TEMPLATE")
_SCHEME: Final = "dynastate://"


class Candidate(NamedTuple):
    """A word that completes the line, and its help text."""

    word: str
    help: str = ""


class Line(NamedTuple):
    """The words of a command line behind `dynastate`, and the one that is completed, as far as it is typed."""

    words: list[str]
    typed: str
    #: What the shell takes for an earlier word of its own, and must not get again.
    repeated: str = ""


def complete(shell: str, make_app: Callable[[str], typer.Typer], names: Sequence[str]) -> int:
    """Print the words that complete a line, in the form of a shell. Returns the exit code.

    Bash shows no help texts, so the `names` of commands are enough there, and no module is imported for them.
    """
    line = read_line(shell)
    if shell == "bash" and not line.words and line.typed[:1] != "-":
        candidates = [Candidate(name) for name in names if name.startswith(line.typed)]
    elif line.words and line.words[0] not in names and line.words[0][:1] != "-":
        candidates = []
    else:
        is_option = not line.words and line.typed[:1] == "-"  # of the application, which any module makes
        word = names[0] if is_option else "".join(line.words[:1])
        app: Any = typer.main.get_command(make_app(word))
        candidates = list(find_candidates(app, line))
    if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return 0 if candidates else 1
    words = [candidate.word.removeprefix(line.repeated) for candidate in candidates]
    if shell == "bash":
        lines = words
    elif shell == "zsh":
        lines = [_zsh(candidates)]
    else:
        gap, none = ("\t", "") if shell == "fish" else (":::", " ")
        lines = [f"{each.word}{gap}{each.help or none}".rstrip("\t") for each in candidates]
    for text in lines:
        typer.echo(text)
    return 0


def read_line(shell: str) -> Line:
    """The line from the variables of a shell. Bash parts words at `:` and `=`, too."""
    if shell != "bash":
        text = os.environ.get("_TYPER_COMPLETE_ARGS", "")
        words = _split(text)[1:]
        # PowerShell gives the line without the space at its end, and the word that is typed beside it.
        is_typed = os.environ.get("_TYPER_COMPLETE_WORD_TO_COMPLETE", " ") and not text[-1:].isspace()
        typed = words.pop() if words and is_typed else ""
        return Line(words, typed)
    count = int(os.environ.get("COMP_CWORD", "0"))
    words = _split(os.environ.get("COMP_WORDS", ""))[1 : count + 1]
    words += [""] * (count - len(words))
    joined: list[str] = []
    for word in words:
        if joined and (word.startswith(":") or joined[-1].endswith(":")):
            joined[-1] += word
        elif word != "=" or word is words[-1]:
            joined.append(word)
    typed = joined.pop() if joined else ""
    typed = "" if typed == "=" else typed
    return Line(joined, typed, typed[: typed.rfind(":") + 1])


def find_candidates(command: Any, line: Line) -> Iterator[Candidate]:
    """The words that complete a line: names of commands and options, values of choices, stores, checkpoints."""
    words = list(line.words)
    while commands := getattr(command, "commands", {}):
        if not words:
            names = (
                {name: first_sentence(each.help) for name, each in commands.items()} if line.typed[:1] != "-" else {}
            )
            names |= _options(command, line) if line.typed[:1] == "-" else {}
            yield from (Candidate(name, text) for name, text in names.items() if name.startswith(line.typed))
            return
        if (command := commands.get(words.pop(0))) is None:
            return
    options = {name: each for each in command.params for name in each.opts if each.param_type_name == "option"}
    name, is_joined, value = line.typed.partition("=")
    if is_joined and name in options:
        yield from (Candidate(f"{name}={each}") for each in _choices(options[name]) if each.startswith(value))
    elif words and words[-1] in options and not options[words[-1]].is_flag:
        yield from (Candidate(each) for each in _choices(options[words[-1]]) if each.startswith(line.typed))
    elif line.typed.startswith("-"):
        texts = _options(command, line)
        yield from (Candidate(each, text) for each, text in texts.items() if each.startswith(line.typed))
    else:
        yield from map(Candidate, _values(command, options, words, line.typed))


def _options(command: Any, line: Line) -> dict[str, str]:
    """Options that the line does not have yet, with their help texts."""
    options = [each for each in command.params if each.param_type_name == "option"]
    return {
        name: first_sentence(each.help)
        for each in options
        if each.multiple or not set(each.opts) & set(line.words)
        for name in each.opts
    } | {"--help": "Show this message and exit."}


def _choices(option: Any) -> list[str]:
    """The values of an option that is a choice: those of its default, or as its metavar lists them."""
    if isinstance(option.default, Enum):
        return [each.value for each in type(option.default)]
    return option.metavar.split("|") if "|" in (option.metavar or "") else []


def _values(command: Any, options: dict[str, Any], words: Sequence[str], typed: str) -> list[str]:
    """Values of the argument that is typed, from the tables. Without an answer there are none."""
    values = {index + 1 for index, word in enumerate(words) if word in options and not options[word].is_flag}
    count = sum(index not in values and not word.startswith("-") for index, word in enumerate(words))
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    argument = arguments[min(count, len(arguments) - 1)] if arguments else None
    if argument is None or (count >= len(arguments) and argument.nargs != -1):
        return []
    if argument.metavar in _CHECKPOINTS and typed.startswith(_SCHEME[: max(1, len(typed))]):
        return _from_tables(command, words, lambda tables: _checkpoints(tables, typed))
    if argument.metavar in _PARTS_MIN:
        parts = typed.count("/") + 1 if argument.metavar != "NAMESPACE" else 1
        parts = max(_PARTS_MIN[argument.metavar], parts)
        return _from_tables(command, words, lambda tables: _stores(tables, typed, parts))
    return []


def _from_tables(command: Any, words: Sequence[str], find: Callable[[BotoTables], list[str]]) -> list[str]:
    from dynastate.cli.options import origins_of
    from dynastate.dynamodb.boto_tables import open_tables

    context = command.make_context(command.name, list(words), resilient_parsing=True)
    with suppress(DynastateError):  # a shell has no place for an error; the command itself shows it
        origins = origins_of(context, context.params)
        settings = replace(origins.settings(), request_deadline_s=DEADLINE_S)
        with origins.environment(), open_tables(settings) as tables:
            return find(tables)
    return []


def _stores(tables: BotoTables, typed: str, parts: int) -> list[str]:
    """Names of stores, or their first parts: by one Query behind a namespace, else by a scan until the deadline."""
    from dynastate.engine.namespaces import read_namespace

    namespace, is_behind, _ = typed.partition("/")
    if is_behind:
        stores = read_namespace(tables, namespace).listed
    else:
        stores = []
        ends_s = time.monotonic() + DEADLINE_S
        for store in tables.find_stores():
            stores.append(store)
            if time.monotonic() > ends_s:
                break
    names = ("/".join(store.split("/")[:parts]) for store in stores)
    return list(dict.fromkeys(name for name in names if name.startswith(typed)))


def _checkpoints(tables: BotoTables, typed: str) -> list[str]:
    """Locations of checkpoints: of a namespace that is typed, else of each."""
    from dynastate.engine.checkpoint import read_checkpoints

    namespace, is_behind, _ = typed.removeprefix(_SCHEME).partition("/")
    names = [namespace] if is_behind else _stores(tables, namespace if typed.startswith(_SCHEME) else "", 1)
    locations = (each.location for name in names for each in read_checkpoints(tables, name))
    return [location for location in locations if location.startswith(typed)]


def _split(text: str) -> list[str]:
    """Words of a line, of which the last one may be in an open quote."""
    for end in ("", "'", '"'):
        with suppress(ValueError):
            return shlex.split(text + end)
    return text.split()


def _zsh(candidates: Sequence[Candidate]) -> str:
    if not candidates:
        return "_files"
    words = "\n".join(
        f'"{_quoted(each.word)}":"{_quoted(each.help)}"' if each.help else f'"{_quoted(each.word)}"'
        for each in candidates
    )
    return f"_arguments '*: :(({words}))'"


def _quoted(text: str) -> str:
    for character, quoted in (('"', '""'), ("'", "''"), ("$", "\\$"), ("`", "\\`"), (":", "\\\\:")):
        text = text.replace(character, quoted)
    return text
