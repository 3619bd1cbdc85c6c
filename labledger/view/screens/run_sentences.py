"""What a page says of a run in sentences: why it is slow, what it costs, who is ahead, what failed.

Of each list, the first sentence is the answer, and further ones say more.
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
from labledger.text import (
    clock_time,
    count,
    counted,
    counted_of,
    date_and_time,
    duration,
    exact,
    percent,
    usd,
)
from labledger.view.screens.run_facts import RunFacts

_COMPARED_AT_ONCE = 5_000
"""With more committed slots, a page does not wait for the comparison of the variants."""
_SLOWEST_MEANS = 3
"""A trial that runs so many times as long as the average is named."""


def sentences(facts: RunFacts) -> JsonObject:
    """Return `sentences` by what they answer, and of how many slots the decision in `ahead` is."""
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
    """Return that the figures are those of a run that is not complete; None for a complete one."""
    run = facts.run
    if run.next_schedule_idx == run.total_slots:
        return None
    return (
        f"Interim: {counted_of(run.next_schedule_idx, run.total_slots, 'slot')} are committed. The "
        "interval of a rate holds for one look at it, chosen beforehand: do not stop the run "
        "because of what you see here."
    )


# -- what needs attention


def notices(facts: RunFacts) -> Iterator[str]:
    """Yield what somebody should do something about."""
    run = facts.run
    if facts.is_lost:
        yield (
            f"No coordinator runs it since {_last_sign(facts)}: it was killed, or its machine "
            f"failed. `labledger resume {run.run_id}` continues the run; what is shown is what "
            "was committed until then."
        )
    elif run.stop is not None:
        yield f"It stopped before its end: {run.stop.message}"
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
        since = _moment(asked.applied_at)
        yield f"{_capitalized(str(latch))} is paused since {since}, by {asked.source}."
    if facts.stopping is not None:
        is_one = facts.at_work == 1
        if facts.stopping.what.get("now"):
            end = "is killed" if is_one else "are killed"
        else:
            end = "runs on to its end" if is_one else "run on to their end"
        trials = f"{counted(facts.at_work, 'trial')} {end}"
        yield f"It is stopping, as {facts.stopping.source} asked. Nothing more starts; {trials}."
    elif facts.is_owned and facts.used_up:
        yield (
            "Its budget is spent: nothing more starts, and it ends once what runs has ended. "
            f"`labledger resume {run.run_id}` with a larger budget goes on."
        )
    waiting = [each for each in facts.requests if each.waits]
    until = "" if facts.is_owned else f" `labledger resume {run.run_id}` applies it."
    for asked in waiting:
        yield f"Asked by {asked.source}, and not applied yet: {asked.phrase}.{until}"
    request = run.takeover_request
    if request is not None and request.expires_at > clock.utc_now():
        yield (
            f"Process {request.owner.pid} on {request.owner.machine} wants to take it over since "
            f"{_moment(request.requested_at)}."
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
        yield "Nobody runs it."
        if begun := len(facts.begun):
            yield (
                f"{counted(begun, 'trial')} of it {'has' if begun == 1 else 'have'} no result yet: "
                f"`labledger resume {run.run_id}` collects what ended, and runs the rest."
            )
    else:
        if facts.pauses:
            paused = ", ".join(map(str, facts.pauses))
            yield f"Somebody paused it: {paused}. Nothing more of that starts."
        # What everything waits for comes first where nothing runs.
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
        yield f"Calls to models waited {clock_time(waited)} in all for limits of providers."


def _running(facts: RunFacts) -> str:
    running, limit = facts.at_work, facts.max_concurrency
    prepared = len(facts.running) - running
    trials = f"{counted(running, 'trial')} {'runs' if running == 1 else 'run'}"
    at_most = "" if limit is None else f", of at most {count(limit)} at once"
    if prepared:
        at_most += f", and {count(prepared)} more {'is' if prepared == 1 else 'are'} prepared"
    rate = facts.rate_per_h
    pace = "" if rate is None else f"; {rate:,.0f} slots an hour were finished of late"
    return f"{trials}{at_most}{pace}."


def _head_of_line(facts: RunFacts) -> Iterator[str]:
    """Yield which slot holds the commits up, and whether it runs for unusually long."""
    next_idx = facts.run.next_schedule_idx
    first = next(iter(facts.open_slots), None)
    results = counted(facts.staged, "result")
    waiting = f"{results} {'waits' if facts.staged == 1 else 'wait'} for"
    if first is None or first.schedule_idx != next_idx or not facts.has_begun(first):
        if facts.staged:
            slot = facts.reader.slot(facts.run_id, next_idx)
            why = "is paused" if facts.controls.pauses_slot(slot) else "has not begun"
            yield f"{waiting} slot {next_idx} ({slot.variant_id}, {slot.task_id}), which {why}."
        return
    if not first.is_running:
        return
    for_s = facts.phase_s(first)
    running = f"slot {first.schedule_idx} ({first.variant_id}, {first.task_id})"
    if facts.staged:
        yield f"{waiting} {running}, which runs for {clock_time(for_s)} already."
        return
    mean_ms = facts.reader.recent_trials(facts.run_id).duration_ms
    if mean_ms and for_s > _SLOWEST_MEANS * mean_ms / 1000:
        yield f"{_capitalized(running)} runs for {clock_time(for_s)} already."


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
    unknown = f"; what {counted(dollars.unknown, 'attempt')} cost is unknown"
    if amount is None:
        nothing = "Nothing was spent yet" if not dollars.unknown else "What it cost is unknown"
        yield f"{nothing}{of}."
    else:
        yield f"{usd(amount)}{of} was spent{unknown if dollars.unknown else ''}."
        finished = run.next_schedule_idx + facts.staged
        if finished and facts.left and not dollars.unknown:
            whole = usd(amount + amount / finished * facts.left)
            yield f"At this rate the whole run costs about {whole}."
    tokens = spent["tokens"]
    if tokens.amount is not None:
        token_limit = budget.get("tokens")
        of = "" if token_limit is None else f" of {exact(token_limit)}"
        yield f"{exact(tokens.amount)}{of} tokens were used."


# -- which variant is ahead, and how sure that is


def _ahead(facts: RunFacts, decided: _Decided) -> list[str]:
    """Return who is ahead, and the decisions of `labledger compare`.

    The decisions about a run that can grow hold at every look at it.
    """
    rates = [(counts.variant_id, counts.passes) for counts in facts.counts]
    if len(facts.run.variants) < 2:
        return [f"{name} passed {_passed(passes)}." for name, passes in rates]
    of_earlier = []
    if decided.as_of is not None and decided.as_of < facts.run.next_schedule_idx:
        of_earlier = [f"That was decided after {counted(decided.as_of, 'slot')}."]
    names = (variant.variant_id for variant in facts.run.variants)
    weighted = dict(zip(names, facts.task_weighted_rates, strict=True))
    return [_standing(facts, weighted, decided), *decided.texts, *of_earlier]


@dataclass(frozen=True)
class _Decided:
    """What a comparison of the variants with the baseline shows, and says."""

    verdicts: Mapping[str, Conclusion]
    """Of each treatment."""
    texts: tuple[str, ...]
    as_of: int | None
    """After how many committed slots it was made; None before it is."""
    has_chosen_results: bool = False
    """Whether slots of a variant were run again despite their results."""


_NOT_YET = _Decided(
    {}, ("So many slots take some seconds to compare: the decision follows.",), None
)


def _decided(facts: RunFacts) -> _Decided:
    """Return the newest decision, which may be that of some slots earlier."""
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
        {each.b.variant_id: each.decision.verdict for each in comparison.comparisons},
        tuple(_decisions(comparison)),
        as_of,
        any(each.chosen_by_verdict for each in comparison.comparisons),
    )


def _decisions(comparison: Comparison) -> Iterator[str]:
    """Yield each decision once, with the treatments that it is about if there are several."""
    by_text: dict[str, list[str]] = {}
    for each in comparison.comparisons:
        by_text.setdefault(each.decision.text, []).append(each.b.variant_id)
    for text, names in by_text.items():
        is_one_of = len(comparison.comparisons) > 1
        yield f"{', '.join(names)}: {text}" if is_one_of else text


def _standing(facts: RunFacts, rates: Mapping[str, float | None], decided: _Decided) -> str:
    """Return which variant has the highest rate, all rates, and whether a difference is shown.

    Each task weighs the same in `rates`, as in the comparison that decides.
    """
    counted_rates = [(rate, name) for name, rate in rates.items() if rate is not None]
    if not counted_rates:
        return "Nothing is known yet: no committed slot counts in a pass rate."
    ordered = sorted(counted_rates, key=lambda pair: -pair[0])
    best, leader = ordered[0]
    listed = ", ".join(f"{name} {percent(rate)}" for rate, name in ordered)
    numbers = {counts.passes.counted for counts in facts.counts}
    trial_rates = {counts.variant_id: counts.passes.rate for counts in facts.counts}
    if any(percent(rate) != percent(trial_rates.get(name)) for name, rate in rates.items()):
        listed += " (each task weighs the same)"
    leaders = [name for rate, name in ordered if rate == best]
    is_over = facts.run.status is RunStatus.COMPLETED
    so_far = "" if is_over else " so far"
    if uncounted := [name for name, rate in rates.items() if rate is None]:
        return f"{listed}; no slot of {', '.join(uncounted)} counts in a pass rate yet."
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
            decided.verdicts.get(each.variant_id) is Conclusion.WORSE for each in treatments
        )
        over = treatments[0].variant_id if len(treatments) == 1 else "each treatment"
    sure = (
        f"that it is better than {over} is shown"
        if is_shown
        else f"that it is better than {over} is not shown{'' if is_over else ' yet'}"
    )
    unlike = "" if is_over or len(numbers) == 1 else ". They have not ended the same tasks yet"
    return f"{leader} is ahead{so_far}: {listed}; {sure}{unlike}."


def _passed(passes: PassCounts) -> str:
    return f"{counted_of(passes.passed, passes.counted, 'trial')} ({percent(passes.rate)})"


# -- what failed


def _failed(facts: RunFacts) -> Iterator[str]:
    last, failures = facts.last_failed, facts.failures
    if last is None:
        nothing = "No slot is committed yet." if not facts.run.next_schedule_idx else None
        yield nothing or "No committed slot failed."
    else:
        has_completed = last.status == SlotStatus.COMPLETED
        how = f"verdict {last.verdict}" if has_completed else last.reason or last.status
        yield f"Slot {last.schedule_idx}: {last.variant_id} on {last.task_id}, {how}."
    if not failures:
        return
    total = sum(failure.count for failure in failures)
    yield f"{counted_of(total, facts.run.next_schedule_idx, 'slot')} did not end normally."
    for failure in failures[:3]:
        reason = "" if failure.reason is None else f" ({failure.reason})"
        yield (
            f"{count(failure.count)} ended as {failure.status}{reason}, the last of them slot "
            f"{failure.last_slot}."
        )
