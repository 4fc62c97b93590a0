"""Options that commands share, declared once: `command` adds them, and hands the function a `Call`."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

from dynastate.cli.exit_codes import PIPE_CLOSED
from dynastate.cli.help import Command
from dynastate.cli.origins import NAMES, Origins, find_origins, unknown_variables, variable_of
from dynastate.cli.output import Output
from dynastate.errors import CorruptStateError, DynastateError, VersionMissingError
from dynastate.settings import DELTA_TABLE, PREFIX, SNAPSHOT_TABLE, Settings, spark_name

if TYPE_CHECKING:
    from dynastate.dynamodb.boto_tables import BotoTables
    from dynastate.engine.engine import Engine


def not_empty(parameter: typer.CallbackParam, value: str) -> str:
    """Refuse an empty text, such as a variable of the shell that is not set, unless it is the default."""
    if value == "" and parameter.default != "":
        raise typer.BadParameter("it is empty")
    return value


def a_namespace(parameter: typer.CallbackParam, value: str) -> str:
    """Refuse a text that cannot be a namespace."""
    return Settings(namespace=not_empty(parameter, value)).namespace


def number(least: float, metavar: str, text: str) -> Any:
    """An option for a number."""
    return typer.Option(min=least, metavar=metavar, help=text)


# Arguments and options of several commands, for their functions to declare.
Namespace = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="First part of the names of a query's stores.", callback=a_namespace)
]
Store = Annotated[
    str, typer.Argument(metavar="STORE", help="namespace/operator/partition/name; 'dynastate stores' lists them.")
]
Stores = Annotated[
    str,
    typer.Argument(
        metavar="STORES",
        help="namespace/operator/partition/name, or namespace/operator for all its partitions "
        "(namespace/operator/*/name where it has several stores a partition).",
    ),
]
Key = Annotated[str, typer.Argument(metavar="KEY", help='The key as a JSON object, such as \'{"user": "a"}\'.')]
Family = Annotated[str, typer.Option(metavar="NAME", help="Column family. By default the only one.")]


def _option(
    name: str, default: str | bool, help_: str, metavar: str | None = None, letter: str = ""
) -> inspect.Parameter:
    declared = typer.Option(
        f"--{name}",
        *([f"-{letter}"] if letter else ()),
        metavar=metavar,
        help=help_,
        rich_help_panel="Common options",
        envvar=variable_of(name) if metavar else None,
    )
    own_name = "as_json" if name == "json" else name.replace("-", "_")
    return inspect.Parameter(
        own_name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[type(default), declared]
    )


_TABLES: Final = (
    _option("endpoint", "", "DynamoDB endpoint. By default AWS_ENDPOINT_URL, or the Region's own.", "URL"),
    _option("region", "", "AWS Region. By default AWS_REGION, or the profile's.", "REGION"),
    _option("aws-profile", "", "AWS profile for credentials and Region. By default AWS_PROFILE.", "NAME"),
    _option("delta-table", DELTA_TABLE, "Name of the delta table.", "NAME"),
    _option("snapshot-table", SNAPSHOT_TABLE, "Name of the snapshot-group table.", "NAME"),
    _option("objects", "", "Where in S3 a command that writes rows puts large parts.", "S3-URL"),
    _option("objects-endpoint", "", "S3 endpoint. By default AWS_ENDPOINT_URL_S3, or the Region's own.", "URL"),
    _option("profile", "", "Profile of dynastate.toml with values of these options. By default 'default'.", "NAME"),
    _option("verbose", False, "Show on standard error where each of these values is from.", letter="v"),
)
_WIDE: Final = _option("wide", False, "Whole ids and lines, however narrow the terminal is.")


@dataclass(frozen=True)
class Call(Output):
    """One call of a command: the tables its options name, and its output."""

    settings: Settings = field(default_factory=Settings)
    origins: Origins = field(default_factory=Origins)

    @contextmanager
    def tables(self) -> Iterator[BotoTables]:
        """The tables. Errors name them as the user does."""
        from dynastate.dynamodb.boto_tables import open_tables

        with open_tables(self.settings) as tables:
            try:
                yield tables
            except (CorruptStateError, VersionMissingError) as failed:
                failed.name_table(tables.names)
                raise

    @contextmanager
    def engine(self, **settings: Any) -> Iterator[tuple[Engine, BotoTables]]:
        """An engine on the tables, with settings of a command of its own."""
        from dynastate.engine.engine import Engine

        with self.tables() as tables, closing(Engine(tables, replace(self.settings, **settings))) as engine:
            yield engine, tables


def command(
    app: typer.Typer,
    *examples: str,
    name: str | None = None,
    tables: bool = True,
    wide: bool = True,
    json: str = "JSON on standard output, and nothing else.",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a function to an application as a command with the shared options: `tables` to name them, `wide`, `json`.

    The function takes a `Call`, then its own parameters. `examples` are shown in its help, without `dynastate`.
    """
    shared = [*(_TABLES if tables else ()), _option("json", False, json), *([_WIDE] if wide else [])]

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own_parameters = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        @functools.wraps(function)
        def run(ctx: typer.Context, **arguments: Any) -> None:
            arguments = {name: _from_home(value) for name, value in arguments.items()}
            values = {each.name: arguments.pop(each.name) for each in shared}
            origins = origins_of(ctx, values) if tables else Origins()
            output = {key: values.pop(key) for key in ("as_json", "wide") if key in values}
            if tables:
                _warn_of_variables()
            with origins.environment(), _named_by(origins), _ends_with_the_reader():
                settings = origins.settings()
                if values.get("verbose"):
                    _show_origins(origins)
                function(Call(**output, settings=settings, origins=origins), **arguments)

        context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        own_options = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own_parameters]
        parameters = [context, *own_options, *shared]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # inspect reads it
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        epilog = "\n".join(["Examples:", *(f"  dynastate {each}" for each in examples)])
        texts = {each.name for each in parameters if get_args(each.annotation)[:1] in ((str,), (str | None,))}
        app.command(
            name, cls=Command, epilog=epilog, rich_help_panel=app.rich_help_panel, context_settings={"obj": texts}
        )(run)
        return function

    return register


