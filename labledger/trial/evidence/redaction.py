"""Takes the values of secrets out of everything that is kept."""

from __future__ import annotations

import base64
import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote_from_bytes

MAX_MESSAGE = 2_000
"""How many characters of a message are kept: it may quote megabytes that a container wrote."""
MIN_LENGTH = 6
"""A shorter value is no secret: replacing it would garble text that has nothing to do with it."""

MIN_WRAPPED = 8
"""What is shorter is not looked for across the ends of lines."""
_URL_SAFE = ("", "/", "*", "!*'()", "!*'();/?:@&=+$,#")
"""What programs leave as it is in a URL, besides what all do."""

_LINE_END = rb"(?:\r?\n|\\{1,3}(?:r\\{1,3})?n)"
_BREAK = re.compile(rb"(?:" + _LINE_END + rb"[ \t]*)+")
"""What may stand between two lines: their end, also escaped, at most twice, and indentation."""
_PATCHED = re.compile(rb"(?:" + _LINE_END + rb"[-+]?[ \t]*)+")
"""The same in a patch."""
_MAY_BREAK = b"\r\n\\rn+- \t"
"""Every character that a break may have."""
_OVERLAP = 4
"""How many times its length a secret may take with the breaks in it, where pieces meet."""


def _forms(value: str) -> Iterator[bytes]:
    """A value as it may stand in text, in JSON, and encoded as programs encode keys."""
    raw = value.encode("utf-8", "surrogateescape")
    yield raw
    for ascii_only in (True, False):
        escaped = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        for text in (escaped, escaped.replace("/", "\\/")):
            yield text.encode("utf-8", "surrogateescape")
        yield _for_html(escaped).encode("utf-8", "surrogateescape")
    for safe in _URL_SAFE:
        quote = quote_from_bytes(raw, safe=safe)
        for text in (quote, quote.replace("%20", "+"), _lower_escapes(quote)):
            yield text.encode()
            yield text.replace("~", "%7E").encode()
    yield raw.hex().encode()
    yield raw.hex().upper().encode()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield from _base64_forms(raw, encode)


def _for_html(escaped: str) -> str:
    """JSON that may stand in a page, as Go writes it unasked."""
    return re.sub("[<>&]", lambda match: f"\\u{ord(match[0]):04x}", escaped)


def _lower_escapes(quoted: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), quoted)


