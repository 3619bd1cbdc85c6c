"""What a report says in words, the same on the page and in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from labledger.compare.options import Estimand
from labledger.compare.sentences import SAME_TRIALS, left_out
from labledger.records import JsonObject
from labledger.report import figures
from labledger.report.figures import bounds, count, counted, level, points, took
from labledger.report.logs import Packed
from labledger.report.options import Logs

METRICS = (
    "Means are over the trials that reported a number, and so are the totals of what adds up, "
    "tokens and money. A trial that reported none is unknown, never 0."
)
VERDICTS = {
    "better": "Better",
    "worse": "Worse",
    "higher": "Higher",
    "lower": "Lower",
    "not_shown": "No difference shown",
    "nothing_paired": "Nothing to compare",
}


def title(report: JsonObject) -> str:
    run = report["run"]
    return str(run["name"] or run["experiment_id"])


def headline(variants: Sequence[JsonObject], comparisons: Sequence[JsonObject]) -> str:
    """What the run shows, in a sentence: what was decided, differences first, or the counts."""
    ones = [(one, d) for d in comparisons for one in d["comparisons"]]
    if not ones:
        return _listed(
            f"{one['variant_id']} passed {count(one['verdicts']['pass'])} of "
            f"{counted(one['verdicts']['pass'] + one['not_passed'], 'trial')}"
            for one in variants
        )
    undecided = ("not_shown", "nothing_paired")
    ranked = sorted(ones, key=lambda found: found[0]["decision"]["verdict"] in undecided)
    return _listed(_decided(one, document) for one, document in ranked)


def _decided(one: JsonObject, document: JsonObject) -> str:
    """A decision, in half a sentence."""
    a, b = labels(one)
    where = f"on {estimand(document)}"
    found, word = one["difference"], one["decision"]["verdict"]
    if found is None:
        return f"{b} could not be compared with {a}"
    if one["test"] is None:
        return f"whether {b} and {a} differ {where} cannot be said without replications"
    family = document["family"]
    together = f" for all {family} comparisons" if family > 1 else ""
    interval = f"{level(document['confidence'])}{together} {bounds(found, signed=True)}"
    size = f"{points(found)}, {interval}"
    if word == "not_shown":
        return f"no difference was shown between {a} and {b} {where} ({size})"
    if one.get("same_trials"):
        return f"of the same trials, the pass rate is {word} in {b} than in {a} {where} ({size})"
    return f"{b} is {word} than {a} {where} ({size})"


def estimand(document: JsonObject) -> str:
    """What a comparison is about, in words."""
    return Estimand(document["estimand"]).words


def _listed(clauses: Iterable[str]) -> str:
    text = "; ".join(clauses) + "."
    # A name keeps its letters; a clause of our own begins a sentence.
    ours = text.startswith(("no difference was shown", "of the same trials", "whether "))
    return text[0].upper() + text[1:] if ours else text


def unfinished(report: JsonObject) -> str | None:
    """That the run is not finished, where it is not."""
    run = report["run"]
    if run["status"] == "completed":
        return None
    left = run["scheduled"] - run["committed"]
    return (
        f"This run is not finished ({run['status']}): {count(run['committed'])} of "
        f"{counted(run['scheduled'], 'slot')} are committed, {count(left)} are not. Every number "
        "here is about the committed ones and may still change."
    )


def generation(report: JsonObject) -> str | None:
    """The grading that the numbers are from in few words, where there are several."""
    found = report["provenance"]["grading"]
    which = f"scores of grading {found['generation']} of {found['generations']}"
    return which if found["generations"] > 1 else None


def graded(report: JsonObject) -> str | None:
    """Which of a run's gradings the numbers are from, where there are several."""
    found = report["provenance"]["grading"]
    if found["generations"] == 1:
        return None
    word = "counts" if found["counts"] else "does not count"
    return (
        f"grading {found['generation']} of {found['generations']} of run {found['root_id']}, which "
        f"{word}; begun {found['created_at']}"
    )


