"""Sentences about a run: why it is slow, what it costs, which variant is ahead, what failed.

In each list, the first sentence is the answer, and the others add detail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from labledger import clock
from labledger.compare.comparison_document import Comparison, Conclusion
from labledger.compare.run_caveats import (
    grading_sentences,
    skipped_sentences,
    unread_sentences,
    untested_sentences,
)
from labledger.errors import LabLedgerError
from labledger.records import JsonObject
from labledger.records.outcomes import RunStatus, SlotStatus
from labledger.records.pass_rate import PassCounts
from labledger.text.control_phrases import OWNER_DIED, paused_sentence
from labledger.text.figures import clock_time, count, date_and_time, duration, exact, percent, usd
from labledger.text.words import counted, counted_of
from labledger.view.screens.run_facts import RunFacts

_COMPARED_AT_ONCE = 5_000
"""With more committed slots, a page does not wait for the comparison of the variants."""
_SLOWEST_MEANS = 3
"""A trial is called slow once it has run this many times as long as the average trial."""


def sentences(facts: RunFacts) -> JsonObject:
    """Return the sentences by question, and how many slots the decision in `ahead` covers."""
    decided = _decided(facts)
    return {
        "sentences": {
            "notices": list(notices(facts)),
            "pace": list(_pace(facts)),
            "cost": list(_cost(facts)),
            "ahead": _ahead(facts, decided),
            "failed": list(_failed(facts)),
        },
        "decided_as_of": decided.as_of,
    }


def interim(facts: RunFacts) -> str | None:
    """Return a warning that the figures of a run in progress are interim; None if complete."""
    run = facts.run
    if run.next_schedule_idx == run.total_slots:
        return None
    return (
        f"Interim: {counted_of(run.next_schedule_idx, run.total_slots, 'trial')} are saved. The "
        "interval of a rate is valid for a single look that was planned beforehand: do not stop "
        "the run because of what you see here."
    )


# -- what needs attention


def notices(facts: RunFacts) -> Iterator[str]:
    """Yield facts that need the user's attention."""
    run = facts.run
    if facts.is_lost:
        yield (
            f"Its coordinator has sent no heartbeat since {_last_sign(facts)}: {OWNER_DIED}. "
            f"`labledger resume {run.run_id}` continues the run. This page shows the results "
            "saved until then."
        )
    elif run.stop is not None:
        yield f"It stopped early: {run.stop.message}"
    for answers in facts.model_answers:
        yield from (f"{_capitalized(sentence)}." for sentence in answers.sentences)
    for sentence in (
        *skipped_sentences(run.run_id, run.coverage),
        *untested_sentences(run.resolved),
        *unread_sentences(run.run_id, facts.unread_results),
        *grading_sentences(run.run_id, facts.failed_gradings, facts.told_since),
    ):
        yield f"{sentence}."
    for latch, asked in facts.pauses.items():
        sentence = paused_sentence(str(latch), _moment(asked.applied_at), asked.source)
        yield f"{_capitalized(sentence)}."
    if facts.stopping is not None:
        is_one = facts.at_work == 1
        if facts.stopping.what.get("now"):
            end = "is killed" if is_one else "are killed"
        else:
            end = "still runs to its end" if is_one else "still run to their end"
        trials = f"{counted(facts.at_work, 'trial')} {end}"
        yield (
            f"It is stopping, as {facts.stopping.source} requested. No more trials start; {trials}."
        )
    elif facts.is_owned and facts.used_up:
        yield (
            "Its budget is spent: no more trials start, and the run ends after the running ones. "
            f"`labledger resume {run.run_id}` with a larger budget continues it."
        )
    waiting = [request for request in facts.requests if request.waits]
    until = "" if facts.is_owned else f" `labledger resume {run.run_id}` applies it."
    for asked in waiting:
        yield f"Requested by {asked.source}, and not applied yet: {asked.phrase}.{until}"
    request = run.takeover_request
    if request is not None and request.expires_at > clock.utc_now():
        yield (
            f"Process {request.owner.pid} on {request.owner.machine} requested on "
            f"{_moment(request.requested_at)} to take it over."
        )
    for host in run.lost_hosts:
        yield f"Host {host.host} was declared lost on {_moment(host.declared_at)}: {host.because}"


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _last_sign(facts: RunFacts) -> str:
    run = facts.run
    return _moment(
        run.updated_at if run.lease is None else max(run.updated_at, run.lease.renewed_at)
    )


def _moment(time: str | None) -> str:
    """Return a time of the ledger for a sentence; an empty text is no time."""
    return date_and_time(time) if time else ""


# -- why it is as slow as it is


