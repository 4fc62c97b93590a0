"""Access to the socket and its folder; secrets in code, errors and logs."""

from __future__ import annotations

import ast
import os
import re
import socket
import stat
import traceback
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dynastate.dynamodb.boto_tables import BotoTables
from dynastate.dynamodb.client import make_client
from dynastate.dynamodb.embedded import EmbeddedDynamoDB
from dynastate.errors import ConfigurationError
from dynastate.format.keys import Key
from dynastate.settings import Settings
from dynastate.sidecar import connection as under_test
from dynastate.sidecar.listener import check_folder, is_ours
from tests.support.clients import Wire, wire_error
from tests.support.processes import listening
from tests.support.samples import A
from tests.support.sidecar import WITHIN_S, Sidecar, spark_names

ROOT = Path(__file__).resolve().parents[2]
OTHER_USER = 65_534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file or process of another user")


@pytest.fixture
def sidecar() -> Iterator[Sidecar]:
    with closing(Sidecar()) as server:
        assert server.said == "ready\n", server.log()
        yield server


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701, 0o500])
def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"mode 0700 folder={tmp_path} mode={mode:#o}"):
        check_folder(tmp_path)
    tmp_path.chmod(0o700)
    check_folder(tmp_path)


def test_a_link_or_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    """A link, whose owner could change its target, and a file are refused, even with the right owner and mode."""
    (tmp_path / "own").mkdir(mode=0o700)
    check_folder(tmp_path / "own")
    (tmp_path / "link").symlink_to(tmp_path / "own")
    (tmp_path / "file").touch(mode=0o700)
    for name in ("link", "file"):
        with pytest.raises(ConfigurationError, match="must be owned by this user with mode 0700"):
            check_folder(tmp_path / name)


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr("os.getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(ConfigurationError, match=f"owner={tmp_path.stat().st_uid}"):
        check_folder(tmp_path)


@pytest.mark.parametrize(
    ("folder", "said"),
    [({"mode": 0o755}, "mode=0o755 "), pytest.param({"owner": OTHER_USER}, f"owner={OTHER_USER}", marks=as_root)],
    ids=["open to others", "of another user"],
)
def test_a_sidecar_does_not_start_in_such_a_folder(folder: dict[str, int], said: str) -> None:
    """The real process ends at once with one line, and opens no socket."""
    with closing(Sidecar(**folder)) as sidecar:  # type: ignore[arg-type]  # of mode and owner
        assert sidecar.said == ""
        assert sidecar.process.wait(WITHIN_S) == 1
        log = sidecar.log()
        assert log.startswith("dynastate.sidecar: the socket's folder must be owned by this user with mode 0700")
        assert f"0700 folder={sidecar.folder} mode=" in log
        assert said in log
        assert log.count("\n") == 1
        assert not sidecar.path.exists()


def test_only_this_users_processes_may_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel says who is at the other end, and it must be this user."""
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert is_ours(one)
        uid = os.getuid()
        monkeypatch.setattr("os.getuid", lambda: uid + 1)
        assert not is_ours(one)


@as_root
def test_a_process_of_another_user_is_refused(sidecar: Sidecar, embedded: EmbeddedDynamoDB, store: str) -> None:
    """A connection by another user is closed before a byte of it is read; the sidecar keeps serving."""
    for path in (sidecar.folder, sidecar.path):
        path.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(WITHIN_S)
        os.seteuid(OTHER_USER)
        try:
            peer.connect(str(sidecar.path))
        finally:
            os.seteuid(0)
        assert peer.recv(1) == b""
    assert "a connection by another user was refused" in sidecar.log()
    talk = sidecar.connect().hello(spark_names(embedded.settings))
    talk.write(store, A, {b"a": b"1"})
    assert talk.state(store, 1) == {b"a": b"1"}


def test_tokens_are_compared_in_constant_time() -> None:
    tree = ast.parse(Path(under_test.__file__).read_text())
    users = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "_token"]
    arguments = [
        argument
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "hmac.compare_digest"
        for argument in node.args
    ]
    reads = [node for node in users if isinstance(node.ctx, ast.Load)]
    assert len(reads) == 1
    assert reads[0] in arguments


def test_nothing_listens_on_a_network_interface(sidecar: Sidecar, embedded: EmbeddedDynamoDB, store: str) -> None:
    """A sidecar at work listens on its Unix-domain socket, to which no other user may connect, and on nothing else."""
    talk = sidecar.connect().hello(spark_names(embedded.settings))
    talk.write(store, A, {b"a": b"1"})
    assert listening(sidecar.process.pid) == {f"unix {sidecar.path}"}
    assert stat.S_IMODE(sidecar.path.stat().st_mode) & 0o077 == 0, "whatever its folder allows"
    assert any(each.startswith("tcp ") for each in listening(embedded.pid))  # the search for sockets finds one


#: What deserialises code, runs text or a shell; in the JVM also class loading by a name, and sockets of TCP.
FORBIDDEN = {
    "src/dynastate/**/*.py": re.compile(
        r"^ *(import|from) (cPickle|pickle|cloudpickle|dill|marshal|shelve|jsonpickle|telnetlib|yaml)\b"
        r"|(?<![\w.])(eval|exec|compile|__import__)\(|os\.(system|popen)|pty\.spawn|shell=(?!False)",
        re.MULTILINE,
    ),
    "jvm-bridge/src/**/*.scala": re.compile(
        r"ObjectInputStream|readObject|XMLDecoder|ScriptEngine|Runtime\.getRuntime\.(?!maxMemory|availableProcessors)|sys\.process|Class\.forName"
        r"|\"(ba)?sh\"|ServerSocket"
    ),
}


@pytest.mark.parametrize("where", FORBIDDEN)
def test_no_code_of_ours_deserialises_objects_or_runs_a_shell(where: str) -> None:
    """No pickle, no Java serialisation, no `eval`, no shell: the frames of the protocol are read field by field."""
    files = [*ROOT.glob(where), ROOT / "jvm-bridge" / "build.py"]
    assert len(files) > 10
    assert [f"{file.name}: {match}" for file in files if (match := FORBIDDEN[where].search(file.read_text()))] == []


def test_forbidden_code_is_found() -> None:
    """The search finds each kind of Python, and one process is started in Scala."""
    python, _ = FORBIDDEN.values()
    forbidden = ("import pickle", "from marshal import loads", "import yaml.constructor", "x = eval(text)")
    for source in (*forbidden, "os.system('ls')", "run('ls', shell=True)", "run('ls', shell=wanted)"):
        assert python.search(source), source
    assert not python.search("re.compile(text)")
    files = (ROOT / "jvm-bridge" / "src").rglob("*.scala")
    assert [file.name for file in files if "ProcessBuilder" in file.read_text()] == ["SidecarProcess.scala"]


SESSION_TOKEN = "FwoGZXIvYXdzEBYaD" + "x1" * 40
SIGNED = f"""The request signature we calculated does not match the signature you provided. Check your AWS Secret \
Access Key and signing method. Consult the service documentation for details.

The Canonical String for this request should have been
'POST
/

host:dynamodb.us-east-1.amazonaws.com
x-amz-security-token:{SESSION_TOKEN}
'"""


@pytest.mark.parametrize("message", [SIGNED, SIGNED.replace("\n", " ")], ids=["lines", "one line"])
def test_a_refused_signature_shows_no_session_token(message: str, dummy_credentials: None) -> None:
    """AWS repeats the signed headers in its error, the session token among them: neither error nor trace has them."""
    client = make_client(Settings(region="us-east-1"))
    wire = Wire(client, wire_error("InvalidSignatureException", message))
    tables = BotoTables(Settings(region="us-east-1"), client=client)
    with pytest.raises(ConfigurationError) as info:
        tables.get([Key("delta", "s#0", "part")])
    wire.close()
    tables.close()
    trace = "".join(traceback.format_exception(info.value))
    assert "AWS refuses the credentials: The request signature we calculated does not match" in trace
    assert SESSION_TOKEN not in trace


def test_the_regions_own_endpoint_is_tls(dummy_credentials: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the setting `endpoint`, requests go over TLS, and the certificate is checked."""
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    client = make_client(Settings(region="eu-west-1"))
    assert client.meta.endpoint_url == "https://dynamodb.eu-west-1.amazonaws.com"
    assert client._endpoint.http_session._verify is True
    client.close()


def test_there_is_no_setting_for_credentials() -> None:
    """A secret that is given as a setting is refused by name, and its value is not repeated."""
    for name in ("secretAccessKey", "sessionToken", "password"):
        with pytest.raises(ConfigurationError, match=f"unknown setting .*{name}") as info:
            Settings.from_spark({name: SESSION_TOKEN})
        assert SESSION_TOKEN not in str(info.value)
    with pytest.raises(ConfigurationError, match="without user or password") as info:
        Settings(endpoint=f"https://user:{SESSION_TOKEN}@example.org")
    assert SESSION_TOKEN not in str(info.value)
