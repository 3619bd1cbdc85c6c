"""The model gateway's library: the scripted provider.

The HTTP library is needed for both, and imported when a function is called.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from labledger.resources import require_for


def serve_scripted_provider(
    script: str | Path, *, port: int = 0, report: Callable[[str], None] = lambda _: None
) -> None:
    """Serve a model provider that answers by a script, until the process is interrupted.

    It listens on 127.0.0.1, speaks the APIs of Anthropic, OpenAI (chat completions and responses)
    and Gemini, and asks no model.

    Args:
        script: The script, a file in YAML or JSON.
        port: The port on which it listens; 0 for one that is free.
        report: Called with a sentence that has the address.

    Raises:
        InvalidInput: The script has problems; all are named.
        LabLedgerError: The file cannot be read, or the port is taken.
        ExtraMissing: aiohttp is not installed.

    Example:
        >>> import labledger
        >>> labledger.serve_scripted_provider("script.yaml", port=8400, report=print)
        the scripted provider listens on http://127.0.0.1:8400
    """
    require_for("the scripted provider", "agents", "aiohttp")
    from labledger.gateway.scripted.provider import serve_script
    from labledger.gateway.scripted.script import read_script

    def started(bound: int) -> None:
        report(f"the scripted provider listens on http://127.0.0.1:{bound}")

    serve_script(read_script(Path(script)), port, started)