def _pace(facts: RunFacts) -> Iterator[str]:
    run = facts.run
    if run.status is RunStatus.COMPLETED:
        yield "The run is complete."
    elif not facts.is_owned:
        yield "No process runs it."
        if begun := len(facts.begun):
            have = "was started and has" if begun == 1 else "were started and have"
            yield (
                f"{counted(begun, 'trial')} {have} no result yet: `labledger resume {run.run_id}` "
                "collects them, and runs the rest."
            )
    else:
        if facts.pauses:
            paused = ", ".join(map(str, facts.pauses))
            yield f"Paused by request: {paused}. No more trials of that start."
        # If nothing runs, the first sentence says which trial everything waits for.
        running, head = [_running(facts)], list(_head_of_line(facts))
        yield from running + head if facts.at_work else head + running
    recent = facts.reader.recent_trials(run.run_id)
    if recent.trials:
        phases = (
            ("setup", recent.setup_ms),
            ("agent", recent.agent_ms),
            ("grader", recent.grader_ms),
        )
        parts = ", ".join(f"{name} {duration(ms)}" for name, ms in phases if ms)
        of = f" ({parts})" if parts else ""
        trials = counted(recent.trials, "trial")
        yield f"The last {trials} took {duration(recent.duration_ms)} on average{of}."
    if recent.retried:
        yield f"{counted(recent.retried, 'trial')} of them needed more than one attempt."
    if waited := sum(use.waited_s for use in facts.model_usage):
        yield f"Calls to models waited {clock_time(waited)} in total for limits of providers."


def _running(facts: RunFacts) -> str:
    running, limit = facts.at_work, facts.max_concurrency
    prepared = len(facts.running) - running
    trials = f"{counted(running, 'trial')} {'runs' if running == 1 else 'run'}"
    at_most = "" if limit is None else f", of at most {count(limit)} at once"
    if prepared:
        at_most += f", and {count(prepared)} more {'is' if prepared == 1 else 'are'} prepared"
    rate = facts.rate_per_h
    pace = "" if rate is None else f"; recently {rate:,.0f} trials an hour finished"
    return f"{trials}{at_most}{pace}."


def _head_of_line(facts: RunFacts) -> Iterator[str]:
    """Yield which trial keeps finished results waiting, or runs for unusually long."""
    next_idx = facts.run.next_schedule_idx
    first = next(iter(facts.open_slots), None)
    waiting = f"{counted(facts.staged, 'result')} {'waits' if facts.staged == 1 else 'wait'} for"
    if first is None or first.schedule_idx != next_idx or not facts.has_begun(first):
        if facts.staged:
            slot = facts.reader.slot(facts.run_id, next_idx)
            why = "is paused" if facts.controls.pauses_slot(slot) else "has not started"
            yield f"{waiting} trial {next_idx} ({slot.variant_id}, {slot.task_id}), which {why}."
        return
    if not first.is_running:
        return
    for_s = facts.phase_s(first)
    running = f"trial {first.schedule_idx} ({first.variant_id}, {first.task_id})"
    if facts.staged:
        yield f"{waiting} {running}, which has run for {clock_time(for_s)}."
        return
    mean_ms = facts.reader.recent_trials(facts.run_id).duration_ms
    if mean_ms and for_s > _SLOWEST_MEANS * mean_ms / 1000:
        yield f"{_capitalized(running)} has run for {clock_time(for_s)}."


# -- what it costs


def _cost(facts: RunFacts) -> Iterator[str]:
    spent, budget, run = facts.spent, facts.run.budget, facts.run
    if run.regrades is not None:
        yield "A regrading spends nothing on agents."
        return
    dollars = spent["cost_usd"]
    amount = dollars.amount
    limit = budget.get("cost_usd")
    of = "" if limit is None else f" of a budget of {usd(limit)}"
    unknown = f"; the cost of {counted(dollars.unknown, 'attempt')} is unknown"
    if amount is None:
        nothing = "Nothing has been spent yet" if not dollars.unknown else "Its cost is unknown"
        yield f"{nothing}{of}."
    else:
        yield f"{usd(amount)}{of} has been spent{unknown if dollars.unknown else ''}."
        finished = run.next_schedule_idx + facts.staged
        if finished and facts.left and not dollars.unknown:
            whole = usd(amount + amount / finished * facts.left)
            yield f"At this rate the whole run costs about {whole}."
    tokens = spent["tokens"]
    if tokens.amount is not None:
        token_limit = budget.get("tokens")
        of = "" if token_limit is None else f" of {exact(token_limit)}"
        yield f"{exact(tokens.amount)}{of} tokens have been used."


# -- which variant is ahead, and how sure that is


def _ahead(facts: RunFacts, decided: _Decided) -> list[str]:
    """Return who is ahead, and the decisions of `labledger compare`.

    The decisions about a run that can still grow are valid at every look.
    """
    rates = [(counts.variant_id, counts.passes) for counts in facts.counts]
    if len(facts.run.variants) < 2:
        return [f"{name} passed {_passed(passes)}." for name, passes in rates]
    of_earlier = []
    if decided.as_of is not None and decided.as_of < facts.run.next_schedule_idx:
        of_earlier = [f"This was decided after {counted(decided.as_of, 'trial')}."]
    names = (variant.variant_id for variant in facts.run.variants)
    weighted = dict(zip(names, facts.task_weighted_rates, strict=True))
    return [_standing(facts, weighted, decided), *decided.texts, *of_earlier]


