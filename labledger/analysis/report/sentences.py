"""What a report says in words, the same on the page and in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from labledger.analysis.comparison import SAME_TRIALS
from labledger.analysis.report.figures import bounds, count, counted, level, points, took
from labledger.analysis.report.logs import Packed
from labledger.analysis.report.options import Logs
from labledger.records import JsonObject

METRICS = (
    "Totals and means are over the trials that reported a number. A trial that reported none is "
    "unknown, never 0."
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
    ones = [(one, d["confidence"]) for d in comparisons for one in d["comparisons"]]
    if not ones:
        return _listed(
            f"{one['variant_id']} passed {count(one['verdicts']['pass'])} of "
            f"{counted(one['scored'], 'scored trial')}"
            for one in variants
        )
    undecided = ("not_shown", "nothing_paired")
    ranked = sorted(ones, key=lambda found: found[0]["decision"]["verdict"] in undecided)
    return _listed(_decided(one, confidence) for one, confidence in ranked)


def _decided(one: JsonObject, confidence: float) -> str:
    """A decision, in half a sentence."""
    a, b = labels(one)
    found, word = one["difference"], one["decision"]["verdict"]
    if found is None:
        return f"{b} could not be compared with {a}"
    size = f"{points(found)}, {level(confidence)} {bounds(found, signed=True)}"
    if word == "not_shown":
        return f"no difference was shown between {a} and {b} ({size})"
    if one.get("same_trials"):
        return f"of the same trials, the pass rate is {word} in {b} than in {a} ({size})"
    return f"{b} is {word} than {a} ({size})"


def _listed(clauses: Iterable[str]) -> str:
    text = "; ".join(clauses) + "."
    # A name keeps its letters; a clause of our own begins a sentence.
    ours = text.startswith(("no difference was shown", "of the same trials"))
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
        f"{count(run['scored'])} of these have a score that counts. A pass rate is passes over "
        "scored trials: what has no score is in no rate."
    )
    if any(one["pass_rate"] and one["pass_rate"]["low"] is not None for one in report["variants"]):
        text += (
            f" Intervals ({level(report['confidence'])}) are Wilson’s, and know which trials are "
            "of the same task."
        )
    return text


def tasks(report: JsonObject) -> str:
    return (
        f"{counted(len(report['tasks']), 'task')} by "
        f"{counted(len(report['variants']), 'variant')}. A task is as hard as the share of its "
        "scored trials that did not pass, over all variants."
    )


def no_hard(report: JsonObject) -> str:
    if any(variant["scored"] for variant in report["variants"]):
        return "Every scored trial passed."
    return "No trial has a score, so none can be called hard."


def no_flaky(report: JsonObject) -> str:
    if all(cell["scored"] < 2 for task in report["tasks"] for cell in task["cells"]):
        return "No task has two scored replications with a variant, so none can be called flaky."
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
    text = f"{counted(len(report['trials']), 'committed slot')}"
    if listed < len(report["trials"]):
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
    found = report["provenance"]["verification"]
    looked = f"{counted(found['commits'], 'commit')} and {counted(found['artifacts'], 'artifact')}"
    if found["clean"]:
        return f"The ledger was verified: {looked} of this run are as they were committed."
    run_id = report["provenance"]["grading"]["run_id"]
    return (
        f"The ledger was changed after the run: {counted(found['findings'], 'finding')} in "
        f"{looked}. `labledger verify {run_id}` lists them."
    )


# -- comparisons


def labels(one: JsonObject) -> tuple[str, str]:
    """What to call A and B of a `comparison_v1`: as short as tells them apart."""
    a, b = one["a"], one["b"]
    if a["run_id"] == b["run_id"]:
        return a["variant_id"], b["variant_id"]
    if a["variant_id"] == b["variant_id"]:
        return a["run_id"], b["run_id"]
    return f"{a['run_id']}:{a['variant_id']}", f"{b['run_id']}:{b['variant_id']}"


def comparison_facts(one: JsonObject) -> Iterator[str]:
    """What else is to be known of a comparison of pass rates."""
    a, b = labels(one)
    if one.get("same_trials"):
        yield f"Trials: {SAME_TRIALS}."
    if one["counts"]:
        c = one["counts"]
        yield (
            f"Pairs passed: {count(c['both'])} by both, {count(c['only_a'])} only by {a}, "
            f"{count(c['only_b'])} only by {b}, {count(c['neither'])} by neither."
        )
    if one["left_out"]:
        sides: Mapping[str, str] = {"a": a, "b": b, "both": "both"}
        reasons = ", ".join(
            f"{counted(left['pairs'], 'pair')} ({sides[left['side']]}: {left['reason']})"
            for left in one["left_out"]
        )
        yield f"Left out: {reasons}."
    found = one["detectable"]
    if found and found["difference"] is not None:
        yield (
            f"The smallest difference that so many tasks show with {found['power']:.0%} power: "
            f"about {100 * found['difference']:.1f} points."
        )
    for other in one["sensitivity"]:
        if other["difference"] and other["difference"] != one["difference"]:
            yield (
                f"With --errors {other['errors']}: {points(other['difference'])} "
                f"({bounds(other['difference'], signed=True)})."
            )
    for warning in one["warnings"]:
        yield f"Warning: {warning}."
