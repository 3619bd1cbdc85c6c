"""Redact secrets: replace their values in everything that is stored.

A `Redactor` finds the exact value of a secret and the forms in which programs write it. Its time is
proportional to the content, whatever an agent wrote. No output may be stored before it has passed a
`Redactor`. The guarantees list what it does not find.
"""

from __future__ import annotations

import base64
import json
import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any
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
"""Further characters that some template languages escape."""


def forms_of(value: str) -> Iterator[bytes]:
    """Yield the forms in which programs write a value: as it is, escaped, in hex, in Base64.

    Escaped forms are those for JSON, HTML, Python, a shell or a URL. Escapes and encodings are also
    nested. Line breaks and backslashes in between are not part of a form: the search ignores them.
    """
    for text in dict.fromkeys(_nested(value)):
        yield text.encode("utf-8", "surrogateescape")
    for text in dict.fromkeys((value, *_in_json(value))):
        yield from _encoded_forms(text.encode("utf-8", "surrogateescape"))


def _encoded_forms(raw: bytes) -> Iterator[bytes]:
    """Yield the forms of bytes in a URL, in hex and in Base64."""
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
    """Yield a value as it is inside the quotes of a JSON, Python, shell or SQL text.

    There may be more backslashes: the search ignores them.
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
    """Yield an escaped value, nested in JSON, in HTML, in HTML twice, and in Go's JSON."""
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
    """Yield the Base64 that any text with `raw` must contain, for each offset of `raw`.

    Base64 encodes three bytes at a time. Characters that also depend on the bytes before or after
    `raw` are left out.
    """
    for before in range(3):
        encoded = encode(b"\0" * before + raw)
        depends_before = (0, 2, 3)[before]
        depends_after = (0, 3, 2)[(before + len(raw)) % 3]
        yield encoded[depends_before : len(encoded) - depends_after]


MAX_MESSAGE = 2_000
"""The maximum length of a stored message, in characters. It may quote a container's output."""
MIN_LENGTH = 6
"""A shorter value (in characters) is not redacted, because it would also match unrelated text."""

MIN_WRAPPED = 8
"""A shorter value (in bytes) is not searched for across line ends."""

_LINE_END = rb"(?:\r?\n|\\++(?:r\\++)?n)"
_BREAK = re.compile(rb"(?:" + _LINE_END + rb"[ \t]*|\\++)+")
"""A line break: line ends, also escaped, and indentation; or backslashes that escape something.

Each nested text doubles its backslashes, so any number of them is ignored.
"""
_PATCH_BREAK = re.compile(rb"(?:" + _LINE_END + rb"[-+]?[ \t]*|\\++)+")
"""The same in a patch."""
_BREAK_CHARACTERS = b"\r\n\\rn+- \t"
"""Every character that a line break can contain."""
_MIN_BEGINNING = 3
"""A line is not held back if it ends with fewer characters of the beginning of a secret."""
_OVERLAP = 4
"""A secret across two chunks is found if line breaks make it at most this many times longer."""


def _without_break_characters(content: bytes) -> bytes:
    """Return content without the characters that a line break can contain.

    If the content contains a secret, wrapped or not, then the result contains the secret without
    these characters. This check is fast, and nearly always the only one that is needed.
    """
    return content.translate(None, _BREAK_CHARACTERS)


