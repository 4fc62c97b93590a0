"""The command `config`, and where each command takes its values from."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from botocore.session import Session

from dynastate.cli.origins import find_origins
from tests.support.command_line import refused, run, shown
from tests.support.jvm import ROOT

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
    for name in (
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_PROFILE",
        "AWS_DEFAULT_PROFILE",
        "AWS_ENDPOINT_URL",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_CONFIG_FILE",
    ):
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
        ("[default]\nregion = 'Frankfurt'", "dynastate: region in dynastate.toml [default] must be an AWS Region"),
        ("[default]\nobjects = 'x'", "dynastate: objects in dynastate.toml [default] must be s3://"),
        ("[default]\nsnapshot-table = 'dynastate-delta'", "and snapshot-table in dynastate.toml [default] must differ"),
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
    assert refused("config").startswith("dynastate: DYNASTATE_REGION must be an AWS Region")
    assert refused("config", "--region", "Frankfurt").startswith("dynastate: --region must be an AWS Region")
    assert refused("config", "--region", "", "--objects", "x").startswith("dynastate: --objects must be s3://")


def test_a_misspelt_variable_is_no_silent_default(monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    """Every command with tables warns of it on standard error; `config` lists the others that stand for nothing."""
    for name in ("DYNASTATE_REGOIN", "dynastate_region", "DYNASTATE_AWS_REGION"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "eu-west-1")
            result = run("get", store, '{"user": "a"}')
        assert (result.code, result.out[0]) == (0, "{")
        warning = f"dynastate: warning: no command reads the variable {name}; there is DYNASTATE_REGION\n"
        assert result.err == warning
    monkeypatch.setenv("DYNASTATE_SERVICE_HOST", "10.0.0.1")
    assert "DYNASTATE_SERVICE_HOST" in shown("config")["unknown_variables"]
    assert any("DYNASTATE_SERVICE_HOST" in line for line in run("config").lines)


def test_no_warning_of_variables_that_others_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes gives them where a service has our name, some are of this repository's tests, others of images."""
    of_tests = re.findall(r"DYNASTATE_[A-Z_]+", (ROOT / "Makefile").read_text())
    of_kubernetes = [f"DYNASTATE_{end}" for end in ("SERVICE_HOST", "SERVICE_PORT", "PORT", "PORT_80_TCP_ADDR")]
    of_images = ["DYNASTATE_VERSION", "DYNASTATE_PROJECT", "DYNASTATE_SOURCE_REGION"]
    for name in [*of_tests, *of_kubernetes, *of_images]:
        monkeypatch.setenv(name, "1")
    assert of_tests
    assert run("config").err == ""


def test_an_error_names_where_the_setting_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that a request has, not only that of a wrong form."""
    monkeypatch.setenv("DYNASTATE_DELTA_TABLE", "no-such-table")
    message = refused("tables", "check", "--region", "us-east-1")
    assert "no-such-table" in message
    assert "--delta-table" not in message


def test_verbose_is_for_every_command_with_tables(store: str) -> None:
    """It says on standard error which value came from where, and leaves standard output as it is."""
    result = run("get", store, '{"user": "a"}', "--json", "-v", "--region", "us-east-1")
    assert (result.code, result.out[0]) == (0, "{")
    assert "region: us-east-1, from --region" in result.err.splitlines()
    assert "delta-table: dynastate-delta, from default" in result.err.splitlines()


def test_an_aws_profile_goes_before_keys_of_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `aws --profile` does; processes that the command starts have it, too. Afterwards all is as it was."""
    (folder / "dynastate.toml").write_text(FILE)
    (folder / "keys").write_text("[production]\n[other]\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "keys"))
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


def test_an_aws_profile_that_does_not_exist(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`config` says so, whoever names it, with exit code 1: no request could be sent."""
    (folder / "config").write_text("[default]\nregion = eu-north-1\n[profile 'one two']\n[sso-session other]\n")
    (folder / "keys").write_text("[three]\naws_access_key_id = k\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "keys"))
    for name in ("default", "one two", "three"):
        assert shown("config", "--aws-profile", name)["problem"] is None
    there = "AWS's files have default, one two, three"
    answer = shown("config", "--aws-profile", "other", code=1)
    assert answer["problem"] == f"no AWS profile other, from --aws-profile: {there}"
    monkeypatch.setenv("AWS_DEFAULT_PROFILE", "four")  # botocore reads it with keys in the environment, too
    assert f"no AWS profile four, from AWS_DEFAULT_PROFILE: {there}" in " ".join(run("config").out.split())
    assert run("config").code == 1


def test_the_given_aws_profile_goes_before_each_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_DEFAULT_PROFILE is one that botocore reads before AWS_PROFILE."""
    (folder / "keys").write_text(
        "".join(f"[{name}]\naws_access_key_id = {name}\naws_secret_access_key = s\n" for name in ("given", "else"))
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "keys"))
    monkeypatch.setenv("AWS_DEFAULT_PROFILE", "else")
    monkeypatch.setenv("AWS_PROFILE", "else")
    with find_origins({"aws-profile": "given"}, {}).environment():
        credentials = Session().get_credentials()
    assert credentials is not None
    assert credentials.access_key == "given"


def test_a_region_of_the_aws_configuration(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "config").write_text("[default]\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    assert values()["region"] == ("eu-north-1", "AWS's configuration")


def test_config_is_a_table_for_people() -> None:
    lines = run("config", "--endpoint", "http://127.0.0.1:8000").lines
    assert lines.pop(0) == "file: none (dynastate.toml here, or ~/.config/dynastate.toml)"
    assert lines[0].split() == ["name", "value", "origin"]
    assert lines[1].split() == ["endpoint", "http://127.0.0.1:8000", "--endpoint"]
