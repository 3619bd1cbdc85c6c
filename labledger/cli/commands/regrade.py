"""`labledger regrade`: grades the stored trials of a run with another grader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from labledger.cli.options import arguments
from labledger.cli.options.run_options import Running, grades_trials, variants_of

_ERROR_RATE = 0.5
"""The largest share of errors of a regrading, unless --max-error-rate is given."""


def register(app: typer.Typer) -> None:
    app.command()(regrade)


@grades_trials
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
    from labledger import api

    options = running.options()
    if options.max_error_rate is None:
        options = replace(options, max_error_rate=_ERROR_RATE)
    running.watch(
        options,
        lambda watched: api.regrade(run_id, grader, watched, again=again),
        lambda: variants_of(run_id, running.lab_dir),
    )
