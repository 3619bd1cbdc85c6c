"""Write the tables of the reference that come from the program: commands, views, formats.

`conf.py` calls it before each build. It writes into `docs/reference/generated`, which is not
committed, and the pages of `docs/reference` include these files. It uses only what a user of the
library can use, and the command line as typer describes it.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from labledger import open_ledger, resources
from labledger.cli.app import program
from labledger.errors import Exit
from labledger.ledger.database.migrations import upgrade

EXIT_CODES = {
    Exit.COMPLETE: "complete",
    Exit.GATE_MISSED: "a gate was missed: `--fail-under` of a run, `--fail-if-worse` or "
    "`--require-not-worse` of a comparison; or `labledger check` found something",
    Exit.INVALID: "invalid input or usage; nothing was changed",
    Exit.INCOMPLETE: "the run is incomplete, slots ended as `infra_error`, or a variant has no "
    "score or got no answer from a model; takes precedence over 1. `labledger resume` continues an "
    "incomplete run. Of `labledger compare`: no trials could be paired, and no gate was missed",
    Exit.INTERRUPTED: "interrupted by Ctrl-C, TERM or a closed terminal, before the run was "
    "complete; takes precedence over 1 and 3",
}


_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)")
"""An option in a text."""

ROOT_PAGES = ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
"""Pages of the project's root that the site shows under `contributing`."""


def write_all(docs: Path) -> None:
    """Write every generated page below `docs`."""
    for name in ROOT_PAGES:
        text = (docs.parent / name).read_text("utf-8")
        (docs / "contributing" / name.lower()).write_text(_moved(text), "utf-8")
    folder = docs / "reference" / "generated"
    folder.mkdir(exist_ok=True)
    pages = {
        "cli.md": command_reference(),
        "exit-codes.md": exit_codes(),
        "views.md": view_reference(),
        "formats.md": format_reference(),
        "resource-use.md": number_reference(),
        "experiment-fields.md": _table_of_fields("experiment_v1"),
        "task-fields.md": _table_of_fields("task_v1"),
        "settings-fields.md": _table_of_fields("lab_settings_v1"),
    }
    for name, lines in pages.items():
        (folder / name).write_text("\n".join(lines) + "\n", "utf-8")


def _moved(text: str) -> str:
    """Return a page of the project's root with its links relative to `docs/contributing`."""
    for name in ROOT_PAGES:
        text = text.replace(f"]({name}", f"]({name.lower()}")
    return text.replace("](docs/", "](../")


# -- commands


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its words, such as ``db upgrade``, in the order of the help."""
    yield from _commands(program(), "")


def _commands(group: Any, words: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        path = f"{words} {name}".strip()
        if hasattr(command, "commands"):
            yield from _commands(command, path)
        elif not command.hidden:
            yield path, command


def command_reference() -> Iterator[str]:
    """One section a command: what it does, its arguments and its options."""
    for path, command in commands():
        context = command.make_context(f"labledger {path}", [], resilient_parsing=True)
        usage = " ".join(command.collect_usage_pieces(context))
        yield from (f"## labledger {path}", "", "```text", f"labledger {path} {usage}", "```", "")
        yield from (_with_code(_text(command.help)), "")
        parameters = [param for param in command.params if param.name != "help"]
        if parameters:
            yield from ("| argument or option | meaning | default |", "| --- | --- | --- |")
            yield from (_parameter_row(param) for param in parameters)
            yield ""


def _parameter_row(param: Any) -> str:
    if param.param_type_name == "argument":
        names = f"`{param.metavar}`"
    else:
        value = "" if param.metavar is None else f" {param.metavar}"
        words = (f"`{name}{value}`" for name in (*param.opts, *param.secondary_opts))
        names = _escaped(", ".join(words))
    default = param.default
    if param.required:
        shown = "required"
    else:
        shown = "" if default in (None, False, (), []) or callable(default) else f"`{default}`"
    meaning = _cell(_with_code(_text(getattr(param, "help", None))))
    return f"| {names} | {meaning} | {shown} |"


def exit_codes() -> Iterator[str]:
    """A table of the exit codes of the command line. Fails where one is not described."""
    yield from ("| exit code | meaning |", "| --- | --- |")
    yield from (f"| {int(code)} | {EXIT_CODES[code]} |" for code in Exit)


# -- views


def view_reference() -> Iterator[str]:
    """One section a view: what one of its rows is, and what each column means."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        upgrade(path)
        with open_ledger(path) as ledger:
            views = ledger.views()
    yield from ("| view | one row per |", "| --- | --- |")
    yield from (
        f"| [`{view.name}`](#{_anchor(view.name)}) | {_cell(_row_of(view))} |" for view in views
    )
    for view in views:
        yield from ("", f"## {view.name}", "", f"One row per {_row_of(view)}.", "")
        yield from ("| column | meaning |", "| --- | --- |")
        for column, meaning in zip(view.columns, view.meanings, strict=True):
            yield f"| `{column}` | {_cell(meaning)} |"


