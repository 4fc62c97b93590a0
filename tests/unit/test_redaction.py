"""Secrets in text: each is hidden however it is spelt, and nothing else is."""

from __future__ import annotations

import base64
import html
import json
import logging
import random
import re
import traceback
from pathlib import Path
from string import ascii_letters, digits
from urllib.parse import quote, quote_plus

import pytest

from dynastate import redaction
from dynastate.errors import ConfigurationError
from dynastate.redaction import as_cause, get_logger, protect, protect_credentials, redact

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


@pytest.mark.parametrize("length", [40, 900])
def test_each_long_piece_of_a_secret_is_hidden(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen characters in a row are hidden wherever they begin, and fifteen are other text."""
    secret = random_secret(length)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    for size in (16, 17, 23, 30):
        pieces = [secret[at : at + size] for at in range(length - size + 1)]
        assert {redact(f"<{piece}>") for piece in pieces} == {"<***>"}
    for at in range(length - 14):
        text = f"<{secret[at : at + 15]}>"
        assert redact(text) == text


def test_pieces_of_two_secrets_that_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that begins within another one is hidden to its end."""
    first = random_secret(40)
    for shared in range(16):
        second = first[40 - shared :] + random_secret(60, seed=1)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", first)
        monkeypatch.setenv("AWS_SESSION_TOKEN", second)
        shown = redact(f"<{first[5:]}{second[shared:16]}>")
        assert shown in ("<***>", "<******>"), (shared, shown)


def test_secrets_of_a_process_whose_credentials_rotate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens, the credentials of now, and those that are used beside them are hidden; those of long ago are not."""
    monkeypatch.setattr(redaction, "_lasting", set())
    monkeypatch.setattr(redaction, "_credentials", {})
    token, beside = random_secret(32), random_secret(40, seed=1)
    protect(token)
    for seed in range(2, 300):
        protect_credentials(f"IQoJb3JpZ2luX2Vj{random_secret(900, seed=seed)}", None)
        protect_credentials(beside)
    newest, oldest = random_secret(900, seed=299), random_secret(900, seed=2)
    assert redact(f"{token} {beside} {newest}") == "*** *** ***"
    assert redact(oldest) == oldest
    page = "<tr><td>9f2c0c64c9d2a24f3d2d7f3e6f0b8a11/0/17/default</td><td>1,234</td></tr>\n" * 500
    assert redact(page) == page


def random_secret(length: int, seed: int = 0) -> str:
    return "".join(random.Random(seed).choices(ascii_letters + digits, k=length))  # noqa: S311  # to be the same again


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
