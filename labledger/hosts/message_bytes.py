"""Messages as the bytes that a transport carries, in a format that cannot execute anything.

The first line is text that every version of labledger can read: `labledger PROTOCOL VERSION`. The
rest is msgpack, which the declared types of the fields decode. JSON values travel as JSON text. A
run's setup and variants' plans are encoded and decoded once.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache, lru_cache
from itertools import repeat
from operator import attrgetter
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from labledger import __version__
from labledger.hosts import host_messages
from labledger.hosts.host_messages import PROTOCOL, HostRefused, RunSetup
from labledger.records import JsonObject
from labledger.records.json_codec import Section, TypeMismatch, read_each
from labledger.trial.container_spec import TrialKind
from labledger.trial.trial_kinds import FreshTrial, RegradedTrial
from labledger.trial.trial_plan import TrialPlan

_SCALARS = frozenset({bool, int, str, bytes, NoneType})
_KINDS: Mapping[str, type] = {"fresh": FreshTrial, "regraded": RegradedTrial}
"""The kinds of trials, by the names that they have in messages."""
_KIND_NAMES = {kind: name for name, kind in _KINDS.items()}
_SHARED = frozenset({TrialPlan, RunSetup})
"""Types of values that many messages repeat. Each value is encoded and decoded once."""
_MAX_SHARED = 128
"""How many shared values each side keeps."""
_sent: dict[int, tuple[object, bytes]] = {}
"""Sent shared values with their bytes, by `id`. A reference to each value keeps its id unique."""


class Codec(NamedTuple):
    """The conversion of a type's values to plain values and back."""

    pack: Callable[[Any], Any]
    """Return the plain value."""
    unpack: Callable[[Any], Any]
    """Return the value. Raises `TypeMismatch`, whose path has the names of fields."""


