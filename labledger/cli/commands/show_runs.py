"""Commands that read stored runs: runs, status, show and logs. They work while runs write.

With `--json` they print the library's documents unchanged. `show` prints the first lines of logs
and patch unless `--full` is given. `logs` prints the outputs of a trial line by line, as `tail -f`
does, with a heading where the output changes.
"""

from __future__ import annotations

import json
from codecs import IncrementalDecoder, getincrementaldecoder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from labledger.cli import arguments
from labledger.cli.console import (
    out,
    out_json,
    out_json_line,
    out_line_at_once,
    out_lines,
    say,
    table,
)
from labledger.text.figures import usd
from labledger.text.words import counted, model_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from labledger import Ledger
    from labledger.results import Grading, JsonObject, LogPiece, RunInfo


def runs(
    experiment: Annotated[
        str | None, typer.Option(help="Only runs of experiments whose id matches this glob.")
    ] = None,
    status: Annotated[
        str | None,
        typer.Option(help="Only runs that are running, interrupted or completed."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Only runs created since 2026-11-22, 2026-11-22T14:00, 7d or 12h."),
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only runs with this tag.")] = None,
    sort: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="created, changed or slots (the number of trials): largest first. run, experiment "
            "or status: by name.",
        ),
    ] = "created",
    reverse: Annotated[bool, typer.Option("--reverse", help="Reverse the order.")] = False,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """List the runs in the ledger, by default the newest first."""
    from labledger import RunSelection, open_ledger
    from labledger.cli.outcome_text import grading_lines

    selection = RunSelection(
        experiment, arguments.parse_run_status(status), arguments.parse_since(since), tag
    )
    with open_ledger(lab_dir=lab_dir) as ledger:
        all_runs = ledger.runs(selection, sort=sort, reverse=reverse)
        all_gradings = [ledger.gradings(run.run_id) for run in all_runs]
        causes = [_stop_cause(run, lost=ledger.is_lost(run)) for run in all_runs]
        costs, incomplete = ledger.costs(), ledger.incomplete_costs()
    if json:
        out_json(
            [
                {
                    **run.as_json(),
                    **_own_grading(run.run_id, gradings),
                    **({"cost_usd": costs[run.run_id]} if run.run_id in costs else {}),
                    **({"cost_is_incomplete": True} if run.run_id in incomplete else {}),
                }
                for run, gradings in zip(all_runs, all_gradings, strict=True)
            ]
        )
        return
    columns = (
        *("run_id", "experiment", "status", "stopped by", "saved", "trials", "created"),
        "cost",
    )
    rows = [
        (
            *(run.run_id, run.experiment_id, run.status.value, cause, run.next_schedule_idx),
            *(run.total_slots, run.created_at, usd(costs.get(run.run_id))),
        )
        for run, cause in zip(all_runs, causes, strict=True)
    ]
    empty = (*(() if any(causes) else ("stopped by",)), *(() if costs else ("cost",)))
    table(columns, rows, right=("saved", "trials", "cost"), without=empty)
    if names := [run.run_id for run in all_runs if run.run_id in incomplete]:
        out(f"trials of unknown cost are left out of the cost of {', '.join(names)}")
    for run, gradings in zip(all_runs, all_gradings, strict=True):
        if gradings and run.run_id == gradings[0].run_id:
            for line in grading_lines(run.run_id, gradings):
                out(line)


def _stop_cause(run: RunInfo, *, lost: bool) -> str:
    """Return why a run stopped, in a word; empty if it is complete or in progress."""
    if run.stop is not None:
        return run.stop.cause
    return "lost" if lost else ""


def _own_grading(run_id: str, gradings: Sequence[Grading]) -> JsonObject:
    """Return the keys for `--json` that describe a run as a grading; none if it is not one."""
    grading = next((grading for grading in gradings if grading.run_id == run_id), None)
    if grading is None:
        return {}
    current = next((grading.grading_id for grading in gradings if grading.counts), None)
    return {
        "root_id": grading.root_id,
        "generation": grading.generation,
        "counts": grading.counts,
        "current_grading": current,
    }


def status(
    run_id: arguments.RunId,
    grading: arguments.GradingNumber = None,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Follow the run until no process runs it."),
    ] = False,
) -> None:
    """Show a run's progress, coordinator and outcomes, and how much of its budget it has spent.

    If a run was graded again, the outcomes come from its current grading.
    """
    if watch:
        _watch(run_id, lab_dir, as_json=json)
        if json:
            return
    from labledger import open_ledger
    from labledger.cli.outcome_text import print_status

    with open_ledger(lab_dir=lab_dir) as ledger:
        state = ledger.state(run_id, grading)
    if json:
        out_json(state.as_json())
    else:
        print_status(state, lab_dir)


