"""The APIs of model providers: the content of requests, the usage in answers, and errors.

In: bodies and streams as they pass. Out: `Asked`, `Usage` and the error form of a refusal. Nothing
here opens a connection or changes a byte. Each API has one module, with one `Family`.

Read first: `family`, `anthropic_messages`, `event_stream`.
"""

from __future__ import annotations

from collections.abc import Mapping

from labledger.gateway.families import (
    anthropic_messages,
    gemini,
    openai_chat,
    openai_responses,
)
from labledger.gateway.families.family import Family
from labledger.records.model_calls import Api

FAMILIES: Mapping[Api, Family] = {
    Api.ANTHROPIC_MESSAGES: anthropic_messages.FAMILY,
    Api.OPENAI_RESPONSES: openai_responses.FAMILY,
    Api.OPENAI_CHAT: openai_chat.FAMILY,
    Api.GEMINI: gemini.FAMILY,
}
