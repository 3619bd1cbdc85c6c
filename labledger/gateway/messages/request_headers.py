"""Refuse headers that could make a provider read another request.

The gateway reads a body as JSON in UTF-8, and forwards the same bytes. So a request must not
declare another charset, form, encoding, method or path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from labledger.gateway.families.family import CallRefused

_JSON = re.compile(
    r"application/json[ \t]*(;[ \t]*charset=(utf-?8|\"utf-?8\")[ \t]*)?", re.IGNORECASE
)
_OTHER_REQUEST = frozenset(
    {
        *("x-original-url", "x-original-uri", "x-original-path", "x-original-host"),
        *("x-rewrite-url", "x-rewrite-uri", "x-request-uri", "x-request-url", "x-http-path"),
        *("x-forwarded-uri", "x-forwarded-url", "x-forwarded-path", "x-forwarded-prefix"),
        *("x-envoy-original-path", "x-envoy-original-url", "x-accel-redirect", "x-script-name"),
        *("content-range", "content-transfer-encoding"),
    }
)
"""Headers that name another path or body to proxies and servers."""
_METHODS = re.compile(r"method|override")
"""Parts of the names of headers that set another method, such as X-HTTP-Method-Override."""


def check_headers(headers: Iterable[tuple[str, str]]) -> None:
    """Raise `CallRefused` if a request's headers may make a provider read another request.

    A request without a `Content-Type` passes, because its body must be JSON anyway.
    """
    types = []
    for raw_name, value in headers:
        # Some servers read both as the same name.
        name = raw_name.strip().lower().replace("_", "-")
        if name == "content-type":
            types.append(value.strip(" \t"))
        elif name == "content-encoding":
            _check_encoding(value)
        elif name == "transfer-encoding" and value.strip(" \t").lower() != "chunked":
            raise CallRefused(415, "encoded", "labledger: send the body in chunks or whole")
        elif _METHODS.search(name) or name in _OTHER_REQUEST:
            message = f"labledger: the header {raw_name[:80]} could change the request"
            raise CallRefused(400, "header", message)
    if len(types) > 1 or not all(map(_JSON.fullmatch, types)):
        message = "labledger: send the body as `Content-Type: application/json` in UTF-8"
        raise CallRefused(415, "content_type", message)


def _check_encoding(value: str) -> None:
    if value.strip(" \t").lower() != "identity":
        raise CallRefused(415, "encoded", "labledger: send the body without an encoding")