def origins_of(ctx: typer.Context, values: Mapping[str, Any]) -> Origins:
    """The values of the options in `_TABLES`, with their origins."""
    by_source: dict[str, dict[str, str]] = {"COMMANDLINE": {}, "ENVIRONMENT": {}}
    for name in NAMES:
        own_name = name.replace("-", "_")
        source = ctx.get_parameter_source(own_name)
        if source is not None and source.name in by_source:
            by_source[source.name][name] = values[own_name]
    source = ctx.get_parameter_source("profile")
    is_typed = source is not None and source.name == "COMMANDLINE"
    return find_origins(by_source["COMMANDLINE"], by_source["ENVIRONMENT"], values["profile"], is_typed=is_typed)


def _warn_of_variables() -> None:
    """Warn of variables that are misspelt, and would change nothing without a word."""
    for name, meant in unknown_variables().items():
        if meant:
            typer.echo(f"dynastate: warning: no command reads the variable {name}; there is {meant}", err=True)


@contextmanager
def _named_by(origins: Origins) -> Iterator[None]:
    """Errors name the variable or the file that gave a setting."""
    try:
        yield
    except DynastateError as error:
        origins.name_origins(error)
        raise


@contextmanager
def naming_target(options: Mapping[str, str]) -> Iterator[None]:
    """Errors name the option `--to-…` that gave a setting of the target, by the settings' fields."""
    try:
        yield
    except DynastateError as error:
        for name in (name for name, value in options.items() if value):
            error.name_setting(f"{PREFIX}{spark_name(name)}", f"--to-{name.replace('_', '-')}")
        raise


def _show_origins(origins: Origins) -> None:
    typer.echo(origins.of_file, err=True)
    for value in origins.complete():
        typer.echo(f"{value.name}: {value.value or '-'}, from {value.origin}", err=True)


def _from_home(value: Any) -> Any:
    """Expand `~`, which a shell leaves as it is behind `=`; return any other value as it is."""
    if isinstance(value, list):
        return [_from_home(each) for each in value]
    is_below = isinstance(value, (str, Path)) and str(value).startswith("~/")
    return type(value)(Path(value).expanduser()) if is_below else value


@contextmanager
def _ends_with_the_reader() -> Iterator[None]:
    """End with `PIPE_CLOSED` if standard output is a pipe that is no longer read, as `head` leaves it."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter writes the rest of its buffer when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(PIPE_CLOSED) from None
