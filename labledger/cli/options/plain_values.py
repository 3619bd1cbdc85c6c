"""Let values of options that need no conversion pass without pydantic, which typer loads for all.

Loading it takes a third of the time of a short command. typer asks an object of each parameter to
convert its value; values that have the expected form already are returned by an object of this
module, and all others are left to typer, with its checks and messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer.core

_BUILD = "build_runtime_param"
"""typer's function that makes the object which converts the values of a parameter."""
_NUMBERS = {int: re.compile(r"-?[0-9]{1,15}"), float: re.compile(r"-?[0-9]{1,9}(\.[0-9]{1,6})?")}
_PATH_CHECKS = ("exists", "readable", "writable", "resolve_path", "allow_dash")


def spare_conversions() -> None:
    """Make typer take plain values as they are; without effect if it converts in another way."""
    build = getattr(typer.core, _BUILD, None)
    if build is not None:
        setattr(typer.core, _BUILD, lambda expected: _PlainValues(expected, build))


class _PlainValues:
    """What typer asks to convert the values of a parameter."""

    def __init__(self, expected: Any, build: Callable[[Any], Any]) -> None:
        self._expected = expected
        self._build = build

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a plain value as the command gets it; let typer convert any other."""
        is_list = param.multiple or param.nargs == -1
        if value is None or value == ():
            return () if is_list else None
        annotation = self._expected.annotation
        if is_list and get_origin(annotation) is list and isinstance(value, list | tuple):
            plain = [self._plain(each, get_args(annotation)[0]) for each in value]
            if None not in plain:
                return plain
        elif not is_list and (plain_value := self._plain(value, annotation)) is not None:
            return plain_value
        return self._build(self._expected).coerce(value, param=param, ctx=ctx)

    def _plain(self, value: Any, annotation: Any) -> Any:
        """Return what is of the expected type, a number or a path without checks; else None."""
        info = self._expected.parameter_info
        if info.parser is not None:
            return None
        if annotation is Path and type(value) is str:
            # Unless the option says that it need not be readable, typer checks an existing file.
            return None if any(getattr(info, name, True) for name in _PATH_CHECKS) else Path(value)
        if annotation in _NUMBERS and type(value) is str:
            number = annotation(value) if _NUMBERS[annotation].fullmatch(value) else None
            return number if number is not None and _is_within(number, info) else None
        if get_origin(annotation) is Literal:
            return value if value in get_args(annotation) else None
        return value if annotation is not Path and type(value) is annotation else None


def _is_within(number: float, info: Any) -> bool:
    return (info.min is None or number >= info.min) and (info.max is None or number <= info.max)
