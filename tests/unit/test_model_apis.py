"""The requests of agents and the usage in answers, in each API, read from the forwarded bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from labledger.gateway.families import FAMILIES
from labledger.gateway.families.event_stream import EventReader, StreamEvent
from labledger.gateway.families.family import Asked, CallRefused, Feature
from labledger.gateway.families.requests.bodies import HIDDEN_TOKENS
from labledger.gateway.families.requests.media import ANTHROPIC_IMAGE_TOKENS, IMAGE_TOKENS
from labledger.gateway.scripted.agent_actions import Said, ScriptedCall
from labledger.gateway.scripted.scripted_answers import FORMS, Reply
from labledger.records.model_calls import Api, Usage

PATHS = {
    Api.ANTHROPIC_MESSAGES: "/v1/messages",
    Api.OPENAI_RESPONSES: "/v1/responses",
    Api.OPENAI_CHAT: "/v1/chat/completions",
    Api.GEMINI: "/v1beta/models/m-1:streamGenerateContent",
}
USAGES = {
    Api.ANTHROPIC_MESSAGES: Usage(1234, 56, 7, 8, 910),
    Api.OPENAI_RESPONSES: Usage(1234, 56, output=910, reasoning=11),
    Api.OPENAI_CHAT: Usage(1234, 56, output=910, reasoning=11),
    Api.GEMINI: Usage(1234, 56, output=910, reasoning=11),
}
SAID = Said(
    "Let me see what there is, \r\n\r\n data: {}, in it.", ScriptedCall("Bash", {"command": "ls"})
)


def ask(api: Api, body: dict[str, Any], path: str | None = None) -> Asked:
    """Return the reading of a body at the API's usual path, or another one."""
    family = FAMILIES[api]
    endpoint = family.endpoint(path or PATHS[api])
    assert endpoint is not None
    named = {} if api is Api.GEMINI else {"model": "m-1"}
    document = {**named, **body}
    return family.read_request(endpoint, document, len(json.dumps(document)))


def stream(api: Api) -> bytes:
    """Return a whole stream of the scripted provider."""
    return b"".join(FORMS[api].events(Reply("1", "m-1-served", SAID, USAGES[api])))


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    """Return the stream in pieces of one size."""
    return (data[start : start + size] for start in range(0, len(data), size))


def read(api: Api, *parts: bytes) -> Any:
    """Return a reader that has read a stream."""
    reader, events = FAMILIES[api].reader(), EventReader()
    for part in parts:
        for event in events.feed(part):
            reader.take_event(event)
    reader.ended = True
    return reader


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_the_usage_of_a_stream_is_read_in_whatever_pieces_it_comes(api: Api, size: int) -> None:
    """Usage and model of a stream are exact, however the network cuts it."""
    reader = read(api, *pieces(stream(api), size))
    assert reader.usage == USAGES[api]
    assert reader.model == "m-1-served"
    assert reader.whole
    assert not reader.failed


@pytest.mark.parametrize("api", Api)
def test_the_usage_of_a_whole_answer_is_read(api: Api) -> None:
    """Usage and model of an answer in one piece are exact."""
    reader = FAMILIES[api].reader()
    reader.take_whole(FORMS[api].whole(Reply("1", "m-1-served", SAID, USAGES[api])))
    assert (reader.usage, reader.model, reader.whole) == (USAGES[api], "m-1-served", True)


