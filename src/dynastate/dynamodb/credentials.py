"""Credentials of AWS's standard chain, checked before use: a header cannot take every character."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from dynastate.errors import ConfigurationError
from dynastate.redaction import protect_credentials
from dynastate.settings import is_endpoint, without_user

_USABLE: Final = re.compile(r"[!-~]+")
_HEADER: Final = re.compile(r"[ -~]*")
#: Region, access key and secret key for a DynamoDB on this machine, where nothing else is known. Emulators take any.
LOCAL_REGION: Final = "us-east-1"
LOCAL_KEY: Final = "local"
#: Variables that give credentials, or say who gives them. The metadata service is asked without any of them.
_SOURCES: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
)
_FILES: Final = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"), ("AWS_CONFIG_FILE", "~/.aws/config"))
_IN_FILES: Final = re.compile(r"(?m)^\s*(aws_access_key_id|credential_process|role_arn|sso_\w+|login_session)\s*=")
#: The line that begins a profile, in these files. In the second one, profiles except `default` have a word before them.
_PROFILES: Final = (
    re.compile(r"(?m)^\[\s*([^\]]+?)\s*\]"),
    re.compile(r"""(?m)^\[\s*(?:profile\s+["']?|(?=default\s*\]))([^\]]+?)["']?\s*\]"""),
)
#: What Linux says of an instance of EC2, which has a metadata service.
_VENDOR: Final = Path("/sys/class/dmi/id/sys_vendor")


def is_loopback(endpoint: str) -> bool:
    """Whether an endpoint is on this machine."""
    return (urlsplit(endpoint).hostname or "") in ("127.0.0.1", "localhost", "::1")


def has_credentials_source() -> bool:
    """Whether the environment, a file of AWS's tools or the machine says where credentials are."""
    if any(os.environ.get(name) for name in _SOURCES):
        return True
    for variable, usual in _FILES:
        with suppress(OSError):
            file = Path(os.environ.get(variable) or usual).expanduser()
            if _IN_FILES.search(file.read_text(errors="replace")):
                return True
    with suppress(OSError):
        return _VENDOR.read_text(errors="replace").startswith("Amazon EC2")
    return False


def aws_profiles() -> list[str]:
    """Names of the profiles in the files of AWS's tools, sorted."""
    names: set[str] = set()
    for (variable, usual), profile in zip(_FILES, _PROFILES, strict=True):
        with suppress(OSError):
            text = Path(os.environ.get(variable) or usual).expanduser().read_text(errors="replace")
            names.update(profile.findall(text))
    return sorted(names)


def watch_credentials(session: Any) -> None:  # botocore's session has no type of its own
    """Check and protect the credentials of each request of the clients that a session makes, STS's included."""
    session.register("before-sign", _before_sign)
    session.register("provide-client-params.sts", _protect_identity)


def check_credentials(credentials: Any) -> Any:
    """Credentials of botocore as they are now; from here on no message shows them. Refuse what cannot be sent."""
    frozen = credentials.get_frozen_credentials()
    protect_credentials(frozen.access_key, frozen.secret_key, frozen.token)
    for name, variable, value in (
        ("access key", "AWS_ACCESS_KEY_ID", frozen.access_key),
        ("secret access key", "AWS_SECRET_ACCESS_KEY", frozen.secret_key),
        ("session token", "AWS_SESSION_TOKEN", frozen.token),
    ):
        if value and not _USABLE.fullmatch(value):
            source = str(getattr(credentials, "method", None) or "unknown")
            subject = f"{variable}, the {name} of the AWS credentials," if source == "env" else f"the AWS {name}"
            raise _malformed(subject, source=source)
    return frozen


def check_environment(endpoint_variables: tuple[str, ...], *, uses_proxy: bool) -> None:
    """Refuse values of the environment that boto3 shows, or for which it blames the network."""
    for name in endpoint_variables:
        require_endpoint(name, os.environ.get(name, ""))
    for name, value in os.environ.items():
        is_proxy = uses_proxy and name.lower() in ("http_proxy", "https_proxy", "all_proxy")
        if (is_proxy or name == "AWS_CONTAINER_AUTHORIZATION_TOKEN") and not _HEADER.fullmatch(value):
            raise _malformed(f"the environment variable {name}")


def require_endpoint(name: str, url: str) -> None:
    """Refuse an endpoint with user or password, as the setting does; `name` says what has it."""
    if url and not is_endpoint(url):
        raise ConfigurationError(
            f"{name} must be a URL such as http://127.0.0.1:8000, without user or password", got=repr(without_user(url))
        )


def _malformed(subject: str, **facts: str) -> ConfigurationError:
    return ConfigurationError(
        f"{subject} has a character that it cannot have, such as a line break or a space at its end; "
        "set it again without",
        **facts,
    )


def _before_sign(request_signer: Any, **_: object) -> None:
    credentials = getattr(request_signer, "_credentials", None)
    if credentials is not None:
        check_credentials(credentials)


def _protect_identity(params: dict[str, Any], **_: object) -> None:
    protect_credentials(params.get("WebIdentityToken"), params.get("SAMLAssertion"))
