"""The port, the URL with its token, and the web server."""

from __future__ import annotations

import secrets
import socket
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

import uvicorn

from dynastate.errors import ConfigurationError
from dynastate.redaction import protect
from dynastate.settings import Settings
from dynastate.ui.app import make_app
from dynastate.ui.site import Site

HOST: Final = "127.0.0.1"
TOKEN_BYTES: Final = 16


def serve(
    settings: Settings,
    namespaces: Sequence[str],
    port: int,
    *,
    reports: str = "",
    open_browser: bool = True,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the page on a port of 127.0.0.1 (0: a free one) until Ctrl-C. `say` gets its URL."""
    token = secrets.token_urlsafe(TOKEN_BYTES)
    protect(token)
    with _listening(port) as listening, closing(Site(settings, namespaces, reports)) as site:
        url = f"http://{HOST}:{listening.getsockname()[1]}/{token}/"
        say(url)
        config = uvicorn.Config(
            make_app(site, token), log_level="warning", access_log=False, timeout_graceful_shutdown=1
        )
        with suppress(KeyboardInterrupt), _opened(url) if open_browser else nullcontext():
            uvicorn.Server(config).run(sockets=[listening])


@contextmanager
def _opened(url: str) -> Iterator[None]:
    """Open the page by a file that redirects to it: all users of the machine can read a browser's command line."""
    with NamedTemporaryFile("w", prefix="dynastate-ui-", suffix=".html") as file:  # its mode is 0600
        file.write(f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={url}"><a href="{url}">dynastate</a>\n')
        file.flush()
        webbrowser.open(Path(file.name).as_uri())
        yield


@contextmanager
def _listening(port: int) -> Iterator[socket.socket]:
    try:
        listening = socket.create_server((HOST, port))
    except OSError as taken:
        raise ConfigurationError(
            f"the page cannot listen on 127.0.0.1: {taken}; name another port, or 0 for a free one", port=port
        ) from taken
    with listening:
        yield listening