def _row_of(view: Any) -> str:
    """Return what a row of a view stands for, from its comment ``one row per ...``."""
    return str(view.comment).removeprefix("one row per ")


# -- formats


def format_reference() -> Iterator[str]:
    """One section a schema: its title and its fields."""
    for path in sorted(resources.schemas().iterdir()):
        schema = json.loads(path.read_text("utf-8"))
        name = path.name.removesuffix(".jsonschema")
        yield from (f"## {name}", "", f"{schema['title']}.", "")
        if "description" in schema:
            yield from (f"{schema['description']}.", "")
        yield from _table_of_fields(name)
        yield ""


def number_reference() -> Iterator[str]:
    """A table of the numbers that a trial's record has only if they are known."""
    schema = json.loads((resources.schemas() / "trial_record_v1.jsonschema").read_text("utf-8"))
    yield from ("| number | type | meaning |", "| --- | --- | --- |")
    for name, definition in schema["properties"].items():
        if name not in schema["required"]:
            meaning = definition["description"].partition(";")[0]
            yield _row([f"`{name}`", _type_name(definition), _cell(meaning)])


def _table_of_fields(name: str) -> Iterator[str]:
    schema = json.loads((resources.schemas() / f"{name}.jsonschema").read_text("utf-8"))
    fields = list(_fields(schema, schema, ""))
    has_defaults = any("default" in definition for _, definition, _ in fields)
    columns = ["field", "type", *(["default"] if has_defaults else []), "notes"]
    yield from (_row(columns), _row("---" for _ in columns))
    for field, definition, required in fields:
        default = f"`{json.dumps(definition['default'])}`" if "default" in definition else ""
        notes = ["required"] if required else []
        notes += [definition["description"]] if "description" in definition else []
        cells = [f"`{field}`", _type_name(definition), *([default] if has_defaults else [])]
        yield _row([*cells, _cell("; ".join(notes))])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _fields(root: Any, schema: Any, prefix: str) -> Iterator[tuple[str, Any, bool]]:
    required = schema.get("required", [])
    for name, definition in schema.get("properties", {}).items():
        resolved = _resolved(root, definition)
        yield f"{prefix}{name}", resolved, name in required
        inner = resolved if "properties" in resolved else _resolved(root, resolved.get("items"))
        if "properties" in inner:
            step = "." if inner is resolved else "[]."
            yield from _fields(root, inner, f"{prefix}{name}{step}")


def _resolved(root: Any, definition: Any) -> dict[str, Any]:
    if not isinstance(definition, dict):
        return {}
    if definition.get("$ref") == "#":
        return {"type": "object", **definition}  # It has the fields of the page.
    if "$ref" in definition:
        named = root["$defs"][definition["$ref"].rpartition("/")[2]]
        return {**named, **definition}
    if [*definition.get("anyOf", [])[1:]] == [{"type": "null"}]:
        value = _resolved(root, definition["anyOf"][0])
        if "enum" in value:
            return {**value, **definition, "enum": [*value["enum"], None]}
        return {**value, **definition, "type": [value["type"], "null"]}
    return definition


def _type_name(definition: dict[str, Any]) -> str:
    if "const" in definition:
        return f"`{json.dumps(definition['const'])}`"
    if "enum" in definition:
        return ", ".join(f"`{json.dumps(value)}`" for value in definition["enum"])
    kinds = definition.get("type", "any")
    return " or ".join([kinds] if isinstance(kinds, str) else kinds)


# -- text


def _text(text: str | None) -> str:
    return " ".join((text or "").split())


def _with_code(text: str) -> str:
    """Return text with the options in it as code."""
    parts = text.split("`")
    parts[::2] = [_OPTION.sub(r"`\1`", part) for part in parts[::2]]  # The others are code.
    return "`".join(parts)


def _cell(text: str) -> str:
    return _escaped(_text(text)).replace("<", "&lt;")


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")
