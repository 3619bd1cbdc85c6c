"""`labledger regrade`: another grader over what a run's trials left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from labledger.cli.options import arguments
from labledger.cli.options.run_options import Running, judges_trials

_ERROR_RATE = 0.5
"""A grader that fails more often than that is not let through to the end unless asked for."""


def register(app: typer.Typer) -> None:
    app.command()(regrade)


@judges_trials
def regrade(
    run_id: arguments.RunId,
    running: Running,
    grader: Annotated[
        Path,
        typer.Option(
            help="An experiment file, whose grader is taken, or a script in the place of the "
            "run's own.",
        ),
    ],
    again: Annotated[
        bool, typer.Option("--again", help="Grade even if this grader has graded the run before.")
    ] = False,
) -> None:
    """Grade the stored trials of a complete run with another grader. Runs no agent.

    Each trial's workspace, result and events are put into a fresh container, where the grader
    runs. The new scores are the run's next generation; the old ones stay. Views, comparisons and
    reports use the new generation once it is complete. `labledger resume` continues an interrupted
    regrading by its own run id. Stops if more than half of the slots end as errors, unless
    --max-error-rate says otherwise.
    """
    from labledger.runner.regrade import regrade_run

    options = running.options()
    if options.max_error_rate is None:
        options = replace(options, max_error_rate=_ERROR_RATE)

    def variants() -> list[str]:
        from labledger.api.ledger import open_ledger

        with open_ledger(lab_dir=options.lab_dir) as ledger:
            return [variant.variant_id for variant in ledger.run(run_id).variants]

    running.watch(options, lambda o: regrade_run(run_id, grader, o, again=again), variants)
