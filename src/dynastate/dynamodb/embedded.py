"""The embedded DynamoDB: moto's server in a process of its own, for the demo, for tests and for trying things out.

On the same port it serves S3, with one bucket for objects.
It keeps everything in memory and ends with the process that started it. Requests are served one at a time, because
moto loses acknowledged writes when they are not. It listens on 127.0.0.1 only, and asks for no permission.

The child makes both tables, writes one line to its standard output (`ready ENDPOINT` or `failed MESSAGE`), and ends
when its standard input does. So it cannot outlive the parent, however that dies.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from typing import Final, final

from dynastate.dynamodb.admin import create_tables
from dynastate.dynamodb.client import make_s3_client
from dynastate.dynamodb.credentials import LOCAL_KEY, LOCAL_REGION
from dynastate.errors import ConfigurationError, DynastateError, InternalError, UnavailableError
from dynastate.settings import PREFIX, Settings

HOST: Final = "127.0.0.1"
REGION: Final = LOCAL_REGION
#: moto takes about a second to import; a busy machine may take many times that.
START_DEADLINE_S: Final = 60.0
STOP_DEADLINE_S: Final = 5.0
#: The bucket that is there.
BUCKET: Final = "dynastate-objects"
#: DynamoDB takes 16 MB a request; waitress refuses before it has read the rest, so leave room.
REQUEST_BYTES_MAX: Final = 64 * 1024 * 1024
#: Every executor's connections stay open, some twenty each; waitress's own 100 would let the next one hang.
CONNECTIONS_MAX: Final = 2_000
#: Variables that must not reach moto or the client that makes the tables: account, proxy, recording, authorisation.
_ENVIRONMENT_DROPPED: Final = (
    "AWS_",
    "MOTO_",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "INITIAL_NO_AUTH_ACTION_COUNT",
    "TEST_",
)


def credentials() -> dict[str, str]:
    """Environment variables for clients of the embedded DynamoDB: boto3 signs with any key, and moto takes any."""
    return {"AWS_ACCESS_KEY_ID": LOCAL_KEY, "AWS_SECRET_ACCESS_KEY": LOCAL_KEY}


@final
class EmbeddedDynamoDB:
    """A DynamoDB with both tables in it, for as long as the `with` block runs. Starts empty each time.

    Args:
        port: TCP port on 127.0.0.1, from 1 to 65535; 0: one that is free.
        settings: names of the tables and the Region (empty: us-east-1); its endpoint is not used.

    Raises:
        ConfigurationError: on entering: the port is taken, not allowed or none, or `dynastate[local]` is not installed.
        UnavailableError: on entering: it did not answer within 60 seconds, or ended.
    """

    def __init__(self, port: int = 0, settings: Settings | None = None) -> None:
        if port not in range(65_536):
            raise ConfigurationError("the port of the embedded DynamoDB must be from 0 to 65535", port=port)
        base = settings or Settings()
        self._port = port
        #: The settings to use it with: tables, Region and, once it runs, the endpoint.
        self.settings = replace(base, endpoint="", objects_endpoint="", region=base.region or REGION)
        self._process: subprocess.Popen[str] | None = None

    @property
    def endpoint(self) -> str:
        """`http://127.0.0.1:PORT` while it runs."""
        self._running()
        return self.settings.endpoint

    @property
    def pid(self) -> int:
        return self._running().pid

    def __enter__(self) -> EmbeddedDynamoDB:
        """Start the server, and return once it answers and has both tables."""
        if self._process is not None:
            raise InternalError("the embedded DynamoDB runs already", pid=self._process.pid)
        self._process = subprocess.Popen(  # noqa: S603  # our own module in our own interpreter
            [sys.executable, "-m", __name__, str(self._port), json.dumps(self.settings.to_spark())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the parent, which then stops the server
        )
        try:
            endpoint = self._ready(self._process)
            self.settings = replace(self.settings, endpoint=endpoint, objects_endpoint=endpoint)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def wait(self) -> None:
        """Wait until the server ends by itself, which is an UnavailableError; a KeyboardInterrupt ends the waiting."""
        code = self._running().wait()
        raise UnavailableError(
            "the embedded DynamoDB has ended, and its tables with it; start it again", exit_code=code
        )

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise InternalError("the embedded DynamoDB does not run; enter it with 'with'")
        return self._process

    def _ready(self, process: subprocess.Popen[str]) -> str:
        """Wait for the line the child writes once both tables are there; it holds the endpoint."""
        assert process.stdout is not None  # noqa: S101  # for mypy: stdout=PIPE gives one
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(START_DEADLINE_S):
                raise UnavailableError(
                    "the embedded DynamoDB did not start until the deadline; try again", seconds=START_DEADLINE_S
                )
        word, _, text = process.stdout.readline().strip().partition(" ")
        if word == "failed":
            raise ConfigurationError(text)
        if word != "ready":
            raise UnavailableError(
                "the embedded DynamoDB ended while it started; its standard error says why", said=repr(word)
            )
        return text

    def _stop(self) -> None:
        process, self._process = self._process, None
        self.settings = replace(self.settings, endpoint="", objects_endpoint="")
        if process is None:
            return
        try:
            process.kill()  # it holds nothing that is worth an orderly end
            process.wait(STOP_DEADLINE_S)
        finally:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


def _environment() -> dict[str, str]:
    """Our environment without the variables that moto reads, and with the dummy credentials."""
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith(_ENVIRONMENT_DROPPED)}
    # A Region that AWS lacks has no tables, as any other that is not ours; moto would fail at each request.
    variables = {
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "MOTO_ALLOW_NONEXISTENT_REGION": "true",
    }
    return inherited | credentials() | variables


def main(arguments: list[str]) -> int:
    """Be the child: serve the tables of these settings (JSON) on a port until standard input ends; the exit code."""
    conf = json.loads(arguments[1]) if len(arguments) > 1 else {PREFIX + "region": REGION}
    settings = Settings.from_spark({name.removeprefix(PREFIX): value for name, value in conf.items()})
    try:
        endpoint = f"http://{HOST}:{_serve(int(arguments[0]))}"
        settings = replace(settings, endpoint=endpoint, objects_endpoint=endpoint)
        create_tables(settings)
        # us-east-1 is the only Region that a request for a bucket does not name.
        place = {"CreateBucketConfiguration": {"LocationConstraint": settings.region}}
        with closing(make_s3_client(settings)) as client:
            client.create_bucket(Bucket=BUCKET, **({} if settings.region == REGION else place))
    except DynastateError as error:
        _report("failed", str(error))
        return 2
    _report("ready", settings.endpoint)
    while sys.stdin.read(1):
        pass
    return 0


def _report(word: str, text: str) -> None:
    sys.stdout.write(f"{word} {' '.join(text.split())}\n")
    sys.stdout.flush()


def _serve(port: int) -> int:
    """Start to serve in the background; return the port it listens on."""
    try:
        from moto.moto_server.werkzeug_app import create_backend_app
        from waitress.server import create_server
    except ImportError as error:
        message = "the embedded DynamoDB needs moto and waitress; pip install 'moto[dynamodb,server]' waitress"
        raise ConfigurationError(f"{message} ({error})") from error
    # It warns of every request that waits for the one before it.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    try:
        # Two applications alone: moto's dispatcher in front of all lists its package directory at every request.
        dynamodb, s3 = create_backend_app("dynamodb"), create_backend_app("s3")
        server = create_server(
            lambda request, start: (dynamodb if "HTTP_X_AMZ_TARGET" in request else s3)(request, start),
            host=HOST,
            port=port,
            threads=1,
            max_request_body_size=REQUEST_BYTES_MAX,
            connection_limit=CONNECTIONS_MAX,
            asyncore_use_poll=True,  # select() takes no more than 1,024 file descriptors
        )
    except OSError as error:
        message = f"the embedded DynamoDB cannot listen: {error.strerror}; choose another port, or 0 for a free one"
        raise ConfigurationError(message, port=port) from error
    threading.Thread(target=server.run, name="dynamodb", daemon=True).start()
    return int(server.effective_port)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # End the interpreter at once: the server's threads still run, and nothing is to be saved.
    os._exit(code)
