"""Why a provider could not be reached, or its answer not be read, and what the user can do.

Agents get these sentences, too. So they contain nothing from the request, and no user name or
password of a proxy.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

_HTTP = {"http", "https"}
_ENCODING = re.compile(r"(?i)content-encoding:\s*(?:[a-z]+ \()?([a-z0-9-]{1,20})")
_PACKAGES = {"br": "Brotli", "zstd": "backports.zstd"}
_PROXY_ADVICE = "correct the variable `http_proxy` or `https_proxy`, or name the host in `no_proxy`"
_RESTART = "then run `labledger gateway stop`, so that the gateway starts again with it"


@dataclass(frozen=True, slots=True)
class ConnectionProblem:
    """A failure as a clause, and advice to the user."""

    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.what}; {self.advice}"


def connection_problem(error: BaseException, proxy: str | None) -> ConnectionProblem:
    """Return the problem behind a request's error. `proxy` is the proxy that was used."""
    if proxy is not None and (problem := _proxy_problem(error, proxy)) is not None:
        return problem
    if isinstance(error, aiohttp.ClientConnectorCertificateError | ssl.SSLCertVerificationError):
        return ConnectionProblem(
            f"its certificate is not trusted{_reason(error)}",
            f"set SSL_CERT_FILE to a file with the certificate of its authority, {_RESTART}",
        )
    if isinstance(error, aiohttp.ClientSSLError):
        return ConnectionProblem(
            "the server there does not speak TLS as expected",
            "check whether `upstream` must begin with http:// instead of https://",
        )
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return ConnectionProblem(
            "the name of its host has no address",
            "check `upstream` of the provider, and this machine's name service",
        )
    if isinstance(error, TimeoutError):
        return ConnectionProblem(
            "it did not answer in time", "check whether a firewall or a proxy blocks it"
        )
    return _other_problem(error)


def _other_problem(error: BaseException) -> ConnectionProblem:
    if isinstance(error, aiohttp.ClientConnectorError):
        reason = error.os_error.strerror or type(error.os_error).__name__
        return ConnectionProblem(
            f"the connection failed: {reason}", "check whether a server runs at `upstream`"
        )
    if (match := _ENCODING.search(str(error))) is not None:
        name = match[1].lower()
        package = _PACKAGES.get(name)
        install = f"install the package {package}, {_RESTART}, or " if package else ""
        return ConnectionProblem(
            f"its answer is compressed with {name}, which the gateway cannot read here",
            f"{install}have `upstream` answer without compression, which the gateway asks for",
        )
    if isinstance(error, aiohttp.ServerDisconnectedError | ConnectionError):
        return ConnectionProblem(
            "the connection was closed before an answer came",
            "see the log of the server at `upstream`",
        )
    if isinstance(error, aiohttp.ClientResponseError | aiohttp.ClientPayloadError):
        return ConnectionProblem(
            "its answer is not valid HTTP", "check whether `upstream` serves the API by HTTP"
        )
    return ConnectionProblem(
        f"the request failed ({type(error).__name__})", "check `upstream` of the provider"
    )


def _proxy_problem(error: BaseException, proxy: str) -> ConnectionProblem | None:
    """Return what is wrong with the proxy; None if the error has another cause."""
    try:
        parts = urlsplit(proxy)
        scheme, host = parts.scheme.lower(), parts.hostname
    except ValueError:
        scheme, host = "", None
    if scheme not in _HTTP or host is None:
        kind = f" ({scheme}://…)" if "://" in proxy and scheme else ""
        return ConnectionProblem(
            f"the proxy of the environment{kind} has no address that begins with http://, and "
            "other kinds of proxies cannot be used",
            _PROXY_ADVICE,
        )
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return ConnectionProblem(
            f"the proxy of the environment refused the connection with status {error.status}",
            "let it allow the host of `upstream`" if error.status != 407 else _PROXY_ADVICE,
        )
    is_name = isinstance(error, aiohttp.ClientConnectorDNSError)
    if isinstance(error, aiohttp.ClientProxyConnectionError) or is_name:
        return ConnectionProblem("the proxy of the environment cannot be reached", _PROXY_ADVICE)
    return None


def _reason(error: BaseException) -> str:
    """Return why a certificate is not trusted, in the TLS library's words."""
    inner = getattr(error, "certificate_error", error)
    words = getattr(inner, "verify_message", None)
    return f" ({words})" if words else ""
