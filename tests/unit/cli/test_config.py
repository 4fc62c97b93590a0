"""The command `config`, and where each command takes its values from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dynastate.cli.origins import find_origins
from tests.support.command_line import refused, run, shown

FILE = """
[default]
region = "eu-west-1"
delta-table = "delta-of-file"

[local]
endpoint = "http://127.0.0.1:8000"

[prod]
aws-profile = "production"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, and a home without files; nothing of AWS in the environment but keys."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def values(*words: str) -> dict[str, tuple[Any, str]]:
    return {each["name"]: (each["value"], each["origin"]) for each in shown("config", *words)["values"]}


def test_without_anything_there_are_defaults() -> None:
    found = values()
    assert found["delta-table"] == ("dynastate-delta", "default")
    assert found["region"] == found["endpoint"] == (None, "default")
    assert found["credentials"] == (None, "AWS_ACCESS_KEY_ID")
    assert shown("config")["file"] is None


def test_a_profile_that_is_typed_goes_before_variables(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a variable names does not."""
    (folder / "dynastate.toml").write_text('[prod]\nregion = "eu-west-1"\n')
    monkeypatch.setenv("DYNASTATE_REGION", "us-east-2")
    assert values("--profile", "prod")["region"] == ("eu-west-1", "dynastate.toml [prod]")
    assert values("--profile", "prod", "--region", "eu-west-3")["region"] == ("eu-west-3", "--region")
    assert "file: dynastate.toml, profile: none, as it has no [default]" in run("config").lines
    monkeypatch.setenv("DYNASTATE_PROFILE", "prod")
    assert values()["region"] == ("us-east-2", "DYNASTATE_REGION")


def test_an_option_goes_before_a_variable_and_this_before_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And AWS's own variables are last. An empty option is the default."""
    (folder / "dynastate.toml").write_text(FILE)
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    assert values()["region"] == ("eu-west-1", "dynastate.toml [default]")
    monkeypatch.setenv("DYNASTATE_REGION", "eu-west-2")
    assert values()["region"] == ("eu-west-2", "DYNASTATE_REGION")
    assert values("--region", "eu-west-3")["region"] == ("eu-west-3", "--region")
    assert values("--region", "")["region"] == ("us-east-2", "AWS_REGION")
    assert values("--delta-table", "")["delta-table"] == ("dynastate-delta", "default")
    monkeypatch.setenv("DYNASTATE_REGION", "")
    assert values()["region"] == ("eu-west-1", "dynastate.toml [default]")


def test_a_profile_is_chosen_by_option_or_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles do not inherit from each other."""
    (folder / "dynastate.toml").write_text(FILE)
    assert shown("config", "--profile", "local")["profile"] == "local"
    monkeypatch.setenv("DYNASTATE_PROFILE", "local")
    found = values()
    assert found["endpoint"] == ("http://127.0.0.1:8000", "dynastate.toml [local]")
    assert found["delta-table"] == ("dynastate-delta", "default")
    assert found["region"] == ("us-east-1", "endpoint on this machine")
    assert "no profile nowhere: dynastate.toml has default, local, prod" in refused("config", "--profile", "nowhere")


def test_the_file_of_the_user_and_a_named_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = folder / "home" / ".config" / "dynastate.toml"
    usual.parent.mkdir(parents=True)
    usual.write_text(FILE)
    assert values()["region"] == ("eu-west-1", f"{usual} [default]")
    named = folder / "other.toml"
    named.write_text('[default]\nregion = "eu-west-3"\n')
    monkeypatch.setenv("DYNASTATE_CONFIG_FILE", str(named))
    assert values()["region"] == ("eu-west-3", f"{named} [default]")
    named.unlink()
    assert "DYNASTATE_CONFIG_FILE names no file" in refused("config")
    monkeypatch.delenv("DYNASTATE_CONFIG_FILE")
    usual.unlink()
    assert "there is no dynastate.toml here, nor ~/.config/dynastate.toml" in refused("config", "--profile", "prod")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (
            "[default]\nregoin = 'eu-west-1'",
            "dynastate.toml [default]: unknown key regoin; known are endpoint, region,",
        ),
        ("[other]\nregoin = 'eu-west-1'", "dynastate.toml [other]: unknown key regoin"),
        ("[default]\nregion = 1", "dynastate.toml [default]: region must be text in quotes, and not empty"),
        ("[default]\nregion = ''", "dynastate.toml [default]: region must be text in quotes, and not empty"),
        ("[default]\nregion = 'Frankfurt'", "dynastate.toml [default]: --region must be an AWS Region"),
        ("[default]\nendpoint = 'http://me:secret@x'", "got='http://***@x'"),
        ("region = 'eu-west-1'", "dynastate.toml: key region is outside of a profile; begin one with [default]"),
        ("[default]\nregion = eu", "dynastate.toml cannot be read: Invalid value (at line 2, column 10)"),
        ("[default]\nregion = '\udcff'", "dynastate.toml cannot be read: "),
    ],
)
def test_a_wrong_file_is_refused(folder: Path, content: str, part: str) -> None:
    (folder / "dynastate.toml").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert part in refused("config")


def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNASTATE_REGION", "Frankfurt")
    assert "DYNASTATE_REGION: --region must be an AWS Region" in refused("config")


def test_verbose_is_for_every_command_with_tables(store: str) -> None:
    """It says on standard error which value came from where, and leaves standard output as it is."""
    result = run("get", store, '{"user": "a"}', "--json", "-v", "--region", "us-east-1")
    assert (result.code, result.out[0]) == (0, "{")
    assert "region: us-east-1, from --region" in result.err.splitlines()
    assert "delta-table: dynastate-delta, from default" in result.err.splitlines()


def test_an_aws_profile_goes_before_keys_of_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `aws --profile` does; processes that the command starts have it, too. Afterwards all is as it was."""
    (folder / "dynastate.toml").write_text(FILE)
    assert values("--profile", "prod")["credentials"] == (None, "aws-profile")
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert values()["credentials"] == (None, "AWS_ACCESS_KEY_ID")
    before = dict(os.environ)
    with find_origins({}, {}, "prod").environment():
        assert os.environ["AWS_PROFILE"] == "production"
        assert "AWS_ACCESS_KEY_ID" not in os.environ
    assert dict(os.environ) == before


def test_keys_for_an_endpoint_on_this_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are local where nothing says who gives credentials; a file of AWS's tools does."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("dynastate.dynamodb.credentials._VENDOR", folder / "vendor")
    local = ("--endpoint", "http://localhost:8000")
    assert values(*local)["credentials"] == ("local", "endpoint on this machine")
    assert values()["credentials"] == (None, "AWS's standard chain")
    (folder / "vendor").write_text("Amazon EC2\n")
    assert values(*local)["credentials"] == (None, "AWS's standard chain")
    (folder / "vendor").write_text("Others\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "keys"))
    (folder / "keys").write_text("[default]\naws_access_key_id = k\naws_secret_access_key = s\n")
    assert values(*local)["credentials"] == (None, "AWS's standard chain")


def test_a_region_of_the_aws_configuration(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "config").write_text("[default]\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    assert values()["region"] == ("eu-north-1", "AWS's configuration")


def test_config_is_a_table_for_people() -> None:
    lines = run("config", "--endpoint", "http://127.0.0.1:8000").lines
    assert lines.pop(0) == "file: none (dynastate.toml here, or ~/.config/dynastate.toml)"
    assert lines[0].split() == ["name", "value", "origin"]
    assert lines[1].split() == ["endpoint", "http://127.0.0.1:8000", "--endpoint"]