@pytest.mark.parametrize("api", Api)
def test_a_stream_that_is_cut_has_no_usage(api: Api) -> None:
    """A stream that is cut before its last event has unknown, not partial, usage."""
    events = list(FORMS[api].events(Reply("1", "m-1", SAID, USAGES[api])))
    # In two of them, usage comes before the very last event.
    with_usage = len(events) - (2 if api in {Api.ANTHROPIC_MESSAGES, Api.OPENAI_CHAT} else 1)
    for number in range(with_usage):
        torn = events[number][: len(events[number]) // 2]
        reader = read(api, *events[:number], torn)
        assert reader.usage is None
        assert not reader.finished
        assert api is Api.OPENAI_CHAT or not reader.whole


FINISHED: dict[Api, list[dict[str, Any]]] = {
    Api.ANTHROPIC_MESSAGES: [
        {"type": "message_start", "message": {"usage": {"input_tokens": 9}}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"output_tokens": 1},
        },
    ],
    Api.OPENAI_CHAT: [
        {
            "choices": [{"finish_reason": "stop"}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 1},
        }
    ],
    Api.GEMINI: [
        {
            "candidates": [{"finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 9, "candidatesTokenCount": 1},
        }
    ],
}


@pytest.mark.parametrize("api", FINISHED)
def test_a_usage_beside_the_reason_of_the_end_is_not_final(api: Api) -> None:
    """Usage beside the finish reason counts only if the transfer shows that no more follows."""
    reader = FAMILIES[api].reader()
    for document in FINISHED[api]:
        reader.take_event(StreamEvent("", json.dumps(document)))
    assert reader.usage is None
    assert reader.raw_usage
    reader.ended = reader.transferred = True
    assert reader.usage == Usage(9, output=1)


@pytest.mark.parametrize("api", Api)
def test_an_error_in_a_stream_is_no_answer(api: Api) -> None:
    """A stream that ends with the provider's error is incomplete and has no usage."""
    events = list(FORMS[api].events(Reply("1", "m-1", SAID, USAGES[api])))
    reader = read(api, *events[:2], FORMS[api].error_event("overloaded"))
    assert reader.failed
    assert not reader.whole
    assert reader.usage is None


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize("document", [None, [], "text", {}, {"usage": 3}, {"error": {"code": 5}}])
def test_an_answer_without_usage_has_none(api: Api, document: Any) -> None:
    """An answer without usage has unknown usage, never zero tokens."""
    reader = FAMILIES[api].reader()
    reader.take_whole(document)
    assert reader.usage is None


@pytest.mark.parametrize(
    ("api", "usage"),
    [
        (Api.ANTHROPIC_MESSAGES, {"input_tokens": -1, "output_tokens": 2}),
        (Api.ANTHROPIC_MESSAGES, {"input_tokens": 10**9 + 1, "output_tokens": 2}),
        (Api.ANTHROPIC_MESSAGES, {"output_tokens": 2}),
        (Api.OPENAI_RESPONSES, {"input_tokens": "3", "output_tokens": 2}),
        (
            Api.OPENAI_RESPONSES,
            {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 2},
        ),
        (Api.OPENAI_CHAT, {"prompt_tokens": True, "completion_tokens": 2}),
        (Api.GEMINI, {"promptTokenCount": 3, "cachedContentTokenCount": 4}),
    ],
)
def test_usage_that_cannot_be_is_unknown(api: Api, usage: dict[str, Any]) -> None:
    """Missing, negative or inconsistent counts are not believed."""
    whole = FORMS[api].whole(Reply("1", "m-1", SAID, USAGES[api]))
    whole["usageMetadata" if api is Api.GEMINI else "usage"] = usage
    reader = FAMILIES[api].reader()
    reader.take_whole(whole)
    assert reader.usage is None
    assert reader.raw_usage == usage


def test_cached_tokens_that_come_late_are_counted() -> None:
    """Cached tokens that some servers report only at the end of a stream count."""
    start = {"model": "m", "usage": {"input_tokens": 0, "output_tokens": 0}}
    end = {"input_tokens": 5, "cache_read_input_tokens": 40, "output_tokens": 6}
    events = [
        {"type": "message_start", "message": start},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": end},
        {"type": "message_stop"},
    ]
    data = "".join(f"event: {e['type']}\r\ndata: {json.dumps(e)}\r\n\r\n" for e in events)
    assert read(Api.ANTHROPIC_MESSAGES, data.encode()).usage == Usage(5, 40, output=6)


def test_reasoning_that_is_counted_beside_the_answer_is_output() -> None:
    """If the provider's total shows that its output excludes reasoning, it is added."""
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 22}
    usage["completion_tokens_details"] = {"reasoning_tokens": 7}  # type: ignore[assignment]
    reader = FAMILIES[Api.OPENAI_CHAT].reader()
    reader.take_whole({"choices": [], "usage": usage})
    assert reader.usage == Usage(10, output=12, reasoning=7)


def test_a_stream_of_gemini_without_events_is_an_array() -> None:
    """Without `alt=sse`, Google sends one array of chunks, and the last one has the usage."""
    reply = Reply("1", "m-1", SAID, USAGES[Api.GEMINI])
    first = {"candidates": [{"content": {}}], "usageMetadata": {"promptTokenCount": 1}}
    reader = FAMILIES[Api.GEMINI].reader()
    reader.take_whole([first, FORMS[Api.GEMINI].whole(reply)])
    assert reader.usage == USAGES[Api.GEMINI]


@pytest.mark.parametrize(
    ("api", "path"),
    [
        (Api.ANTHROPIC_MESSAGES, "/v1/messages/batches"),
        (Api.ANTHROPIC_MESSAGES, "/v1/files"),
        (Api.ANTHROPIC_MESSAGES, "/v1/messages/"),
        (Api.OPENAI_RESPONSES, "/v1/responses/resp_1"),
        (Api.OPENAI_RESPONSES, "/v1/chat/completions"),
        (Api.OPENAI_CHAT, "/v1/embeddings"),
        (Api.GEMINI, "/v1beta/models/a/../b:generateContent"),
        (Api.GEMINI, "/v1beta/models/a%2fb:generateContent"),
        (Api.GEMINI, "/v1beta/models/a:batchGenerateContent"),
        (Api.GEMINI, "/v1beta/cachedContents"),
        (Api.GEMINI, "/upload/v1beta/files"),
    ],
)
def test_other_endpoints_are_not_known(api: Api, path: str) -> None:
    """Only endpoints that ask a model or count tokens are known."""
    assert FAMILIES[api].endpoint(path) is None


def test_what_a_request_asks_for() -> None:
    """Model, streaming, the largest answer and the number of answers are read in each API."""
    anthropic = ask(Api.ANTHROPIC_MESSAGES, {"max_tokens": 100, "stream": True})
    assert (anthropic.model, anthropic.streamed, anthropic.max_output) == ("m-1", True, 100)
    responses = ask(Api.OPENAI_RESPONSES, {"max_output_tokens": 7})
    assert (responses.streamed, responses.max_output) == (False, 7)
    chat = ask(Api.OPENAI_CHAT, {"max_tokens": 5, "max_completion_tokens": 9, "n": 3})
    assert (chat.max_output, chat.answers) == (9, 3)
    config = {"max_output_tokens": 11, "candidateCount": 2}
    gemini = ask(Api.GEMINI, {"generation_config": config})
    assert (gemini.model, gemini.streamed) == ("m-1", True)
    assert (gemini.max_output, gemini.answers) == (11, 2)
    for api in Api:
        assert ask(api, {}).max_output is None
    counted = ask(Api.ANTHROPIC_MESSAGES, {}, "/v1/messages/count_tokens")
    assert counted.counts_tokens


F = Feature
REFUSED: list[tuple[Api, dict[str, Any], set[Feature]]] = [
    (Api.ANTHROPIC_MESSAGES, {"tools": [{"type": "web_search_20250305"}]}, {F.WEB_SEARCH}),
    (Api.ANTHROPIC_MESSAGES, {"tools": [{"type": "web_fetch_20250910"}]}, {F.URL_INPUTS}),
    (Api.ANTHROPIC_MESSAGES, {"tools": [{"type": "code_execution_20250825"}]}, {F.CODE_EXECUTION}),
    (Api.ANTHROPIC_MESSAGES, {"tools": [{"type": "new_thing_20290101"}]}, {F.OTHER_TOOLS}),
    (Api.ANTHROPIC_MESSAGES, {"tools": [{"type": {}}]}, {F.OTHER_TOOLS}),
    (Api.ANTHROPIC_MESSAGES, {"mcp_servers": [{"url": "https://x"}]}, {F.MCP}),
    (Api.ANTHROPIC_MESSAGES, {"container": "c"}, {F.CODE_EXECUTION}),
    (Api.ANTHROPIC_MESSAGES, {"service_tier": {}, "speed": []}, {F.SERVICE_TIERS}),
    (
        Api.ANTHROPIC_MESSAGES,
        {"messages": [{"content": [{"type": "image", "source": {"type": "url", "url": "u"}}]}]},
        {F.URL_INPUTS},
    ),
    (
        Api.ANTHROPIC_MESSAGES,
        {
            "messages": [
                {
                    "content": [
                        {
                            "type": "tool_result",
                            "content": [{"type": "document", "source": {"type": "file"}}],
                        }
                    ]
                }
            ]
        },
        {F.FILES},
    ),
    (Api.OPENAI_RESPONSES, {"tools": [{"type": "web_search"}]}, {F.WEB_SEARCH}),
    (Api.OPENAI_RESPONSES, {"tools": [{"type": "web_search_2025_08_26"}]}, {F.WEB_SEARCH}),
    (Api.OPENAI_RESPONSES, {"tools": [{"type": "code_interpreter"}]}, {F.CODE_EXECUTION}),
    (Api.OPENAI_RESPONSES, {"tools": [{"type": "file_search"}]}, {F.FILES}),
    (Api.OPENAI_RESPONSES, {"tools": [{"type": "mcp", "server_url": "u"}]}, {F.MCP}),
    (
        Api.OPENAI_RESPONSES,
        {"tools": [{"type": "namespace", "tools": [{"type": "mcp"}]}]},
        {F.MCP},
    ),
    (
        Api.OPENAI_RESPONSES,
        {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]},
        {F.CODE_EXECUTION},
    ),
    (Api.OPENAI_RESPONSES, {"previous_response_id": "resp_1"}, {F.STORED}),
    (Api.OPENAI_RESPONSES, {"conversation": "conv_1"}, {F.STORED}),
    (Api.OPENAI_RESPONSES, {"background": True}, {F.STORED}),
    (Api.OPENAI_RESPONSES, {"prompt": {"id": "p"}}, {F.STORED}),
    (Api.OPENAI_RESPONSES, {"input": [{"type": "item_reference", "id": "i"}]}, {F.STORED}),
    (Api.OPENAI_RESPONSES, {"service_tier": "priority"}, {F.SERVICE_TIERS}),
    (
        Api.OPENAI_RESPONSES,
        {"input": [{"content": [{"type": "input_image", "image_url": "https://x/y.png"}]}]},
        {F.URL_INPUTS},
    ),
    (
        Api.OPENAI_RESPONSES,
        {"input": [{"content": [{"type": "input_file", "file_id": "f"}]}]},
        {F.FILES},
    ),
    (Api.OPENAI_CHAT, {"web_search_options": {}}, {F.WEB_SEARCH}),
    (Api.OPENAI_CHAT, {"plugins": [{"id": "web"}]}, {F.WEB_SEARCH}),
    (Api.OPENAI_CHAT, {"tools": [{"type": "web_search"}]}, {F.WEB_SEARCH}),
    (Api.OPENAI_CHAT, {"tools": [{"type": "retrieval"}]}, {F.OTHER_TOOLS}),
    (
        Api.OPENAI_CHAT,
        {"messages": [{"content": [{"image_url": {"url": "https://x"}}]}]},
        {F.URL_INPUTS},
    ),
    (Api.OPENAI_CHAT, {"messages": [{"content": [{"file": {"file_id": "f"}}]}]}, {F.FILES}),
    (Api.GEMINI, {"tools": [{"googleSearch": {}}]}, {F.WEB_SEARCH}),
    (Api.GEMINI, {"tools": [{"google_search": {}}]}, {F.WEB_SEARCH}),
    (Api.GEMINI, {"tools": {"urlContext": {}}}, {F.URL_INPUTS}),
    (Api.GEMINI, {"tools": [{"code_execution": {}}]}, {F.CODE_EXECUTION}),
    (Api.GEMINI, {"cached_content": "c"}, {F.STORED}),
    (
        Api.GEMINI,
        {"contents": [{"parts": [{"file_data": {"file_uri": "https://x"}}]}]},
        {F.URL_INPUTS},
    ),
    (
        Api.GEMINI,
        {"contents": [{"parts": [{"functionResponse": {"parts": [{"fileData": {}}]}}]}]},
        {F.URL_INPUTS},
    ),
]


