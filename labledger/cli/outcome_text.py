"""Prints the outcome of a run, the status of a stored run, and commands to type next.

All figures come from the summary or from `RunState`. This module only phrases and arranges them.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from labledger.cli.console import add_lab_dir, out, say, table
from labledger.cli.error_messages import option_name
from labledger.cli.run_progress import (
    VERDICT_COLUMNS,
    VERDICTS,
    paused_text,
    spent_texts,
    waiting_requests_text,
    without_verdict,
)
from labledger.errors import Exit
from labledger.results import (
    BUDGET_PARAMETERS,
    ModelUse,
    PassCounts,
    RunStatus,
    SlotStatus,
    StopCause,
    cancelled_sentences,
    grading_name,
    grading_sentences,
    rerun_sentences,
    skipped_sentences,
    unread_sentences,
    untested_sentences,
)
from labledger.text.control_phrases import OWNER_DIED
from labledger.text.figures import percent, usd
from labledger.text.words import counted, counted_of, model_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from labledger.results import (
        Grading,
        JsonObject,
        Regrading,
        RunInfo,
        RunOutcome,
        RunState,
        Stop,
    )

_MAX_SLOTS = 12
"""The maximum number of listed trials."""

_ENVIRONMENT_STATUSES = (SlotStatus.INFRA_ERROR, SlotStatus.SETUP_ERROR)
"""Statuses that only a rerun of the agent can repair. A `grade_error` needs only a regrading."""


def print_outcome(outcome: RunOutcome) -> None:
    """Print how a run ended: results by variant, spending, changes of a regrading, and problems."""
    ext = outcome.summary["ext"]
    out(f"run {outcome.run_id}: {_saved(ext['committed'], ext['scheduled'])}")
    if "replays" in ext:
        out(replay_sentence(ext["replays"]))
    print_summary(outcome.summary)
    for sentence in skipped_sentences(outcome.run_id, outcome.coverage):
        out(sentence)
    if outcome.timeouts_under_pressure is not None:
        out(outcome.timeouts_under_pressure)
    for sentence in (text for answers in outcome.model_answers for text in answers.sentences):
        out(sentence)
    for sentence in (
        *unread_sentences(outcome.run_id, outcome.unread_results),
        *grading_sentences(outcome.run_id, outcome.failed_gradings),
    ):
        out(sentence)
    if texts := spent_texts(outcome.spent, outcome.budget):
        out(" · ".join(texts))
    if outcome.regrading is not None and outcome.complete:
        _print_outcome_changes(outcome.regrading)
    if outcome.trouble:
        say(f"stopped early: {outcome.trouble}")
    for variant in outcome.unscored_variants:
        say(
            f"variant {variant} has no score, so nothing is known about it and the exit code is "
            f"{int(Exit.INCOMPLETE)}"
        )
    for answers in outcome.model_answers:
        if answers.never_answered:
            say(
                f"no model answered the agents of variant {answers.variant_id}, so its results say "
                f"nothing about them and the exit code is {int(Exit.INCOMPLETE)}"
            )


def _print_outcome_changes(regrading: Regrading) -> None:
    """Print the outcomes that changed from the earlier grading to the new one."""
    total = sum(change.slots for change in regrading.outcome_changes)
    changed = [change for change in regrading.outcome_changes if change.before != change.after]
    count = sum(change.slots for change in changed)
    names = f"grading {regrading.generation} against grading {regrading.earlier}"
    out(f"{names}: {counted_of(count, total, 'trial')} changed")
    for change in changed:
        out(f"  {change.before} → {change.after}: {change.slots}")


def print_next(outcome: RunOutcome, lab_dir: Path | None) -> None:
    """Print what to type next. `lab_dir` is the lab folder that the command line named."""
    say("next:")
    for line in _next_commands(outcome):
        say(f"  {_in_lab(line, lab_dir)}")


def _in_lab(line: str, lab_dir: Path | None) -> str:
    """Return a command, perhaps with a note in parentheses after it, with its `--lab-dir`."""
    command, gap, note = line.partition("   (")
    return f"{add_lab_dir(command, lab_dir)}{gap}{note}"


def grading_lines(run_id: str, gradings: Sequence[Grading]) -> Iterator[str]:
    """Yield a sentence: which run a regrading grades again, or which regradings a run has."""
    grading = next((grading for grading in gradings if grading.run_id == run_id), None)
    if grading is None:
        return
    if grading.generation > 1:
        note = _grading_note(grading)
        yield f"{run_id} is grading {grading.generation} of {grading.root_id}{note}"
    elif len(gradings) > 1:
        slots = gradings[0].slots
        regradings = ", ".join(
            f"{regrading.run_id}{_grading_note(regrading, slots)}" for regrading in gradings[1:]
        )
        yield f"{run_id} was graded again: {regradings}"


def _grading_note(grading: Grading, slots: int | None = None) -> str:
    """Return the state of a grading in parentheses. `slots` is the number of slots of its run."""
    if grading.counts:
        return " (current)"
    if slots is not None and grading.slots < slots:
        return f" (of the run's first {counted(grading.slots, 'trial')})"
    return "" if grading.complete else " (not complete)"


def replay_sentence(replays: JsonObject) -> str:
    """Return a sentence that names the replayed run, and says what it means for the costs."""
    return (
        f"replay of {replays['run_id']}: its recorded calls answered the agents; tokens are as "
        "recorded, and nothing was spent"
    )


def _host_lines(state: RunState) -> Iterator[str]:
    """Yield a line for each host of a run on a cluster, with its unfinished trials."""
    if state.run.on is not None:
        command = shlex.join(["labledger", "hosts", "--on", state.run.on])
        yield f"runs on the hosts of {state.run.on}; `{command}` asks them"
    slots_by_host: dict[str, list[int]] = {}
    for idx, host in sorted(state.open_slots.items()):
        slots_by_host.setdefault(host, []).append(idx)
    lost = {host.host: host for host in state.run.lost_hosts}
    for host, slots in sorted(slots_by_host.items()):
        if "/" in host and host not in lost:
            listed = ", ".join(map(str, slots[:_MAX_SLOTS]))
            more = ", …" if len(slots) > _MAX_SLOTS else ""
            yield f"  {host}: {len(slots)} without a result (trials {listed}{more})"
    for lost_host in lost.values():
        yield f"  {lost_host.host}: declared lost at {lost_host.declared_at}: {lost_host.because}"


def _scored_lines(state: RunState) -> Iterator[str]:
    """Yield which grading the outcomes are from, if there are several."""
    if (name := grading_name(state.grading, state.gradings)) is not None:
        yield f"outcomes are from {name}; --grading N shows another grading"


def _unjudged_lines(state: RunState) -> Iterator[str]:
    """Yield the trials for which a regrading's grader gave no verdict, and why."""
    if not state.unjudged:
        return
    number = counted_of(len(state.unjudged), state.run.total_slots, "trial")
    yield f"{number} not graded, because the grader gave no verdict:"
    for slot in state.unjudged[:_MAX_SLOTS]:
        reason = f" ({slot.reason})" if slot.reason else ""
        message = f": {slot.message}" if slot.message else ""
        yield f"  trial {slot.schedule_idx}: {slot.status}{reason}{message}"
    if len(state.unjudged) > _MAX_SLOTS:
        yield f"  and {len(state.unjudged) - _MAX_SLOTS:,} more"


