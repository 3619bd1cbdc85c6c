"""Turn scripted actions into the tool calls or texts that the requesting agent understands.

A command goes to the agent's tool that runs commands, whatever its name. Other required arguments
are filled by its schema. Agents without tools are recognized by their prompts. A request that
offers neither is auxiliary: a title, a summary or a check.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labledger.gateway.scripted.received_requests import Conversation, Tool
from labledger.gateway.scripted.script import Turn

_SHELL_TOOLS = (
    "Bash",
    "bash",
    "exec_command",
    "shell_command",
    "shell",
    "run_shell_command",
    "terminal",
    "execute_bash",
    "developer__shell",
)
"""Names of the tools with which agents run commands."""
_COMMAND_ARGUMENTS = ("command", "cmd", "script")
_PROGRAM_TOOL, _PROGRAM_CALL = "exec", "tools.exec_command("
"""The tool of Codex that runs JavaScript, and how such a program runs a command."""
_SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The output with which a command of mini-swe-agent ends the agent, as its prompts explain."""
_EDIT_BLOCKS = "SEARCH/REPLACE"
_WHOLE_FILES = "*file listing*"
"""The names of the two forms of edits in aider's prompts."""
_TEXT_COMMANDS = ("mswea_bash_command", "```bash")
"""Marks of a command in the prompts of agents without tools."""
_MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A call of a tool."""

    name: str
    arguments: Mapping[str, Any]
    namespace: str | None = None
    """The group of the tool, if it has one."""
    text: str | None = None
    """The input of a tool that takes plain text; None for one that takes arguments."""


@dataclass(frozen=True, slots=True)
class Said:
    """The content of one answer of the model."""

    text: str = ""
    call: ScriptedCall | None = None


class NoTool(Exception):
    """A request offers no tool for the action of a turn."""


def is_auxiliary(conversation: Conversation) -> bool:
    """Return whether a request offers no way to run a command or to edit a file."""
    forms = (_EDIT_BLOCKS, _WHOLE_FILES, *_TEXT_COMMANDS)
    return not _runs_commands(conversation) and not any(f in conversation.text for f in forms)


def said_in(turn: Turn, conversation: Conversation) -> Said:
    """Return a turn's answer in a conversation. Raises `NoTool` if the agent cannot run it."""
    if turn.tool is not None:
        return Said(call=ScriptedCall(turn.tool["name"], turn.tool.get("arguments", {})))
    if turn.shell is not None:
        return _command(turn.shell, conversation)
    if turn.write is not None:
        return _files(turn.write, conversation)
    if turn.finish is not None:
        return _end(turn.finish, conversation)
    return Said(text=_structured(turn.text or "", conversation))


def _command(command: str, conversation: Conversation) -> Said:
    tool = _shell_tool(conversation)
    if tool is not None:
        properties = _properties(tool.schema)
        name = next((a for a in _COMMAND_ARGUMENTS if a in properties), _COMMAND_ARGUMENTS[0])
        declared = properties.get(name)
        kind = declared.get("type") if isinstance(declared, dict) else None
        is_list = str(kind).lower() == "array"
        given = {name: ["sh", "-c", command] if is_list else command}
        return Said(call=ScriptedCall(tool.name, _filled(tool.schema, given), tool.namespace))
    if (tool := _program_tool(conversation)) is not None:
        program = f"text(await {_PROGRAM_CALL}{json.dumps({'cmd': command})}));"
        return Said(call=ScriptedCall(tool.name, {}, tool.namespace, program))
    for fence in _TEXT_COMMANDS:
        if fence in conversation.text:
            return Said(text=f"The next command:\n\n```{fence.removeprefix('```')}\n{command}\n```")
    raise NoTool("no tool that runs commands is offered")


def _files(files: Mapping[str, str], conversation: Conversation) -> Said:
    """Return an edit or a command that writes files."""
    if not _runs_commands(conversation):
        if _EDIT_BLOCKS in conversation.text:
            blocks = [
                f"{name}\n```\n<<<<<<< SEARCH\n=======\n{content}>>>>>>> REPLACE\n```"
                for name, content in files.items()
            ]
            return Said(text="\n\n".join(blocks))
        if _WHOLE_FILES in conversation.text:
            return Said(text="\n\n".join(f"{n}\n```\n{c}```" for n, c in files.items()))
    commands = [f"printf %s {shlex.quote(c)} > {shlex.quote(n)}" for n, c in files.items()]
    return _command(" && ".join(commands), conversation)


def _end(text: str, conversation: Conversation) -> Said:
    if _SUBMIT in conversation.text:
        return _command(f"echo {_SUBMIT}", conversation)
    for tool in conversation.tools:
        if tool.name == "finish":
            return Said(call=ScriptedCall(tool.name, _filled(tool.schema, {"message": text})))
    return Said(text=text)


def _structured(text: str, conversation: Conversation) -> str:
    """Return the text, or JSON that matches the schema of the answer."""
    if conversation.answer_schema is None:
        return text
    return json.dumps(_example(conversation.answer_schema, text))


def _runs_commands(conversation: Conversation) -> bool:
    return _shell_tool(conversation) is not None or _program_tool(conversation) is not None


def _program_tool(conversation: Conversation) -> Tool | None:
    return next(
        (
            tool
            for tool in conversation.tools
            if tool.takes_text and tool.name == _PROGRAM_TOOL and _PROGRAM_CALL in tool.description
        ),
        None,
    )


def _shell_tool(conversation: Conversation) -> Tool | None:
    by_name = {tool.name: tool for tool in reversed(conversation.tools) if not tool.takes_text}
    return next((by_name[name] for name in _SHELL_TOOLS if name in by_name), None)


def _filled(schema: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given arguments, with examples of the others that the schema requires."""
    required = schema.get("required")
    names = required if isinstance(required, list) else []
    missing = [name for name in names if isinstance(name, str) and name not in given]
    properties = _properties(schema)
    return {**given, **{name: _example(properties.get(name, {})) for name in missing}}


def _properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _example(schema: Any, text: str = "scripted", depth: int = 0) -> Any:
    """Return a value that a JSON schema allows. Google spells types in capitals."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return text
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    kind = schema.get("type")
    name = str(kind[0] if isinstance(kind, list) and kind else kind).lower()
    if name == "object":
        properties = _properties(schema)
        return {key: _example(item, text, depth + 1) for key, item in properties.items()}
    examples = {"array": [], "integer": 1, "number": 1, "boolean": False, "null": None}
    return examples.get(name, text)
