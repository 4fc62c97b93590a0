"""Settings: each wrong one in turn."""

from __future__ import annotations

from dataclasses import fields
from decimal import Decimal

import pytest

from dynastate.errors import ConfigurationError
from dynastate.settings import PREFIX, Settings

#: By Spark's name without the prefix: values that are refused as text, and what the message says.
WRONG_TEXT = {
    "deltaTable": (["", "ab", "a" * 256, "with space", "tablé", "a/b", "t\n"], "3 to 255 characters"),
    "snapshotTable": (["", "ab", "a" * 256, "with space", "tablé", "a/b", "t\n"], "3 to 255 characters"),
    "region": (["Frankfurt", "eu-west", "EU-WEST-1", "eu_west_1", " eu-west-1", "eu-west-1\n"], "an AWS Region"),
    "endpoint": (
        [
            *(
                "localhost:8000",
                "127.0.0.1",
                "ftp://host",
                "http://",
                "http://host:0",
                "http://host:65536",
                "http://h:p",
            ),
            *("http://user@host", "http://user:password@host", "http://[::1", "https:///path"),
        ],
        "a URL such as http://127.0.0.1:8000",
    ),
    "namespace": (["a/b", "a#b", "a b", "n" * 129, "é"], "1 to 128 characters"),
    "shards": ([" 1", "1_0", "٣", "9" * 5_000, "0", "257", "-1", "many", "", "4.0", "1e1"], "whole number"),
    "parallelRequests": ([" 1", "1_0", "٣", "9" * 5_000, "0", "65", "-8", "all", "", "0x8"], "whole number"),
    "cacheMb": ([" 1", "1_0", "٣", "9" * 5_000, "-1", "65537", "64m", "", "1.5"], "whole number"),
    "sidecars": ([" 1", "1_0", "٣", "9" * 5_000, "0", "65", "-1", "auto", "", "1.5"], "whole number"),
    "memoryMb": ([" 1", "1_0", "٣", "9" * 5_000, "-1", "1048577", "1g", "", "1.5"], "whole number"),
    "diskMb": ([" 1", "1_0", "٣", "9" * 5_000, "-1", "16777217", "1t", "", "1.5"], "whole number"),
    "diskPath": (
        ["disk", "./disk", "~/disk", "file:/disk", " /disk", ",", "/disk,", ",/disk", "/a,,/b", "/a, /b", "/a\0"],
        "absolute folders with commas between them",
    ),
    "compression": (["", "raw", "ZSTD", "lz4 ", "lz4,zstd", "gzip", "zstd\n"], "lz4 or zstd"),
    "snapshotThreshold": (["", "-0.1", "100.01", "85 %", "0,85", "1e1", ".5", "2.", "NaN", " 2"], "decimal"),
    "objects": (
        [
            *("bucket", "s3://", "s3:/bucket", "s3://B", "s3://b", "gs://bucket", "s3://bucket/a b", "s3://u:p@bucket"),
            *("s3://bucket--usw2-az1--x-s3", "s3a://bucket--usw2-az1--x-s3/state"),
        ],
        "s3://bucket or s3://bucket/prefix",
    ),
    "objectsEndpoint": (["127.0.0.1:9000", "ftp://host", "http://user:password@host"], "a URL such as"),
    "objectsThresholdKb": ([" 4", "-1", "25", "4k", "", "1.5"], "whole number"),
    "transport": (["", "Boto3", "http", "direct "], "direct or boto3"),
    "requestDeadlineS": ([" 1", "1_0", "٣", "9" * 5_000, "0", "3601", "-60", "60s", "", "1.5"], "whole number"),
    **dict.fromkeys(
        ("writePrice", "readPrice", "storagePrice", "putPrice", "getPrice", "objectsStoragePrice"),
        (["-0.1", "1000000.01", "$0.625", "0,625", "1e3", ".5", "1.", "NaN", "inf", " 1", "1_0", "٣", ""], "decimal"),
    ),
}
RIGHT_TEXT = {
    "deltaTable": ["abc", "A-b_c.9", "a" * 255],
    "snapshotTable": ["abc", "a" * 255, "A-b_c.9"],
    "region": ["", "eu-west-1", "us-gov-east-1", "ap-southeast-5", "us-isob-east-1", "eusc-de-east-1"],
    "endpoint": ["", "http://127.0.0.1:8000", "https://dynamodb.eu-west-1.amazonaws.com", "http://[::1]:8000/"],
    "namespace": ["", "a", "n" * 128, "A.b_c-9"],
    "python": ["", "/opt/python 3/bin/python"],
    "shards": ["1", "256"],
    "parallelRequests": ["1", "64"],
    "cacheMb": ["0", "65536"],
    "sidecars": ["1", "64"],
    "memoryMb": ["0", "1048576"],
    "diskMb": ["0", "16777216"],
    "diskPath": ["", "/", "/mnt/disk 1", "/a,/b/é"],
    "compression": ["lz4", "zstd"],
    "snapshotThreshold": ["0", "0.85", "100", "2.5"],
    "objects": ["", "s3://bucket", "s3://my.bucket-1/state", "s3://b--x-s3-1/b--x-s3", "s3://bucket/a/b_c!'(1)*"],
    "objectsEndpoint": ["", "http://127.0.0.1:9000", "https://s3.eu-west-1.amazonaws.com"],
    "objectsThresholdKb": ["0", "24"],
    "transport": ["direct", "boto3"],
    "requestDeadlineS": ["1", "3600"],
    "writePrice": ["0.625", "0", "1000000", "0.71250", "0.0000001"],
    "readPrice": ["0.125", "0", "1000000"],
    "storagePrice": ["0.25", "0", "1000000"],
    "putPrice": ["5", "0", "1000000"],
    "getPrice": ["0.4", "0", "1000000"],
    "objectsStoragePrice": ["0.023", "0", "1000000"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, (values, _) in WRONG_TEXT.items() for value in values]
)
def test_a_wrong_value_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings.from_spark({name: value})
    assert str(refused.value).startswith(f"{PREFIX}{name} must be ")
    assert WRONG_TEXT[name][1] in str(refused.value)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in RIGHT_TEXT.items() for value in values])