@dataclass(frozen=True)
class _Decided:
    """The result of comparing the variants with the baseline."""

    verdicts: Mapping[str, Conclusion]
    """The conclusion for each treatment."""
    texts: tuple[str, ...]
    as_of: int | None
    """How many slots were committed when it was made; None if there is none yet."""
    has_chosen_results: bool = False
    """Whether slots of a variant were run again despite their results."""


_NOT_YET = _Decided(
    {}, ("So many trials take some seconds to compare: the decision follows.",), None
)


def _decided(facts: RunFacts) -> _Decided:
    """Return the newest decision, which may leave out the newest slots."""
    if len(facts.run.variants) < 2:
        return _Decided({}, (), facts.run.next_schedule_idx)
    if facts.run.next_schedule_idx <= _COMPARED_AT_ONCE:
        return facts.kept("ahead", lambda: _decide(facts))
    return facts.kept_soon("ahead", lambda: _decide(facts)) or _NOT_YET


def _decide(facts: RunFacts) -> _Decided:
    as_of = facts.run.next_schedule_idx
    try:
        comparison = facts.source.ledger.compare(facts.grading_name)
    except LabLedgerError as error:
        hint = () if error.hint is None else (f"{error.hint}.",)
        return _Decided({}, (f"The variants cannot be compared: {error.message}.", *hint), as_of)
    return _Decided(
        {pair.b.variant_id: pair.decision.verdict for pair in comparison.comparisons},
        tuple(_decisions(comparison)),
        as_of,
        any(pair.chosen_by_verdict for pair in comparison.comparisons),
    )


def _decisions(comparison: Comparison) -> Iterator[str]:
    """Yield each distinct decision once. If there are several treatments, name them."""
    by_text: dict[str, list[str]] = {}
    for pair in comparison.comparisons:
        by_text.setdefault(pair.decision.text, []).append(pair.b.variant_id)
    for text, names in by_text.items():
        is_one_of = len(comparison.comparisons) > 1
        yield f"{', '.join(names)}: {text}" if is_one_of else text


def _standing(facts: RunFacts, rates: Mapping[str, float | None], decided: _Decided) -> str:
    """Return which variant has the highest rate, all rates, and whether a difference is shown.

    `rates` weigh each task equally, as the comparison does.
    """
    counted_rates = [(rate, name) for name, rate in rates.items() if rate is not None]
    if not counted_rates:
        return "Nothing is known yet: no saved trial counts in a pass rate."
    ordered = sorted(counted_rates, key=lambda pair: -pair[0])
    best, leader = ordered[0]
    listed = ", ".join(f"{name} {percent(rate)}" for rate, name in ordered)
    numbers = {counts.passes.counted for counts in facts.counts}
    trial_rates = {counts.variant_id: counts.passes.rate for counts in facts.counts}
    if any(percent(rate) != percent(trial_rates.get(name)) for name, rate in rates.items()):
        listed += " (each task weighs equally)"
    leaders = [name for rate, name in ordered if rate == best]
    is_over = facts.run.status is RunStatus.COMPLETED
    so_far = "" if is_over else " so far"
    if uncounted := [name for name, rate in rates.items() if rate is None]:
        return f"{listed}; no trial of {', '.join(uncounted)} counts in a pass rate yet."
    if decided.has_chosen_results:
        return f"{listed}: no variant is called ahead, because results were chosen."
    if len(leaders) > 1:
        return f"No variant is ahead{so_far}: {listed}."
    treatments = [variant for variant in facts.run.variants if variant.role == "treatment"]
    if leader in decided.verdicts:
        is_shown = decided.verdicts[leader] is Conclusion.BETTER
        over = "the baseline"
    else:
        is_shown = bool(treatments) and all(
            decided.verdicts.get(variant.variant_id) is Conclusion.WORSE for variant in treatments
        )
        over = treatments[0].variant_id if len(treatments) == 1 else "each treatment"
    sure = (
        f"it is shown to be better than {over}"
        if is_shown
        else f"it is not {'' if is_over else 'yet '}shown to be better than {over}"
    )
    unlike = "" if is_over or len(numbers) == 1 else ". They have not finished the same tasks yet"
    return f"{leader} is ahead{so_far}: {listed}; {sure}{unlike}."


def _passed(passes: PassCounts) -> str:
    return f"{counted_of(passes.passed, passes.counted, 'trial')} ({percent(passes.rate)})"


# -- what failed


def _failed(facts: RunFacts) -> Iterator[str]:
    last, failures = facts.last_failed, facts.failures
    if last is None:
        nothing = "No trial is saved yet." if not facts.run.next_schedule_idx else None
        yield nothing or "No saved trial failed."
    else:
        has_completed = last.status == SlotStatus.COMPLETED
        how = f"verdict {last.verdict}" if has_completed else last.reason or last.status
        yield f"Trial {last.schedule_idx}: {last.variant_id} on {last.task_id}, {how}."
    if not failures:
        return
    total = sum(failure.count for failure in failures)
    yield f"{counted_of(total, facts.run.next_schedule_idx, 'trial')} did not end normally."
    for failure in failures[:3]:
        reason = "" if failure.reason is None else f" ({failure.reason})"
        yield (
            f"{count(failure.count)} ended as {failure.status}{reason}, most recently trial "
            f"{failure.last_slot}."
        )
