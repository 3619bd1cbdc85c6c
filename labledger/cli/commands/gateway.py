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

if TYPE_CHECKING:
    from labledger import GatewayStatus, KeyPace, VariantTotals

gateway = CommandLine(name="gateway", help="The model gateway.", no_args_is_help=True)


@gateway.command()
def check(
    experiment: arguments.Experiment,
    *,
    send: Annotated[
        bool, typer.Option("--send", help="Also ask each model for a word; it costs a little.")
    ] = False,
    agent: arguments.Agents = None,
    env: arguments.Env = None,
    env_file: arguments.EnvFile = None,
    json: arguments.Json = False,
) -> None:
    """Check the keys, models and prices that an experiment's agents need."""
    options = labledger.RunOptions(
        agents=tuple(agent or ()),
        env=arguments.parse_environment(env),
        env_files=tuple(env_file or ()),
    )
    checks = labledger.check_gateway(experiment, options, send=send)
    if json:
        out_json([each.as_json() for each in checks])
    elif not checks:
        say("no agent of this experiment has models")
    else:
        print_checks(checks)
    failed = [each for each in checks if each.has_failed]
    if failed:
        raise typer.Exit(int(failed[0].exit_code))


@gateway.command()
def serve(lab_dir: arguments.LabDir = None) -> None:
    """Serve the model gateway of a lab in the foreground, until it is stopped or unneeded.

    Runs start it by themselves where they need it.
    """
    labledger.serve_gateway(lab_dir=lab_dir, report=say)


@gateway.command()
def status(json: arguments.Json = False, lab_dir: arguments.LabDir = None) -> None:
    """Show what calls to models used, by variant, and how fast providers are asked."""
    found = labledger.gateway_status(lab_dir=lab_dir)
    if json:
        out_json(None if found is None else found.as_json())
        return
    if found is None:
        say("no gateway runs for this lab on this machine")
        return
    _show(found)


def _show(found: GatewayStatus) -> None:
    say(f"the gateway (process {found.pid}) serves {found.open_attempts} trials")
    by_variant = ("run", "variant", "trials", "calls", "tokens", "cost", "waited", "refused")
    table(by_variant, [_row(variant) for variant in found.variants])
    if found.paces:
        by_key = ("provider", "under way", "waiting", "at most", "paused", "problem")
        table(by_key, [_pace_row(pace) for pace in found.paces])
    for pace in found.paces:
        if pace.refusal is not None:
            say(f"{pace.provider} refused a call: {pace.refusal}")
    for problem in found.problems:
        say(f"problem: {problem}")


def _row(variant: VariantTotals) -> tuple[str, ...]:
    totals = variant.totals
    unknown = f" + {totals.unknown} unknown" if totals.unknown else ""
    cost = f"${totals.cost / 1e12:.4f}"
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
    """End the model gateway of a lab. Calls under way are cut.

    The next run or coordinator that needs it starts it again, and open trials are served again.
    """
    ended = labledger.stop_gateway(lab_dir=lab_dir)
    say("the gateway has ended" if ended else "no gateway runs for this lab on this machine")


@gateway.command()
def mock(
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT", help="What it answers: a YAML or JSON file.")
    ],
    port: Annotated[int, typer.Option(help="The port; 0 for a free one.", min=0, max=65535)] = 0,
) -> None:
    """Serve a model provider that answers by a script, until it is stopped.

    It speaks the APIs of Anthropic, OpenAI and Gemini on 127.0.0.1, so that agents can be tried
    without a key.
    """
    labledger.serve_scripted_provider(script, port=port, report=say)
