"""How a connection to the engine learns the version of its API."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from labledger.checks.image_supply import check_obtained
from labledger.checks.parallel_builds import WantedImage, obtain_images
from labledger.engine.docker_config import RegistryCredentialsFailed
from labledger.engine.engine import Engine
from labledger.engine.image_builds import EngineBuild
from labledger.errors import EngineUnavailable
from labledger.execution.run_events import StopRequest, ignore_events
from labledger.experiment.plan import ImageBuild
from labledger.files.lab_folder import LabFolder
from labledger.records import JsonObject


@contextmanager
def engine(
    ping_headers: dict[str, str], build_answer: Sequence[JsonObject] = ()
) -> Iterator[tuple[str, list[str]]]:
    """A server that answers two requests and builds, with its address and the requests received."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            is_ping = self.path == "/_ping"
            body = b"OK" if is_ping else b'{"ApiVersion": "1.30", "message": "none"}'
            self.send_response(200 if is_ping or self.path == "/version" else 404)
            for name, value in (ping_headers if is_ping else {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            asked.append(self.path)
            while size := int(self.rfile.readline(), 16):
                self.rfile.read(size + 2)
            self.rfile.readline()
            lines = b"".join(json.dumps(message).encode() + b"\n" for message in build_answer)
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for line in lines.splitlines(keepends=True):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"tcp://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("headers", "version", "questions"),
    [
        ({"Api-Version": "1.31"}, "1.31", ["/_ping"]),
        ({}, "1.30", ["/_ping", "/version"]),
    ],
)
def test_a_ping_says_the_version(
    monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], version: str, questions: list[str]
) -> None:
    """The slow `/version` request is made only if the ping has no version."""
    with engine(headers) as (address, asked):
        monkeypatch.setenv("DOCKER_HOST", address)
        connection = Engine().connect()
        try:
            with connection.api("ask") as client:
                assert client.api_version == version
        finally:
            connection.close()
    assert asked == questions


def test_an_engine_that_is_silent_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that accepts a connection and never answers is reported after the time limit."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(EngineUnavailable):
            Engine(timeout_s=1).connect()


# -- the settings of the `docker` command


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the `docker` command's settings, with none of its variables set."""
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path


def add_context(config: Path, name: str, text: str) -> None:
    folder = config / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(text)


def endpoint(host: object) -> str:
    return json.dumps({"Name": "x", "Metadata": {}, "Endpoints": {"docker": {"Host": host}}})