def part_lines(run: RunInfo) -> Iterator[str]:
    """Yield a sentence for each extension of a run's schedule."""
    for part in run.parts:
        if part.kind == "extended":  # `rerun_sentences` describes the other parts.
            because = f": {part.because}" if part.because else ""
            yield f"{counted(part.slot_count, 'trial')} added at {part.created_at}{because}"


def print_status(state: RunState, lab_dir: Path | None) -> None:
    """Print the progress, owner and spending of a run, and what to type next."""
    run = state.run
    has_nobody = run.status is RunStatus.RUNNING and not state.owned
    word = "no coordinator runs it" if has_nobody else run.status.value
    out(f"run {run.run_id} of {run.experiment_id}: {word}")
    out("; ".join(_progress_texts(state)))
    if run.replays is not None:
        out(replay_sentence(run.replays))
    for line in _host_lines(state):
        out(line)
    out(f"created {run.created_at}, last change {run.updated_at}; from {run.source_path}")
    if run.tags:
        out(f"tags: {', '.join(run.tags)}")
    for note in state.notes:
        out(f"note of {note.noted_at}: {note.note}")
    if why := _why_stopped(state):
        out(why)
    for line in filter(None, (paused_text(state), waiting_requests_text(state))):
        out(line)
    for line in (
        *grading_lines(run.run_id, state.gradings),
        *_scored_lines(state),
        *_unjudged_lines(state),
        *part_lines(run),
        *skipped_sentences(run.run_id, run.coverage),
        *untested_sentences(run.resolved),
        *rerun_sentences((run.regrades or {}).get("run_id", run.run_id), state.reruns),
        *cancelled_sentences(run.run_id, state.cancelled),
        *(sentence for answers in state.model_answers for sentence in answers.sentences),
        *unread_sentences(run.run_id, state.unread_results),
        *grading_sentences(run.run_id, state.failed_gradings, state.told_since),
    ):
        out(line)
    if texts := spent_texts(state.spent, run.budget):
        out(" · ".join(texts))
    if run.lease is not None:
        owner = run.lease.owner
        out(f"owned by process {owner.pid} on {owner.machine} since {run.lease.acquired_at}, ")
        out(f"  last heartbeat at {run.lease.renewed_at}; the lease ends {run.lease.expires_at}")
    if state.wanted_by is not None:
        requester = f"process {state.wanted_by.owner.pid} on {state.wanted_by.owner.machine}"
        out(f"takeover requested by {requester} at {state.wanted_by.requested_at}")
    rows = []
    for counts in state.variants:
        verdicts = [counts.verdicts.get(verdict, 0) for verdict in VERDICTS]
        failed = without_verdict(counts.passes, verdicts)
        rate = percent(counts.passes.rate)
        other = ", ".join(f"{n} {s}" for s, n in counts.statuses.items() if s != "completed")
        numbers = (counts.scheduled, counts.committed, *verdicts, failed, rate)
        rows.append((counts.variant_id, *numbers, other))
    columns = ("variant", "trials", "saved", *VERDICT_COLUMNS, "rate")
    _print_outcomes((*columns, "not completed"), rows, right=columns[1:])
    print_model_usage(state.model_usage)
    say(f"next: {_in_lab(_command_after_status(state), lab_dir)}")


