"""Notice when programs that trials share are touched on this machine while trials run.

Containers mount staged programs, files of tasks and installed agents read-only. A process compares
their digests at the first use, and their fingerprints afterwards. A fingerprint shows a touch even
if the file was put back. A trial with touched programs is an `infra_error`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from labledger import clock
from labledger.agents.agent_trees import known_digest
from labledger.errors import LedgerError
from labledger.files.artifact_store import ArtifactStore
from labledger.files.fingerprints import Fingerprint, fingerprint
from labledger.records import canonical_json
from labledger.text.figures import duration
from labledger.trial import contract
from labledger.trial.container_spec import ContainerSpec
from labledger.trial.life import shared_files
from labledger.trial.trial_plan import TrialAgent

_NOTE = "programs.json"
"""The file in a trial folder with the fingerprints at the trial's start."""
_MANY = 5000
_RARELY_S = 10.0
"""A folder with many entries is checked once in this many seconds. Checking 30,000 entries takes a
quarter of a second of a processor."""


@dataclass(frozen=True, slots=True)
class _Shared:
    """Something that trials share, and the comparison of its digests."""

    name: str
    """A name for messages."""
    tops: tuple[Path, ...]
    alone: tuple[Path, ...]
    require_unchanged: Callable[[], None]

    def look(self) -> Fingerprint:
        return fingerprint(self.tops, self.alone)


@dataclass(slots=True)
class ProgramWatch:
    """Watches the programs of a run. Thread-safe.

    Before the next trial starts, digests are compared again, and a difference stops the run.
    """

    require_staged: Callable[[], None]
    """Raises `LedgerError` if a staged program of the run differs from its digest."""
    _verified: dict[tuple[Path, ...], tuple[_Shared, Fingerprint]] = field(default_factory=dict)
    """The fingerprints of everything that matched its digests, by the paths."""
    _looks: dict[tuple[Path, ...], tuple[float, Fingerprint]] = field(default_factory=dict)
    """For large folders, the last fingerprint and its time."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note_start(self, spec: ContainerSpec) -> None:
        """Write a trial's fingerprints into its folder, once everything matches its digests.

        A later coordinator can compare them. Raises `LedgerError` if something does not match.
        """
        marks = {shared.name: self._verify(shared) for shared in self._shared_by(spec)}
        note = {"script": shared_files.trial_script_name(), "marks": marks}
        (spec.folder / _NOTE).write_bytes(canonical_json.dump_bytes(note))

    def find_touched(self, spec: ContainerSpec) -> tuple[str, ...]:
        """Return a sentence for each of a trial's programs that was touched since it started.

        Returns nothing for a trial that another version of labledger started.
        """
        try:
            marks = _read_note(spec.folder)
        except (OSError, ValueError, TypeError, LookupError):
            return (f"{spec.folder / _NOTE}, which says what the trial started with",)
        with self._lock:
            touched = [
                shared
                for shared in self._shared_by(spec)
                if marks.get(shared.name) not in (None, self._look(shared).digest)
            ]
            for shared in touched:
                self._looks.pop(shared.tops, None)
        return tuple(shared.name for shared in touched)

    def find_touched_since(self) -> Iterator[str]:
        """Yield a sentence for each program that was touched after its last check.

        Trials may have ended between the last checks of large folders.
        """
        with self._lock:
            for shared, verified in self._verified.values():
                if shared.look() != verified and shared.tops in self._looks:
                    since = duration(1000 * (clock.monotonic() - self._looks[shared.tops][0]))
                    yield (
                        f"{shared.name}: touched on this machine while trials ran; results of the "
                        f"last {since} may come from other files, and `labledger verify` says "
                        "whether they differ now"
                    )

    def _verify(self, shared: _Shared) -> str:
        """Return the fingerprint of something that matches its digests."""
        with self._lock:
            state = self._look(shared)
            _, before = self._verified.get(shared.tops, (shared, None))
            if before == state and state.is_settled:
                return state.digest
            state = shared.look()
            shared.require_unchanged()
            if shared.look().digest != state.digest:
                raise LedgerError(f"{shared.name}: touched while it was compared with its digest")
            self._verified[shared.tops] = shared, state
            self._looks.pop(shared.tops, None)
            return state.digest

    def _look(self, shared: _Shared) -> Fingerprint:
        """Return the current or a very recent fingerprint. The caller holds the lock."""
        began = clock.monotonic()
        if (last_look := self._looks.get(shared.tops)) and began - last_look[0] < _RARELY_S:
            return last_look[1]
        state = shared.look()
        if state.entries > _MANY:
            self._looks[shared.tops] = (began, state)
        return state

    def _shared_by(self, spec: ContainerSpec) -> Iterator[_Shared]:
        """Yield everything that a trial shares with others."""
        plan = spec.plan
        deps = plan.deps_dir
        parts = (*contract.PHASE_NAMES, shared_files.trial_script_name())
        tops = (*(deps / part for part in parts), plan.sealed_dir)
        yield _Shared("staged programs", tops, (deps,), self.require_staged)
        store = ArtifactStore(plan.store_root)
        for tar in shared_files.mounted_tars(spec):
            folder = shared_files.unpacked_folder(spec, tar)
            require = partial(
                shared_files.require_unchanged_files_of_tasks, plan.run_dir, store, [tar]
            )
            yield _Shared(f"files of the task, {folder}", (folder,), (), require)
        if plan.agent is not None and spec.runs_agent:
            agent = plan.agent
            tops = (agent.folder,)
            name = f"the installed agent {agent.installed.name}, {agent.folder}"
            require_agent = partial(_require_agent, agent)
            yield _Shared(name, tops, (agent.folder.parent,), require_agent)


def _read_note(folder: Path) -> dict[str, str]:
    """Return the fingerprints in a trial folder by name.

    Returns none without a note, or if another version, with another script, wrote it.
    """
    try:
        note = json.loads((folder / _NOTE).read_bytes())
    except FileNotFoundError:
        return {}
    return dict(note["marks"]) if note["script"] == shared_files.trial_script_name() else {}


def _require_agent(agent: TrialAgent) -> None:
    """Raise `LedgerError` if the installed files of an agent differ from their digest."""
    if known_digest(agent.folder)[0] != agent.installed.tree_sha256:
        raise LedgerError(
            f"the files of {agent.installed.name}@{agent.installed.version} in {agent.folder} were "
            "changed since this process compared them; no further trial was started",
            hint="trials that ran since may have used them, so find out who changed them; a resume "
            "installs the agent again",
        )
