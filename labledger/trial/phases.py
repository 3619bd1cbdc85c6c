"""What `trial.sh` notes of the phases, and the note with which it goes on after the agent."""

from __future__ import annotations

from labledger.records import Phase
from labledger.trial import contract, outputs
from labledger.trial.contract import StoredTrial, TrialSpec


def read_phases(spec: TrialSpec) -> dict[str, Phase]:
    """What `trial.sh` noted of its phases; empty where it could not write its note.

    To be trusted only where `trial.sh` ended the trial: before, the agent can write there too.
    """
    return _as_phases(phase_fields(spec))


def has_begun(spec: TrialSpec) -> bool:
    """True where `trial.sh` has written anything: an agent that runs under it cannot hide that.

    The folder around was changed last when it got its name, before its container was made, and no
    container can reach it or set back when the one that `trial.sh` writes in was changed.
    """
    changed = (spec.folder / "state").stat().st_ctime_ns
    return changed > spec.folder.stat().st_ctime_ns


PhaseFields = tuple[int, int, int, int]
"""Exit status, start, end (hundredths of a second since boot), and 1 after a time-out."""


def phase_fields(spec: TrialSpec) -> dict[str, PhaseFields]:
    """`trial.sh`'s note as numbers, by phase; to be trusted as `read_phases` says."""
    content, _ = outputs.read_optional(
        spec.folder / "state", contract.PHASES_FILE, outputs.PHASES_CAP
    )
    return _parse((content or b"").decode("ascii", "replace"))


def parse_phases(lines: str) -> dict[str, Phase]:
    """Return the phases of a note in the form of `phase_lines`."""
    return _as_phases(_parse(lines))


def _as_phases(fields: dict[str, PhaseFields]) -> dict[str, Phase]:
    return {
        name: Phase(status, max(0, end - start) * 10, timed_out == 1)
        for name, (status, start, end, timed_out) in fields.items()
    }


def _parse(lines: str) -> dict[str, PhaseFields]:
    notes: dict[str, PhaseFields] = {}
    for line in lines.splitlines():
        fields = line.split()
        if len(fields) == 5 and fields[0] in contract.PHASE_NAMES:
            try:
                status, start, end, timed_out = (int(text) for text in fields[1:])
            except ValueError:
                continue
            notes[fields[0]] = (status, start, end, timed_out)
    return notes


def phase_lines(fields: dict[str, PhaseFields]) -> str:
    """Such a note again, in the phases' order."""
    return "".join(
        " ".join(map(str, (name, *fields[name]))) + "\n"
        for name in contract.PHASE_NAMES
        if name in fields
    )


def phases_of_record(earlier: StoredTrial) -> dict[str, Phase]:
    """The phases of an earlier trial that ran, as its record has them."""
    phases = earlier.record["phases"]
    return {
        name: Phase(phase["exit_status"], phase["duration_ms"], phase["timed_out"])
        for name in contract.PHASE_NAMES
        if (phase := phases.get(name)) is not None
    }


def phases_before_grading(earlier: StoredTrial) -> dict[str, Phase]:
    """Those of them that are not judged again."""
    return {name: phase for name, phase in phases_of_record(earlier).items() if name != "grader"}


def phase_notes_of(phases: dict[str, Phase]) -> str:
    """Such a note of phases whose durations alone are known, as if they had followed each other."""
    fields: dict[str, PhaseFields] = {}
    now = 0
    for name, phase in phases.items():
        end = now + phase.duration_ms // 10
        fields[name] = (phase.exit_status, now, end, int(phase.timed_out))
        now = end
    return phase_lines(fields)
