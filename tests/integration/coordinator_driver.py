"""A coordinator in its own process, for a test that kills it or runs it as another user."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

from labledger import resources
from labledger.engine.engine import Engine
from labledger.errors import SchemaInvalid
from labledger.records import json_schemas
from labledger.trial.free_disk_space import FullDisks
from labledger.trial.life.start_limiter import StartLimiter
from labledger.trial.life.trial_context import TrialContext
from labledger.trial.life.worker import remove_attempt, run_attempt

SCHEMAS = (
    "agent_result_v1",
    "benchmark_prediction_record_v1",
    "benchmark_score_record_v1",
    "evidence_record_v1",
)


def main(spec_file: str, action: str, uid: str | None = None) -> None:
    """Do `run` or `discard` with the pickled spec in a file, as the user `uid` if one is given."""
    # Imports the modules that this kind of trial needs, because another user may be unable to.
    spec = pickle.loads(Path(spec_file).read_bytes())
    if uid is not None:
        become(int(uid), Path(spec_file).with_name("trial.sh"))
    context = TrialContext(Engine(), StartLimiter(1), FullDisks(), lambda spec, reason: None)
    if action == "discard":
        remove_attempt(spec.container, context)
    else:
        sys.stdout.buffer.write(pickle.dumps(run_attempt(spec, context)))


def become(uid: int, script: Path) -> None:
    """Become a user of Docker's group, after loading everything that this user may be unable to
    read."""
    engine = Engine().connect()
    engine.info()
    engine.close()
    for name in SCHEMAS:
        try:
            json_schemas.require_valid({}, name)
        except SchemaInvalid:
            continue
    script.write_bytes(resources.trial_script().read_bytes())
    script.chmod(0o644)
    resources.trial_script = lambda: script
    os.setgroups([Path("/var/run/docker.sock").stat().st_gid])
    os.setgid(uid)
    os.setuid(uid)


if __name__ == "__main__":
    main(*sys.argv[1:])
