"""A fake of the services that give credentials: an instance's metadata service, and STS."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, final

TOKEN_PATH = "/latest/api/token"
ROLE_PATH = "/latest/meta-data/iam/security-credentials/"


@final
class CredentialServices:
    """Listens on a port of 127.0.0.1 for as long as the `with` block runs, and gives credentials that last an hour.

    `keys` are the access keys that it gives, one each time, the last one again and again, or None if it has none.
    `refusals` are the errors that STS answers with before. Each request takes `answer_s`.
    """

    def __init__(self, *keys: str | None, refusals: tuple[str, ...] = (), answer_s: float = 0.0) -> None:
        self.keys, self.refusals, self.answer_s = deque(keys), deque(refusals), answer_s
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))

    @property
    def environment(self) -> dict[str, str]:
        """What leads boto3 here."""
        url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return {
            "AWS_EC2_METADATA_DISABLED": "false",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": url,
            "AWS_ENDPOINT_URL_STS": url,
            "AWS_MAX_ATTEMPTS": "1",
        }

    def __enter__(self) -> CredentialServices:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str) -> tuple[int, str]:
        time.sleep(self.answer_s)
        if path == TOKEN_PATH:
            return 200, "token"
        if path == ROLE_PATH:
            return 200, "role"
        if path == "/" and self.refusals:
            return 400, f"<ErrorResponse><Error><Code>{self.refusals.popleft()}</Code></Error></ErrorResponse>"
        key = self.keys.popleft() if len(self.keys) > 1 else self.keys[0]
        if key is None:
            return 404, ""
        until = (datetime.now(timezone.utc) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        fields = {"AccessKeyId": key, "SecretAccessKey": "secret", "Expiration": until}
        if path.startswith(ROLE_PATH):
            return 200, json.dumps({"Token": "session", **fields})
        members = "".join(f"<{name}>{value}</{name}>" for name, value in {"SessionToken": "session", **fields}.items())
        name = "AssumeRoleWithWebIdentity"
        return (
            200,
            f"<{name}Response><{name}Result><Credentials>{members}</Credentials></{name}Result></{name}Response>",
        )


def _handler(services: CredentialServices) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, body = services.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_PUT = do_POST = do_GET  # noqa: N815  # http.server's names

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
