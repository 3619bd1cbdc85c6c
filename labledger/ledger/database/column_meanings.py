"""The meaning of each column of the views, for `labledger query --schema` and the reference.

A name in `_COMMON` means the same in every view but those of `_EXCEPTIONS` (``view.column``).
Tests require a meaning for every column of every view, and no others.
"""

from __future__ import annotations

from labledger.records.model_costs import USUAL_METRICS
from labledger.records.outcomes import SlotStatus, Verdict

_COMMON = {
    **dict.fromkeys(SlotStatus, "committed slots with this status"),
    **{verdict: f"slots whose verdict is `{verdict}`" for verdict in Verdict},
    **dict.fromkeys(
        USUAL_METRICS, "the last attempt's metric of this name; null if unknown or negative"
    ),
    "agent_duration_ms": "milliseconds in the agent's phase; null if it did not run",
    "agent_exit_status": "the agent's exit status; 124 after a time-out",
    "api": "the API of the provider by which the call was made",
    "agent_timed_out": "1 if the agent's time limit ended it",
    "artifact_ref": "the artifact that contains the prediction, if it is an artifact",
    "attempt": "number of the attempt, from 1; for a trial, of its last attempt",
    "attempts": "containers that ran for the slot; 0 if it never ran",
    "authored": "the experiment's text as it was written",
    "because": "why the part was added, as its author wrote it; null if nobody said",
    "baseline_id": "the run's baseline, a variant",
    "baseline_pass_rate": "pass rate of the baseline's slots",
    "baseline_passed": "`passed` of the baseline's slot; also null if it is not committed",
    "baseline_schedule_idx": "schedule index of the baseline's slot; null if it is not committed",
    "baseline_verdict": "the baseline's verdict; null if the slot is not scored",
    "cache_read_tokens": "tokens of requests that were read from a cache; null if not known",
    "cache_read_usd": "tokens that are read from a cache",
    "cache_write_1h_usd": "tokens that are written to a cache for an hour",
    "cache_write_tokens": "tokens that were written to a cache, for its usual time or an hour; "
    "null if none are known",
    "cache_write_usd": "tokens that are written to a cache for its usual time",
    "call": "number of the call in its attempt, from 1",
    "calls": "calls to models that a provider was asked",
    "claimed_cost_usd": "`cost_usd` as the experiment takes it from what the last attempt's agent "
    "wrote; null if it does not",
    "claimed_tokens_in": "`tokens_in` in the same way",
    "claimed_tokens_out": "`tokens_out` in the same way",
    "cost_unknown": "calls whose cost is not known; `cost_usd` does not include them",
    "chain_head": "the digest of the last commit, or of the run's creation if there was none",
    "deleted_at": "when the run was deleted (UTC)",
    "begun": "slots that were dispatched and are not committed yet",
    "body": "the event as JSON",
    "committed": "slots that are committed",
    "committed_at": "when the slot was committed (UTC)",
    "container": "the container's name",
    "cost_known": "trials whose cost is known; `cost_usd` does not include the others",
    "counts": "1 if this is the current grading, whose rows the other views show",
    "created_at": "when the run was created (UTC)",
    "digest": "digest of everything that affects the run's results",
    "duration_ms": "milliseconds from the trial's start to its end; null if it never ran",
    "ended_at": "when it ended (UTC); null before",
    "error_message": "the grader's message for an error",
    "evaluator_name": "name of the evaluator that graded",
    "events_dropped": "events that were not stored: too many, or too large",
    "evidence": "references to artifacts, as JSON",
    "executor": "name of the executor that ran the container",
    "exit_status": "the container's exit status",
    "experiment_id": "the experiment's `id`",
    "failed": "calls that got no answer, a part of one, or an error",
    "first_byte_ms": "milliseconds until the first byte of the answer; null if none came",
    "from_tokens": "the price holds for requests of at least so many tokens",
    "first_schedule_idx": "schedule index of the part's first slot",
    "first_verdict": "the verdict in the first grading; null if the slot is not scored in it",
    "first_seen": "when the first of these runs was created (UTC)",
    "generation": "number of the grading, from 1; for a run, of its current grading",
    "generations": "number of gradings of the run, complete or not",
    "grade_errors": "committed slots with the status `grade_error`",
    "grader_digest": "digest of the grader: command, environment, time limit, files; null if an "
    "older labledger did not store it",
    "grader_duration_ms": "milliseconds in the grader's phase; null if it did not run",
    "grader_exit_status": "the grader's exit status",
    "grader_timed_out": "1 if the grader's time limit ended it",
    "grading_id": "the id by which `compare` and `report` name the grading",
    "note": "the note's text",
    "note_no": "number of the note in its run, from 1",
    "noted_at": "when the note was written (UTC)",
    "tags": "the run's tags, as a JSON list",
    "replays": "the run whose recorded calls answered its agents; null if providers did",
    "host": "whose engine ran it: a machine (null in an imported run) or a host of a cluster",
    "image_id": "the image's digest",
    "image_ref": "the image's name in the experiment",
    "images": "image ids by reference, as JSON",
    "input_usd": "tokens of requests that are neither read from a cache nor written to one",
    "infra_errors": "committed slots with the status `infra_error`",
    "kind": "patch, text, json or artifact_ref",
    "labledger_version": "version of labledger that created the run",
    "last_seen": "when the newest of these runs was created (UTC)",
    "lease_expires_at": "when the owner's lease expires (UTC)",
    "losses": "pairs that are a `regression`",
    "message": "what went wrong, as text",
    "left_out": "slots that ran and that the pass rate leaves out",
    "model": "the model that requests ask for",
    "model_served": "the model that the provider says it used",
    "metric_id": "the metric's `id` in the experiment",
    "metrics": "the score's metrics as JSON",
    "name": "the experiment's name",
    "not_passed": "slots with another verdict, or with none because the agent failed or broke its "
    "grader",
    "outcome": "`same`, `improvement`, `regression` or `unpaired`, by whether each side passed",
    "output_usd": "tokens of answers",
    "owner_host": "host name of the run's owner; null if it has no owner",
    "owner_pid": "process id of the run's owner",
    "part": "number of the part, from 1, which is what the run was started with",
    "pairs": "slots whose `passed` is not null on both sides",
    "pass_rate": "`passed` / (`passed` + `not_passed`); null if both are 0",
    "pass_rate_of_all": "`passed` / slots that ran, as if those left out had not passed",
    "passed": "slots that passed: their verdict is `pass`",
    "primary_metric_mean": "its mean over scored slots; null if they have none or different ones",
    "primary_metric_name": "name of the score's primary metric; null if the slot is not scored",
    "primary_metric_value": "value of the primary metric",
    "provider": "the provider, by its name in the experiment",
    "raw_usage": "what the provider's answer said of its usage, as JSON; null if nothing",
    "reasoning_tokens": "the part of the answers' tokens that is reasoning; null if not known",
    "refused": "calls that the gateway refused, so that no provider was asked",
    "request_id": "the provider's name for the call",
    "reason": "the reason of the status",
    "record": "the whole record as JSON, with the ids of the run or regrading it is of",
    "repl_idx": "number of the replication, from 0",
    "resolved": "the resolved experiment as JSON",
    "role": "`baseline` or `treatment`",
    "row_seq": "number of the row among the slot's rows of this kind, from 0",
    "run_id": "the run's id; for a regrading, the id of the run whose agents ran",
    "runs": "runs with a committed slot of it",
    "runs_that_differ": "runs in which replications of the same run got different verdicts",
    "schedule_idx": "the slot's number in the run's schedule, from 0",
    "scheduled": "slots in the schedule; slots that run others again are not counted",
    "scored": "committed slots with a score, without those that are a `grade_error`",
    "selection": "the options that chose the part's slots, as JSON; null if there were none",
    "setup_duration_ms": "milliseconds in the setup phase; null if it did not run",
    "setup_exit_status": "the setup command's exit status",
    "state": "`answered`, `failed`, `cut`, `refused`, or `unknown`: the gateway never saw its end",
    "skipped_pruned": "committed slots with this status: never run, as their variant was pruned",
    "slot_commit_id": "id of the commit that published it",
    "source": "where the metric comes from: result, score, events, runner or gateway",
    "source_path": "path of the experiment file",
    "started_at": "when it started (UTC)",
    "status": "how the trial ended: `completed`, or what failed",
    "stop_cause": "why it stopped before it was complete: `interrupt`, `budget`, `error_rate`, "
    "`engine`, `refusals`, `disk`, `hosts`, `uncollected` or `error`; null while it runs, if it "
    "is complete, and if its coordinator was killed",
    "stop_message": "the stop cause as a sentence",
    "suite_id": "the dataset's `suite_id`",
    "superseded_by": "schedule index of the committed slot that a rerun put in its place; null if "
    "this one counts",
    "supersedes": "schedule index of the slot that this one runs again; null if it runs none again",
    "task_digest": "digest of the task in that run",
    "task_id": "the task's `id`",
    "ties": "pairs that are `same`",
    "trials": "trials with such a call",
    "trial_id": "the trial's id: run and slot; the same in every generation",
    "trials_ms": "sum of the durations of the trials that count, in milliseconds",
    "type": "the event's `type`, if that is text",
    "unknown": "calls that may have been charged, and whose tokens nobody knows",
    "unpaired": "scheduled slots that are not in a pair",
    "unscored": "committed slots that are not scored",
    "updated_at": "when the run's progress was last updated (UTC)",
    "value": "the value",
    "variant_id": "the variant's id",
    "variants": "number of different variants with a committed slot of it",
    "verdict": "the grader's verdict; null without a score or in a `grade_error`",
    "waited_s": "how long calls were held back for limits of the provider, in seconds",
    "waited_ms": "how long it was held back for limits of the provider; part of `duration_ms`",
    "replayed": "1 if the answer came from the record of another run, which cost nothing",
    "why": "for an `unpaired` slot: which side is left out, and its status or `not_committed`",
    "wins": "pairs that are an `improvement`",
}
_PASSED = "1 if it passed, 0 if it did not, null if the pass rate leaves it out"
_WITH_EVERY_SCORE = ("trials", "all_trials", "scores", "all_scores")
_EXCEPTIONS = {
    **dict.fromkeys(
        (f"{view}.verdict" for view in _WITH_EVERY_SCORE),
        "the grader's verdict; not scored if the status is `grade_error`",
    ),
    **dict.fromkeys(
        (f"{view}.primary_metric_name" for view in _WITH_EVERY_SCORE),
        "name of the score's primary metric",
    ),
    "model_calls.attempt": "number of the attempt that made the call, from 1",
    "model_calls.cache_write_tokens": "tokens that were written to a cache for its usual time; "
    "null if not known",
    "model_calls.cache_write_1h_tokens": "tokens that were written to a cache for an hour; null "
    "if not known",
    "model_calls.cost_usd": "what it cost by the run's prices; null if its tokens or a price are "
    "not known, 0 if nothing can have been charged",
    "model_calls.duration_ms": "milliseconds from the request to the end of the answer",
    "model_calls.input_tokens": "tokens of the request that were neither read from a cache nor "
    "written to one; null if not known",
    "model_calls.output_tokens": "tokens of the answer, reasoning included; null if not known",
    "model_calls.reason": "why the gateway refused it, or why it failed",
    "model_calls.status": "HTTP status of the answer that the agent got",
    "model_calls.unknown": "1 if it may have been charged, and nobody knows its tokens",
    "model_prices.part": "number of the part of the schedule that brought the price",
    "model_prices.source": "where the price comes from",
    "model_prices.digest": "digest of the table that the price was taken from",
    "trial_usage.attempts": "attempts with a call",
    **{
        f"{view}.{name}": meaning
        for view in ("trial_usage", "variant_usage")
        for name, meaning in (
            (
                "tokens_in",
                "all tokens of requests, cached ones too; null if none are known",
            ),
            ("tokens_out", "all tokens of answers; null if none are known"),
            ("cost_usd", "what is known of the cost; null if nothing is"),
        )
    },
    "deleted_runs.because": "why the run was deleted, as a person wrote it",
    "steps.cache_read_tokens": "the part of `tokens_in` that a cache had; null if unknown",
    "steps.cost_usd": "what the step cost as the agent or its log says; null if unknown",
    "steps.is_copied": "1 if it repeats an earlier step that a model was shown again",
    "steps.message": "the first 100 characters of what was said",
    "steps.model": "the model that answered; null if unknown",
    "steps.origin": "`gateway`, `agent_log` or `agent`: what the trajectory was made from",
    "steps.results": "how many results of tools, and of other things, the step has",
    "steps.said_at": "when it was said (UTC); null if unknown",
    "steps.said_by": "`system`, `user` or `agent`",
    "steps.step": "number of the step, from 1",
    "steps.tokens_in": "tokens of the request, cached ones included; null if unknown",
    "steps.tokens_out": "tokens of the answer; null if unknown",
    "steps.tool_calls": "the first 100 characters of the tools that were called, with arguments; "
    "null if none was",
    **{
        f"{view}.passed": _PASSED
        for view in ("trials", "all_trials", "trial_facts", "task_history")
    },
    "paired_outcomes.passed": "`passed` of the treatment's slot; also null if not committed",
    "runs.scheduled": "slots in the schedule, with those that run others again",
    "gradings.scheduled": "slots in the schedule, with those that run others again",
    "runs.status": "`running`, `interrupted` or `completed`",
    "run_history.status": "`running`, `interrupted` or `completed`",
    "run_history.ended_at": "when the run last ended or stopped (UTC); null while it runs",
    "run_history.duration_ms": "milliseconds from the run's creation to `ended_at`, with pauses; "
    "null while it runs",
    **dict.fromkeys(
        (f"run_history.{name}" for name in USUAL_METRICS),
        "sum of the metric of this name over all trials, superseded ones too, without negative "
        "values; null if none is known",
    ),
    "run_parts.kind": "`started`, `extended` or `rerun`",
    "run_parts.created_at": "when the part was added (UTC)",
    "run_parts.scheduled": "the part's slots",
    "run_parts.committed": "how many of them are committed",
    "run_parts.digest": "the experiment's digest from this part on; null for a rerun",
    "run_parts.labledger_version": "version of labledger that added the part",
    "gradings.created_at": "when the grading was created (UTC)",
    "gradings.ended_at": "when it last ended or stopped (UTC); null while it runs",
    "gradings.generation": "number of the grading, from 1",
    "gradings.status": "`running`, `interrupted` or `completed`",
    "all_scores.generation": "number of the grading, from 1",
    "flaky_tasks.digest": "digest of everything that affects results, including the grader",
    "attempts.attempt": "number of the attempt, from 1",
    "attempts.duration_ms": "milliseconds from the attempt's start to its end",
    "trials.outcome": "the outcome that the agent reported",
    "all_trials.outcome": "the outcome that the agent reported",
    "reruns.slots": "how many slots were run again",
    "reruns.committed": "how many of them have their new result",
    "reruns.created_at": "when the rerun was begun (UTC)",
    "reruns.superseded": "how many of the slots that were run again had each status, as JSON",
    "reruns.despite_verdict": "1 if slots that counted in the pass rate could be chosen, too",
    "reruns.because": "the reason that was given; null if none was",
    "predictions.value": "the agent's answer",
    "metrics_long.value": "a number or text",
    "paired_outcomes.variant_id": "id of the treatment",
    "paired_outcomes.verdict": "the treatment's verdict; null if the slot is not scored",
    "paired_outcomes.schedule_idx": "schedule index of the treatment's slot",
    "win_loss_tie.variant_id": "id of the treatment",
    "win_loss_tie.wins": "pairs that are an `improvement`. Each pair of trials weighs the same, by "
    "its replication's number; `compare` weighs tasks alike, so that its difference can have the "
    "other sign",
    "flaky_tasks.runs": "runs with this digest that count for its pass rate",
    "same_experiment.digest": "digest of everything that affects results; that of every shard",
    "same_experiment.runs": "runs with this digest, this one included",
    "same_experiment.shard": "the shard that it ran, such as `2/5`; null if it ran all slots",
    "same_experiment.together": "the runs with this digest, as `compare` and `report` take them: "
    "`RUN1+RUN2`",
}


def meaning(view: str, column: str) -> str:
    """Return the meaning of a column in one line. Raises `KeyError` if it has none."""
    return _EXCEPTIONS.get(f"{view}.{column}") or _COMMON[column]


def documented_names() -> set[str]:
    """Return every name that has a meaning here: ``column`` or ``view.column``."""
    return {*_COMMON, *_EXCEPTIONS}
