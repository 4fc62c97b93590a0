"""Secrets, hidden in whatever leaves the process as text: errors, logs, traces and pages all pass `redact`.

It knows the secrets of the environment, credentials that were used, and tokens that were made. It finds secrets as they
are, quoted, URL-encoded, escaped for HTML, in base64, with line breaks in between, and cut off. It also finds them by
their place, such as the password of a URL.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from html import unescape
from io import TextIOBase
from typing import Final, TextIO
from urllib.parse import unquote

MASK: Final = "***"
#: A shorter secret is hidden only by where it stands: its letters may be in any word.
_LENGTH_MIN: Final = 8
#: So many characters of a secret in a row are hidden, too.
_WINDOW: Final = 16
#: A text is searched for pieces of so many characters, one every `_ANCHOR_STEP` of a secret: each window has one.
_ANCHOR: Final = 5
_ANCHOR_STEP: Final = _WINDOW - _ANCHOR + 1
#: Credentials that are remembered, the last used ones: each rotation brings up to four, and older ones expire.
_CREDENTIALS_MAX: Final = 64

_VARIABLES: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SECURITY_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "PYSPARK_GATEWAY_SECRET",
)
#: `name=value,name=value`.
_HEADERS: Final = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS")
#: URLs that may have a user and a password.
_URLS: Final = (
    *("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"),
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL_STS"),
    *("AWS_EC2_METADATA_SERVICE_ENDPOINT", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "OTEL_EXPORTER_OTLP_ENDPOINT"),
)
_USER: Final = re.compile(r"(?s)//(.*)@")

#: Characters that are spelt plainly, one as it may be spelt else, or what may stand between two.
_PIECE: Final = re.compile(
    r"(?is)(?P<plain>[^\s\\%&\x00-\x1f]+)"
    r"|(?P<between>\s+|\\+[nrtabfv]|\\+x[01][0-9a-f]|\\+u00[01][0-9a-f]|%(?:25)*[01][0-9a-f]|[\x00-\x1f]|\\+(?=[\W_]))"
    r"|%(?:25)*(?P<url>[0-9a-f]{2})|\\+x(?P<hex>[0-9a-f]{2})|\\+u(?P<unicode>[0-9a-f]{4})|(?P<html>&#?\w{2,6};)|."
)
_URL_WITH_PASSWORD: Final = re.compile(r"://[^\s/@:'\"]*:[^\s/@'\"]*@")
#: What is secret because of the name before it.
_NAMED: Final = re.compile(
    r"(?i)\b(x-amz-security-token|(?:proxy-)?authorization|x-aws-ec2-metadata-token|aws_?secret_?access_?key"
    r"|secretaccesskey|aws_?session_?token|sessiontoken|webidentitytoken)"
    r"(\\*[\"']?\s*[:=>]\s*(?:b(?=\\*[\"']))?\\*[\"']?)(?:(?:basic|bearer)\s+)?[^\s\"'<>\\,;&]+"
)

#: Anchors, each with the forms of secrets that have it, and its offset there.
_Index = Mapping[str, Sequence[tuple[str, int]]]

_lasting: Final = set[str]()
#: The least recently used first.
_credentials: Final = dict[str, None]()
_lock: Final = threading.Lock()


def protect(*secrets: str) -> None:
    """Hide these for as long as the process runs."""
    with _lock:
        _lasting.update(secrets)


def protect_credentials(*secrets: str | None) -> None:
    """Hide these until `_CREDENTIALS_MAX` others have been used since."""
    unique = dict.fromkeys(each for each in secrets if each)
    with _lock:
        for secret in unique:
            _credentials.pop(secret, None)
        _credentials.update(unique)
        while len(_credentials) > _CREDENTIALS_MAX:
            del _credentials[next(iter(_credentials))]


def redact(text: str) -> str:
    """A text without secrets: each is replaced by `***`."""
    secrets, index = _indexed(_known())
    for secret in secrets:
        text = text.replace(secret, MASK)
    if index:
        text = _hide(text, index)
    if "://" in text:
        text = _URL_WITH_PASSWORD.sub(f"://{MASK}@", text)
    lower = text.lower()
    if any(word in lower for word in ("token", "authorization", "secret")):
        text = _NAMED.sub(rf"\1\2{MASK}", text)
    return text


def as_cause(error: BaseException | None) -> BaseException | None:
    """An error to chain, for a trace. Returns None if the error or one of its causes has a secret in it."""
    cause = error
    while cause is not None:
        text = f"{cause} {cause.args!r}"
        if redact(text) != text:
            return None
        cause = cause.__cause__ or cause.__context__
    return error


def get_logger(name: str) -> logging.Logger:
    """A logger whose records have no secrets, whichever handlers a program has."""
    log = logging.getLogger(name)
    if _without_secrets not in log.filters:
        log.addFilter(_without_secrets)
    return log


def _without_secrets(record: logging.LogRecord) -> bool:
    record.msg, record.args = redact(record.getMessage()), ()
    if record.exc_info:
        record.exc_text = redact(logging.Formatter().formatException(record.exc_info))
    return True


def redact_stderr() -> None:
    """Hide secrets in all that Python writes to standard error from here on: logs of libraries and traces, too."""
    if not isinstance(sys.stderr, _Redacted):
        sys.stderr = _Redacted(sys.stderr)


class _Redacted(TextIOBase):
    """A text stream without secrets."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(redact(text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read-only
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # read-only
        return self._stream.errors

    def close(self) -> None:
        """Leave the stream open: it is the process's."""