@pytest.mark.parametrize(("api", "body", "features"), REFUSED)
def test_what_must_be_granted_is_seen(
    api: Api, body: dict[str, Any], features: set[Feature]
) -> None:
    """Each way by which a provider does more than answer the request is a named feature."""
    assert ask(api, body).features == features


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (
            Api.ANTHROPIC_MESSAGES,
            {
                "tools": [{"name": "Bash"}, {"type": "custom"}, {"type": "bash_20250124"}],
                "service_tier": "auto",
                "messages": [
                    {"content": [{"type": "tool_use", "input": {"source": {"type": "url"}}}]},
                    {"content": [{"type": "image", "source": {"type": "base64", "data": ""}}]},
                ],
            },
        ),
        (
            Api.OPENAI_RESPONSES,
            {
                "tools": [{"type": "function"}, {"type": "custom"}, {"type": "shell"}],
                "store": False,
                "previous_response_id": None,
                "input": [{"content": [{"image_url": "data:image/png;base64,"}]}],
            },
        ),
        (
            Api.OPENAI_CHAT,
            {
                "tools": [{"type": "function"}],
                "web_search_options": None,
                "messages": [{"content": [{"image_url": {"url": "data:image/png;base64,"}}]}],
            },
        ),
        (
            Api.GEMINI,
            {
                "tools": [{"functionDeclarations": []}, {"function_declarations": []}],
                "contents": [{"parts": [{"functionCall": {"args": {"fileData": 1}}}]}],
            },
        ),
    ],
)
def test_what_agents_do_themselves_needs_no_grant(api: Api, body: dict[str, Any]) -> None:
    """Tools that the agent runs, and their arguments, need no grant."""
    assert ask(api, body).features == frozenset()


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (Api.ANTHROPIC_MESSAGES, {"Model": "other"}),
        (Api.OPENAI_CHAT, {"models": ["other"]}),
        (Api.OPENAI_RESPONSES, {"model": ["m-1"]}),
        (Api.OPENAI_RESPONSES, {"model": ""}),
        (Api.GEMINI, {"generationConfig": {"maxOutputTokens": 1, "max_output_tokens": 9}}),
        (Api.GEMINI, {"generationConfig": {}, "generation_config": {}}),
    ],
)
def test_a_request_that_could_be_read_in_two_ways_is_refused(
    api: Api, body: dict[str, Any]
) -> None:
    """A request with ambiguous members, which a provider could read differently, is refused."""
    with pytest.raises(CallRefused) as refused:
        ask(api, body)
    assert refused.value.status == 400


