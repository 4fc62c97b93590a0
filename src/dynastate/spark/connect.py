"""Spark Connect: sessions whose JVM is a server's, and the conf that the server must have."""

from __future__ import annotations

import os
from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from urllib.parse import urlsplit

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from dynastate.errors import ConfigurationError
from dynastate.spark.jar import jar_name

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession as ConnectSession

_REMOTE: Final = "spark.remote"
EXTENSIONS: Final = "spark.sql.extensions"


class ConnectServer(NamedTuple):
    """A Connect server, as one of its sessions describes it."""

    spark: str
    """Its version of Spark, which may differ from the client's."""
    extensions: str


def remote_of(builder: SparkSession.Builder) -> str:
    """The URL of a Connect server, of a builder or of the environment; empty without a server."""
    options: dict[str, str] = builder._options  # noqa: SLF001  # a builder has no getter
    return options.get(_REMOTE) or os.environ.get("SPARK_REMOTE", "")


def is_connect_client(builder: SparkSession.Builder) -> bool:
    """Whether the sessions of a builder are on a Connect server that runs already, and not in this program."""
    return remote_of(builder).startswith("sc://") or getattr(builder, "_channel_builder", None) is not None


def describe_server(builder: SparkSession.Builder) -> ConnectServer:
    """Ask the server of a builder, in the running session, or else in a session that ends at once."""
    running = connect_session()
    if running is not None:
        return _describe(running)
    asking = copy(builder)
    asking._options = {name: url for name, url in builder._options.items() if name == _REMOTE}  # noqa: SLF001
    session = cast("ConnectSession", asking.create())
    try:
        return _describe(session)
    finally:
        session.stop()


def connect_session() -> ConnectSession | None:
    """The active session of this program, if it is one of Connect."""
    return cast("ConnectSession | None", SparkSession.getActiveSession()) if is_remote() else None


def check_server(server: ConnectServer, url: str, conf: dict[str, str]) -> None:
    """Check that a server was started with the extension; `conf` is the conf that only its start can set."""
    jar = jar_name(server.spark, "the Connect server runs Spark {}")
    if conf[EXTENSIONS] in server.extensions.split(","):
        return
    options = " ".join(f"--conf {name}={value}" for name, value in conf.items())
    raise ConfigurationError(
        "the Connect server was started without dynastate, and its clients cannot add it; "
        f"start it with --jars {jar} {options}",
        server=urlsplit(url).netloc or "unknown",  # without the parameters, of which one may be a token
    )


def _describe(session: ConnectSession) -> ConnectServer:
    return ConnectServer(session.version, session.conf.get(EXTENSIONS, "") or "")
