"""Interpret a provider's refusal: its reason for the journal, the provider's sentence, its kind.

The HTTP status alone does not distinguish a wrong request from a wrong account. So tables look
first at the provider's error codes, then at sentences, and last at the status. An agent can provoke
any of these answers, so `fault_finding` also compares a probe.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from labledger.records.model_calls import CallState, ModelCall
from labledger.text.escaping import plain_text

MAX_DETAIL = 300
"""The most characters of a provider's sentence that are kept."""
_MAX_READ = 64 << 10
"""The most bytes of a refusal that are examined."""
_MAX_WORDS = 50


class Trouble(StrEnum):
    """The kind of a failure."""

    ACCOUNT = "account"
    """The provider refused the key, the account, the region or the model."""
    ADDRESS = "address"
    """The address serves no requests of this API, or refuses all of them."""
    LIMIT = "limit"
    """A limit was met, or the provider was overloaded."""
    OUTAGE = "outage"
    """The provider failed, or did not send a whole answer."""
    UNREACHABLE = "unreachable"
    """No connection was possible, so the provider got no part of the request."""


KEY, CREDIT, QUOTA = "key_refused", "credit_exhausted", "quota_exhausted"
REGION, MODEL, ADDRESS = "region_refused", "model_unknown", "address_unknown"
_ACCOUNT = frozenset({KEY, CREDIT, QUOTA, REGION, MODEL})
_TROUBLES = {
    **dict.fromkeys(_ACCOUNT, Trouble.ACCOUNT),
    **dict.fromkeys((ADDRESS, "redirected"), Trouble.ADDRESS),
    **dict.fromkeys(("rate_limited", "overloaded", "held_back"), Trouble.LIMIT),
    **dict.fromkeys(("provider_error", "no_answer", "not_an_answer"), Trouble.OUTAGE),
    **dict.fromkeys(("provider_cut", "error_in_answer"), Trouble.OUTAGE),
    "unreachable": Trouble.UNREACHABLE,
}
_BY_STATUS = {
    401: KEY,
    402: CREDIT,
    403: KEY,
    404: ADDRESS,
    405: ADDRESS,
    408: "provider_error",
    410: ADDRESS,
    429: "rate_limited",
    503: "overloaded",
    529: "overloaded",
}
_CLEAR_STATUSES = frozenset({401, 402})
"""Statuses that always mean a refused account. A firewall answers 403, too."""
_CODES = {
    # Anthropic
    "authentication_error": KEY,
    "permission_error": KEY,
    "billing_error": CREDIT,
    # OpenAI, and the servers that speak its APIs
    "invalid_api_key": KEY,
    "incorrect_api_key": KEY,
    "account_deactivated": KEY,
    "organization_deactivated": KEY,
    "invalid_organization": KEY,
    "mismatched_organization": KEY,
    "access_terminated": KEY,
    "insufficient_quota": QUOTA,
    "billing_hard_limit_reached": QUOTA,
    "billing_not_active": CREDIT,
    "exceeded_current_quota_error": QUOTA,
    "insufficient_balance": CREDIT,
    "insufficient_credits": CREDIT,
    "arrearage": CREDIT,
    "budget_exceeded": QUOTA,
    "unsupported_country_region_territory": REGION,
    "model_not_found": MODEL,
    "deploymentnotfound": MODEL,
    # Google
    "api_key_invalid": KEY,
    "api_key_expired": KEY,
    "api_key_service_blocked": KEY,
    "api_key_ip_address_blocked": KEY,
    "api_key_http_referrer_blocked": KEY,
    "consumer_suspended": KEY,
    "service_disabled": KEY,
    "permission_denied": KEY,
    "unauthenticated": KEY,
    "billing_disabled": CREDIT,
}
"""Reasons by an error's code, type, status or reason, in lower case."""
_SENTENCES = tuple(
    (re.compile(pattern, re.IGNORECASE), reason)
    for pattern, reason in (
        (r"credit balance is too low|insufficient (balance|credits?|funds)", CREDIT),
        (r"doesn't have any credits|account (is )?in arrears", CREDIT),
        (r"location is not supported|(country|region)[^.]{0,60} not supported", REGION),
        (r"(incorrect|invalid) api key|api key (not valid|expired|not found)", KEY),
        (r"organization has been (disabled|deactivated)|account .{0,20}suspended", KEY),
        (r"\bmodels?\b.{0,250}(does not exist|not found|not exist)", MODEL),
        (r"^model: |not a valid model|no endpoints found for|invalid model\b", MODEL),
    )
)
_DAILY = re.compile(r"free-models-per-day", re.IGNORECASE)
_PER_DAY = "perday"
"""Google names the quota that was met, such as `GenerateRequestsPerDayPerProjectPerModel`."""


