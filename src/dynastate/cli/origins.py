"""Configuration of commands: the tables, Region, endpoint and AWS profile, each with its origin.

An option goes before a variable of dynastate, this before `dynastate.toml`, and this before AWS's own variables.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from dynastate.errors import ConfigurationError, DynastateError
from dynastate.settings import DELTA_TABLE, PREFIX, SNAPSHOT_TABLE, Settings, spark_name

#: Begins the environment variables that stand for options.
VARIABLES: Final = "DYNASTATE_"
FILE: Final = "dynastate.toml"
#: The variable that names another file.
FILE_VARIABLE: Final = f"{VARIABLES}CONFIG_FILE"
HOME_FILE: Final = f"~/.config/{FILE}"
DEFAULT_PROFILE: Final = "default"
#: Names of the values: options without dashes, and keys of the file.
NAMES: Final = (
    "endpoint", "region", "aws-profile", "delta-table", "snapshot-table", "objects", "objects-endpoint"
)  # fmt: skip
#: The origin of what is used where nothing is known and the endpoint is a loopback address.
_LOCAL: Final = "endpoint on this machine"
_DEFAULTS: Final = {"delta-table": DELTA_TABLE, "snapshot-table": SNAPSHOT_TABLE}
#: Variables of AWS's tools that have a value, where dynastate was given none. boto3 and we read them later, too.
_AWS: Final = {
    "endpoint": ("AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL"),
    "objects-endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "aws-profile": ("AWS_DEFAULT_PROFILE", "AWS_PROFILE"),
}
#: How like a known variable another one must be, from 0 to 1, to be taken for a misspelt one.
_LIKE_MIN: Final = 0.74
#: Variables with credentials, which go before a profile that only the environment names.
_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@dataclass(frozen=True)
class Value:
    """A value, and what it was taken from."""

    name: str
    value: str
    #: Such as `--region`, `DYNASTATE_REGION`, `dynastate.toml [default]`, `AWS_REGION` or `default`.
    origin: str
    #: Whether dynastate was given it. If not, it is shown only: a default, or read by AWS's own rules.
    is_given: bool


@dataclass(frozen=True)
class Origins:
    """The values of one command."""

    values: tuple[Value, ...] = ()
    #: Path of the file that was read, or empty.
    file: str = ""
    #: Its profile, or empty.
    profile: str = ""

    @property
    def aws_profile(self) -> str:
        """The AWS profile that dynastate was given, or an empty text."""
        return next((each.value for each in self.values if each.name == "aws-profile" and each.is_given), "")

    @property
    def of_file(self) -> str:
        """The file and the profile that were read, in words."""
        if not self.file:
            return f"file: none ({FILE} here, or {HOME_FILE})"
        return f"file: {self.file}, profile: {self.profile or f'none, as it has no [{DEFAULT_PROFILE}]'}"

    def settings(self) -> Settings:
        """The settings.

        Raises:
            ConfigurationError: a value is not of its kind.
        """
        values = {
            value.name.replace("-", "_"): value.value
            for value in self.values
            if value.is_given and value.name != "aws-profile"
        }
        return Settings(**values)  # type: ignore[arg-type]  # all of these are texts

    def name_origins(self, error: DynastateError) -> None:
        """Let an error name the variable, or the key and profile of the file, that gave a setting."""
        for value in self.values:
            if value.is_given:
                is_one_word = value.origin.startswith(("--", VARIABLES))
                spelling = value.origin if is_one_word else f"{value.name} in {value.origin}"
                error.name_setting(f"{PREFIX}{spark_name(value.name.replace('-', '_'))}", spelling)

    @property
    def problem(self) -> str:
        """A sentence if the files of AWS's tools lack the AWS profile, else an empty text."""
        from dynastate.dynamodb.credentials import aws_profiles

        named = [(each.value, each.origin) for each in self.values if each.name == "aws-profile" and each.is_given]
        named += [(os.environ[each], each) for each in _AWS["aws-profile"] if os.environ.get(each)]
        profiles = aws_profiles()
        if not named or named[0][0] in profiles:
            return ""
        profile, origin = named[0]
        return f"no AWS profile {profile}, from {origin}: AWS's files have {', '.join(profiles) or 'none'}"

    def complete(self) -> list[Value]:
        """The values as they are used: with a Region that AWS's files say, and who gives the credentials."""
        from dynastate.dynamodb.credentials import LOCAL_KEY, LOCAL_REGION, has_credentials_source, is_loopback

        by_name = {each.name: each for each in self.values}
        is_local = is_loopback(by_name["endpoint"].value)
        if not by_name["region"].value:
            from dynastate.dynamodb.client import configured_region  # imports botocore

            if region := configured_region():
                by_name["region"] = Value("region", region, "AWS's configuration", is_given=False)
            elif is_local:
                by_name["region"] = Value("region", LOCAL_REGION, _LOCAL, is_given=False)
        credentials = Value("credentials", "", "AWS's standard chain", is_given=False)
        if self.aws_profile:
            credentials = replace(credentials, origin="aws-profile")
        elif os.environ.get(_KEYS[0]):
            credentials = replace(credentials, origin=_KEYS[0])
        elif is_local and not has_credentials_source():
            credentials = replace(credentials, value=LOCAL_KEY, origin=_LOCAL)
        return [*by_name.values(), credentials]

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Give this process and those that it starts the AWS profile, as `aws --profile` does.

        Credentials of the environment go before a profile that a variable names, so they are left out meanwhile.
        """
        if not self.aws_profile:
            yield
            return
        environment = dict(os.environ)
        for name in (*_KEYS, *_AWS["aws-profile"]):
            os.environ.pop(name, None)
        os.environ["AWS_PROFILE"] = self.aws_profile
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(environment)


def variable_of(name: str) -> str:
    """The environment variable that stands for an option."""
    return f"{VARIABLES}{name.replace('-', '_').upper()}"


def find_origins(
    options: Mapping[str, str], variables: Mapping[str, str], profile: str = "", *, is_typed: bool = False
) -> Origins:
    """The values of a command.

    Args:
        options: values that were typed, by name. An empty one is the default, whatever variables and file say.
        variables: values of dynastate's environment variables, by name.
        profile: a profile of the file. Empty: `default`, if the file has it.
        is_typed: whether the profile was typed: its values then go before variables.

    Raises:
        ConfigurationError: the file or the profile is not there, or the file has an unknown key or a wrong value.
    """
    file = _file()
    profiles = _read(file) if file else {}
    if profile and profile not in profiles:
        reason = f"{file} has {', '.join(profiles) or 'none'}" if file else f"there is no {FILE} here, nor {HOME_FILE}"
        raise ConfigurationError(f"no profile {profile}: {reason}; a profile of AWS is --aws-profile")
    name = profile or (DEFAULT_PROFILE if DEFAULT_PROFILE in profiles else "")
    in_order: list[tuple[str, Mapping[str, str]]] = [
        ("--", options),
        (VARIABLES, variables),
        (f"{file} [{name}]", profiles.get(name, {})),
    ]
    if is_typed:
        in_order[1:] = reversed(in_order[1:])
    sources = dict(in_order)
    values = tuple(_value(each, sources) for each in NAMES)
    return Origins(values, str(file or ""), name)


def unknown_variables() -> dict[str, str]:
    """Variables of the environment that begin as those of dynastate and stand for nothing.

    Returns the variable that each was meant to be, or an empty text: a service of Kubernetes that has the name
    `dynastate` gives some, too.
    """
    variables = [FILE_VARIABLE, *map(variable_of, ("profile", *NAMES))]
    unknown = sorted(name for name in os.environ if name.upper().startswith(VARIABLES) and name not in variables)
    return {name: _most_like(name.upper(), variables) for name in unknown}


def _most_like(unknown: str, variables: Sequence[str]) -> str:
    from difflib import get_close_matches  # few commands need it

    by_end = {name.removeprefix(VARIABLES): name for name in variables}
    like = get_close_matches(unknown.removeprefix(VARIABLES), by_end, 1, _LIKE_MIN)
    return by_end[like[0]] if like else ""


def _value(name: str, sources: Mapping[str, Mapping[str, str]]) -> Value:
    """The value of a name from the first source that has it. Sources are by their origins, or what these begin with."""
    spellings = {"--": f"--{name}", VARIABLES: variable_of(name)}
    for origin, source in sources.items():
        if source.get(name):
            return Value(name, source[name], spellings.get(origin, origin), is_given=True)
        if name in source:
            break
    if name != "aws-profile" or not os.environ.get(_KEYS[0]):
        for aws_variable in _AWS.get(name, ()):
            if value := os.environ.get(aws_variable):
                return Value(name, value, aws_variable, is_given=False)
    return Value(name, _DEFAULTS.get(name, ""), "default", is_given=False)


def _file() -> Path | None:
    """The file that the variable names, that of the current folder, or that of the user; None if there is none."""
    if named := os.environ.get(FILE_VARIABLE):
        if not (file := Path(named).expanduser()).is_file():
            raise ConfigurationError(f"{FILE_VARIABLE} names no file", path=named)
        return file
    usual = (Path(FILE), Path(HOME_FILE).expanduser())
    return next((each for each in usual if each.is_file()), None)


def _read(file: Path) -> dict[str, dict[str, str]]:
    """The profiles of a file, by name. Refuse keys outside of one, unknown keys, and numbers."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        content: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as wrong:  # a TOMLDecodeError says line and column
        raise ConfigurationError(f"{file} cannot be read: {wrong}") from wrong
    for profile, values in content.items():
        if not isinstance(values, dict):
            raise ConfigurationError(
                f"{file}: key {profile} is outside of a profile; begin one with [{DEFAULT_PROFILE}]"
            )
        for name, value in values.items():
            if name not in NAMES:
                raise ConfigurationError(f"{file} [{profile}]: unknown key {name}; known are {', '.join(NAMES)}")
            if not isinstance(value, str) or not value:
                raise ConfigurationError(f"{file} [{profile}]: {name} must be text in quotes, and not empty")
    return content