def _watch(run_id: str, lab_dir: Path | None, *, as_json: bool) -> None:
    """Show a run's progress until no process runs it."""
    from labledger import open_ledger
    from labledger.cli.run_display import watcher

    with open_ledger(lab_dir=lab_dir) as ledger, watcher(as_json=as_json, quiet=False) as display:
        for state in ledger.watch(run_id):
            display.show(state)


def show(
    run_id: arguments.RunId,
    schedule_idx: arguments.ScheduleIdx,
    grading: arguments.GradingNumber = None,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
    full: Annotated[bool, typer.Option("--full", help="Print logs and the patch in full.")] = False,
) -> None:
    """Show one trial.

    Prints its phases, times, exit statuses, prediction, score, metrics, logs and evidence. Results
    come from the current grading.
    """
    from labledger import open_ledger

    with open_ledger(lab_dir=lab_dir) as ledger:
        records = ledger.slot(run_id, schedule_idx, grading)
        if json:
            out_json(records)
        else:
            print_trial(ledger, records, full=full)


def logs(
    run_id: arguments.RunId,
    schedule_idx: arguments.ScheduleIdx,
    phase: Annotated[
        list[str] | None,
        typer.Option(
            help="setup, agent, grader, events or steps; repeatable. By default the three phases."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing until the trial is collected.")
    ] = False,
    grading: arguments.GradingNumber = None,
    lab_dir: arguments.LabDir = None,
    json: arguments.Json = False,
) -> None:
    """Print the output of one trial, also while it runs."""
    from labledger import open_ledger

    with open_ledger(lab_dir=lab_dir) as ledger:
        pieces = ledger.logs(run_id, schedule_idx, phase or [], follow=follow, grading=grading)
        if not print_logs(pieces, as_json=json):
            say(f"trial {schedule_idx} of {run_id} has no such output (yet)")


_HEAD_LINES = 20
_PRINTED_TEXTS = (
    *("setup_stdout", "setup_stderr", "agent_stdout", "agent_stderr"),
    *("grader_stdout", "grader_stderr", "trial_output", "workspace_patch"),
)


def print_trial(ledger: Ledger, records: JsonObject, *, full: bool) -> None:
    """Print the records of one trial, as `Ledger.slot` returns them."""
    from labledger.results import grading_name

    slot = records["slot"]
    cell = f"{slot['variant_id']} on {slot['task_id']}, replication {slot['repl_idx']}"
    out(f"trial {slot['schedule_idx']} of run {slot['run_id']}: {cell}")
    shown, gradings = records["grading"], ledger.gradings(slot["run_id"])
    shown_grading = next(grading for grading in gradings if grading.run_id == shown["run_id"])
    if (name := grading_name(shown_grading, gradings)) is not None:
        out(f"graded by {name}; --grading N shows another one")
    if "supersedes" in slot:
        once = "" if records["status"] else ", once it is saved"
        out(f"replaces trial {slot['supersedes']}{once}")
    if "superseded_by" in slot:
        out(f"run again as trial {slot['superseded_by']}, which replaces it once it is saved")
    if records["status"] is None:
        out("not saved yet")
        if "unjudged" in records:
            out(f"its last attempt gave no verdict: {_status(records['unjudged'])}")
            say(f"`labledger logs {slot['run_id']} {slot['schedule_idx']}` prints its output")
        return
    if not records["trials"]:
        out(f"{records['status']}: never executed")
        return
    agents = (record.get("ext", {}).get("agent") for record in records["evidence"])
    _print_trial_record(records["trials"][0], next(agents, None))
    _print_rows(records)
    _print_calls(ledger, records, full=full)
    for record in records["evidence"]:
        _print_evidence(ledger, record, full=full)
    if records["evidence"] and "trajectory" in records["evidence"][-1]["evidence"]:
        _print_steps(ledger, slot, full=full)


def _print_trial_record(trial: JsonObject, agent: JsonObject | None) -> None:
    """Print how a trial ended; `agent` describes its installed agent, if it has one."""
    out(_status(trial))
    outcome = trial["outcome"] or "none"
    out(f"verdict: {trial['verdict'] or 'none'}; outcome reported by the agent: {outcome}")
    out(f"image {trial['image']['ref']} ({trial['image']['id']})")
    if agent is not None:
        tested = agent.get("tested_version")
        other = f"; its profile was tested with {tested}" if tested else ""
        out(f"agent {agent['name']} {agent['version']}{other}")
    out(f"{trial['started_at']} to {trial['ended_at']}")
    rows = [
        (name, phase["exit_status"], phase["duration_ms"], "yes" if phase["timed_out"] else "")
        for name, phase in trial["phases"].items()
        if phase is not None
    ]
    table(("phase", "exit", "ms", "timed out"), rows, right=("exit", "ms"))
    for attempt in trial["attempts"][:-1]:
        out(f"attempt {attempt['attempt']}: {_status(attempt)}")


def _status(entry: JsonObject) -> str:
    text = str(entry["status"])
    if entry["reason"]:
        text += f" ({entry['reason']})"
    if entry["message"]:
        text += f": {entry['message']}"
    return text


def _print_rows(records: JsonObject) -> None:
    for name in ("predictions", "scores"):
        for record in records[name]:
            content = {k: v for k, v in record.items() if k not in _BOOKKEEPING}
            out(f"{name.removesuffix('s')}:")
            out_lines(_indented(json.dumps(content, indent=2, ensure_ascii=False)))
    if records["metrics"]:
        rows = [(m["metric_id"], m["source"], m["value"]) for m in records["metrics"]]
        table(("metric", "from", "value"), rows, right=("value",))
    if records["events"]:
        out(counted(len(records["events"]), "event"))


_USAGE_SQL = """
SELECT calls, refused, failed, unknown, tokens_in, tokens_out, cost_usd, cost_unknown, waited_s,
  claimed_cost_usd, claimed_tokens_in, claimed_tokens_out
FROM trial_usage WHERE run_id = ? AND schedule_idx = ?"""
_UNKNOWN_COSTS_SQL = """
SELECT CASE count(*) WHEN 1 THEN 'call ' || min(call) ELSE count(*) || ' calls' END AS calls,
  cost_unknown
FROM model_calls WHERE run_id = ? AND schedule_idx = ? AND cost_unknown IS NOT NULL
GROUP BY cost_unknown ORDER BY min(attempt), min(call)"""


def _print_calls(ledger: Ledger, records: JsonObject, *, full: bool) -> None:
    """Print the calls of a trial's attempts to models, and their total use."""
    calls = records["model_calls"]
    if not calls:
        return
    shown_calls = calls if full else calls[:_HEAD_LINES]
    columns = ("attempt", "call", "model", "ended", "tokens in", "tokens out", "waited ms", "ms")
    labels = model_labels([(call["provider"], call["model"]) for call in shown_calls])
    rows = [
        (
            *(call["attempt"], call["call"], label),
            " ".join(str(call[k]) for k in ("state", "status", "reason") if call[k] is not None),
            *_tokens(call["usage"]),
            *(call["waited_ms"], call["duration_ms"]),
        )
        for call, label in zip(shown_calls, labels, strict=True)
    ]
    if any(call.get("replayed") for call in calls):
        out("the calls were replayed: they cost nothing, and their tokens are as recorded")
    table(columns, rows, right=("attempt", "call", *columns[4:]))
    if len(shown_calls) < len(calls):
        out(f"… {counted(len(calls) - len(shown_calls), 'more call')}; --full prints them")
    trial = [records["grading"]["root_id"], records["slot"]["schedule_idx"]]
    for unknown in ledger.query(_UNKNOWN_COSTS_SQL, trial):
        out("the cost of {calls} is not known: {cost_unknown}".format(**unknown))
    for use in ledger.query(_USAGE_SQL, trial):
        amounts = {name: value for name, value in use.items() if value is not None}
        table(tuple(amounts), [tuple(amounts.values())], right=tuple(amounts))


def _tokens(usage: JsonObject | None) -> tuple[int | None, int | None]:
    if usage is None:
        return None, None
    output = usage["output"]
    return sum(usage.values()) - output - usage.get("reasoning", 0), output


_BOOKKEEPING = frozenset(
    {"schema_version", "schedule_idx", "slot_commit_id", "attempt", "row_seq", "ts", "ids"}
)


def _print_evidence(ledger: Ledger, record: JsonObject, *, full: bool) -> None:
    out(f"evidence of attempt {record['attempt']}:")
    if "isolation" in record.get("ext", {}):
        out(f"  isolation: {_isolation(record['ext']['isolation'], full=full)}")
    for name, reference in record["evidence"].items():
        out(f"  {name}: {reference}")
    for text in record.get("ext", {}).get("notes", ()):
        out(f"  run again: {text}")
    for name, problem in record.get("ext", {}).get("problems", {}).items():
        out(f"  {name}: {problem}")
    for name in _PRINTED_TEXTS:
        if name in record["evidence"]:
            content = ledger.artifact(record["evidence"][name])
            if content:
                _print_text(name, content, full=full)


SEALED_WORDS = {
    "none": "grader files readable",
    "unreadable": "grader files unreadable to it",
    "after_agent": "grader files added after it ended",
    "delivered": "grader files put into its running container after it ended",
    "separate": "grader in a container of its own",
}


def _isolation(facts: JsonObject, *, full: bool) -> str:
    """Return the isolation facts of a trial as one line; suspected paths only with `full`."""
    user, suspected = facts["agent_user"] or "an unknown user", facts["tampering_suspected"]
    words = [f"agent as {user}", SEALED_WORDS[facts["sealed"]]]
    if facts.get("rights") == "docker":
        words[:1] = [f"{words[0]} with Docker's default rights"]
    if facts["checked"] is None:
        words.append(f"not checked for tampering ({facts['unchecked']})")
    elif suspected:
        words.append(_suspicion(facts))
        if full:
            words[-1] += f": {_listed_paths(suspected, facts['tampering_total'])}"
        else:
            words[-1] += " (--full lists them)"
    else:
        words.append("no tampering seen")
    if hooks := facts.get("workspace_hooks"):
        words.append(f"files that tools load automatically: {_listed_paths(hooks, len(hooks))}")
    return ", ".join(words)


def _suspicion(facts: JsonObject) -> str:
    """Return how many suspicious changes there are, and who made them."""
    total = facts["tampering_total"]
    changes = f"tampering suspected: {counted(total, 'change')} of the image"
    numbers = facts.get("tampering_by")
    if isinstance(numbers, dict) and numbers and all(isinstance(n, int) for n in numbers.values()):
        makers = {"agent": "by the agent", "grader": "while the grader ran"}
        parts = [f"{numbers[name]:,} {who}" for name, who in makers.items() if numbers.get(name)]
        if (unknown := total - sum(numbers.values())) > 0:
            parts.append(f"{unknown:,} by one of them")
        return f"{changes}, {', '.join(parts)}"
    others = ["the setup command"] * bool(facts["setup"])
    others += ["the grader"] * (facts["checked"] == "after_grading")
    return f"{changes}, by {' or '.join(['the agent', *others])}"


def _listed_paths(paths: list[str], total: int) -> str:
    listed = " ".join(path if path.isprintable() else repr(path) for path in paths)
    return listed if total == len(paths) else f"{listed} and {total - len(paths)} more"


def _print_text(name: str, content: bytes, *, full: bool) -> None:
    lines = content.decode("utf-8", "replace").removesuffix("\n").split("\n")
    shown_lines = lines if full else lines[:_HEAD_LINES]
    out(f"--- {name} ({counted(len(content), 'byte')})")
    out_lines(_indented("\n".join(shown_lines)))
    if len(shown_lines) < len(lines):
        out(f"    … {counted(len(lines) - len(shown_lines), 'more line')}; --full prints them")


def _print_steps(ledger: Ledger, slot: JsonObject, *, full: bool) -> None:
    """Print the steps of the agent, only the first ones unless `full` is set."""
    out("--- steps")
    printed = 0
    for piece in ledger.logs(slot["run_id"], slot["schedule_idx"], ["steps"]):
        lines = piece.content.decode("utf-8", "replace").rstrip("\n").split("\n")
        if not full and printed + len(lines) > _HEAD_LINES:
            out("    … and more; --full prints them, and `labledger logs --phase steps` them alone")
            return
        out_lines(_indented("\n".join(lines)))
        printed += len(lines)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n"))


_MAX_UNFINISHED = 1 << 20
"""A longer line is printed in parts, so that memory stays bounded; in characters."""


def print_logs(pieces: Iterable[LogPiece], *, as_json: bool) -> bool:
    """Print pieces of a trial's outputs as whole lines. Return whether there were any."""
    printer = _LinePrinter(as_json=as_json)
    for piece in pieces:
        printer.add(piece)
    printer.finish()
    return printer.has_printed


class _LinePrinter:
    """Prints each line of several outputs when it is complete, under the output's heading."""

    def __init__(self, *, as_json: bool) -> None:
        self.has_printed = False
        self._as_json = as_json
        self._decoders: dict[str, IncrementalDecoder] = {}
        self._unfinished: dict[str, str] = {}
        self._heading = ""

    def add(self, piece: LogPiece) -> None:
        new_decoder = getincrementaldecoder("utf-8")
        decoder = self._decoders.setdefault(piece.name, new_decoder("replace"))
        text = self._unfinished.pop(piece.name, "") + decoder.decode(piece.content)
        *lines, rest = text.split("\n")
        for line in lines:
            self._print(piece.name, line)
        if len(rest) > _MAX_UNFINISHED:
            self._print(piece.name, rest)
        elif rest:
            self._unfinished[piece.name] = rest

    def finish(self) -> None:
        """Print the last lines, which have no end."""
        for name, decoder in self._decoders.items():
            rest = self._unfinished.pop(name, "") + decoder.decode(b"", final=True)
            if rest:
                self._print(name, rest)

    def _print(self, name: str, line: str) -> None:
        if self._as_json:
            out_json_line({"output": name, "line": line})
        else:
            if name != self._heading:
                out_line_at_once(f"==> {name.replace('_', ' ')} <==")
                self._heading = name
            out_line_at_once(line)
        self.has_printed = True
