"""Let values of options that need no conversion pass without `pydantic`, which typer loads for all.

Loading it takes as long as most commands do. typer asks each parameter for what converts its value;
values that are not of the expected form already are left to typer, with its checks and messages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_origin


def spare_conversions(command: Any) -> None:
    """Make the parameters of a command, and of its subcommands, take plain values as they are.

    Changes nothing of a typer that converts in another way, as releases before 0.27 do.
    """
    for parameter in command.params:
        if hasattr(parameter, "_runtime_param") and hasattr(parameter, "type_descriptor"):
            parameter._runtime_param = _PlainValues(parameter)
    for subcommand in getattr(command, "commands", {}).values():
        spare_conversions(subcommand)


class _PlainValues:
    """What typer asks to convert the value of a parameter."""

    def __init__(self, parameter: Any) -> None:
        self._parameter = parameter

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return a plain value as the command gets it; let typer convert any other."""
        is_list = param.multiple or param.nargs == -1
        if value is None or value == ():
            return () if is_list else None
        annotation = self._parameter.type_descriptor.annotation
        if is_list and get_origin(annotation) is list and isinstance(value, list | tuple):
            converted = [_plain(each, get_args(annotation)[0]) for each in value]
            if None not in converted:
                return converted
        elif not is_list and (plain := _plain(value, annotation)) is not None:
            return plain
        self._parameter._runtime_param = None
        return self._parameter.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _plain(value: Any, annotation: Any) -> Any:
    """Return a value of exactly this type, a path of its text, and None for anything else."""
    if annotation is Path and type(value) is str:
        return Path(value)
    return value if annotation in (str, bool) and type(value) is annotation else None
