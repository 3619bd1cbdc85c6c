"""The forms in which programs write a secret: escaped, encoded, and both, one in another.

`redaction` searches for them, and passes over line breaks and any number of backslashes by itself.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from urllib.parse import quote_from_bytes

_URL_SAFE = ("", "/", "*", "!*'()", "!*'();/?:@&=+$,#")
"""Sets of characters that some programs leave unquoted in a URL; see `urllib.parse.quote`."""
_HTML_QUOTES = (
    ('"', "'"),
    ("&quot;", "'"),
    *(("&quot;", apostrophe) for apostrophe in ("&#x27;", "&#39;", "&#039;", "&apos;")),
    ("&#34;", "&#39;"),
)
"""How programs write the two quotation marks in HTML."""
_HTML_PUNCTUATION = str.maketrans({"/": "&#x2F;", "`": "&#x60;", "=": "&#x3D;"})
"""What some template languages escape as well."""


def forms_of(value: str) -> Iterator[bytes]:
    """Yield the forms in which programs write a value: as it is, escaped, in hex, in Base64."""
    for text in dict.fromkeys(_nested(value)):
        yield text.encode("utf-8", "surrogateescape")
    for text in dict.fromkeys((value, *_in_json(value))):
        yield from _encoded_forms(text.encode("utf-8", "surrogateescape"))


def _encoded_forms(raw: bytes) -> Iterator[bytes]:
    """Yield what bytes are in a URL, in hex and in Base64."""
    for safe in _URL_SAFE:
        quote = quote_from_bytes(raw, safe=safe)
        for text in (quote, quote.replace("%20", "+"), _with_lowercase_escapes(quote)):
            yield text.encode()
            yield text.replace("~", "%7E").encode()
            yield quote_from_bytes(text.encode(), safe="").encode()
    yield raw.hex().encode()
    yield raw.hex().upper().encode()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield from _base64_forms(raw, encode)


def _in_json(text: str) -> tuple[str, str]:
    return json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]


def _escaped(value: str) -> Iterator[str]:
    """Yield a value as it stands inside the quotes of a JSON, Python, shell or SQL text.

    There may be more backslashes: the search passes over them.
    """
    for in_json in _in_json(value):
        yield in_json
        yield _escaped_for_go(in_json)
    for in_python in (repr(value), ascii(value), repr(value.encode("utf-8", "surrogateescape"))):
        yield in_python.removeprefix("b")[1:-1]
    yield value.replace("'", "'\\''")
    yield value.replace("'", "'\"'\"'")
    yield value.replace("'", "''")
    yield value.replace('"', '""')


def _nested(value: str) -> Iterator[str]:
    """Yield a value, escaped, once more in JSON, in HTML, in HTML twice, and that in Go's JSON."""
    for text in (value, *dict.fromkeys(_escaped(value))):
        yield text
        yield from _in_json(text)
        for in_html in dict.fromkeys(_escaped_for_html(text)):
            yield in_html
            yield in_html.replace("&", "&amp;")
            yield _escaped_for_go(in_html)


def _escaped_for_html(text: str) -> Iterator[str]:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for quote, apostrophe in _HTML_QUOTES:
        quoted = text.replace('"', quote).replace("'", apostrophe)
        yield quoted
        yield quoted.encode("ascii", "xmlcharrefreplace").decode()
        yield quoted.replace("\n", "&#10;")
    yield quoted.translate(_HTML_PUNCTUATION)
    quoted = text.replace('"', "&quot;").replace("'", "&#39;")
    yield quoted.translate(_HTML_PUNCTUATION)


def _escaped_for_go(escaped: str) -> str:
    """Return JSON with `<`, `>` and `&` escaped, as Go's encoder writes it by default."""
    return re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", escaped)


def _with_lowercase_escapes(quoted: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), quoted)


def _base64_forms(raw: bytes, encode: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """Yield what the Base64 of any text that contains `raw` contains, for each offset of `raw`.

    Base64 encodes three bytes at a time. Characters that also depend on the bytes before or after
    `raw` are left out.
    """
    for before in range(3):
        encoded = encode(b"\0" * before + raw)
        depends_before = (0, 2, 3)[before]
        depends_after = (0, 3, 2)[(before + len(raw)) % 3]
        yield encoded[depends_before : len(encoded) - depends_after]