@cache
def codec(declared: Any) -> Codec:
    """Return the codec of a dataclass, or of a type that its fields may have."""
    arguments, origin = get_args(declared), get_origin(declared)
    if declared in _SCALARS:
        return Codec(_unchanged, _exactly(declared))
    if declared is float:
        # An int stays an int, because 60 and 60.0 are written differently.
        return Codec(_unchanged, _exactly(float, int))
    if declared in {Any, JsonObject}:
        return Codec(_json_text, _json_value if declared is Any else _json_object)
    if declared is Path:
        return Codec(str, lambda plain: Path(_exactly(str)(plain)))
    if isinstance(declared, UnionType):
        return _union_codec(arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _fixed_tuple_codec(arguments)
    if origin in {tuple, frozenset}:
        return _collection_codec(origin, codec(arguments[0]))
    if origin in {Mapping, dict}:
        return _mapping_codec(*map(codec, arguments))
    if declared is TrialKind:
        return Codec(_pack_kind, _unpack_kind)
    if issubclass(declared, StrEnum):
        return Codec(str, lambda plain: _member(declared, plain))
    if issubclass(declared, Section):
        return _section_codec(declared)
    assert isinstance(declared, type), declared
    plain = _dataclass_codec(declared)
    return _shared_codec(plain) if declared in _SHARED else plain


def packed(plain: Any) -> bytes:
    """Return a plain value as msgpack."""
    import msgpack

    # Values from the environment may hold undecodable bytes, as surrogates.
    content: bytes = msgpack.packb(plain, unicode_errors="surrogatepass")
    return content


def unpacked(content: bytes | memoryview) -> Any:
    """Return the plain value in `content`. Raises `ValueError`."""
    import msgpack

    return msgpack.unpackb(content, unicode_errors="surrogatepass")


def _dataclass_codec(kind: type) -> Codec:
    """Encode a dataclass as the list of the fields that `__init__` takes, in their order."""
    assert is_dataclass(kind), kind
    names = [field.name for field in fields(kind) if field.init]
    types = get_type_hints(kind, localns={"TrialKind": TrialKind})
    codecs = [codec(types[name]) for name in names]
    packs, unpacks = [item.pack for item in codecs], [item.unpack for item in codecs]
    # `attrgetter` returns a tuple only for two or more attributes.
    values = attrgetter(*names, "__class__", "__class__")

    def pack(value: Any) -> list[Any]:
        assert type(value) is kind, value
        return [pack_one(item) for pack_one, item in zip(packs, values(value), strict=False)]

    def unpack(plain: Any) -> Any:
        if type(plain) is not list or len(plain) != len(names):
            raise TypeMismatch(f"{kind.__name__} has {len(names)} fields")
        return kind(*read_each(names, unpacks, plain))

    return Codec(pack, unpack)


def _shared_codec(plain: Codec) -> Codec:
    """Encode equal values once, and decode equal bytes to one value."""

    def pack(value: object) -> bytes:
        kept = _sent.get(id(value))
        if kept is None:
            if len(_sent) >= _MAX_SHARED:
                _sent.clear()
            kept = _sent[id(value)] = value, packed(plain.pack(value))
        return kept[1]

    @lru_cache(_MAX_SHARED)
    def unpack(content: bytes) -> Any:
        return plain.unpack(unpacked(content))

    return Codec(pack, unpack)


def _section_codec(declared: type[Section]) -> Codec:
    """Encode a section as the name of its class, which may be a derived one, and its JSON."""
    classes = {section.__name__: section for section in _with_derived(declared)}

    def pack(value: Section) -> list[Any]:
        return [type(value).__name__, _json_text(value.as_json())]

    def unpack(plain: Any) -> Section:
        if type(plain) is not list or len(plain) != 2 or plain[0] not in classes:
            raise TypeMismatch(f"expected a {declared.__name__}")
        return classes[plain[0]].from_json(_json_object(plain[1]))

    return Codec(pack, unpack)


def _with_derived(section: type[Section]) -> Iterator[type[Section]]:
    yield section
    for derived in section.__subclasses__():
        yield from _with_derived(derived)


def _collection_codec(kind: type, item: Codec) -> Codec:
    def unpack(plain: Any) -> Any:
        values = _exactly(list)(plain)
        return kind(read_each(range(len(values)), repeat(item.unpack), values))

    return Codec(lambda value: [item.pack(member) for member in value], unpack)


def _fixed_tuple_codec(arguments: tuple[Any, ...]) -> Codec:
    items = [codec(argument) for argument in arguments]
    unpacks = [item.unpack for item in items]

    def unpack(plain: Any) -> tuple[Any, ...]:
        if type(plain) is not list or len(plain) != len(items):
            raise TypeMismatch(f"found {type(plain).__name__}; expected {len(items)} values")
        return tuple(read_each(range(len(items)), unpacks, plain))

    def pack(value: tuple[Any, ...]) -> list[Any]:
        return [item.pack(member) for item, member in zip(items, value, strict=True)]

    return Codec(pack, unpack)


def _mapping_codec(key: Codec, item: Codec) -> Codec:
    def unpack(plain: Any) -> dict[Any, Any]:
        data = _exactly(dict)(plain)
        names = [key.unpack(name) for name in data]
        values = read_each([*map(str, names)], repeat(item.unpack), data.values())
        return dict(zip(names, values, strict=True))

    def pack(value: Mapping[Any, Any]) -> dict[Any, Any]:
        return {key.pack(name): item.pack(member) for name, member in value.items()}

    return Codec(pack, unpack)


def _union_codec(arguments: tuple[Any, ...]) -> Codec:
    """Encode a union of simple types, or of one other type and None."""
    others = [argument for argument in arguments if argument is not NoneType]
    if len(others) == 1:
        (only,) = map(codec, others)
        return Codec(_unless_none(only.pack), _unless_none(only.unpack))
    assert {*arguments} <= _SCALARS | {float}, arguments
    return Codec(_unchanged, _exactly(*arguments))


def _unless_none(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else function(value)


def _pack_kind(kind: TrialKind) -> list[Any]:
    return [_KIND_NAMES[type(kind)], codec(type(kind)).pack(kind)]


def _unpack_kind(plain: Any) -> Any:
    name, values = _exactly(list)(plain)
    kind = _KINDS.get(name)
    if kind is None:
        raise TypeMismatch(f"{name!r} is no kind of trial")
    return codec(kind).unpack(values)


def _unchanged(value: Any) -> Any:
    return value


@cache
def _exactly(*types: type) -> Callable[[Any], Any]:
    allowed = frozenset(types)

    def check(value: Any) -> Any:
        if type(value) not in allowed:
            expected = " or ".join(sorted(kind.__name__ for kind in allowed))
            raise TypeMismatch(f"found {type(value).__name__}; expected {expected}")
        return value

    return check


def _member(kind: type[StrEnum], plain: Any) -> StrEnum:
    try:
        return kind(plain)
    except ValueError:
        raise TypeMismatch(f"{plain!r} is no {kind.__name__}") from None


def _json_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _json_value(plain: Any) -> Any:
    return json.loads(_exactly(str)(plain))


def _json_object(plain: Any) -> JsonObject:
    value: JsonObject = _exactly(dict)(_json_value(plain))
    return value


MAX_MESSAGE_BYTES = 256 << 20
"""Longer messages are refused. A message with results has about 8 MiB, or one result."""
_PLAIN, _COMPRESSED = b"p", b"z"
_MAX_COMPRESSED_BYTES = 1 << 20
_FIRST_LINE = re.compile(rb"labledger ([0-9]{1,9}) ([0-9A-Za-z.+-]{1,40})\n")
_OWN_LINE = f"labledger {PROTOCOL} {__version__}\n".encode()

_SAME_VERSION = "install the same version on both"
_MAX_PROBLEM = 300
_MESSAGE_TYPES: Mapping[str, Any] = {
    name: kind for name, kind in vars(host_messages).items() if is_dataclass(kind)
}
"""The types of messages, by name."""


class BadMessage(HostRefused):
    """The bytes are no message of this version of labledger. The text continues a sentence."""


def encode(message: object) -> bytes:
    """Return a message as bytes.

    Small messages are compressed, so that no log of a transport shows their content.
    """
    kind: Any = type(message)
    content = packed([kind.__name__, codec(kind).pack(message)])
    if len(content) > _MAX_COMPRESSED_BYTES:
        return _OWN_LINE + _PLAIN + content
    return _OWN_LINE + _COMPRESSED + zlib.compress(content, 1)


def decode(content: bytes) -> Any:
    """Return the message in `content`, which may be any bytes. Raises `BadMessage`."""
    line = _FIRST_LINE.match(content)
    if line is None:
        raise BadMessage(
            "answers in a form that this version of labledger does not know; it may have an "
            f"earlier one: {_SAME_VERSION}"
        )
    if line[0] != _OWN_LINE:
        version = line[2].decode()
        raise BadMessage(f"has labledger {version}, and this is {__version__}: {_SAME_VERSION}")
    if len(content) > MAX_MESSAGE_BYTES:
        raise BadMessage(f"sent a message of {len(content):,} bytes, which is too long")
    try:
        name, values = unpacked(_plain(memoryview(content)[line.end() :]))
        return read_each([name], [codec(_MESSAGE_TYPES[name]).unpack], [values])[0]
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
        zlib.error,
    ) as error:
        kind = "" if isinstance(error, TypeMismatch) else f"{type(error).__name__}: "
        problem = f"{kind}{error}"[:_MAX_PROBLEM]
        raise BadMessage(f"sent a message that cannot be read: {problem}") from error


def _plain(body: memoryview) -> bytes | memoryview:
    if body[:1] != _COMPRESSED:
        return body[1:]
    reader = zlib.decompressobj()
    content = reader.decompress(body[1:], _MAX_COMPRESSED_BYTES)
    if not reader.eof:
        raise ValueError("it is longer than it may be, or cut off")
    return content
