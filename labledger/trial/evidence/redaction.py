"""Redact secrets: replace their values in everything that is stored.

A `Redactor` finds the exact value of a secret and the forms in which programs write it: escaped for
JSON, HTML or a URL, in hex, in Base64, and each of them wrapped over several lines. The time stays
proportional to the content, whatever an agent wrote. Every module of `evidence` that reads outputs
uses a `Redactor`, which `collect.redactor_for` makes.
"""

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
"""The maximum length of a stored message, in characters: it may quote what a container wrote."""
MIN_LENGTH = 6
"""A value with fewer characters is not redacted: it would be replaced in unrelated text."""

MIN_WRAPPED = 8
"""A value with fewer bytes is not searched for across line ends."""
_URL_SAFE = ("", "/", "*", "!*'()", "!*'();/?:@&=+$,#")
"""Sets of characters that some programs leave unquoted in a URL; see `urllib.parse.quote`."""

_LINE_END = rb"(?:\r?\n|\\{1,3}(?:r\\{1,3})?n)"
_BREAK = re.compile(rb"(?:" + _LINE_END + rb"[ \t]*)+")
"""A line break: line ends, also escaped up to twice, and indentation."""
_PATCH_BREAK = re.compile(rb"(?:" + _LINE_END + rb"[-+]?[ \t]*)+")
"""A line break in a patch."""
_BREAK_CHARACTERS = b"\r\n\\rn+- \t"
"""Every character that a line break can contain."""
_OVERLAP = 4
"""A secret across two chunks is found if it takes, with line breaks, so many times its length."""


def _forms(value: str) -> Iterator[bytes]:
    """Yield the forms in which programs write a value: as it is, escaped, in hex, in Base64."""
    raw = value.encode("utf-8", "surrogateescape")
    yield raw
    for ascii_only in (True, False):
        escaped = json.dumps(value, ensure_ascii=ascii_only)[1:-1]
        for text in (escaped, escaped.replace("/", "\\/")):
            yield text.encode("utf-8", "surrogateescape")
        yield _escaped_for_html(escaped).encode("utf-8", "surrogateescape")
    for safe in _URL_SAFE:
        quote = quote_from_bytes(raw, safe=safe)
        for text in (quote, quote.replace("%20", "+"), _with_lowercase_escapes(quote)):
            yield text.encode()
            yield text.replace("~", "%7E").encode()
    yield raw.hex().encode()
    yield raw.hex().upper().encode()
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        yield from _base64_forms(raw, encode)


def _escaped_for_html(escaped: str) -> str:
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


def _without_break_characters(content: bytes) -> bytes:
    """Return content without the characters that a line break can contain.

    If the content contains a secret, wrapped or not, then the result contains the secret without
    these characters. This check is fast, and nearly always the only one that is needed.
    """
    return content.translate(None, _BREAK_CHARACTERS)


class _Unwrapped:
    """Content without its line breaks, and the original offset of each byte.

    Takes time proportional to the content. A regular expression that allows a break after each
    character would not: hostile content could make it try all of them.
    """

    def __init__(self, content: bytes, breaks: re.Pattern[bytes]) -> None:
        lines = []
        self._starts, self._original_starts = array("q", [0]), array("q", [0])
        """The offsets at which each line begins, without the breaks and in the original."""
        for match in breaks.finditer(content):
            lines.append(content[self._original_starts[-1] : match.start()])
            self._starts.append(self._starts[-1] + len(lines[-1]))
            self._original_starts.append(match.end())
        lines.append(content[self._original_starts[-1] :])
        self.content = b"".join(lines)

    def spans(self, value: bytes) -> Iterator[tuple[int, int]]:
        """Yield start and end of each occurrence of a value in the original, with its breaks."""
        at = self.content.find(value)
        while at >= 0:
            end = at + len(value)
            yield self._original_offset(at), self._original_offset(end - 1) + 1
            at = self.content.find(value, end)

    def _original_offset(self, offset: int) -> int:
        line = bisect_right(self._starts, offset) - 1
        return self._original_starts[line] + offset - self._starts[line]