@pytest.mark.parametrize("api", Api)
def test_images_count_for_what_they_may_cost_and_other_bytes_as_tokens(api: Api) -> None:
    """The bound of a request has each byte of its text, and each image at its largest cost."""
    data = "A" * 3_000_000
    image = {
        Api.ANTHROPIC_MESSAGES: {
            "type": "image",
            "source": {"type": "base64", "media_type": "image/png"},
        },
        Api.OPENAI_RESPONSES: {"image_url": f"data:image/png;base64,{data}"},
        Api.OPENAI_CHAT: {"image_url": {"url": f"data:image/png;base64,{data}"}},
        Api.GEMINI: {"inline_data": {"mime_type": "image/png", "data": data}},
    }[api]
    if api is Api.ANTHROPIC_MESSAGES:
        image["source"]["data"] = data  # type: ignore[index]
    name = {Api.OPENAI_RESPONSES: "input", Api.GEMINI: "contents"}.get(api, "messages")
    holder = "parts" if api is Api.GEMINI else "content"
    asked = ask(api, {name: [{holder: [image, {"text": "x" * 1000}]}]})
    most = ANTHROPIC_IMAGE_TOKENS if api is Api.ANTHROPIC_MESSAGES else IMAGE_TOKENS
    assert most + 1000 < asked.request_tokens < most + 1400 + HIDDEN_TOKENS


@pytest.mark.parametrize("api", Api)
def test_a_refusal_has_the_form_of_the_api(api: Api) -> None:
    """An agent finds the message of a refusal in the place of its provider's messages."""
    document = FAMILIES[api].error(400, "the trial's cap is reached")
    assert document["error"]["message"] == "the trial's cap is reached"
    assert document == FORMS[api].error(400, "the trial's cap is reached")


def test_events_are_read_as_browsers_read_them() -> None:
    """Comments, unknown fields, CR and LF, several data lines and a torn end are read correctly."""
    data = b"\xef\xbb\xbf: hello\rdata: 1\rdata:2\r\r\nid: 7\r\nevent: e\r\ndata:  3\r\n\r\ndata: 4"
    for size in (1, 2, 3, len(data)):
        reader = EventReader()
        events = [e for piece in pieces(data, size) for e in reader.feed(piece)]
        assert [(e.name, e.data) for e in events] == [("", "1\n2"), ("e", " 3")]