def tampering(report: JsonObject) -> str | None:
    """That agents may have tampered with their grading, where scores say so."""
    suspected = sum(
        one["scores"]
        for one in report["provenance"]["isolation"]
        if isinstance(one["says"], dict) and one["says"].get("tampering_total")
    )
    if not suspected:
        return None
    return (
        f"Tampering is suspected in {counted(suspected, 'scored trial')}: what their scores say of "
        "it is under Provenance, in `ext.isolation`."
    )


def outcomes(report: JsonObject) -> str:
    run = report["run"]
    text = (
        f"Of {counted(run['scheduled'], 'slot')}, {count(run['committed'])} are committed and "
        f"{count(run['scored'])} of these have a score that counts. The pass rate is the share "
        "that passed of the trials that were judged or whose agent failed. Trials that failed for "
        "another reason (the environment, the setup command, or the grader of an agent that "
        "succeeded) are left out of it."
    )
    if any(one["pass_rate"] and one["pass_rate"]["low"] is not None for one in report["variants"]):
        text += (
            f" Intervals ({level(report['confidence'])}) are Wilson’s, and take into account which "
            "trials are of the same task."
        )
    return text


def tasks(report: JsonObject) -> str:
    return (
        f"{counted(len(report['tasks']), 'task')} by "
        f"{counted(len(report['variants']), 'variant')}. A task is as hard as the share of its "
        "trials that did not pass, over all variants."
    )


def no_hard(report: JsonObject) -> str:
    if any(variant["pass_rate"] for variant in report["variants"]):
        return "Every trial passed."
    return "No trial passed or failed, so no task can be called hard."


def no_flaky(report: JsonObject) -> str:
    cells = [cell for task in report["tasks"] for cell in task["cells"]]
    if all(cell["passed"] + cell["not_passed"] < 2 for cell in cells):
        return "No task has two replications that count with a variant: none can be called flaky."
    return "With no variant did a task pass in some replications and not in others."


def times(report: JsonObject) -> str:
    found = report["time"]
    spent = [variant["trial"]["sum"] for variant in found["variants"] if variant["trial"]]
    text = f"Trials took {took(sum(spent))} in all." if spent else "No trial was run."
    if found["wall_ms"] is not None:
        text += f" The run was created and finished within {took(found['wall_ms'])}."
    if spent:
        text += (
            " In the first chart, the line goes from the shortest trial to the longest, the bar is "
            "the middle half, and the mark the median."
        )
    return text


def logs(report: JsonObject, listed: int, packed: Packed, asked: Logs) -> str:
    """Which trials the page lists, and whose logs it holds."""
    held = counted(len(packed.islands), "trial")
    who = {
        Logs.NONE: "The file holds no logs",
        Logs.FAILED: f"The file holds logs and patches of {held} that did not pass",
        Logs.ALL: f"The file holds logs and patches of {held}",
    }[asked]
    text = f"{counted(report['run']['committed'], 'committed slot')}"
    if listed < report["run"]["committed"]:
        text += f", of which {count(listed)} fit into the list, errors and failures first"
    text += f". {who}; choose one to see it."
    if asked is Logs.NONE:
        text = text.replace("see it", "see what is known of it")
    if packed.left_out:
        text += (
            f" {counted(packed.left_out, 'trial')} more did not fit into it: `labledger show` "
            "prints them, and --max-size makes room."
        )
    return text


def verified(report: JsonObject) -> str:
    """What was verified of the run's rows, and what was found."""
    found = report["provenance"]["verification"]
    if found.get("extent") == "chain":
        return _chain_verified(report)
    looked = f"{counted(found['commits'], 'commit')} and {counted(found['artifacts'], 'artifact')}"
    if found["clean"]:
        return f"The ledger was verified: {looked} of this run are as they were committed."
    run_id = report["provenance"]["grading"]["run_id"]
    return (
        f"The ledger was changed after the run: {counted(found['findings'], 'finding')} in "
        f"{looked}. `labledger verify {run_id}` lists them."
    )


def _chain_verified(report: JsonObject) -> str:
    found = report["provenance"]["verification"]
    run_id = report["provenance"]["grading"]["run_id"]
    commits = counted(found["commits"], "commit")
    if found["clean"]:
        return (
            f"When this report was written, the chain of {commits} was whole: each follows from "
            "the one before it. The records behind it were not read again: "
            f"`labledger verify {run_id}` and `labledger report --verify` do that."
        )
    return (
        f"The ledger was changed after the run: {counted(found['findings'], 'finding')} in the "
        f"chain of {commits}. `labledger verify {run_id}` lists them, and looks at the records."
    )


