"""Read the settings of the `docker` command: its engine, and its credentials for registries.

`DOCKER_HOST` names the engine, or else the context in `DOCKER_CONTEXT`, or else the current
context. A chosen context that cannot be read is an error, because trials would run on another
engine. Nothing is read from the working directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb
from typing import Any

from labledger.engine.engine_errors import first_line
from labledger.errors import EngineUnavailable, LabLedgerError

_HELPER = re.compile(r"docker-credential-[\w.-]+")
_DEFAULT_CONTEXT = "default"
_CERTIFICATES = ("ca.pem", "cert.pem", "key.pem")
_TLS_HINT = (
    "DOCKER_CERT_PATH names the folder of ca.pem, cert.pem and key.pem; unset DOCKER_TLS_VERIFY "
    "and DOCKER_CERT_PATH for an engine without TLS"
)


class RegistryCredentialsFailed(LabLedgerError):
    """The credentials of a registry could not be read."""


def engine_settings() -> dict[str, Any]:
    """Return the Docker library's client settings for the engine that `docker` uses.

    Raises `EngineUnavailable` if the settings name files that cannot be used.
    """
    from docker.errors import DockerException
    from docker.utils import kwargs_from_env

    try:
        settings: dict[str, Any] = {**kwargs_from_env()}
    except (DockerException, OSError, ValueError) as error:
        folder = Path(os.environ.get("DOCKER_CERT_PATH") or _docker_folder())
        missing = [name for name in _CERTIFICATES if not (folder / name).is_file()]
        why = f"there is no {', '.join(missing)}" if missing else first_line(error)
        raise EngineUnavailable(
            f"the certificates for the Docker engine in {folder} cannot be used: {why}",
            hint=_TLS_HINT,
        ) from error
    if "base_url" not in settings and (chosen := _chosen_context()) is not None:
        settings |= _context_settings(*chosen)
    return settings


def require_credentials_file() -> None:
    """Raise `EngineUnavailable` if the file with the user's credentials is invalid.

    The library reads the file whenever it connects.
    """
    from docker import auth
    from docker.utils.config import find_config_file

    try:
        auth.load_config()
    except Exception as error:  # A wrong member can raise any error in the library's code.
        path = str(find_config_file() or _config_file())
        raise EngineUnavailable(
            f"the credentials of registries in {path} cannot be read: {first_line(error)}",
            hint="correct `auths` in that file, or remove it and use `docker login` again",
        ) from error


@contextmanager
def reading_credentials(action: str) -> Iterator[None]:
    """Raise `RegistryCredentialsFailed` if credentials cannot be read while the body runs.

    `action` is what the body attempts.
    """
    from docker.credentials.errors import StoreError
    from docker.errors import DockerException

    try:
        with warnings.catch_warnings():
            # If a helper is missing, the library warns before it raises an error.
            warnings.filterwarnings("ignore", message="docker-credential-")
            yield
    except DockerException as error:
        if not isinstance(error.__cause__, StoreError):
            raise
        raise _credentials_error(action, first_line(error.__cause__)) from error
    except StoreError as error:
        # A build asks a helper for all credentials at once, and passes its error on.
        raise _credentials_error(action, first_line(error)) from error
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        # The helper did not print a user name and a secret.
        if not _comes_from_credentials(error):
            raise
        raise _credentials_error(action, f"{type(error).__name__}: {error}") from error


def _comes_from_credentials(error: BaseException) -> bool:
    """Return whether the library raised an error while it read credentials."""
    modules = (frame.f_globals["__name__"] for frame, _ in walk_tb(error.__traceback__))
    return any(name.startswith(("docker.auth", "docker.credentials")) for name in modules)


def _credentials_error(action: str, text: str) -> RegistryCredentialsFailed:
    helper = _HELPER.search(text)
    if helper is None or "not installed" not in text:
        what = f"the credentials of the registry in {_config_file()} cannot be read: {text}"
    else:
        what = f"{_config_file()} names the credential helper {helper[0]}, which is not on the PATH"
    return RegistryCredentialsFailed(
        f"could not {action}: {what}",
        hint="install the helper, or remove `credsStore` and `credHelpers` from that file",
    )


def _config_folder() -> Path:
    return Path(os.environ.get("DOCKER_CONFIG") or _docker_folder())


def _docker_folder() -> Path:
    try:
        return Path.home() / ".docker"
    except RuntimeError:
        # A user without a home folder cannot have this file.
        return Path("/.docker")


def _config_file() -> Path:
    return _config_folder() / "config.json"


def _chosen_context() -> tuple[str, str] | None:
    """Return the name of the chosen context and the setting that chose it, or None."""
    name = os.environ.get("DOCKER_CONTEXT") or None
    if name is not None:
        return None if name == _DEFAULT_CONTEXT else (name, "DOCKER_CONTEXT")
    try:
        name = json.loads(_config_file().read_bytes()).get("currentContext")
    except (OSError, ValueError, AttributeError):
        return None  # The `docker` command ignores a malformed file here, too.
    is_chosen = isinstance(name, str) and name not in {"", _DEFAULT_CONTEXT}
    return (str(name), f"currentContext in {_config_file()}") if is_chosen else None


def _context_settings(name: str, chosen_by: str) -> dict[str, Any]:
    """Return the client's settings for the engine of a context. Raises `EngineUnavailable`."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
    contexts = _config_folder() / "contexts"
    path = contexts / "meta" / digest / "meta.json"
    try:
        endpoint = json.loads(path.read_bytes())["Endpoints"]["docker"]
        host = endpoint["Host"]
        if not isinstance(host, str) or not host:
            raise ValueError("it names no address of an engine")
        tls = _tls_of(contexts / "tls" / digest / "docker", endpoint)
    except FileNotFoundError:
        raise _context_error(name, chosen_by, f"does not exist: there is no file {path}") from None
    except Exception as error:  # Another program wrote the file, so it may have any content.
        what = f"cannot be used: {path}: {type(error).__name__}: {first_line(error)}"
        raise _context_error(name, chosen_by, what) from error
    return {"base_url": host} | ({} if tls is None else {"tls": tls})


def _tls_of(folder: Path, endpoint: dict[str, Any]) -> Any:
    """Return the TLS settings of a context, or None if it has no certificates."""
    from docker.tls import TLSConfig

    files = {name: folder / f"{name}.pem" for name in ("ca", "cert", "key")}
    there = {name: str(path) for name, path in files.items() if path.exists()}
    if not there:
        return None
    has_certificate = {"cert", "key"} <= there.keys()
    return TLSConfig(
        client_cert=(there["cert"], there["key"]) if has_certificate else None,
        ca_cert=there.get("ca"),
        verify=not endpoint.get("SkipTLSVerify", False),
    )


def _context_error(name: str, chosen_by: str, what: str) -> EngineUnavailable:
    return EngineUnavailable(
        f"the Docker context {name!r}, which {chosen_by} chooses, {what}",
        hint="`docker context ls` lists the contexts; set DOCKER_CONTEXT to one of them, or to "
        "`default`",
    )