def test_the_engine_is_that_of_the_chosen_context(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DOCKER_HOST wins over DOCKER_CONTEXT, which wins over the current context."""
    with engine({"Api-Version": "1.31"}) as (address, asked):
        add_context(config, "works", endpoint(address))
        add_context(config, "away", endpoint("tcp://127.0.0.1:1"))
        monkeypatch.setenv("DOCKER_CONTEXT", "works")
        Engine().connect().close()  # Without a config.json.
        (config / "config.json").write_text('{"currentContext": "away"}')
        Engine().connect().close()
        monkeypatch.setenv("DOCKER_CONTEXT", "away")
        with pytest.raises(EngineUnavailable, match=r"tcp://127\.0\.0\.1:1"):
            Engine().connect()
        monkeypatch.setenv("DOCKER_HOST", address)
        Engine().connect().close()
        monkeypatch.setenv("DOCKER_HOST", "")
        monkeypatch.setenv("DOCKER_CONTEXT", "")
        (config / "config.json").write_text('{"currentContext": "works"}')
        Engine().connect().close()
        assert len(asked) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "does not exist: there is no file"),
        ("{", "cannot be used"),
        ("[]", "cannot be used"),
        ('{"Endpoints": {}}', "cannot be used"),
        (endpoint(""), "it names no address"),
        (endpoint(7), "it names no address"),
    ],
)
@pytest.mark.parametrize("chosen_by", ["DOCKER_CONTEXT", "currentContext"])
def test_a_context_that_cannot_be_used_is_an_error(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str | None,
    message: str,
    chosen_by: str,
) -> None:
    """A broken context is an error that names the file; no other engine is used."""
    if text is not None:
        add_context(config, "chosen", text)
    if chosen_by == "DOCKER_CONTEXT":
        monkeypatch.setenv("DOCKER_CONTEXT", "chosen")
    else:
        (config / "config.json").write_text('{"currentContext": "chosen"}')
    with pytest.raises(EngineUnavailable, match=message) as caught:
        Engine().connect()
    assert chosen_by in caught.value.message
    assert str(config) in caught.value.message


def test_an_engine_that_does_not_answer_is_named_in_plain_words(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has the system's reason, without the library's wording."""
    add_context(config, "chosen", endpoint("tcp://127.0.0.1:1"))
    monkeypatch.setenv("DOCKER_CONTEXT", "chosen")
    with pytest.raises(EngineUnavailable) as caught:
        Engine().connect()
    expected = "no Docker engine answers at tcp://127.0.0.1:1: Connection refused"
    assert caught.value.message == expected


def test_contexts_of_the_working_directory_are_not_read(
    config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A context file in the working directory cannot choose the engine."""
    here = tmp_path_factory.mktemp("strange")
    add_context(here, "chosen", endpoint("unix:///strange/docker.sock"))
    monkeypatch.chdir(here)
    monkeypatch.setenv("DOCKER_CONTEXT", "chosen")
    with pytest.raises(EngineUnavailable, match="does not exist"):
        Engine().connect()


@pytest.mark.parametrize(
    "text",
    [
        '{"auths": {"example.invalid": {"auth": "not base64!"}}}',
        '{"auths": {"example.invalid": {"auth": 7}}}',
        '{"auths": {"example.invalid": []}}',
        '{"auths": [1]}',
        '{"auths": {"example.invalid": {"auth": "/w=="}}}',
    ],
)
def test_credentials_that_are_none_are_an_error_that_names_the_file(
    config: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """A malformed credentials file is an error that names it, not an error of the library."""
    (config / "config.json").write_text(text)
    with engine({"Api-Version": "1.31"}) as (address, _):
        monkeypatch.setenv("DOCKER_HOST", address)
        with pytest.raises(EngineUnavailable, match="cannot be read") as caught:
            Engine().connect()
    assert str(config / "config.json") in caught.value.message


def add_helper(folder: Path, name: str, script: str) -> None:
    path = folder / f"docker-credential-{name}"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("settings", "script", "message"),
    [
        ({"credsStore": "gone"}, None, "docker-credential-gone, which is not on the PATH"),
        ({"credHelpers": {"r.invalid": "gone"}}, None, "docker-credential-gone, which is not"),
        ({"credsStore": "odd"}, "echo '[]'", "cannot be read"),
        ({"credsStore": "odd"}, "echo '{}'", "cannot be read"),
        ({"credsStore": "odd"}, "echo no JSON", "cannot be read"),
        ({"credsStore": "odd"}, "echo 'it is locked'; exit 1", "it is locked"),
    ],
)
def test_a_credential_helper_that_fails_is_named(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: JsonObject,
    script: str | None,
    message: str,
) -> None:
    """A failing credential helper is named, both for pulls and for registry requests."""
    (config / "config.json").write_text(json.dumps(settings))
    if script is not None:
        add_helper(config, "odd", script)
        monkeypatch.setenv("PATH", f"{config}:{os.environ['PATH']}")
    with engine({"Api-Version": "1.31"}) as (address, _):
        monkeypatch.setenv("DOCKER_HOST", address)
        connection = Engine().connect()
        for action in (connection.image_is_obtainable, connection.pull):
            with pytest.raises(RegistryCredentialsFailed, match=message):
                action("r.invalid/no/such:1")
        connection.close()


def test_a_registry_that_has_no_such_image_does_not_offer_it(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry without the image is an answer, not a failure."""
    assert config.is_dir()
    with engine({"Api-Version": "1.31"}) as (address, _):
        monkeypatch.setenv("DOCKER_HOST", address)
        connection = Engine().connect()
        assert not connection.image_is_obtainable("r.invalid/no/such:1")
        connection.close()


def test_missing_certificates_are_named(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If TLS is on and certificates are missing, the error names the missing files."""
    (config / "ca.pem").write_text("")
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(config))
    with pytest.raises(EngineUnavailable, match=r"there is no cert\.pem, key\.pem"):
        Engine().connect()


BUILDER_ERRORS = {
    "failed to solve: r.invalid/base: error getting credentials - err: exit status 1": False,
    "pull access denied for r.invalid/base, repository does not exist": False,
    'Get "https://r.invalid/v2/": x509: certificate signed by unknown authority': False,
    "Head: unauthorized: authentication required": False,
    "The command '/bin/sh -c pip install x' returned a non-zero code: 1": True,
    "dockerfile parse error on line 3: unknown instruction: RUNN": True,
}


@pytest.mark.parametrize("error", BUILDER_ERRORS)
def test_a_build_that_a_registry_refuses_does_not_blame_the_dockerfile(
    config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: str
) -> None:
    """The hint of a failed build blames credentials or a certificate where they are the cause.

    Otherwise it says what to correct. The output of a Dockerfile step counts as neither.
    """
    assert config.is_dir()
    printed = "401 Unauthorized: x509: printed by a step\n"
    answer = [{"stream": printed}, {"error": error}]
    hint = hint_of_build(tmp_path, monkeypatch, answer)
    assert ("correct env/Dockerfile" in hint) is BUILDER_ERRORS[error]
    assert ("docker login" in hint) is not BUILDER_ERRORS[error]


@pytest.mark.parametrize("script", [None, "echo '[]'", "echo no JSON", "echo locked; exit 1"])
def test_a_build_without_its_credential_helper_names_it(
    config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None
) -> None:
    """A missing or failing credential helper ends a build before it starts, with its own hint."""
    (config / "config.json").write_text('{"credsStore": "odd"}')
    if script is not None:
        add_helper(config, "odd", script)
        monkeypatch.setenv("PATH", f"{config}:{os.environ['PATH']}")
    hint = hint_of_build(tmp_path, monkeypatch, [])
    assert "install the helper" in hint
    assert "Dockerfile" not in hint


def hint_of_build(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: list[JsonObject]) -> str:
    """Return the hint after a build that gets this answer from the engine."""
    (folder / "env").mkdir()
    (folder / "env/Dockerfile").write_text("FROM r.invalid/base\n")
    build = ImageBuild.of_authored({"context": "env"}, folder)
    assert build.source is not None
    wanted = WantedImage(EngineBuild("made:1", build.source, build.digest, 60), may_pull=False)
    with engine({"Api-Version": "1.31"}, answer) as (address, _):
        monkeypatch.setenv("DOCKER_HOST", address)
        [task] = obtain_images(LabFolder(folder / "lab"), [wanted], ignore_events, StopRequest())
    result = check_obtained(task, build)
    assert not result.ok
    assert "Traceback" not in result.detail
    return str(result.hint)
