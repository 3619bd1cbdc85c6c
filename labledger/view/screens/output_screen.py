"""The output of a trial: live while it runs, stored once it has been collected."""

from __future__ import annotations

import os
import platform

from labledger.errors import LabLedgerError, LedgerError
from labledger.ledger.reader import LedgerReader
from labledger.records import JsonObject
from labledger.records.attempt_result import digest_of
from labledger.view.ledgers import DocumentSource
from labledger.view.live_outputs import CHUNK, LiveAttempt
from labledger.view.parameters import Parameters

PARAMETERS = ("phase", "stream", "from", "of")
STREAMS = ("stdout", "stderr")


def document(source: DocumentSource, parameters: Parameters) -> JsonObject:
    """Return a part of one output of a slot: live while its trial runs, stored afterwards.

    `of` names the source of the text: an attempt, or the stored output. If the source has changed
    since the page's last request, `from` starts again at 0.
    """
    run_id = source.reader.graded(parameters.run_id).run.run_id
    idx = parameters.schedule_idx
    phase = parameters.choice("phase", ("agent", "setup", "grader"))
    stream = parameters.choice("stream", STREAMS)
    source.reader.slot(run_id, idx)
    stored = stored_references(source.reader, run_id, idx)
    head = {"phase": phase, "stream": stream}
    if stored is not None:
        start = parameters.number("from", 0) if parameters.text("of") in (None, "stored") else 0
        return head | _stored(source.reader, stored.get(f"{phase}_{stream}"), start)
    dispatch = source.reader.last_dispatches(run_id, idx).get(idx)
    if dispatch is None:
        return head | _part("", "nothing", 0, 0, is_ended=False)
    attempt = LiveAttempt(run_id, idx, dispatch.attempt, source.lab.run_folder(run_id))
    of = f"attempt {dispatch.attempt}"
    start = parameters.number("from", 0) if parameters.text("of") in (None, of) else 0
    if attempt.phase is None:
        withheld = (
            "the trial has not started yet"
            if dispatch.host == platform.node()
            else f"the trial's folder is on {dispatch.host}, not on this machine"
        )
        return head | _part("", of, start, start, is_ended=False, withheld=withheld)
    try:
        content, begin, _ = source.live.read(source.reader, attempt, f"{phase}.{stream}", start)
    except LabLedgerError as error:
        return head | _part("", of, start, start, is_ended=False, withheld=error.message)
    content = whole_characters(content)
    end = begin + len(content)
    skipped = begin - start
    return head | _part(_text(content), of, begin, end, is_ended=False, skipped=skipped)


def stored_references(reader: LedgerReader, run_id: str, idx: int) -> dict[str, str] | None:
    """Return the artifact references of the last attempt's evidence; None before collection."""
    records = next(reader.slot_records(run_id, idx, idx + 1), None)
    if records is not None:
        evidence = records.objects("evidence")
    else:
        staged = reader.staged(run_id).get(idx)
        if staged is None or not staged.final:
            return None
        result = reader.staged_result(run_id, idx)
        evidence = list(result.evidence) if result is not None else []
    return dict(evidence[-1]["evidence"]) if evidence else {}


def _stored(reader: LedgerReader, reference: str | None, start: int) -> JsonObject:
    if reference is None:
        return _part("", "stored", 0, 0, is_ended=True)
    try:
        with reader.open_artifact(digest_of(reference)) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(min(start, size))
            content = file.read(CHUNK)
    except LedgerError as error:
        # The artifact is missing, for example because the run was imported without artifacts.
        return _part("", "stored", 0, 0, is_ended=True, withheld=error.message)
    start = min(start, size)
    if start + len(content) < size:
        content = whole_characters(content)
    end = start + len(content)
    return _part(_text(content), "stored", start, end, is_ended=end >= size) | {"size": size}


def _part(
    text: str,
    of: str,
    start: int,
    end: int,
    *,
    is_ended: bool,
    withheld: str | None = None,
    skipped: int = 0,
) -> JsonObject:
    return {
        "text": text,
        "of": of,
        "live": of != "stored",
        "from": start,
        "next": end,
        "ended": is_ended,
        "skipped": skipped,
        "withheld": withheld,
    }


def whole_characters(content: bytes) -> bytes:
    """Return content without an incomplete UTF-8 character at its end."""
    for length in range(1, min(4, len(content)) + 1):
        byte = content[-length]
        if byte < 0x80:
            break
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return content[:-length] if needed > length else content
    return content


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
