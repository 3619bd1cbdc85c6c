"""How far a score can be trusted: whom the agent was, what it could read, what it changed."""

from __future__ import annotations

from labledger.records import JsonObject
from labledger.trial.container import Engine
from labledger.trial.contract import ExitStatus, Sealing, TrialSpec
from labledger.trial.ended import Ended
from labledger.trial.stored import noted
from labledger.trial.tampering import Checked, Seen, look

_ROOT = frozenset({"", "0", "0:0", "root", "root:root", "0:root", "root:0"})

_UNGRADED = frozenset(
    {
        ExitStatus.SETUP_FAILED,
        ExitStatus.SETUP_TIMED_OUT,
        ExitStatus.AGENT_FAILED,
        ExitStatus.AGENT_TIMED_OUT,
        ExitStatus.AGENT_ENDED,
        ExitStatus.HINDERED,
    }
)


def facts(engine: Engine, spec: TrialSpec, ended: Ended) -> JsonObject:
    """The isolation facts of a trial whose container has stopped.

    Where nobody looked at its file system before the grading, it is looked at now. Raises
    `EngineUnavailable`. Where a trial is judged again, its agent never was in the container: its
    grader came after the agent, and found everything as in the image.
    """
    if spec.earlier is not None:
        image_user = engine.image_user(spec.image_id)
        user = noted(spec.earlier, "isolation").get("agent_user", _user(spec, image_user))
        sealed = {"sealed": Sealing.AFTER_AGENT.value}
        return _facts(spec, user, Seen("before_grading")) | sealed
    ungraded = ended.exit_status in _UNGRADED
    when: Checked = "before_grading" if ungraded else "after_grading"
    seen = ended.seen
    if seen is None:
        container = ended.container_id
        gone = Seen(None, unchecked="its container is gone")
        seen = gone if container is None else look(engine, spec, container, when)
    return _facts(spec, _user(spec, engine.image_user(spec.image_id)), seen)


def no_facts(spec: TrialSpec, why: str) -> JsonObject:
    """The isolation facts of a trial that left no container to look at."""
    return _facts(spec, _user(spec, None), Seen(None, unchecked=why))


def _facts(spec: TrialSpec, agent_user: str | None, seen: Seen) -> JsonObject:
    found: JsonObject = {
        "agent_user": agent_user,
        "sealed": spec.plan.sealing.value,
        "root_read_only": spec.plan.runtime["root_read_only"],
        "setup": "setup" in spec.plan.phases,
        "checked": seen.checked,
        "tampering_suspected": list(seen.suspected),
        "tampering_total": seen.total,
    }
    if seen.unchecked is not None:
        found["unchecked"] = seen.unchecked
    return found


def _user(spec: TrialSpec, image_user: str | None) -> str | None:
    """Whom the agent ran as; None where only an image that is not there could say."""
    plan = spec.plan
    authored = plan.agent_user or plan.runtime["user"]
    user = image_user if authored is None else str(authored)
    return "root" if user in _ROOT else user