# -- comparisons


def labels(one: JsonObject) -> tuple[str, str]:
    """What to call A and B of a `comparison_v1`: the variants of one run, else RUN:VARIANT."""
    a, b = one["a"], one["b"]
    if a["run_id"] == b["run_id"]:
        return a["variant_id"], b["variant_id"]
    return f"{a['run_id']}:{a['variant_id']}", f"{b['run_id']}:{b['variant_id']}"


def about_differences(documents: Sequence[JsonObject]) -> str:
    """What the comparisons are about, and how they are made."""
    about = {document["estimand"] for document in documents}
    sample = "In each task both sides weigh the same, and so do all tasks. "
    if about == {Estimand.SUITE.value}:
        sample += "They are about this suite: the sample is the replications of its tasks. "
    else:
        drawn = sorted(
            {f"clusters ({d['cluster']})" if d["cluster"] else "tasks" for d in documents}
        )
        sample += f"They are about tasks like these: the sample is the {' or '.join(drawn)}. "
    family = figures.family_of(documents)
    together = f", for all {family} comparisons together," if family > 1 else ""
    return (
        f"{sample}A difference is called shown where its interval{together} does not contain 0; "
        "its p value is then small enough, too. An agent that failed counts as not passed; trials "
        "that failed for another reason are left out."
    )


def variants_by_side(report: JsonObject) -> dict[str, JsonObject]:
    """The outcomes of the report's own run by RUN:VARIANT."""
    run_id = report["run"]["run_id"]
    return {f"{run_id}:{one['variant_id']}": one for one in report["variants"]}


def comparison_facts(one: JsonObject, variants: Mapping[str, JsonObject]) -> Iterator[str]:
    """What else is to be known of a comparison of pass rates.

    `variants` are the outcomes of the report's own run, by side: where a rate there is another
    than the one compared, it is said why.
    """
    a, b = labels(one)
    if one.get("same_trials"):
        yield f"Trials: {SAME_TRIALS}."
    yield from other_rates(one, variants)
    if one["counts"]:
        c = one["counts"]
        yield (
            f"Tasks passed: {count(c['both'])} by both, {count(c['only_a'])} only by {a}, "
            f"{count(c['only_b'])} only by {b}, {count(c['neither'])} by neither."
        )
    if one["left_out"]:
        told = (left_out(w["pairs"], w["side"], w["reason"], a, b) for w in one["left_out"])
        yield f"Left out: {', '.join(told)}."
    found = one["detectable"]
    if found and found["difference"] is not None:
        yield (
            f"The smallest difference that so many trials show with {found['power']:.0%} power: "
            f"about {100 * found['difference']:.1f} points{_supposed(found)}."
        )
    for other in one["sensitivity"]:
        if other["difference"] and other["difference"] != one["difference"]:
            yield (
                f"With --errors {other['errors']}: {points(other['difference'])} "
                f"({bounds(other['difference'], signed=True)})."
            )
    for warning in one["warnings"]:
        yield f"Warning: {warning}."


def _supposed(found: JsonObject) -> str:
    if found["discordant"] is None:
        return ", if replications scatter as here"
    seen = "" if found["assumed"] else " as here"
    return f", if {100 * found['discordant']:.1f}% of pairs differ{seen}"


def other_rates(one: JsonObject, variants: Mapping[str, JsonObject]) -> Iterator[str]:
    """That a rate under Outcomes is another, and why, where it is."""
    for letter, name in zip("ab", labels(one), strict=True):
        side = one[letter]
        found = variants.get(f"{side['run_id']}:{side['variant_id']}")
        if found is None or not (found["pass_rate"] and side["mean"]):
            continue
        here, there = f"{side['mean']['value']:.1%}", f"{found['pass_rate']['value']:.1%}"
        if here != there:
            yield (
                f"The pass rate of {name} is {here} here, over the {counted(one['tasks'], 'task')} "
                f"that both sides have, each weighing alike; it is {there} over all its trials, "
                "each weighing alike, as under Outcomes."
            )
