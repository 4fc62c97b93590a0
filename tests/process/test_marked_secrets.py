"""A marked secret in each place that a secret can be in, right and malformed: nothing that is put out has it."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.command_line import command
from tests.support.jvm import ROOT
from tests.support.sidecar import Sidecar, error_of

#: The middle of each secret: letters and digits, which only base64 spells otherwise.
CORE = "MaRkEdSeCrEt7qZ4xW9vB2nK"
SECRET = f"Aq/+{CORE}=%"
PLACES = ("access key", "secret access key", "session token")
BROKEN = {"line break at the end": f"{SECRET}\n", "control character": f"Aq\x01{CORE}", "not ASCII": f"é{CORE}"}
#: A piece of it that is as long is a leak.
PIECE = 10


class Echo(BaseHTTPRequestHandler):
    """A DynamoDB, or a proxy, whose errors repeat all headers: as they are, quoted, escaped, and in base64."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        text = "".join(f"{name}: {value}\n" for name, value in self.headers.items())
        texts = [text, repr(text), quote(text), html.escape(text), base64.encodebytes(text.encode()).decode()]
        texts += [repr(value.encode())[:40] for value in self.headers.values()]
        body = json.dumps({"__type": "x#ValidationException", "message": "\n".join(texts)}).encode()
        self.send_response(407 if self.command == "CONNECT" else 400)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET = do_PUT = do_CONNECT = answer  # noqa: N815  # http.server's names

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    """Its host and port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def leaks(output: str) -> list[str]:
    """The pieces of the secret in what was put out, also where lines are broken within it, and in base64."""
    text = re.sub(r"\s|\\n", "", output)
    needles = [CORE, *(base64.b64encode(bytes(n) + CORE.encode()).decode()[2 + n : 24] for n in range(3))]
    return [
        n[index : index + PIECE]
        for n in needles
        for index in range(len(n) - PIECE + 1)
        if n[index : index + PIECE] in text
    ]


def keys(place: str = "", secret: str = "") -> dict[str, str]:
    """Credentials in the environment, one of which is this."""
    defaults = {
        "access key": ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
        "secret access key": ("AWS_SECRET_ACCESS_KEY", "notthisone"),
        "session token": ("AWS_SESSION_TOKEN", "northatone1"),
    }
    return {variable: secret if name == place else usual for name, (variable, usual) in defaults.items()}


def cases(echo: str, folder: Path) -> dict[str, tuple[dict[str, str], list[str], str]]:
    """Of each case the environment, the command, and what it has to say."""
    endpoint = {"AWS_ENDPOINT_URL": f"http://{echo}"}
    stores = ["stores", "--region", "us-east-1"]
    cases_: dict[str, tuple[dict[str, str], list[str], str]] = {}
    for place in PLACES:
        variable = next(name for name, value in keys(place, SECRET).items() if value == SECRET)
        cases_[f"{place}, right"] = (endpoint | keys(place, SECRET), stores, r"DynamoDB refuses the request.*\*\*\*")
        cases_[f"{place}, program"] = (endpoint | keys(place, SECRET), [], r"DynamoDB refuses the request.*\*\*\*")
        for kind, secret in BROKEN.items():
            pattern = rf"{variable}, the {place} of the AWS credentials, has a character that it cannot have"
            cases_[f"{place}, {kind}"] = (endpoint | keys(place, secret), stores, pattern)
        cases_[f"{place}, program, broken"] = (endpoint | keys(place, f"{SECRET}\n"), [], f"{variable}, the {place}")
    profile = folder / "credentials"
    program = json.dumps({"Version": 1, "AccessKeyId": "AKIDEXAMPLE", "SecretAccessKey": "x", "SessionToken": SECRET})
    (folder / "token.json").write_text(program.replace(SECRET, f"{SECRET}\\n"))
    profile.write_text(f"[marked]\naws_access_key_id = AKIDEXAMPLE\naws_secret_access_key = {SECRET} x\n")
    config = folder / "config"
    config.write_text(
        f"[profile process]\ncredential_process = cat {folder / 'token.json'}\n"
        f"[profile url]\nendpoint_url = http://user:{CORE}@{echo}\n"
    )
    files = {"AWS_SHARED_CREDENTIALS_FILE": str(profile), "AWS_CONFIG_FILE": str(config)}
    cases_["profile"] = (endpoint | files | {"AWS_PROFILE": "marked"}, stores, "source=shared-credentials-file")
    cases_["process"] = (endpoint | files | {"AWS_PROFILE": "process"}, stores, "session token has a.*=custom-process")
    cases_["profile's endpoint"] = (
        files | keys() | {"AWS_PROFILE": "url"},
        stores,
        "endpoint_url of the AWS profile mu",
    )
    container = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://{echo}/", "AWS_CONTAINER_AUTHORIZATION_TOKEN": ""}
    for kind, secret in BROKEN.items():
        variables = endpoint | container | {"AWS_CONTAINER_AUTHORIZATION_TOKEN": secret}
        cases_[f"container, {kind}"] = (variables, stores, "variable AWS_CONTAINER_AUTHORIZATION_TOKEN has a character")
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB"):
        for kind, url in (("right", f"http://user:{CORE}@{echo}"), ("broken", f"user:{CORE}@{echo}\n")):
            cases_[f"{name}, {kind}"] = (keys() | {name: url}, stores, f"{name} must be a URL such as .*without user")
    s3 = {"AWS_ENDPOINT_URL_S3": f"http://user:{CORE}@{echo}", "AWS_ENDPOINT_URL_DYNAMODB": f"http://{echo}"}
    objects = ["compact", "marked/0", "--region", "us-east-1", "--objects", "s3://bucket"]
    cases_["AWS_ENDPOINT_URL_S3"] = (keys() | s3, objects, "AWS_ENDPOINT_URL_S3 must be a URL")
    cases_["--endpoint"] = (keys(), [*stores, "--endpoint", f"user:{CORE}@{echo}\n"], "--endpoint must be a URL")
    remote = {"AWS_ENDPOINT_URL": "http://dynamodb.invalid", "NO_PROXY": "", "no_proxy": ""}
    for name in ("HTTP_PROXY", "http_proxy"):
        proxy = remote | keys() | {name: f"http://user:{quote(SECRET, safe='')}@{echo}"}
        cases_[f"{name}, right"] = (proxy, stores, "DynamoDB refuses the request")
        proxy = remote | keys() | {name: f"http://user:{CORE}\n@{echo}"}
        cases_[f"{name}, broken"] = (proxy, stores, f"the environment variable {name} has a character")
    proxy = {"HTTPS_PROXY": f"http://user:{CORE}@{echo}"}
    tunnel = remote | keys() | proxy | {"AWS_ENDPOINT_URL": "https://dynamodb.invalid"}
    cases_["HTTPS_PROXY"] = (tunnel, stores, "DynamoDB cannot be reached at https://dynamodb.invalid")
    return cases_


@pytest.mark.slow
def test_no_command_and_no_program_shows_a_secret(echo: str, tmp_path: Path) -> None:
    """Each ends with an error that names what is wrong, at once where it is malformed, and without the secret."""
    examples = cases(echo, tmp_path)
    inputs = {name: (environment, words) for name, (environment, words, _) in examples.items()}
    program = [sys.executable, str(ROOT / "tests" / "process" / "programs" / "shows_errors.py")]
    usual = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    completed = subprocess.run(program, input=json.dumps(inputs), capture_output=True, text=True, check=True, env=usual)
    results: dict[str, Any] = json.loads(completed.stdout)
    for name, (_, _, pattern) in examples.items():
        output = results[name]["shown"]
        assert leaks(output) == [], f"{name}: {output}"
        assert results[name]["code"] == 2, f"{name}: {output}"
        assert re.search(pattern, output, re.DOTALL), f"{name}: {output}"
        assert "retried" not in output or name == "HTTPS_PROXY", f"{name}: {output}"


def test_the_search_finds_a_leak() -> None:
    """A secret is found as it is, cut off, with a line break in it, and in base64."""
    encodings = [base64.encodebytes(f"{prefix}{SECRET}".encode()).decode() for prefix in ("", "a", "ab")]
    for text in (SECRET, CORE[:12], f"{CORE[:6]}\n{CORE[6:]}", *encodings):
        assert leaks(f"said: {text}."), text


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (keys("session token", SECRET), "DynamoDB refuses the request"),
        (keys("session token", f"{SECRET}\n"), "AWS_SESSION_TOKEN, the session token of the AWS credentials, has a"),
        (keys("secret access key", f"{SECRET}\n"), "AWS_SECRET_ACCESS_KEY, the secret access key of the AWS"),
    ],
    ids=["right", "token with a line break", "key with a line break"],
)
def test_no_sidecar_shows_a_secret(echo: str, environment: dict[str, str], said: str) -> None:
    """Neither its log, which the executor copies into its own, nor its answer has the secret, or the socket's token."""
    with closing(Sidecar(environment=environment)) as sidecar:
        talk = sidecar.connect().hello({"endpoint": f"http://{echo}", "region": "us-east-1"})
        _, _, answer = error_of(talk.check())
        for text in (answer, sidecar.log()):
            assert leaks(text) == []
            assert bytes(range(32)).hex() not in text
            assert said in text


def test_the_pages_token_is_in_no_command_line(echo: str, tmp_path: Path) -> None:
    """The browser gets a file that only this user can read, which leads to the page, and is gone with it."""
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/new; stat -c %a "${{1#file://}}" >> {tmp_path}/new\n')
    with browser.open("a") as file:
        file.write(f'cat "${{1#file://}}" >> {tmp_path}/new; mv {tmp_path}/new {tmp_path}/seen\n')
    browser.chmod(0o755)
    words = command("ui", "--port", "0", "--endpoint", f"http://{echo}", "--region", "us-east-1")
    environment = os.environ | keys() | {"BROWSER": f"{browser} %s", "TMPDIR": str(tmp_path)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[0]
            while not (tmp_path / "seen").exists():
                assert process.poll() is None
            arguments, mode, page = (tmp_path / "seen").read_text().splitlines()
            token = url.rstrip("/").rpartition("/")[2]
            assert token not in arguments
            assert mode == "600"
            assert f"url={url}" in page
        finally:
            process.send_signal(2)
            assert process.wait(20) == 0
    assert not list(tmp_path.glob("dynastate-ui-*"))
