"""`labledger regrade`: another grader over what a run's trials left."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from labledger.cli import arguments
from labledger.cli.experiments import watched

_ERROR_RATE = 0.5
"""A grader that fails more often than that is not let through to the end unless asked for."""


def register(app: typer.Typer) -> None:
    app.command()(regrade)


def regrade(
    run_id: arguments.RunId,
    grader: Annotated[
        Path,
        typer.Option(
            help="An experiment file, whose grader is taken, or a script in the place of the "
            "run's own.",
        ),
    ],
    again: Annotated[
        bool, typer.Option("--again", help="Even where this grader has judged the run before.")
    ] = False,
    max_concurrency: arguments.MaxConcurrency = None,
    env: arguments.Env = None,
    env_file: arguments.EnvFile = None,
    lab_dir: arguments.LabDir = None,
    json: arguments.EventsJson = False,
    quiet: arguments.Quiet = False,
    fail_under: arguments.FailUnder = None,
    patience: arguments.Patience = 600.0,
    min_free: arguments.MinFree = None,
    max_error_rate: arguments.MaxErrorRate = _ERROR_RATE,
    keep: arguments.Keep = "none",
    lease_ttl: arguments.LeaseTtl = 30.0,
) -> None:
    """Judge a complete run's stored evidence again with another grader. Runs no agent.

    Each trial's workspace, result and events are put into a fresh container, and the grader looks
    at them there. The new scores stand beside the old as the run's next generation, which views,
    comparisons and reports take when it is complete. `labledger resume` goes on with one that was
    interrupted, by the name that it has here.
    """
    from labledger.api import open_ledger
    from labledger.runner.keeping import Keep
    from labledger.runner.options import RunOptions
    from labledger.runner.regrading import regrade_run
    from labledger.runner.room import MIN_FREE_BYTES

    options = RunOptions(
        lab_dir=lab_dir,
        max_concurrency=max_concurrency,
        env=tuple(env or ()),
        env_files=tuple(env_file or ()),
        patience_s=patience,
        min_free_bytes=arguments.size("--min-free", min_free, MIN_FREE_BYTES),
        max_error_rate=max_error_rate,
        keep=Keep(keep),
        lease_ttl_s=lease_ttl,
    )

    def variants() -> list[str]:
        with open_ledger(lab_dir=lab_dir) as ledger:
            return [variant.variant_id for variant in ledger.run(run_id).variants]

    watched(
        options,
        lambda o: regrade_run(run_id, grader, o, again=again),
        variants,
        json,
        quiet,
        fail_under,
    )
