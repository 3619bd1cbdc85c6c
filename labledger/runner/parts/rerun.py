"""`labledger rerun`: runs committed slots of a run again, in new slots that supersede them.

The new slots are a part at the end of the run's schedule, appended in one transaction. The run then
goes on as after `resume`: a coordinator that is killed leaves either no part or a whole one. No
committed row changes. Used by `api`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from labledger import __version__
from labledger.docker.engine import Engine
from labledger.errors import InvalidInput, Problem
from labledger.experiment.plan import ExperimentPlan
from labledger.ledger.database.model import Lease, NewPart
from labledger.ledger.reader import LedgerReader
from labledger.ledger.writer import LedgerWriter
from labledger.maintenance.image_checks.egress_checks import require_egress_image
from labledger.records.identity import Slot
from labledger.run_control.budget import check_limits
from labledger.runner import environment_values
from labledger.runner.options import RunOptions, RunOutcome
from labledger.runner.parts.new_parts import require_budget
from labledger.runner.parts.rerun_choice import RerunPlan
from labledger.runner.run_hosts import cluster_of, require_host
from labledger.runner.session import Session
from labledger.runner.start_and_resume import (
    refuse_changed,
    require_environment,
    require_images,
)
from labledger.storage.artifact_store import ArtifactStore
from labledger.storage.lab_folder import LabFolder


def rerun_slots(plan: RerunPlan, options: RunOptions) -> RunOutcome:
    """Append the chosen slots to their run, and run it to its end.

    If the slots cannot run, raises before anything is appended.
    """
    if not plan.slots:
        raise InvalidInput("the rerun", [Problem(plan.run_id, "no slot of it was chosen")])
    lab = LabFolder.find(options.lab_dir)
    store = ArtifactStore(lab.artifacts)
    values = environment_values.gather(options.env, options.env_files)
    with closing(Engine()) as engine:
        with LedgerReader.open(lab.ledger) as reader:
            run = reader.run(plan.run_id)
            experiment = ExperimentPlan.of_document(run.resolved)
            if not options.frozen:
                refuse_changed(run, reader.task_digests(run.run_id), options)
            require_environment(run, experiment.environment, values)
            cluster = cluster_of(run, options)
            if cluster is None:
                require_images(engine, run, experiment.runtime.oci)
                require_egress_image(engine, experiment, options.egress_image)
            else:
                require_host(cluster, run, experiment, insecure=options.insecure)
            check_limits(experiment.metrics, options.budget)
            require_budget(reader, run, options.budget)
        with LedgerWriter.open(lab.ledger, store) as writer:

            def append(lease: Lease) -> None:
                writer.append_part(lease, new_part(plan), (), new_slots(plan))

            session = Session(
                *(lab, engine, writer, store, run.run_id, values, options),
                new_limits=options.budget,
                append_part=append,
            )
            return session.run_session()


def new_part(plan: RerunPlan) -> NewPart:
    """Return the part that the chosen slots make, as the ledger registers it."""
    selection = plan.selection
    return NewPart(
        kind="rerun",
        first_idx=plan.first_idx,
        labledger_version=__version__,
        because=selection.because,
        selection=selection.as_json(),
    )


def new_slots(plan: RerunPlan) -> Iterator[Slot]:
    """Yield the slots that supersede the chosen ones, in the same order."""
    for number, old in enumerate(plan.slots, plan.first_idx):
        yield Slot(number, old.variant_id, old.task_id, old.repl_idx, old.schedule_idx)