def _known() -> frozenset[str]:
    """The secrets in use, and the current secrets of the environment."""
    with _lock:
        secrets = {*_lasting, *_credentials}
    secrets |= {os.environ.get(name, "") for name in _VARIABLES}
    for name in _HEADERS:
        secrets |= {unquote(each.partition("=")[2]) for each in os.environ.get(name, "").split(",")}
    for name in _URLS:
        if user := _USER.search(os.environ.get(name, "")):
            secrets |= {user[1], user[1].partition(":")[2]}
    return frozenset(secrets)


@lru_cache(maxsize=1)
def _indexed(secrets: frozenset[str]) -> tuple[Sequence[str], _Index]:
    """The secrets to hide, the longest first, which may contain others, and the index of all their forms."""
    index: dict[str, list[tuple[str, int]]] = {}
    for form in {form for secret in secrets for form in _forms(secret)}:
        for offset in range(0, len(form) - _ANCHOR + 1, _ANCHOR_STEP):
            index.setdefault(form[offset : offset + _ANCHOR], []).append((form, offset))
    return sorted((each for each in secrets if len(each) >= _LENGTH_MIN), key=len, reverse=True), index


@lru_cache(maxsize=4 * _CREDENTIALS_MAX)
def _forms(secret: str) -> frozenset[str]:
    """A secret as it is, its parts between line breaks, and in base64 at each alignment, all in plain characters."""
    parts = {secret, unquote(secret), secret.strip(), *re.split(r"[^!-~]+", secret)}
    forms = {_plain(each)[0] for each in parts}
    for data in {each.encode(errors="replace") for each in parts if len(each) >= _LENGTH_MIN}:
        for offset in range(3):
            # Characters that other bytes take part in are left out.
            text = b64encode(bytes(offset) + data).decode().rstrip("=")
            forms.add(text[(offset * 8 + 5) // 6 : (offset + len(data)) * 8 // 6])
    return frozenset(each for each in forms if len(each) >= _LENGTH_MIN)


def _plain(text: str) -> tuple[str, list[tuple[int, int]]]:
    """A text with each character spelt plainly and without separators, and the place of each character.

    The two alphabets of base64 are made one.
    """
    characters, spans = list[str](), list[tuple[int, int]]()
    for piece in _PIECE.finditer(text):
        start, stop = piece.span()
        if piece.lastgroup == "plain":
            characters.append(piece[0])
            spans.extend(zip(range(start, stop), range(start + 1, stop + 1), strict=True))
        elif piece.lastgroup != "between":
            characters.append(_character(piece))
            spans.append((start, stop))
    return "".join(characters).replace("-", "+").replace("_", "/"), spans


def _character(piece: re.Match[str]) -> str:
    code = piece["url"] or piece["hex"] or piece["unicode"]
    if code:
        return chr(int(code, 16))
    spelt = unescape(piece["html"]) if piece["html"] else piece[0]
    return spelt if len(spelt) == 1 else "\0"


def _hide(text: str, index: _Index) -> str:
    """A text without the secrets of an index, in whatever spelling, and without long pieces of them."""
    plain, spans = _plain(text)
    pieces, end = list[str](), 0
    for start_of_secret, last in sorted((spans[start][0], spans[stop - 1][1]) for start, stop in _places(plain, index)):
        if start_of_secret >= end:
            pieces += text[end:start_of_secret], MASK
        end = max(end, last)
    return "".join([*pieces, text[end:]])


def _places(plain: str, index: _Index) -> Iterator[tuple[int, int]]:
    """The ranges of a text with pieces of a secret that are as long as a window, or whole."""
    end = 0
    for start in range(len(plain) - _ANCHOR + 1):
        # Before that, each window is in the range that ends there.
        if (anchor := plain[start : start + _ANCHOR]) in index and start > end - _WINDOW:
            for form, offset in index[anchor]:
                back, ahead = 0, _ANCHOR
                while back < min(offset, start) and plain[start - back - 1] == form[offset - back - 1]:
                    back += 1
                while offset + ahead < len(form) and plain[start + ahead : start + ahead + 1] == form[offset + ahead]:
                    ahead += 1
                if back + ahead >= min(len(form), _WINDOW):
                    end = max(end, start + ahead)
                    yield start - back, start + ahead