class _Form:
    """One form of a secret, and the mark that replaces it."""

    def __init__(self, value: bytes, mark: bytes) -> None:
        self.value = value
        self.without_break_characters = _without_break_characters(value)
        self._mark = mark
        unwrapped = _BREAK.sub(b"", value)
        self._unwrapped = unwrapped if len(unwrapped) >= MIN_WRAPPED else None

    def is_in(self, content: bytes) -> bool:
        return self.value in content or any(
            any(self._spans(content, breaks)) for breaks in (_BREAK, _PATCH_BREAK)
        )

    def replaced_in(self, content: bytes) -> tuple[bytes, int]:
        """Return the content with marks instead of this form, and how many were set.

        The line breaks inside a replaced form are kept, so that a patch's line numbers stay right.
        """
        count = content.count(self.value)
        content = content.replace(self.value, self._mark)
        for breaks in (_BREAK, _PATCH_BREAK):
            parts, end = [], 0
            for start, stop in self._spans(content, breaks):
                kept = breaks.findall(content, start, stop)
                parts += [content[end:start], self._mark, *kept]
                count, end = count + 1, stop
            content = b"".join([*parts, content[end:]])
        return content, count

    def _spans(self, content: bytes, breaks: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:
        if self._unwrapped is None or self._unwrapped not in breaks.sub(b"", content):
            return iter(())
        return _Unwrapped(content, breaks).spans(self._unwrapped)


class Redactor:
    """Replaces each secret by ``[redacted:NAME]`` in bytes, text and JSON, and counts replacements.

    `secrets` are values by name. A value that occurs in one of the `public` texts is not redacted:
    records keep their own words and names, whatever the environment contains.
    """

    def __init__(self, secrets: Mapping[str, str], public: Iterable[str] = ()) -> None:
        public_text = "\n".join(public)
        self._marks = {
            value: f"[redacted:{name}]"
            for name, value in secrets.items()
            if len(value) >= MIN_LENGTH and value not in public_text
        }
        pairs = {
            form: mark.encode() for value, mark in self._marks.items() for form in _forms(value)
        }
        self.count = 0
        """The number of replacements so far."""
        # The longest first, so that a value that contains another is replaced as a whole.
        longest_first = sorted(pairs.items(), key=lambda pair: -len(pair[0]))
        self._forms = [_Form(form, mark) for form, mark in longest_first]

    def contains_secret(self, chunks: Iterable[bytes]) -> bool:
        """Return True if `redact_bytes` would change the content that `chunks` make up."""
        longest = max((len(form.value) for form in self._forms), default=0)
        if not longest:
            return False
        end = b""
        for chunk in chunks:
            content = end + chunk
            if any(form.is_in(content) for form in self._possible_forms(content)):
                return True
            end = content[-_OVERLAP * longest :]
        return False

    def redact_chunks(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield what `redact_bytes` would return for the content that `chunks` make up.

        The content is divided only where no secret is near; where there is no such position, it is
        held in memory.
        """
        margin = _OVERLAP * max((len(form.value) for form in self._forms), default=0)
        pending = b""
        for chunk in chunks:
            pending += chunk
            end = len(pending) - margin
            if end <= margin or self.contains_secret([pending[end - margin :]]):
                continue
            yield self.redact_bytes(pending[:end])
            pending = pending[end:]
        yield self.redact_bytes(pending)

    def redact_bytes(self, content: bytes) -> bytes:
        """Return content without secrets: the same object if it contains none."""
        for form in self._possible_forms(content):
            changed, count = form.replaced_in(content)
            if count:
                self.count += count
                content = changed
        return content

    def _possible_forms(self, content: bytes) -> list[_Form]:
        """Return the forms that the content may contain; it certainly contains no others."""
        stripped = _without_break_characters(content)
        return [form for form in self._forms if form.without_break_characters in stripped]

    def redact_text(self, content: str) -> str:
        if not self._forms:
            return content
        redacted = self.redact_bytes(content.encode("utf-8", "surrogateescape"))
        return redacted.decode("utf-8", "replace")

    def redact_message(self, content: str) -> str:
        """Return a text for a person without secrets, truncated to `MAX_MESSAGE` characters."""
        text = self.redact_text(content)
        return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}..."

    def redact_json(self, value: Any) -> Any:
        """Return a JSON value without secrets in texts, in keys and as numbers."""
        if not self._forms:
            return value
        if isinstance(value, str):
            return self.redact_text(value)
        if isinstance(value, dict):
            return {self.redact_text(key): self.redact_json(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.redact_json(item) for item in value]
        if isinstance(value, int | float):
            return self._redact_number(value)
        return value

    def _redact_number(self, value: float) -> float | str:
        mark = self._marks.get(json.dumps(value))
        if mark is None:
            return value
        self.count += 1
        return mark