def print_model_usage(usage: Iterable[ModelUse]) -> None:
    """Print a table of the use of models by variant, if there was any."""
    uses = list(usage)
    labels = model_labels([(use.provider, use.model) for use in uses])
    rows = [
        (
            *(use.variant_id, label, use.calls, use.tokens_in, use.tokens_out),
            *(usd(use.cost_usd, 4), use.cost_unknown, use.refused, use.failed),
            f"{use.waited_s:,.1f}",
        )
        for use, label in zip(uses, labels, strict=True)
    ]
    columns = (
        *("variant", "model", "calls", "tokens in", "tokens out", "cost", "cost unknown"),
        *("refused", "failed", "waited s"),
    )
    if rows:
        table(columns, rows, right=columns[2:])
    if any(row[6] for row in rows):
        out("the column cost_unknown of the view model_calls says why a cost is not known")


def _progress_texts(state: RunState) -> Iterator[str]:
    """Yield how many trials are saved, how many wait to be saved, and how many have started."""
    yield _saved(state.run.next_schedule_idx, state.run.total_slots)
    if state.staged:
        yield f"{state.staged} finished, waiting to be saved"
    if begun := state.begun - state.staged:
        running = state.trials_running
        if prepared := max(0, begun - running) if state.owned else 0:
            yield f"{running} running, {prepared} prepared to start"
        elif state.owned:
            yield f"{begun} running or about to start"
        else:
            yield f"{begun} started, without a result yet: resuming collects them"


def _saved(trials: int, total: int) -> str:
    return f"{counted_of(trials, total, 'trial')} saved"


def _command_after_status(state: RunState) -> str:
    run_id = state.run.run_id
    if state.owned:
        return f"labledger status {run_id} --watch"
    if state.run.status is RunStatus.COMPLETED:
        return f"labledger show {run_id} 0"
    if state.run.regrades is not None and _has_failed(state.run.stop) and not state.unjudged:
        return _regrade_command(state.run.regrades["run_id"])
    return _resume_command(run_id, state.used_up)


def _print_outcomes(
    columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str]
) -> None:
    """Print a table of outcomes, without the column of failed agents if there are none."""
    failed = VERDICT_COLUMNS[-1]
    has_failed = any(row[columns.index(failed)] for row in rows)
    table(columns, rows, right=right, without=() if has_failed else (failed,))


def _why_stopped(state: RunState) -> str | None:
    """Return why a run stopped, in a sentence; None if it is complete or in progress."""
    run = state.run
    if run.status is RunStatus.COMPLETED:
        return None
    if run.stop is not None:
        return f"stopped early ({run.stop.cause}): {run.stop.message}"
    if run.status is RunStatus.RUNNING and not state.owned:
        since = f" since {run.lease.renewed_at}" if run.lease else ""
        return f"its coordinator has sent no heartbeat{since}: {OWNER_DIED}"
    return None


