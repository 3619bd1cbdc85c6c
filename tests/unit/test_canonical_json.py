"""Canonical JSON, and the strict reader of JSON from other programs."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from labledger.errors import MalformedJson
from labledger.records import canonical_json


def test_text_is_canonical() -> None:
    """Equal values have one text, with sorted keys, no spaces and plain UTF-8."""
    value = {"b": [1, 2.5, None, True], "a": "ü\n\u2028", "": {}}
    assert canonical_json.dumps(value) == '{"":{},"a":"ü\\n\u2028","b":[1,2.5,null,true]}'
    assert canonical_json.dumps(dict(reversed(value.items()))) == canonical_json.dumps(value)
    assert canonical_json.digest(value) == canonical_json.sha256_hex(
        canonical_json.dump_bytes(value)
    )
    assert len(canonical_json.digest(value)) == 64


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_must_be_finite(value: float) -> None:
    """Infinity and NaN are not written."""
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json.dumps({"x": value})


def random_value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 4 else 6)
    match kind:
        case 0:
            return None
        case 1:
            return chance.random() < 0.5
        case 2:
            return chance.choice([0, -1, 2**63 - 1, -(2**63), chance.randrange(-1000, 1000)])
        case 3:
            return chance.choice([0.1, -1e-300, 1e300, 1.5, chance.random()])
        case 4 | 5:
            return "".join(chance.choice('aZ"\\/\n\t\0\x7fäß€😀\u2028') for _ in range(6))
        case 6:
            return [random_value(chance, depth + 1) for _ in range(chance.randrange(4))]
        case _:
            keys = ("a", "b", "ü", "", '"')
            return {
                chance.choice(keys): random_value(chance, depth + 1)
                for _ in range(chance.randrange(4))
            }


def test_what_is_written_can_be_read() -> None:
    """Reading reverses writing, for canonical text and for text escaped to ASCII."""
    chance = random.Random(7)
    for _ in range(500):
        value = random_value(chance)
        assert canonical_json.loads(canonical_json.dump_bytes(value)) == value
        assert canonical_json.loads(json.dumps(value, indent=1).encode()) == value


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "not JSON"),
        (b"{", "line 1 column 2"),
        (b"\n\n{]", "line 3 column 2"),
        (b"[1] 2", "Extra data"),
        (b"[1,]", "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b'"a\nb"', "not JSON"),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b"1e999", "not finite"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' twice"),
        (b"9223372036854775808", "64 bits"),
        (b"-9223372036854775809", "64 bits"),
        (b"1" * 5000, "64 bits"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        ("{}".encode("utf-16"), "not UTF-8"),
        ("{}".encode("utf-16-le"), "not JSON"),
        (b'"\xff"', "byte 1"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b'"\\ud800"', "surrogate"),
        (b'{"\\udc00": 1}', "surrogate"),
    ],
)
def test_what_is_refused(content: bytes, word: str) -> None:
    """JSON that is ambiguous or not portable is refused with the offending text."""
    with pytest.raises(MalformedJson, match=word):
        canonical_json.loads(content)


@pytest.mark.parametrize(
    ("content", "value"),
    [
        (b'{"a\\ud83d": 1, "b": 2}', {"a\ufffd": None, "b": 2}),
        (b'{"\xe9": {"c": 1}, "b": [{"d": 2}]}', {"\ufffd": None, "b": [{"d": 2}]}),
        (b'{"\\udc00": 1, "\xef\xbf\xbd": 2}', {"\ufffd": 2}),
    ],
)
def test_a_name_that_cannot_be_stored_loses_no_other_member(content: bytes, value: Any) -> None:
    """A name that cannot be stored gets a readable form and null; other members stay."""
    loaded, unstorable = canonical_json.loads_storable(content)
    assert loaded == value
    assert unstorable.count == 1
    assert "is a member whose name has half" in unstorable.first[0]
    canonical_json.dump_bytes(loaded)


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": NaN, "a": 1}',
        b'{"a": NaN',
        b'{"a": NaN, "b": nan}',
        b"[" * 65 + b"NaN" + b"]" * 65,
        b"[" * 100_000,
        b"",
        b"\xff\xfe{\x00}\x00",
        b'["a\nb", NaN]',
    ],
)
def test_what_is_no_json_stays_refused(content: bytes) -> None:
    """Text without a clear reading is refused by the lenient reader, too."""
    with pytest.raises(MalformedJson):
        canonical_json.loads_storable(content)


def test_values_that_cannot_be_stored_are_bounded() -> None:
    """Many unstorable values below a long key use little memory and reach a limit."""
    key = b"k" * 100_000
    content = b'{"' + key + b'": [' + b",".join([b"NaN"] * 5000) + b"]}"
    _, unstorable = canonical_json.loads_storable(content)
    assert unstorable.count == 5000
    assert len(unstorable.first) <= 5
    with pytest.raises(MalformedJson, match="more than 100 values"):
        canonical_json.loads_storable(content, max_values=100)
