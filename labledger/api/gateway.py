"""The library of the model gateway: serve, check and stop it, read its status; a scripted provider.

The HTTP library is imported when a function that needs it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from labledger.files.lab_folder import LabFolder
from labledger.gateway.client import GatewayClient
from labledger.gateway.status import GatewayStatus
from labledger.resources import require_for

if TYPE_CHECKING:
    from labledger.checks.check_results import CheckResult
    from labledger.runner.run_options import RunOptions


def serve_scripted_provider(
    script: str | Path, *, port: int = 0, report: Callable[[str], None] = lambda _: None
) -> None:
    """Serve a model provider with scripted answers, until the process is interrupted.

    It listens on 127.0.0.1 and speaks the APIs of Anthropic, OpenAI (chat completions and
    responses) and Gemini. It asks no model.

    Args:
        script: The script, a file in YAML or JSON.
        port: The port on which it listens; 0 for a free one.
        report: Called with a sentence that contains the address.

    Raises:
        InvalidInput: The script has problems; all are named.
        LabLedgerError: The file cannot be read, or the port is in use.
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


def serve_gateway(
    *, lab_dir: str | Path | None = None, report: Callable[[str], None] = lambda _: None
) -> None:
    """Serve the model gateway of a lab until the process is interrupted or no run needs it.

    Runs start the gateway themselves, as a separate process. It has no keys until a run brings
    them.

    Args:
        lab_dir: The lab folder; by default as for a run.
        report: Called with a sentence once it answers.

    Raises:
        LabLedgerError: Another gateway serves the lab.
        ExtraMissing: aiohttp is not installed.

    Example:
        >>> import labledger
        >>> labledger.serve_gateway(report=print)
        the gateway serves /home/me/study/.lab
    """
    require_for("the model gateway", "agents", "aiohttp")
    from labledger.gateway.process import serve

    lab = LabFolder.find(lab_dir)
    lab.create()
    serve(lab.gateway, lambda: report(f"the gateway serves {lab.root}"))


def check_gateway(
    experiment: str | Path, options: RunOptions | None = None, *, send: bool = False
) -> tuple[CheckResult, ...]:
    """Check the keys, models and prices of an experiment's agents. Creates no run.

    `preflight` makes the same checks among others.

    Args:
        experiment: As for `run`.
        options: As for `run`; keys are read from its environment.
        send: Also ask each model for a word or two. Costs a fraction of a cent.

    Returns:
        The result of every check; none if no agent uses models.

    Raises:
        InvalidInput: The experiment is not valid.

    Example:
        >>> import labledger
        >>> [check.detail for check in labledger.check_gateway("demo", send=True)]
        ['anthropic: 1 key found', 'anthropic/claude-sonnet-5 answered']
    """
    from labledger.api.experiments import resolved_experiment
    from labledger.checks.model_checks import ask_models, check_models
    from labledger.runner.env_files import gather
    from labledger.runner.run_options import RunOptions

    options = options or RunOptions()
    plan = resolved_experiment(experiment, options).plan
    environment = gather(options.env, options.env_files)
    name = str(experiment)
    checks = list(check_models(plan, environment, name=name, runs_here=True, has_keys=True))
    if send and checks and not any(check.has_failed for check in checks):
        checks += ask_models(plan, environment, name=name)
    return tuple(checks)


def gateway_status(*, lab_dir: str | Path | None = None) -> GatewayStatus | None:
    """Return the status of a lab's model gateway; None if none runs on this machine.

    Args:
        lab_dir: The lab folder; by default as for a run.

    Raises:
        LabLedgerError: The gateway does not answer, or has another version.

    Example:
        >>> import labledger
        >>> status = labledger.gateway_status()
        >>> status and status.open_attempts
        4
    """
    return GatewayClient(LabFolder.find(lab_dir).gateway).status()


def stop_gateway(*, lab_dir: str | Path | None = None) -> bool:
    """Stop the model gateway of a lab on this machine. Returns whether one ran.

    Calls in progress are cut off. A live coordinator starts a new gateway within seconds, which
    continues to serve the open attempts.

    Args:
        lab_dir: The lab folder; by default as for a run.

    Raises:
        LabLedgerError: The gateway does not answer, or does not end.

    Example:
        >>> import labledger
        >>> labledger.stop_gateway()
        True
    """
    return GatewayClient(LabFolder.find(lab_dir).gateway).stop()