def print_summary(summary: JsonObject) -> None:
    """Print the outcome by variant, and what is left out of the rate."""
    extensions = {variant["variant_id"]: variant for variant in summary["ext"]["variants"]}
    names = {variant["primary_metric_name"] for variant in summary["variants"]} - {None}
    mean = f"mean {names.pop()}" if len(names) == 1 else "mean"
    rows, left_out, no_verdict = [], 0, 0
    all_passes: dict[str, PassCounts] = {}
    for variant in summary["variants"]:
        ext = extensions[variant["variant_id"]]
        passes = all_passes[variant["variant_id"]] = PassCounts.of_variant(ext)
        verdicts = [variant[verdict] for verdict in VERDICTS]
        failed = without_verdict(passes, verdicts)
        numbers = (ext["scheduled"], variant["total"], *verdicts, failed)
        rate, value = percent(passes.rate), variant["primary_metric_mean"]
        rows.append((variant["variant_id"], *numbers, rate, value))
        left_out += passes.left_out
        no_verdict += failed
    columns = ("variant", "trials", "scored", *VERDICT_COLUMNS, "rate", mean)
    _print_outcomes(columns, rows, right=columns[1:])
    statuses = {s: n for s, n in summary["ext"]["statuses"].items() if n and s != "completed"}
    if statuses:
        out("not completed: " + ", ".join(f"{n} {status}" for status, n in statuses.items()))
    broken = sum(passes.graders_broken for passes in all_passes.values())
    if no_verdict > broken:
        out(f"not passed, without a verdict, because the agent failed: {no_verdict - broken}")
    if broken:
        out(
            "not passed, without a verdict, because the grader works for other trials, or the "
            f"agent could break it: {broken}"
        )
    if left_out:
        out(f"left out of the pass rate, because something other than the agent failed: {left_out}")
    if any(passes.left_out for passes in all_passes.values()):
        rates = (f"{name} {percent(passes.rate_of_all)}" for name, passes in all_passes.items())
        out(
            "pass rate counting ungraded trials as failures (the usual benchmark rule): "
            f"{', '.join(rates)}"
        )
    print_model_usage(ModelUse(**use) for use in summary["ext"].get("model_usage", ()))


def _resume_command(run_id: str, used_up: Iterable[str]) -> str:
    """Return the command that resumes a run, with an option for each budget that is used up."""
    larger = (f"{option_name(BUDGET_PARAMETERS[kind])} LARGER" for kind in used_up)
    return " ".join([f"labledger resume {run_id}", *larger])


def _next_commands(outcome: RunOutcome) -> list[str]:
    """Return commands that fit the outcome of a run."""
    run_id = outcome.run_id
    if not outcome.complete and outcome.regrading is not None:
        return list(_commands_before_complete(outcome, outcome.regrading))
    if not outcome.complete:
        return [_resume_command(run_id, outcome.used_up), f"labledger status {run_id}"]
    if outcome.regrading is not None:
        return _commands_after_regrading(run_id, outcome.regrading)
    statuses = outcome.summary["ext"]["statuses"]
    sql = "SELECT task_id, variant_id, verdict FROM scores"
    commands = [f"labledger query \"{sql} WHERE run_id = '{run_id}'\""]
    if any(n for status, n in statuses.items() if status != "completed"):
        where = f"run_id = '{run_id}' AND status <> 'completed'"
        sql = "SELECT schedule_idx, status, reason, message FROM trials"
        commands.append(f'labledger query "{sql} WHERE {where}"')
    if any(statuses.get(status) for status in _ENVIRONMENT_STATUSES):
        commands.append(f"labledger rerun {run_id}   (once the cause is gone)")
    if statuses.get(SlotStatus.GRADE_ERROR):
        commands.append(_regrade_command(run_id))
    usage = outcome.summary["ext"].get("model_usage", ())
    if any(use["refused"] or use["failed"] for use in usage):
        sql = "SELECT variant_id, state, reason, count(*) AS calls FROM model_calls"
        where = f"WHERE run_id = '{run_id}' AND reason IS NOT NULL GROUP BY 1, 2, 3"
        commands.append(f'labledger query "{sql} {where}"')
    commands.append(f"labledger show {run_id} 0")
    commands.append(f"labledger report {run_id} -o report.html")
    commands.append(f"labledger export {run_id} --what scores --out -")
    return commands


def _has_failed(stop: Stop | None) -> bool:
    """Return whether the run stopped because too many trials were errors.

    A resume would only stop again.
    """
    return stop is not None and stop.cause == StopCause.ERROR_RATE


def _regrade_command(run_id: str) -> str:
    return f"labledger regrade {run_id} --grader FILE   (once the grader is fixed)"


def _commands_before_complete(outcome: RunOutcome, regrading: Regrading) -> Iterator[str]:
    """Yield commands that fit a regrading that is not complete."""
    if regrading.unjudged:
        yield f"labledger resume {outcome.run_id}   (grades only the remaining trials)"
    if regrading.unjudged or _has_failed(outcome.stop):
        yield _regrade_command(regrading.root_id)
    else:
        yield f"labledger resume {outcome.run_id}"
    yield f"labledger status {outcome.run_id}"


def _commands_after_regrading(run_id: str, regrading: Regrading) -> list[str]:
    root_id = regrading.root_id
    sql = "SELECT task_id, variant_id, repl_idx, generation, verdict FROM all_scores"
    return [
        f"labledger compare {root_id}.g{regrading.earlier} {run_id}",
        f"labledger query \"{sql} WHERE run_id = '{root_id}'\"",
        f"labledger report {root_id}",
        f"labledger show {run_id} 0",
    ]