class _Unwrapped:
    """Content without its line breaks, and the original offset of each byte.

    Takes time proportional to the content. A regular expression that allows a break after each
    character would not: hostile content could make it try all combinations.
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


_WORD = re.compile(rb"[A-Za-z0-9]+")
_ESCAPED_BEGINNINGS = frozenset({b'"', b"'", b"/"})
"""Backslashes before one of these belong to it."""


def _ends_line(line_break: bytes) -> bool:
    """Return True for a break with a line end, also escaped; False for backslashes alone."""
    return b"\n" in line_break or b"n" in line_break


class _Form:
    """One form of a secret."""

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.without_break_characters = _without_break_characters(value)
        words = _WORD.findall(self.without_break_characters)
        self.word = max(words, key=len, default=self.without_break_characters)
        """A part of the form that many forms of a secret share."""
        unwrapped = _BREAK.sub(b"", value)
        self._unwrapped = unwrapped if len(unwrapped) >= MIN_WRAPPED else None
        self.sought = self._unwrapped or value
        """Forms with an equal value here match the same text, so one of them is enough."""

    def is_in(self, content: bytes) -> bool:
        return self.value in content or any(
            any(self._spans(content, breaks)) for breaks in (_BREAK, _PATCH_BREAK)
        )

    def replaced_in(self, content: bytes, mark: bytes) -> tuple[bytes, int]:
        """Replace this form by marks. Return the new content and the number of marks.

        Line breaks inside a replaced form are kept, so that a patch's line numbers stay correct.
        """
        count = content.count(self.value)
        content = content.replace(self.value, mark)
        for breaks in (_BREAK, _PATCH_BREAK):
            parts, end = [], 0
            for start, stop in self._spans(content, breaks):
                kept_breaks = (
                    line_break
                    for line_break in breaks.findall(content, start, stop)
                    if _ends_line(line_break)
                )
                parts += [content[end:start], mark, *kept_breaks]
                count, end = count + 1, stop
            content = b"".join([*parts, content[end:]])
        return content, count

    def _spans(self, content: bytes, breaks: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:
        if self._unwrapped is None or self._unwrapped not in breaks.sub(b"", content):
            return
        is_escaped = self._unwrapped[:1] in _ESCAPED_BEGINNINGS
        for start, stop in _Unwrapped(content, breaks).spans(self._unwrapped):
            begin = start
            while is_escaped and content[begin - 1 : begin] == b"\\":
                begin -= 1
            yield begin, stop


@lru_cache(maxsize=64)
def _forms_of(value: str) -> tuple[_Form, ...]:
    """Return the forms of a value, except forms that match nothing more, for speed."""
    forms: dict[bytes, _Form] = {}
    for form in map(_Form, dict.fromkeys(forms_of(value))):
        forms.setdefault(form.sought, form)
    return tuple(forms.values())


class RedactedStream:
    """Redacts a growing output: it passes nothing on that may be the beginning of a secret.

    A reader of the output sees its lines at once. A line is held back if it ends with at least
    `_MIN_BEGINNING` characters of a secret's beginning. A shorter beginning has been passed on when
    the rest of the secret comes; the rest is replaced.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._shown = b""
        """The end of what was passed on, not redacted."""
        self._held = b""

    def write(self, content: bytes) -> bytes:
        """Return what can be passed on now that `content` has been added."""
        content = self._held + content
        # A whole secret is not the beginning of one, although its end may look like a beginning.
        redacted = self._redactor.redact_bytes(self._shown + content)
        return self._pass_on(content, max(0, len(content) - self._beginning(redacted)))

    def end(self) -> bytes:
        """Return the content that was held back."""
        return self._pass_on(self._held, len(self._held))

    def _pass_on(self, content: bytes, length: int) -> bytes:
        redact = self._redactor.redact_bytes
        before, shown = redact(self._shown), self._shown + content[:length]
        after = redact(shown)
        self._held = content[length:]
        self._shown = shown[-self._redactor.margin :] if self._redactor.margin else b""
        pairs = enumerate(zip(before, after, strict=False))
        return after[next((at for at, (old, new) in pairs if old != new), len(before)) :]

    def _beginning(self, content: bytes) -> int:
        """Return how many bytes at the end of redacted `content` may begin a secret.

        Counts the line breaks and backslashes between them, too.
        """
        end = content[-self._redactor.margin :] if self._redactor.margin else b""
        stripped = _without_break_characters(end)
        begins = (at for at in range(len(stripped)) if self._redactor.may_begin(stripped[at:]))
        longest = len(stripped) - next(begins, len(stripped))
        if longest < (_MIN_BEGINNING if end.endswith(b"\n") else 1):
            return 0
        matched = 0
        for length, byte in enumerate(reversed(end), 1):
            matched += byte not in _BREAK_CHARACTERS
            if matched == longest:
                return length
        return len(end)


class Redactor:
    """Replaces each secret by ``[redacted:NAME]`` in bytes, text and JSON, and counts replacements.

    `secrets` are values by name. A value that occurs in one of the `public` texts is not redacted,
    because records keep their own words and names, whatever the environment contains.
    """

    def __init__(self, secrets: Mapping[str, str], public: Iterable[str] = ()) -> None:
        public_text = "\n".join(public)
        self._marks = {
            value: f"[redacted:{name}]"
            for name, value in secrets.items()
            if len(value) >= MIN_LENGTH and value not in public_text
        }
        self.count = 0
        """The number of replacements so far."""
        marks = {
            form: mark.encode() for value, mark in self._marks.items() for form in _forms_of(value)
        }
        # The longest first, so that a value that contains another is replaced as a whole.
        self._forms = dict(sorted(marks.items(), key=lambda pair: -len(pair[0].value)))
        """The mark of each form."""
        self._words = {form.word for form in self._forms}
        self._stripped_forms = sorted({form.without_break_characters for form in self._forms})
        self.margin = _OVERLAP * max((len(form.value) for form in self._forms), default=0)
        """How many bytes around a position are needed to find a secret across it."""

    @property
    def has_secrets(self) -> bool:
        return bool(self._forms)

    def contains_secret(self, chunks: Iterable[bytes]) -> bool:
        """Return whether `redact_bytes` would change the joined content of `chunks`."""
        if not self.margin:
            return False
        end = b""
        for chunk in chunks:
            content = end + chunk
            if any(form.is_in(content) for form in self._possible_forms(content)):
                return True
            end = content[-self.margin :]
        return False

    def redact_chunks(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield what `redact_bytes` would return for the joined content of `chunks`.

        The content is divided only where no secret is near. Without such a position, it is held in
        memory.
        """
        margin = self.margin
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
            changed, count = form.replaced_in(content, self._forms[form])
            if count:
                self.count += count
                content = changed
        return content

    def may_begin(self, stripped: bytes) -> bool:
        """Return whether any form, without the characters of line breaks, begins like this."""
        at = bisect_left(self._stripped_forms, stripped)
        return at < len(self._stripped_forms) and self._stripped_forms[at].startswith(stripped)

    def _possible_forms(self, content: bytes) -> list[_Form]:
        """Return the forms that the content may contain. It certainly contains no others."""
        stripped = _without_break_characters(content)
        words = {word for word in self._words if word in stripped}
        if not words:
            return []
        return [
            form
            for form in self._forms
            if form.word in words and form.without_break_characters in stripped
        ]

    def redact_text(self, content: str) -> str:
        if not self._forms:
            return content
        redacted = self.redact_bytes(content.encode("utf-8", "surrogateescape"))
        return redacted.decode("utf-8", "replace")

    def redact_message(self, content: str) -> str:
        """Return a message without secrets, truncated to `MAX_MESSAGE` characters."""
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
