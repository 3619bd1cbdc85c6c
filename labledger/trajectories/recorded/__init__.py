"""What requests and answers say, in the words of the four APIs: each has one module.

In: bodies and streams that the gateway recorded, which an agent and a provider wrote. Out:
messages. Nothing here raises for what they hold.
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
