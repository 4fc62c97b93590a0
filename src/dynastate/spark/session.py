"""A local Spark session of a command: quiet, as its user did not ask for Spark's own log."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from dynastate.settings import Settings
from dynastate.spark.configure import configure

_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_LOG4J: Final = Path(__file__).with_name("log4j2.properties")
#: A line of the JVM about a module that Spark uses.
_NOISE: Final = b"WARNING: Using incubator modules:"


@contextmanager
def local_session(name: str, conf: Mapping[str, str], settings: Settings) -> Iterator[SparkSession]:
    """A session on this machine with these settings and conf, which is stopped at the end.

    Spark's errors appear on standard error, its warnings do not.
    """
    quiet = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} {conf.get(_JAVA_OPTIONS, '')}".rstrip(),
    }
    for logger in ("", "py4j.clientserver"):
        logging.getLogger(logger or None).addFilter(_is_of_no_interrupt)
    builder = configure(SparkSession.builder.master("local[*]").appName(name), checkpoint=True)
    builder.config(map={**conf, **quiet, **settings.to_spark()})
    _start_jvm(builder)
    with builder.getOrCreate() as spark:
        if threading.current_thread() is threading.main_thread():
            # PySpark's own handler calls the JVM within a call that it interrupts; `stop` ends all jobs as well.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield spark


def _start_jvm(builder: SparkSession.Builder) -> None:
    """Start the JVM with its standard error through a pipe, which removes noise."""
    conf = SparkConf().setAll(list(builder._options.items()))  # noqa: SLF001  # a builder has no getter
    reader, writer = os.pipe()
    threading.Thread(target=_pass_on, args=(reader,), name="spark-stderr", daemon=True).start()
    gateway: Any = None
    try:
        with _interrupts_deferred():
            gateway = launch_gateway(conf, {"stderr": writer})  # type: ignore[no-untyped-call]
    except KeyboardInterrupt:
        if gateway is not None:
            gateway.proc.kill()
        raise
    finally:
        os.close(writer)
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001  # a session takes the gateway that is there


def _is_of_no_interrupt(record: logging.LogRecord) -> bool:
    """Whether a log record is not of a Ctrl-C, of which py4j logs the trace, and of what followed from it."""
    error = record.exc_info[1] if record.exc_info else None
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is None


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Raise the KeyboardInterrupt of a Ctrl-C at the end of the block: a JVM that starts would be left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if interrupts:
        raise KeyboardInterrupt


def _pass_on(reader: int) -> None:
    with open(reader, "rb") as lines:
        for line in lines:
            if not line.startswith(_NOISE):
                sys.stderr.write(line.decode(errors="replace"))
                sys.stderr.flush()