def _base64_forms(raw: bytes, encode: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """What stands in the Base64 of any text that holds `raw`, wherever in it that begins.

    Base64 takes three bytes at a time. Characters that also depend on what stands beside `raw`
    are left out.
    """
    for before in range(3):
        encoded = encode(b"\0" * before + raw)
        depends_before = (0, 2, 3)[before]
        depends_after = (0, 3, 2)[(before + len(raw)) % 3]
        yield encoded[depends_before : len(encoded) - depends_after]


def _bare(content: bytes) -> bytes:
    """A content without what a break may have: it holds that of each secret in the content,
    broken or not. That is fast to find out, and nearly always all that need be.
    """
    return content.translate(None, _MAY_BREAK)


class _Joined:
    """A content without its breaks, and where everything in it stood.

    That takes as long as the content is, whatever it holds; a pattern that allowed for a break
    after each letter could be made to try them all.
    """

    def __init__(self, content: bytes, breaks: re.Pattern[bytes]) -> None:
        pieces = []
        self._starts, self._places = array("q", [0]), array("q", [0])
        for match in breaks.finditer(content):
            pieces.append(content[self._places[-1] : match.start()])
            self._starts.append(self._starts[-1] + len(pieces[-1]))
            self._places.append(match.end())
        pieces.append(content[self._places[-1] :])
        self.content = b"".join(pieces)

    def spans(self, value: bytes) -> Iterator[tuple[int, int]]:
        """Where a value stood, from and to, breaks within included."""
        at = self.content.find(value)
        while at >= 0:
            end = at + len(value)
            yield self._place(at), self._place(end - 1) + 1
            at = self.content.find(value, end)

    def _place(self, offset: int) -> int:
        line = bisect_right(self._starts, offset) - 1
        return self._places[line] + offset - self._starts[line]


class _Form:
    """One way to write a secret, and what takes its place."""

    def __init__(self, value: bytes, mark: bytes) -> None:
        self.value = value
        self.bare = _bare(value)
        self._mark = mark
        unbroken = _BREAK.sub(b"", value)
        self._unbroken = unbroken if len(unbroken) >= MIN_WRAPPED else None

    def is_in(self, content: bytes) -> bool:
        return self.value in content or any(
            any(self._spans(content, breaks)) for breaks in (_BREAK, _PATCHED)
        )

    def replaced(self, content: bytes) -> tuple[bytes, int]:
        """The content without it, and how often it was there. No line is lost to one found
        across the ends of lines: what a patch says of lines' numbers stays right.
        """
        count = content.count(self.value)
        content = content.replace(self.value, self._mark)
        for breaks in (_BREAK, _PATCHED):
            pieces, end = [], 0
            for start, stop in self._spans(content, breaks):
                kept = breaks.findall(content, start, stop)
                pieces += [content[end:start], self._mark, *kept]
                count, end = count + 1, stop
            content = b"".join([*pieces, content[end:]])
        return content, count

    def _spans(self, content: bytes, breaks: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:
        if self._unbroken is None or self._unbroken not in breaks.sub(b"", content):
            return iter(())
        return _Joined(content, breaks).spans(self._unbroken)


class Redactor:
    """Replaces each secret by ``[redacted:NAME]`` in bytes, text and JSON, and counts.

    Found are its exact value and the value escaped for JSON or a URL, in hex, and in Base64, each
    also across the ends of lines: programs wrap what they encode, and a key may have lines itself.

    A value that occurs in one of the `public` texts is no secret either: the records' own words
    and names are kept whatever the environment holds.
    """

    def __init__(self, secrets: Mapping[str, str], public: Iterable[str] = ()) -> None:
        shown = "\n".join(public)
        self._values = {
            value: f"[redacted:{name}]"
            for name, value in secrets.items()
            if len(value) >= MIN_LENGTH and value not in shown
        }
        pairs = {
            form: mark.encode() for value, mark in self._values.items() for form in _forms(value)
        }
        self.count = 0
        """How many were replaced so far."""
        # The longest first, so that a value that contains another is replaced as a whole.
        longest_first = sorted(pairs.items(), key=lambda pair: -len(pair[0]))
        self._forms = [_Form(form, mark) for form, mark in longest_first]

    def finds_in(self, chunks: Iterable[bytes]) -> bool:
        """True where a content, given in pieces, holds what `data` would replace."""
        longest = max((len(form.value) for form in self._forms), default=0)
        if not longest:
            return False
        end = b""
        for chunk in chunks:
            content = end + chunk
            if any(form.is_in(content) for form in self._suspects(content)):
                return True
            end = content[-_OVERLAP * longest :]
        return False

    def pieces(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """What `data` would make of a content that is given, and comes, in pieces.

        The content is cut where no secret is near; only where one always is, it is held whole.
        """
        near = _OVERLAP * max((len(form.value) for form in self._forms), default=0)
        waiting = b""
        for chunk in chunks:
            waiting += chunk
            cut = len(waiting) - near
            if cut <= near or self.finds_in([waiting[cut - near :]]):
                continue
            yield self.data(waiting[:cut])
            waiting = waiting[cut:]
        yield self.data(waiting)

    def data(self, content: bytes) -> bytes:
        """The same content where it holds no secret."""
        for form in self._suspects(content):
            changed, count = form.replaced(content)
            if count:
                self.count += count
                content = changed
        return content

    def _suspects(self, content: bytes) -> list[_Form]:
        """The forms that the content may hold, and no other than those."""
        bare = _bare(content)
        return [form for form in self._forms if form.bare in bare]

    def text(self, content: str) -> str:
        if not self._forms:
            return content
        return self.data(content.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")

    def message(self, content: str) -> str:
        """A text for a person, without secrets, and then no longer than such a text should be."""
        text = self.text(content)
        return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}..."

    def json(self, value: Any) -> Any:
        """The same JSON without secrets: in texts and keys, however they were escaped, and as a
        number that is one.
        """
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(key): self.json(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.json(item) for item in value]
        if isinstance(value, int | float):
            return self._number(value)
        return value

    def _number(self, value: float) -> float | str:
        mark = self._values.get(json.dumps(value))
        if mark is None:
            return value
        self.count += 1
        return mark
