"""Cleanup of a run's containers, networks, folders and notes on this machine.

Removed is what belongs to an attempt whose result is durable, and carries the labels of this ledger
and this run. Used by the local executor, before and after a run's slots are run.
"""

from __future__ import annotations

import shutil

from labledger.docker.engine import Engine
from labledger.docker.networks import Networks
from labledger.errors import LabLedgerError
from labledger.executors.executor import RunRecords
from labledger.run_control.trial_folder_retention import move_to_kept
from labledger.trial import attempt_notes
from labledger.trial.contract import Labels
from labledger.trial.life.container_identity import attempt_of
from labledger.trial.life.input_files.inputs import INCOMING


def clean_up_attempts(engine: Engine, run: RunRecords) -> list[str]:
    """Remove containers, networks, folders and notes of attempts whose results are durable.

    Only containers and networks with the labels of this ledger and this run are removed. Return a
    warning for what cannot be removed, which is left for the next cleanup.
    """
    warnings = []
    try:
        remove_containers(engine, run)
    except LabLedgerError as error:
        warnings.append(f"could not remove old containers: {error.message}")
    shutil.rmtree(run.run_dir / INCOMING, ignore_errors=True)
    for trial_folder in sorted((run.run_dir / "trials").glob("*-*")):
        idx, _, attempt = trial_folder.name.partition("-")
        if not run.is_durable(int(idx), int(attempt)):
            continue
        if run.keeps_folder(int(idx), int(attempt)):
            move_to_kept(trial_folder)
        else:
            shutil.rmtree(trial_folder, ignore_errors=True)
    for trial_folder in attempt_notes.folders_with_notes(run.run_dir):
        idx, _, attempt = trial_folder.name.partition("-")
        if run.is_durable(int(idx), int(attempt)):
            attempt_notes.remove_notes(trial_folder)
    return warnings


def remove_containers(engine: Engine, run: RunRecords) -> None:
    """Remove containers and networks of durable attempts. Raises `LabLedgerError`."""
    labels = {Labels.LEDGER: run.ledger_id, Labels.RUN: run.run_id}
    for container in engine.containers_with_labels(labels):
        slot_and_attempt = attempt_of(container.labels)
        if slot_and_attempt is not None and run.is_durable(*slot_and_attempt):
            engine.remove(container.container_id)
    networks = Networks(engine)
    for network in networks.with_labels(labels):
        slot_and_attempt = attempt_of(network.labels)
        if slot_and_attempt is not None and run.is_durable(*slot_and_attempt):
            networks.remove(network.network_id)