def test_a_right_value_is_taken(name: str, value: str) -> None:
    settings = Settings.from_spark({name: value})
    default = Settings() == settings
    assert settings.to_spark() == ({} if default else {PREFIX + name: value})


@pytest.mark.parametrize(
    ("given", "location"),
    [
        ("s3a://bucket/prefix", "s3://bucket/prefix"),
        ("s3://bucket/prefix/", "s3://bucket/prefix"),
        ("s3a://bucket/prefix//", "s3://bucket/prefix"),
        ("s3://bucket//prefix", "s3://bucket/prefix"),
        ("s3a://bucket///a//b/c///", "s3://bucket/a/b/c"),
        ("s3://bucket//", "s3://bucket"),
    ],
)
def test_a_location_of_objects_has_one_spelling(given: str, location: str) -> None:
    """Hadoop's scheme for S3, empty segments, and slashes at the end make no other location."""
    assert Settings(objects=given).objects == Settings(objects=location).objects == location
    assert Settings.from_spark({"objects": given}) == Settings(objects=location)


def test_every_setting_is_tested() -> None:
    """There is a right value for each setting here, and a wrong one for each but `python`, which may be any text."""
    names = {name.removeprefix(PREFIX) for name in changed().to_spark()}
    assert names == set(RIGHT_TEXT) == {*WRONG_TEXT, "python"}


def changed() -> Settings:
    return Settings.from_spark({name: values[-1] for name, values in RIGHT_TEXT.items()})


@pytest.mark.parametrize("field", fields(Settings), ids=lambda field: field.name)
@pytest.mark.parametrize("value", [None, 1.5, b"bytes", True, []])
def test_a_value_of_another_type_is_refused(field: object, value: object) -> None:
    name = getattr(field, "name", "")
    if (name.endswith("_price") or name == "snapshot_threshold") and value == 1.5:
        value = "1.5"  # these may be floats, but no text
    if name in ("sidecars", "memory_mb", "disk_mb") and value is None:
        value = ""  # None is the default
    spark_name = "".join(word if place == 0 else word.capitalize() for place, word in enumerate(name.split("_")))
    with pytest.raises(ConfigurationError, match=f"^{PREFIX}{spark_name} must be "):
        Settings(**{name: value})  # type: ignore[arg-type]  # that is what is tested


@pytest.mark.parametrize(("given", "meant"), [(0.1, "0.1"), (2, "2"), (Decimal("0.710"), "0.71"), (1e-7, "0.0000001")])
def test_a_price_is_the_number_as_it_is_written(given: float | Decimal, meant: str) -> None:
    """A float stands for the decimal number it is written as, so that sums are exact."""
    settings = Settings(write_price=given)  # type: ignore[arg-type]  # as `configure` passes it on
    assert settings.write_price == Decimal(meant)
    assert settings == Settings.from_spark({"writePrice": meant})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Decimal("sNaN"), -0.01, 1_000_000.01])
def test_a_price_is_a_number_from_nothing_to_a_million(value: float | Decimal) -> None:
    with pytest.raises(
        ConfigurationError, match=r"dynastate\.readPrice must be a decimal number from 0 to 1000000 got="
    ):
        Settings(read_price=value)  # type: ignore[arg-type]  # as `configure` passes it on


def test_unknown_settings_are_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings.from_spark({"deltatable": "abc"})
    assert f"unknown setting {PREFIX}deltatable; known are " in str(refused.value)
    assert all(name in str(refused.value) for name in RIGHT_TEXT)


@pytest.mark.parametrize("name", ["memory_mb", "disk_mb"])
def test_a_size_that_is_not_set_is_not_zero(name: str) -> None:
    """Memory and disk: 0 turns a limit or the disk off, and is passed on; what is not set, or None, is not."""
    spark_name = name.replace("_mb", "Mb")
    assert getattr(Settings(), name) is None
    assert Settings().to_spark(names=[name]) == {}
    assert Settings.from_spark({spark_name: "0"}).to_spark() == {f"{PREFIX}{spark_name}": "0"}


def test_both_tables_must_differ() -> None:
    with pytest.raises(ConfigurationError, match=f"{PREFIX}deltaTable and {PREFIX}snapshotTable must differ both=same"):
        Settings(delta_table="same", snapshot_table="same")
