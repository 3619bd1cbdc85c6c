"""Read the messages in recorded requests and answers of the four APIs. Each has one module.

In: recorded bodies and streams, which an agent and a provider wrote. Out: messages. No content
raises an error here.

Read first: `message`, `anthropic_messages`, `openai_chat`.
"""

from __future__ import annotations

from collections.abc import Mapping

from labledger.records.model_calls import Api
from labledger.trajectories.recorded import (
    anthropic_messages,
    gemini,
    openai_chat,
    openai_responses,
)
from labledger.trajectories.recorded.message import ApiReader

READERS: Mapping[Api, ApiReader] = {
    Api.ANTHROPIC_MESSAGES: anthropic_messages.READER,
    Api.OPENAI_RESPONSES: openai_responses.READER,
    Api.OPENAI_CHAT: openai_chat.READER,
    Api.GEMINI: gemini.READER,
}
