"""Commands of the model gateway: the group gateway with check, serve, status, stop, mock.

`labledger gateway serve` and `mock` run until they are stopped.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import labledger
from labledger.cli import arguments
from labledger.cli.console import out_json, print_checks, say, table
from labledger.cli.help_pages import CommandLine
from labledger.text.words import counted

if TYPE_CHECKING:
    from labledger.results import GatewayStatus, KeyPace, VariantTotals

gateway = CommandLine(name="gateway", help="The model gateway.", no_args_is_help=True)


@gateway.command()
def check(
    experiment: arguments.Experiment,
    *,
    send: Annotated[
        bool, typer.Option("--send", help="Also ask each model for one word; costs a little.")
    ] = False,
    agent: arguments.Agents = None,
    env: arguments.Env = None,
    env_file: arguments.EnvFile = None,
    json: arguments.Json = False,
) -> None:
    """Check the keys, models and prices that an experiment's agents need."""
    options = labledger.RunOptions(
        source=labledger.SourceOptions(agents=tuple(agent or ())),
        env=arguments.parse_environment(env),
        env_files=tuple(env_file or ()),
    )
    checks = labledger.check_gateway(experiment, options, send=send)
    if json:
        out_json([check.as_json() for check in checks])
    elif not checks:
        say("no agent of this experiment uses models")
    else:
        print_checks(checks)
    failed = [check for check in checks if check.has_failed]
    if failed:
        raise typer.Exit(int(failed[0].exit_code))


@gateway.command()
def serve(lab_dir: arguments.LabDir = None) -> None:
    """Serve the model gateway of a lab in the foreground, until it is stopped or unneeded.

    Runs start the gateway themselves when they need it.
    """
    labledger.serve_gateway(lab_dir=lab_dir, report=say)


@gateway.command()
def status(json: arguments.Json = False, lab_dir: arguments.LabDir = None) -> None:
    """Show how much calls to models used, by variant, and how fast the gateway asks providers."""
    gateway_status = labledger.gateway_status(lab_dir=lab_dir)
    if json:
        out_json(None if gateway_status is None else gateway_status.as_json())
        return
    if gateway_status is None:
        say("no gateway runs for this lab on this machine")
        return
    _show(gateway_status)


def _show(status: GatewayStatus) -> None:
    say(f"the gateway (process {status.pid}) serves {counted(status.open_attempts, 'trial')}")
    by_variant = ("run", "variant", "trials", "calls", "tokens", "cost", "waited", "refused")
    table(by_variant, [_row(variant) for variant in status.variants])
    if status.paces:
        by_key = ("provider", "in progress", "waiting", "at most", "paused", "problem")
        table(by_key, [_pace_row(pace) for pace in status.paces])
    for pace in status.paces:
        if pace.refusal is not None:
            say(f"{pace.provider} refused a call: {pace.refusal}")
    for problem in status.problems:
        say(f"problem: {problem}")


def _row(variant: VariantTotals) -> tuple[str, ...]:
    totals = variant.totals
    unknown = f" + {totals.unknown} unknown" if totals.unknown else ""
    cost = f"${totals.cost_usd:.4f}"
    if totals.unpriced or totals.unknown:
        cost += f" + {totals.unpriced + totals.unknown} unknown"
    return (
        variant.run_id,
        variant.variant_id,
        str(variant.open_attempts),
        str(totals.calls),
        f"{totals.usage.total:,}{unknown}",
        cost,
        f"{totals.waited_ms / 1000:.1f} s",
        ", ".join(f"{count} {reason}" for reason, count in totals.refused.items()),
    )


def _pace_row(pace: KeyPace) -> tuple[str, ...]:
    return (
        pace.provider,
        str(pace.in_flight),
        str(pace.waiting),
        f"{pace.concurrency:.0f}",
        f"{pace.paused_s:.1f} s" if pace.paused_s else "",
        "the key is refused" if pace.key_refused else "",
    )


@gateway.command()
def stop(lab_dir: arguments.LabDir = None) -> None:
    """Stop the model gateway of a lab. Calls in progress are cut off.

    The next coordinator that needs it starts it again, and it then serves the running trials again.
    """
    ended = labledger.stop_gateway(lab_dir=lab_dir)
    say("the gateway has ended" if ended else "no gateway runs for this lab on this machine")


@gateway.command()
def mock(
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT", help="The answers, as a YAML or JSON file.")
    ],
    port: Annotated[int, typer.Option(help="The port; 0 for a free one.", min=0, max=65535)] = 0,
) -> None:
    """Serve a model provider with scripted answers, until it is stopped.

    It speaks the APIs of Anthropic, OpenAI and Gemini on 127.0.0.1, so that you can try agents
    without a key.
    """
    labledger.serve_scripted_provider(script, port=port, report=say)
