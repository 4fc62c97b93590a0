"""The settings of one query, checked once, before anything is opened.

In Spark each is `spark.sql.streaming.stateStore.dynastate.<name>`; `dynastate.configure` takes the same names in
snake case. There is no setting for credentials: they come from boto3's standard chain.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, field, fields
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

from dynastate.errors import ConfigurationError

PREFIX = "spark.sql.streaming.stateStore.dynastate."
DELTA_TABLE = "dynastate-delta"
SNAPSHOT_TABLE = "dynastate-snapshot-group"

# The forms of texts, with their names.
_TABLE_NAME = {
    "form": (
        re.compile(r"(arn:aws[a-z-]*:dynamodb:[a-z0-9-]+:[0-9]{12}:table/)?[A-Za-z0-9_.-]{3,255}"),
        "3 to 255 characters of A-Z a-z 0-9 _ . -, or the ARN of a table",
    )
}
_NAMESPACE = {"form": (re.compile(r"[A-Za-z0-9._-]{1,128}"), "1 to 128 characters of A-Z a-z 0-9 . _ -")}
_FOLDERS = {"form": (re.compile(r"/[^,\0]*(,/[^,\0]*)*"), "absolute folders with commas between them")}
_OBJECTS = {
    "form": (
        re.compile(r"s3a?://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?<!--x-s3)(/[A-Za-z0-9!_.*'()/-]{0,512})?"),
        "s3://bucket or s3://bucket/prefix, of S3's safe characters, and no directory bucket of S3 Express",
    )
}
_CODEC = {"form": (re.compile(r"lz4|zstd"), "lz4 or zstd")}
_TRANSPORT = {"form": (re.compile(r"direct|boto3"), "direct or boto3")}
_REGION = {"form": (re.compile(r"[a-z]{2,}(-[a-z]+)+-\d+"), "an AWS Region such as eu-west-1")}
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]+)?")
_PRICES = (Decimal(0), Decimal(1_000_000))
_TIMES = (Decimal(0), Decimal(100))


def spark_name(python_name: str) -> str:
    """The name of a setting in Spark's configuration, without its prefix."""
    head, *words = python_name.split("_")
    return head + "".join(word.capitalize() for word in words)