@dataclass(frozen=True, slots=True)
class ProviderRefusal:
    """The content of an answer with an error."""

    reason: str | None
    """The reason for the journal; None if the error may concern only the request."""
    detail: str | None
    """The provider's sentence, bounded and printable; None if there is none."""
    trouble: Trouble | None
    """Its kind, if a probe can meet the same error."""

    @property
    def is_final(self) -> bool:
        """Whether the same request would fail again later."""
        return self.reason in _ACCOUNT


def read_refusal(status: int, body: bytes) -> ProviderRefusal:
    """Return the content of an error, which came with an error status or as an answer."""
    document = _document(body)
    detail = _sentence(document, body)
    by_code = next((_CODES[word] for word in _words(document) if word in _CODES), None)
    known = by_code or _by_sentence(status, document, detail or "")
    if known is not None:
        return ProviderRefusal(known, detail, Trouble.ACCOUNT)
    reason = _BY_STATUS.get(status, "provider_error" if status >= 500 else None)
    trouble = None if reason is None else _TROUBLES[reason]
    if trouble is Trouble.ACCOUNT and status not in _CLEAR_STATUSES:
        trouble = Trouble.ADDRESS
    return ProviderRefusal(reason, detail, trouble)


def trouble_of(call: ModelCall) -> Trouble | None:
    """Return the kind of failure of a call that has ended; None if it did not fail.

    Also returns None for a failure that the agent caused, or that may concern only its request.
    """
    failed = call.state in {CallState.FAILED, CallState.CUT} or (
        call.state is CallState.ANSWERED and (call.status or 0) >= 400
    )
    return _TROUBLES.get(call.reason or "") if failed else None


def sentence_in(data: str) -> str | None:
    """Return the provider's sentence in an error event of a stream."""
    return _sentence(_document(data.encode("utf-8", "replace")), b"")


def _by_sentence(status: int, document: Any, detail: str) -> str | None:
    if status == 429:
        # Temporary errors have nearly the same words.
        is_daily = _DAILY.search(detail) or any(_PER_DAY in quota for quota in _quotas(document))
        return QUOTA if is_daily else None
    if status >= 500:
        return None
    return next((reason for pattern, reason in _SENTENCES if pattern.search(detail)), None)


def _document(body: bytes) -> Any:
    try:
        document = json.loads(body[:_MAX_READ])
    except (ValueError, RecursionError):
        return None
    if isinstance(document, list) and document:
        # Google streams errors in an array.
        return document[0]
    return document


def _words(document: Any) -> Iterator[str]:
    """Yield the codes and types that an error names, in lower case."""
    for place in _error_objects(document):
        for name in ("code", "type", "status", "reason"):
            if isinstance(word := place.get(name), str):
                yield word.lower()


def _error_objects(document: Any) -> Iterator[dict[str, Any]]:
    """Yield the objects in which providers describe an error, the innermost first."""
    if not isinstance(document, dict):
        return
    error = document.get("error")
    if isinstance(error, dict):
        details = error.get("details")
        for detail in details[:_MAX_WORDS] if isinstance(details, list) else ():
            if isinstance(detail, dict):
                yield detail
        yield error
    yield document


def _quotas(document: Any) -> Iterator[str]:
    """Yield the quotas that Google reports as met, in lower case."""
    for place in _error_objects(document):
        violations = place.get("violations")
        for violation in violations[:_MAX_WORDS] if isinstance(violations, list) else ():
            if isinstance(violation, dict):
                yield str(violation.get("quotaId")).lower()


def _sentence(document: Any, body: bytes) -> str | None:
    for place in _error_objects(document):
        for name in ("message", "error", "detail", "error_msg", "msg"):
            if isinstance(text := place.get(name), str) and text.strip():
                return _bounded(text)
    if document is not None:
        return None
    text = body[:_MAX_READ].decode("utf-8", "replace")
    title = re.search(r"<title[^>]{0,200}>([^<]{1,1000})", text, re.IGNORECASE)
    if title is None and text.lstrip().startswith(("<", "{", "[")):
        return None
    return _bounded(text if title is None else title[1])


def _bounded(text: str) -> str | None:
    """Return one line of printable text; None if nothing remains.

    A long text is cut after a whole word, because redaction cannot recognize a part of a secret.
    """
    line = " ".join(plain_text(text[: 4 * MAX_DETAIL + 1]).split())
    is_cut = len(line) > MAX_DETAIL or len(text) > 4 * MAX_DETAIL
    return (line[:MAX_DETAIL].rpartition(" ")[0] if is_cut else line) or None
