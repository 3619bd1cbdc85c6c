"""One tiny request to a provider, by which a person sees that its address, key and model work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import aiohttp

from labledger.gateway.families import FAMILIES
from labledger.gateway.keys import masked
from labledger.gateway.upstream import proxy_of
from labledger.records.model_calls import Api
from labledger.records.model_grants import ProviderConfig

_LIMIT_S = 60.0
_SHOWN = 300
_TURN = [{"role": "user", "content": "Hi"}]


@dataclass(frozen=True, slots=True)
class TinyAnswer:
    """What a provider answered."""

    provider: str
    model: str
    status: int | None
    """None if there was no answer."""
    detail: str
    """The provider's error, or why there was no answer; empty if it answered well."""


def ask_each(
    models: Iterable[tuple[ProviderConfig, str | None, str]],
) -> tuple[TinyAnswer, ...]:
    """Ask each model, of a provider with a key, for a word or two. Raises nothing."""
    return asyncio.run(_ask_each(tuple(models)))


async def _ask_each(
    models: tuple[tuple[ProviderConfig, str | None, str], ...],
) -> tuple[TinyAnswer, ...]:
    timeout = aiohttp.ClientTimeout(total=_LIMIT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        return tuple(await asyncio.gather(*(_ask(session, *each) for each in models)))


async def _ask(
    session: aiohttp.ClientSession, provider: ProviderConfig, key: str | None, model: str
) -> TinyAnswer:
    api = provider.apis[0]
    path, body = _request(api, model)
    headers = {"Content-Type": "application/json", "anthropic-version": "2023-06-01"}
    if key is not None:
        headers |= FAMILIES[api].key_headers(key, provider.auth_header)
    try:
        async with session.post(
            provider.upstream + path,
            data=json.dumps(body),
            headers=headers,
            proxy=proxy_of(provider.upstream),
            allow_redirects=False,
        ) as response:
            text = (await response.content.read(1 << 16)).decode("utf-8", "replace")
            status = response.status
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        return TinyAnswer(provider.name, model, None, type(error).__name__)
    return TinyAnswer(provider.name, model, status, _problem(status, masked(text, key)))


def _problem(status: int, text: str) -> str:
    if status == 200:
        return ""
    try:
        error = json.loads(text)["error"]
        return str(error["message"])[:_SHOWN]
    except (ValueError, KeyError, TypeError):
        return text[:_SHOWN]


def _request(api: Api, model: str) -> tuple[str, Any]:
    """Return path and body of a request for a few tokens."""
    if api is Api.ANTHROPIC_MESSAGES:
        return "/v1/messages", {"model": model, "max_tokens": 1, "messages": _TURN}
    if api is Api.OPENAI_RESPONSES:
        return "/v1/responses", {"model": model, "max_output_tokens": 16, "input": _TURN}
    if api is Api.OPENAI_CHAT:
        body = {"model": model, "max_completion_tokens": 16, "messages": _TURN}
        return "/v1/chat/completions", body
    contents = [{"role": "user", "parts": [{"text": "Hi"}]}]
    limits = {"maxOutputTokens": 1}
    path = f"/v1beta/models/{model}:generateContent"
    return path, {"contents": contents, "generationConfig": limits}
