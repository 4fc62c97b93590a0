"""Secrets in text: each is hidden however it is spelt, and nothing else is."""

from __future__ import annotations

import base64
import html
import json
import logging
import re
import traceback
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

from dynastate.errors import ConfigurationError
from dynastate.redaction import as_cause, get_logger, redact

SOURCE = Path(__file__).resolve().parents[2] / "src" / "dynastate"
TOKEN = "FwoGZXIvYXdzEBYaD/+=" + "".join(f"{n * 7919 % 9973:04x}" for n in range(100)) + "&%\"'"
SPELT = {
    "plain": TOKEN,
    "quoted": repr(TOKEN),
    "quoted bytes": repr(f"{TOKEN}\n".encode()),
    "JSON": json.dumps(json.dumps(TOKEN)),
    "URL": quote(TOKEN, safe=""),
    "form": quote_plus(quote_plus(TOKEN)),
    "HTML": html.escape(TOKEN),
    "base64": base64.b64encode(b"x:" + TOKEN.encode() + b"y").decode(),
    "base64 on lines": base64.encodebytes(TOKEN.encode()).decode(),
    "base64 of URLs": base64.urlsafe_b64encode(b"x" + TOKEN.encode()).decode(),
    "broken": "\n".join(TOKEN[at : at + 11] for at in range(0, len(TOKEN), 11)),
    "its beginning": TOKEN[:50],
    "its end": TOKEN[-50:],
}


@pytest.mark.parametrize("spelt", SPELT)
def test_a_secret_is_hidden_however_it_is_spelt(spelt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than the few characters at an end of base64 that belong to its neighbours, too, remain."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", f"{TOKEN}\n")
    shown = redact(f"before {SPELT[spelt]} after")
    assert re.fullmatch(r"before .{0,6}\*\*\*\S{0,6}\s* after", shown), shown


def test_secrets_are_known_by_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password of any URL, and what follows the name of a header or of a member with a secret."""
    monkeypatch.setenv("HTTPS_PROXY", "http://me:a/b@c%20dEfG@proxy:3128")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=colle%20ctor-1,b=c")
    for text, shown in {
        "proxy a/b@c dEfG refused": "proxy *** refused",
        "no key colle ctor-1": "no key ***",
        "https://me:pw@host/x": "https://***@host/x",
        "Authorization: Basic bTpw, x": "Authorization: ***, x",
        '{"SecretAccessKey": "short", "a": 1}': '{"SecretAccessKey": "***", "a": 1}',
        "{'x-amz-security-token': b'short'}": "{'x-amz-security-token': b'***'}",
    }.items():
        assert redact(text) == shown


def test_other_text_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locations, keys and escapes are no secrets, and a word as short as a dummy credential is in any message."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    for text in (
        "dynastate local at hdfs://host:8020/user@x, abfss://container@account/a%20b",
        'store=orders/0 key={"user": "é\\n"} &amp; 100% of 1:2@3',
    ):
        assert redact(text) == text


def test_errors_and_logs_hide_secrets(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The text, the arguments and the facts of an error; its trace, where the cause has one; a record's arguments."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    cause = ValueError(f"bad header {TOKEN}")
    assert as_cause(OSError("no file")) is not None
    failed = ConfigurationError(f"refused: {cause}", header=TOKEN)
    failed.__cause__ = as_cause(cause)
    shown = "".join(traceback.format_exception(failed)) + repr(failed) + failed.reason
    with caplog.at_level(logging.INFO, "dynastate"):
        get_logger("dynastate.tables").warning("it says %s", TOKEN, exc_info=failed)
    assert TOKEN[:20] not in shown + caplog.text
    assert "it says ***" in caplog.text
    assert "refused: bad header *** header=***" in shown


def test_each_logger_hides_secrets() -> None:
    """Each module that logs takes its logger from the place that hides them."""
    plain = [
        file.name
        for file in SOURCE.rglob("*.py")
        if re.search(r"= (logging\.)?getLogger\(", file.read_text()) and file.name != "redaction.py"
    ]
    assert plain == []