@dataclass(frozen=True)
class Settings:
    """The settings of a user.

    Raises:
        ConfigurationError: a value is not of its kind or out of its range; the message names the Spark setting.
    """

    delta_table: str = field(default=DELTA_TABLE, metadata=_TABLE_NAME)
    """Name of the delta table, or the ARN of one in another account."""
    snapshot_table: str = field(default=SNAPSHOT_TABLE, metadata=_TABLE_NAME)
    """Name of the snapshot-group table, or its ARN."""
    region: str = field(default="", metadata=_REGION)
    """AWS Region; empty: AWS_REGION, else boto3's standard chain (AWS_DEFAULT_REGION, the profile, …)."""
    endpoint: str = ""
    """URL of the DynamoDB endpoint; empty: AWS_ENDPOINT_URL_DYNAMODB or AWS_ENDPOINT_URL, else the Region's own."""
    namespace: str = field(default="", metadata=_NAMESPACE)
    """First part of every store's name; empty: a digest of the checkpoint's state root, which then must not move."""
    python: str = ""
    """Interpreter of the sidecar on the executors; empty: the one PySpark uses there."""
    shards: int = field(default=4, metadata={"range": (1, 256)})
    """Partition keys over which a *new* store's parts are spread; each takes 1,000 write units a second."""
    parallel_requests: int = field(default=8, metadata={"range": (1, 64)})
    """Concurrent requests with rows in one executor; 8, and a full queue, take about 100 MiB of sidecar memory."""
    cache_mb: int = field(default=64, metadata={"range": (0, 65_536)})
    """MiB of parts and buckets that an executor's sidecars keep, so that what was read or written is not read again."""
    sidecars: int | None = field(default=None, metadata={"range": (1, 64)})
    """Sidecar processes of one executor, among which its stores, `parallel_requests` and `cache_mb` are divided.

    By default one for each 8 of its cores, or part of 8."""
    memory_mb: int | None = field(default=None, metadata={"range": (0, 1_048_576)})
    """MiB of heap that rows of all stores of one executor may take; others are on local disk. 0: no limit, no disk.

    By default half of the heap; without a disk tier no limit."""
    disk_mb: int | None = field(default=None, metadata={"range": (0, 16_777_216)})
    """MiB of local disk that rows of all stores of one executor may take; 0: no disk tier.

    By default what the disk has, less a reserve."""
    disk_path: str = field(default="", metadata=_FOLDERS)
    """Absolute folders of the disk tier, with commas between them; empty: Spark's local folders on the executor."""
    compression: str = field(default="lz4", metadata=_CODEC)
    """Codec of rows that are written: lz4, or zstd, which needs the package's extra `zstd`. All are read."""
    snapshot_threshold: Decimal = field(default=Decimal("1.25"), metadata={"range": _TIMES})
    """A snapshot is made when the changes since the last one, in bytes, are this multiple of it."""
    objects: str = field(default="", metadata=_OBJECTS)
    """Where in S3 large parts are written, as s3://bucket/prefix; empty: to DynamoDB. Both are read.

    The name of the snapshot-group table is added to it, so that several tables can share it."""
    # A request that is full has 25 items, so that the first one of a batch always decides.
    objects_threshold_kb: int = field(default=4, metadata={"range": (0, 24)})
    """KiB of items, each rounded up, above which parts or a snapshot's buckets are objects; 0: all except inline ones.

    With DynamoDB's and S3's prices an object of more than 4 KiB costs less than its items, written and deleted."""
    objects_endpoint: str = ""
    """URL of a store that speaks S3; empty: AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, else the Region's own."""
    request_deadline_s: int = field(default=60, metadata={"range": (1, 3600)})
    """Seconds until a throttled or unreachable DynamoDB fails the task; retries back off with jitter until then."""
    transport: str = field(default="direct", metadata=_TRANSPORT)
    """Sender of requests: direct sends those of batches and of objects over own connections, boto3 sends all."""
    write_price: Decimal = field(default=Decimal("0.625"), metadata={"range": _PRICES})
    """US dollars for a million write units, for metrics. The defaults are us-east-1's on demand."""
    read_price: Decimal = field(default=Decimal("0.125"), metadata={"range": _PRICES})
    """US dollars for a million read units."""
    storage_price: Decimal = field(default=Decimal("0.25"), metadata={"range": _PRICES})
    """US dollars for a GB-month."""
    put_price: Decimal = field(default=Decimal(5), metadata={"range": _PRICES})
    """US dollars for a million requests that write or list objects of S3."""
    get_price: Decimal = field(default=Decimal("0.4"), metadata={"range": _PRICES})
    """US dollars for a million requests that read objects."""
    objects_storage_price: Decimal = field(default=Decimal("0.023"), metadata={"range": _PRICES})
    """US dollars for a GB-month of objects."""

    def __post_init__(self) -> None:
        for item in fields(self):
            self._require_form(item)
        if self.delta_table == self.snapshot_table:
            raise ConfigurationError(f"{PREFIX}deltaTable and {PREFIX}snapshotTable must differ", both=self.delta_table)
        object.__setattr__(self, "objects", _one_spelling(self.objects))
        for name in ("endpoint", "objects_endpoint"):
            if getattr(self, name):
                self._require_url(name)

    def _require_form(self, item: Field[Any]) -> None:
        value, name = getattr(self, item.name), PREFIX + spark_name(item.name)
        if "range" not in item.metadata:
            if not isinstance(value, str):
                raise ConfigurationError(f"{name} must be text", got=repr(value))
            form = item.metadata.get("form")
            if form and (value or item.default) and not form[0].fullmatch(value):
                raise ConfigurationError(f"{PREFIX}{spark_name(item.name)} must be {form[1]}", got=repr(value))
        elif value is not None or item.default is not None:
            (low, high), is_decimal = item.metadata["range"], isinstance(item.default, Decimal)
            number = _decimal(value)
            if number is None or not low <= number <= high or not (is_decimal or isinstance(value, int)):
                kind, got = "decimal" if is_decimal else "whole", repr(value) if number is None else value
                raise ConfigurationError(f"{name} must be a {kind} number from {low} to {high}", got=got)
            object.__setattr__(self, item.name, number if is_decimal else value)

    def _require_url(self, name: str) -> None:
        url = getattr(self, name)
        if not is_endpoint(url):
            raise ConfigurationError(
                f"{PREFIX}{spark_name(name)} must be a URL such as http://127.0.0.1:8000, without user or password",
                got=repr(without_user(url)),
            )

    @classmethod
    def from_spark(cls, conf: Mapping[str, str]) -> Settings:
        """Settings from Spark's names without the prefix (`deltaTable`, …) to text.

        Raises:
            ConfigurationError: an unknown name, or a value that is not of its kind.
        """
        items = {spark_name(item.name): item for item in fields(cls)}
        values: dict[str, str | int | Decimal] = {}
        for name, text in conf.items():
            item = items.get(name)
            if item is None:
                raise ConfigurationError(f"unknown setting {PREFIX}{name}; known are {', '.join(sorted(items))}")
            values[item.name] = _from_text(item, text)
        return cls(**values)  # type: ignore[arg-type]  # checked by each field

    def to_spark(self, names: Collection[str] = ()) -> dict[str, str]:
        """The settings that differ from their defaults, and those of `names`, by full Spark name."""
        return {
            PREFIX + spark_name(item.name): _to_text(value)
            for item in fields(self)
            if (value := getattr(self, item.name)) is not None and (item.name in names or value != item.default)
        }


def _one_spelling(objects: str) -> str:
    """A location of objects as S3's own scheme has it, without empty segments."""
    return re.sub("(?<!:)/+", "/", re.sub("^s3a:", "s3:", objects)).rstrip("/")


def is_endpoint(text: str) -> bool:
    """Whether a text is a URL of a service, without user, password, or characters that no URL has."""
    try:
        url = urlsplit(text)
        return (
            url.scheme in ("http", "https")
            and bool(url.hostname)
            and (url.port is None or url.port > 0)
            and "@" not in url.netloc
            and not re.search(r"[^!-~]", text)
        )
    except ValueError:
        return False


def without_user(url: str) -> str:
    """A URL, however malformed, without the user and the password in it."""
    return re.sub(r"(?s)^(\w+:/*)?.*@", r"\1***@", url)


def _from_text(item: Field[Any], text: str) -> str | int | Decimal:
    """The value of a text: a number, if the setting is one and the text is too; the setting refuses other texts."""
    if "range" not in item.metadata:
        return text
    if isinstance(item.default, Decimal):
        return Decimal(text) if _DECIMAL.fullmatch(text) else text
    return int(text) if _WHOLE.fullmatch(text) else text


def _decimal(value: object) -> Decimal | None:
    """The number of a value, as it is written: a float of 0.1 means 0.1. Returns None if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return None
    number = Decimal(str(value))
    return number if number.is_finite() else None


def _to_text(value: str | int | Decimal) -> str:
    return f"{value:f}" if isinstance(value, Decimal) else str(value)
