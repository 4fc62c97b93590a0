"""The command `dynastate`: its commands, its exit codes, and `main`."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Final, NoReturn, cast

import typer

import dynastate
from dynastate.cli import cost, import_checkpoint, inspect, local, maintain, tables
from dynastate.cli.help import Group
from dynastate.errors import DynastateError
from dynastate.settings import PREFIX

INTERRUPTED: Final = 130
EXIT_CODES: Final = """\
Exit codes:
  0    Done, and nothing is wrong.
  1    The answer is no: 'verify' or 'tables check' found something wrong, 'get'
       or 'history' no such key, or 'drop' was not confirmed.
  2    It could not be done, or the command line is wrong. The last line on
       standard error says why.
  130  Interrupted by Ctrl-C. 'local' and 'top' end with 0 then.
  141  The reader of the output closed the pipe, as 'head' does."""
EXAMPLES: Final = """\
Examples:
  dynastate stores --region eu-west-1
  dynastate get orders/0 '{"user": "a"}'
  dynastate verify orders/0/17/default --json"""
#: The error of Typer for a wrong command line. Its class has no public name.
_Refused = cast("type[Exception]", typer.BadParameter.__mro__[2])
_SETTING: Final = re.compile(rf"{re.escape(PREFIX)}(endpoint|region|namespace|(?:\w+)(?:Table|Price))\b")

app = typer.Typer(
    cls=Group,
    help="Spark Structured Streaming state in Amazon DynamoDB.",
    epilog=f"{EXAMPLES}\n\n{EXIT_CODES}",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for each in (inspect.app, cost.app, maintain.app, import_checkpoint.app, tables.app, local.app):
    app.add_typer(each)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dynastate {dynastate.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def _as_typed(setting: re.Match[str]) -> str:
    """The option, or the argument NAMESPACE, that gives a setting on a command line."""
    name = re.sub("[A-Z]", lambda capital: f"-{capital[0].lower()}", setting[1])
    return name if name == "namespace" else f"--{name}"


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run one command and end the process with its exit code. An error is one line on standard error."""
    code, said = 2, ""
    try:
        code = app(args=words, prog_name="dynastate", standalone_mode=False) or 0
    except DynastateError as error:
        said = _SETTING.sub(_as_typed, str(error))
    except _Refused as refused:
        context = getattr(refused, "ctx", None)
        path = context.command_path if context else "dynastate"
        said = f"{refused.format_message().rstrip('.')}; '{path} --help' shows what it takes"  # type: ignore[attr-defined]
    except typer.Abort as end:
        code = INTERRUPTED if isinstance(end.__cause__, KeyboardInterrupt) else 1
        said = "not confirmed, nothing was done" if code == 1 else ""
    except KeyboardInterrupt:
        code = INTERRUPTED
    except Exception:  # noqa: BLE001  # a defect: the trace has no values, which may be secrets
        traceback.print_exc()
    if code == INTERRUPTED:
        said = "interrupted"
    if said:
        typer.echo(f"dynastate: {' '.join(said.split())}", err=True)
    sys.exit(code)
