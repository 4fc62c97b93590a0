"""The command `dynastate`: its commands, its exit codes, and `main`."""

from __future__ import annotations

import json
import os
import sys
import traceback
from codecs import register_error  # type: ignore[attr-defined]  # the stubs lack it
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any, Final, NoReturn, cast

import typer

from dynastate.cli import completion
from dynastate.cli.exit_codes import INTERRUPTED
from dynastate.cli.help import Group
from dynastate.cli.output import in_options
from dynastate.errors import ConfigurationError, DynastateError
from dynastate.redaction import redact_stderr
from dynastate.version import __version__

EXIT_CODES: Final = """\
Exit codes:
  0    Done, and nothing is wrong.
  1    The answer is no: 'verify', 'doctor', 'config' or 'tables check' found
       something wrong, 'get' or 'history' no such key, or 'drop', 'adopt',
       'erase', 'copy', 'rollback', 'checkpoint' or 'repartition' was not
       confirmed; 'failover' found that the query cannot continue in the other
       Region.
  2    It could not be done, or not for all stores, or the command line is
       wrong. The last lines on standard error say why.
  130  Interrupted by Ctrl-C. 'local', 'top' and 'ui' end with 0 then.
  141  The reader of the output closed the pipe, as 'head' does."""
EXAMPLES: Final = """\
Examples:
  dynastate stores --region eu-west-1
  dynastate get orders/0 '{"user": "a"}'
  dynastate verify orders/0/17/default --json"""
#: The error of Typer for a wrong command line. Its class has no public name.
_Refused = cast("type[Exception]", typer.BadParameter.__mro__[2])

#: The commands by the modules of this package that have them, in the order of the help text.
COMMANDS: Final = {
    "inspect": ("stores", "show", "get", "export", "verify"),
    "versions": ("versions", "history", "diff"),
    "sql": ("sql",),
    "skew": ("skew",),
    "cost": ("cost",),
    "retention": ("retention",),
    "top": ("top",),
    "ui": ("ui",),
    "maintain": ("compact", "clean", "fork", "adopt", "drop"),
    "erase": ("erase",),
    "copy": ("copy",),
    "failover": ("failover",),
    "rollback": ("rollback",),
    "checkpoint": ("checkpoint",),
    "transfer": ("import", "repartition", "export-checkpoint", "migrate", "bootstrap", "recover"),
    "config": ("config",),
    "tables": ("tables",),
    "doctor": ("doctor",),
    "local": ("local", "jar", "demo"),
}


def make_app(word: str = "") -> typer.Typer:
    """The application. If `word` is a command, it has only those of the same module, as others take time to import."""
    modules = [module for module, names in COMMANDS.items() if word in names]
    app = typer.Typer(
        cls=Group,
        help="Spark Structured Streaming state in Amazon DynamoDB.",
        epilog=f"{EXAMPLES}\n\n{EXIT_CODES}",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for module in modules or COMMANDS:
        app.add_typer(import_module(f"dynastate.cli.{module}").app)
    return app


def _show_version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"dynastate {__version__}")
        raise typer.Exit


def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def _complete(option: str, shell: str) -> None:
    """Print or install completion for the shell `shell`; Typer itself knows only the shell that runs."""
    scripts: Any = import_module("typer.completion")
    if shell not in completion.SHELLS:
        raise ConfigurationError(f"there is completion for {', '.join(completion.SHELLS)}", got=shell)
    names = {"prog_name": "dynastate", "complete_var": completion.VARIABLE, "shell": shell}
    if option == "--show-completion":
        typer.echo(scripts.get_completion_script(**names))
    else:
        typer.echo(f"{shell} completion installed in {scripts.install(**names)[1]}")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Escape characters that the encoding of the output lacks, as JSON does."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _run(words: list[str]) -> int:
    """Run one command, or complete a line for a shell. Returns the exit code."""
    if (instruction := os.environ.get(completion.VARIABLE, "")).startswith("complete_"):
        names = [name for names in COMMANDS.values() for name in names]
        return completion.complete(instruction.removeprefix("complete_"), make_app, names)
    if len(words) == 2 and words[0] in ("--show-completion", "--install-completion"):
        _complete(words[0], words[1])
        return 0
    app = make_app(words[0] if words else "")
    return app(args=words, prog_name="dynastate", standalone_mode=False) or 0


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code. An error is one line on standard error."""
    redact_stderr()
    if isinstance(sys.stdout, TextIOWrapper):
        register_error("dynastate.escaped", _escaped)
        sys.stdout.reconfigure(errors="dynastate.escaped")
    code, message = 2, ""
    words = [_as_utf8(each) for each in (sys.argv[1:] if words is None else words)]
    try:
        code = _run(words)
    except DynastateError as error:
        message = in_options(error)
    except _Refused as refused:
        context = getattr(refused, "ctx", None)
        path = context.command_path if context else "dynastate"
        wrong = refused.format_message().replace("Value error, ", "").rstrip(".")  # type: ignore[attr-defined]
        message = f"{wrong}{'' if wrong.endswith('?') else ';'} '{path} --help' shows what it takes"
    except typer.Abort as end:
        code = INTERRUPTED if isinstance(end.__cause__, KeyboardInterrupt) else 1
        message = "not confirmed, nothing was done" if code == 1 else ""
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception:  # noqa: BLE001  # a defect: the trace has no values, which may be secrets
        traceback.print_exc()
    if code == INTERRUPTED:
        message = "interrupted"
    if message:
        typer.echo(f"dynastate: {' '.join(message.split())}", err=True)
    sys.exit(code)


def _as_utf8(word: str) -> str:
    """A word of the command line. Without a locale Python leaves bytes of UTF-8 in it as surrogates."""
    if word.isascii():
        return word
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")
