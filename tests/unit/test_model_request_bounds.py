"""Upper bounds of requests to models: counts, images, files, and odd spellings."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any

import pytest

from labledger.gateway.families import FAMILIES
from labledger.gateway.families.family import Asked, CallRefused, Feature
from labledger.gateway.families.requests.bodies import HIDDEN_TOKENS
from labledger.gateway.families.requests.image_headers import image_size
from labledger.gateway.families.requests.media import IMAGE_TOKENS, STORED_ITEM_TOKENS, WINDOW
from labledger.records.model_calls import Api

PATHS = {
    Api.ANTHROPIC_MESSAGES: "/v1/messages",
    Api.OPENAI_RESPONSES: "/v1/responses",
    Api.OPENAI_CHAT: "/v1/chat/completions",
    Api.GEMINI: "/v1beta/models/m-1:generateContent",
}
OWN_LIMIT = {
    Api.ANTHROPIC_MESSAGES: "max_tokens",
    Api.OPENAI_RESPONSES: "max_output_tokens",
    Api.OPENAI_CHAT: "max_completion_tokens",
    Api.GEMINI: "maxOutputTokens",
}


def ask(api: Api, body: dict[str, Any]) -> Asked:
    """Return the reading of a body."""
    family = FAMILIES[api]
    endpoint = family.endpoint(PATHS[api])
    assert endpoint is not None
    document = body if api is Api.GEMINI else {"model": "m-1", **body}
    return family.read_request(endpoint, document, len(json.dumps(document)))


def limited(api: Api, **members: Any) -> Asked:
    """Return the reading of a body with limits at the API's place."""
    return ask(api, {"generationConfig": members} if api is Api.GEMINI else members)


NOT_COUNTS: list[Any] = [
    *("100000", "", "1e5", 100_000.0, 1e5, 0.5, True, False, -1, -100_000, 10**9 + 1, 2**62),
    *([], [5], {}, {"value": 5}),
]
COUNTS = [
    *("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens"),
    *("max_new_tokens", "n_predict", "min_tokens", "n", "best_of", "candidateCount"),
    *("candidate_count", "num_completions", "num_beams", "N", "Max_Tokens", "thinking_budget"),
]


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize("value", NOT_COUNTS, ids=repr)
def test_a_count_that_is_no_whole_number_is_refused(api: Api, value: Any) -> None:
    """A count that servers may read differently is refused, whatever smaller one is beside it."""
    for name in COUNTS:
        beside = {} if name.casefold() in {"max_tokens", "maxoutputtokens"} else {"max_tokens": 10}
        if api is Api.GEMINI and (name, value) == ("thinking_budget", -1):
            continue  # The model may then choose, within the other limit.
        with pytest.raises(CallRefused) as refused:
            limited(api, **{**beside, name: value})
        assert (refused.value.status, refused.value.reason) == (400, "not_understood")


@pytest.mark.parametrize("holder", ["thinking", "reasoning", "options", "parameters"])
def test_counts_in_nested_members_are_read(holder: str) -> None:
    """A thinking budget, or a limit that other servers read, counts if it is larger."""
    nested = {"budget_tokens": 70_000}
    for api in (Api.ANTHROPIC_MESSAGES, Api.OPENAI_RESPONSES, Api.OPENAI_CHAT):
        assert ask(api, {OWN_LIMIT[api]: 10, holder: nested}).max_output == 70_000
        with pytest.raises(CallRefused):
            ask(api, {OWN_LIMIT[api]: 10, holder: {"budget_tokens": "70000"}})
        unstated = ask(api, {holder: {"max_tokens": 10}})
        assert (unstated.max_output, unstated.least_output) == (None, 10)
    thinking = {"maxOutputTokens": 10, "thinkingConfig": {"thinking_budget": 9_000}}
    assert limited(Api.GEMINI, **thinking).max_output == 9_000


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize("value", [0, None])
def test_a_limit_of_nothing_is_none(api: Api, value: Any) -> None:
    """Null and 0 mean no limit, because some servers ignore 0 and answer at any length."""
    assert limited(api, **{OWN_LIMIT[api]: value}).max_output is None
    with pytest.raises(CallRefused):
        limited(api, n=0)


def test_the_largest_limit_and_the_most_answers_count() -> None:
    """If a request has several limits, servers differ in which one they read."""
    chat = Api.OPENAI_CHAT
    assert ask(chat, {"max_completion_tokens": 9, "max_tokens": 5}).max_output == 9
    assert ask(chat, {"max_completion_tokens": 0, "max_tokens": 5}).max_output is None
    assert ask(chat, {"max_tokens": 5, "min_tokens": 800}).max_output == 800
    assert ask(chat, {"n": 2, "best_of": 7, "use_beam_search": True}).answers == 7
    assert ask(chat, {"max_tokens": 5, "MAX_NEW_TOKENS": 600}).max_output == 600
    assert ask(Api.OPENAI_RESPONSES, {"max_tokens": 5}).max_output is None
    assert limited(Api.GEMINI, max_output_tokens=3, candidateCount=8).answers == 8
    with pytest.raises(CallRefused):
        ask(chat, {"n": 10**6, "max_tokens": 10**6})


def test_what_is_charged_as_output_beside_the_answer_counts() -> None:
    """Unused predicted text is charged, and some servers limit thoughts separately."""
    prediction = {"type": "content", "content": "x" * 5_000}
    asked = ask(Api.OPENAI_CHAT, {"max_tokens": 5, "prediction": prediction})
    assert asked.extra_output > 5_000
    thinks = ask(Api.OPENAI_CHAT, {"max_tokens": 5, "enable_thinking": True})
    assert thinks.max_output is None


def test_a_request_that_may_be_read_twice_counts_twice() -> None:
    """For compaction, the provider reads the conversation a second time."""
    body = {"max_tokens": 10, "messages": [{"role": "user", "content": "x" * 9_000}]}
    once = ask(Api.ANTHROPIC_MESSAGES, body)
    edits = {"context_management": {"edits": [{"type": "compact_20260112"}]}}
    twice = ask(Api.ANTHROPIC_MESSAGES, {**body, **edits})
    assert twice.request_tokens > 2 * once.request_tokens
    assert twice.answers == 2
    cleared = {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}
    assert ask(Api.ANTHROPIC_MESSAGES, {**body, **cleared}).answers == 1
    trigger = {"input": [{"type": "compaction_trigger"}], "max_output_tokens": 5}
    assert ask(Api.OPENAI_RESPONSES, trigger).answers == 2


def png(width: int, height: int) -> bytes:
    """Return an image of one color, with few bytes for many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes((width + 7) // 8 + 1) * height, 9)
    parts = chunk(b"IHDR", head), chunk(b"IDAT", rows), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def jpeg(width: int, height: int, *, before: bytes = b"") -> bytes:
    """Return the beginning of a photograph."""
    frame = b"\xff\xc2\x00\x11\x08" + struct.pack(">HH", height, width) + b"\x03" + bytes(9)
    return b"\xff\xd8\xff\xe0\x00\x10JFIF\x00" + bytes(9) + before + frame + b"\xff\xda"


def gif(screen: tuple[int, int], picture: tuple[int, int]) -> bytes:
    """Return the beginning of a picture with a comment before it."""
    head = b"GIF89a" + struct.pack("<HH", *screen) + b"\x80\x00\x00" + bytes(6)
    return (
        head + b"\x21\xfe\x05hello\x00" + b"\x2c" + struct.pack("<HHHH", 0, 0, *picture) + b"\x00"
    )


def webp(kind: bytes, rest: bytes) -> bytes:
    """Return the beginning of a WebP file."""
    return b"RIFF" + bytes(4) + b"WEBP" + kind + bytes(4) + rest + bytes(20)


def size24(number: int) -> bytes:
    return struct.pack("<I", number - 1)[:3]


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (png(1000, 20), (1000, 20)),
        (jpeg(640, 480), (640, 480)),
        (jpeg(640, 480, before=b"\xff\xff\xe1\x10\x02" + bytes(4096)), (640, 480)),
        (gif((10, 20), (10, 20)), (10, 20)),
        (gif((1, 1), (5000, 4000)), (5000, 4000)),
        (webp(b"VP8X", bytes(4) + size24(700) + size24(300)), (700, 300)),
        (webp(b"VP8L", b"\x2f" + struct.pack("<I", 699 | 299 << 14)), (700, 300)),
        (webp(b"VP8 ", bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", 700, 300)), (700, 300)),
        # Two headers; readers may believe either one.
        (png(5, 5)[:33] + png(900, 3)[8:], (900, 5)),
        (jpeg(10, 10)[:-2] + jpeg(3, 800)[20:], (10, 800)),
        # Images without a size, or with more than one.
        (png(5, 5)[:33], None),
        (png(5, 5)[:33] + png(0, 3)[8:], None),
        (webp(b"VP8X", b"\x02" + bytes(3) + size24(700) + size24(300)), None),
        (jpeg(640, 0), None),
        (jpeg(640, 480)[:20], None),
        (png(0, 5), None),
        (png(5, 5)[:20], None),
        (b"\x89PNG\r\n\x1a\n" + bytes(4) + b"tEXt" + bytes(20), None),
        (b"\xff\xd8\xff\xda" + jpeg(10, 10), None),
        (b"\xff\xd8\xff\xe0\x00\x00" * 9000, None),
        (b"GIF89a", None),
        (gif((1, 1), (1, 1))[:20], None),
        (b"", None),
        (b"BM" + bytes(60), None),
    ],
)
def test_the_size_of_an_image_is_read_from_its_header(
    data: bytes, size: tuple[int, int] | None
) -> None:
    """A size counts only if every reader sees it."""
    assert image_size(data) == size


def with_image(api: Api, encoded: str) -> dict[str, Any]:
    """Return a body with an image."""
    url = f"data:image/png;base64,{encoded}"
    source = {"type": "base64", "media_type": "image/png", "data": encoded}
    part: dict[str, Any] = {
        Api.ANTHROPIC_MESSAGES: {"type": "image", "source": source},
        Api.OPENAI_RESPONSES: {"type": "input_image", "image_url": url, "detail": "low"},
        Api.OPENAI_CHAT: {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
        Api.GEMINI: {"inlineData": {"mimeType": "image/png", "data": encoded}},
    }[api]
    name = {Api.OPENAI_RESPONSES: "input", Api.GEMINI: "contents"}.get(api, "messages")
    content = {"parts" if api is Api.GEMINI else "content": [part]}
    return {name: [{"role": "user", **content}]}


CHARGED = {
    # The documented counts for the dearest model of each API.
    Api.ANTHROPIC_MESSAGES: {(4000, 4000): 21_334, (16, 16): 1, (1568, 1568): 3_279},
    Api.OPENAI_RESPONSES: {(2048, 4096): 36_835, (16, 16): 8_500, (9000, 3000): 48_169},
    Api.OPENAI_CHAT: {(2048, 4096): 36_835, (1024, 1024): 25_501, (16, 16): 8_500},
    Api.GEMINI: {(3072, 3072): 16 * 258, (16, 16): 2_240, (960, 540): 6 * 258},
}


@pytest.mark.parametrize("api", Api)
def test_an_image_counts_by_its_pixels(api: Api) -> None:
    """An image of few bytes and many pixels counts as the dearest model would charge it."""
    for (width, height), charged in CHARGED[api].items():
        encoded = base64.b64encode(png(width, height)).decode()
        asked = ask(api, with_image(api, encoded))
        without = ask(api, with_image(api, ""))
        assert asked.request_tokens >= charged + 50
        assert asked.request_tokens < 2 * charged + HIDDEN_TOKENS + 2_500
        assert without.text_bytes <= asked.text_bytes + 22


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize(
    "encoded",
    [
        "AAAA",
        "iVBO*Rw0KGgo" * 9,
        "ivborw0kggo=" * 9,
        base64.b64encode(b"RIFF" + bytes(60)).decode(),
        base64.urlsafe_b64encode(b"\xff\xd8\xff\xff\xfb\xff\xfe" * 9).decode(),
        "\n".join(base64.b64encode(png(3, 3)).decode()),
    ],
)
def test_an_image_without_a_size_counts_for_the_largest(api: Api, encoded: str) -> None:
    """An image without a certain size counts as the largest that the API accepts."""
    assert ask(api, with_image(api, encoded)).request_tokens > IMAGE_TOKENS


PDF = base64.b64encode(b"%PDF-1.7\n" + b"x" * 300).decode()
SOURCE = {"type": "base64", "media_type": "application/pdf", "data": PDF}
FILES: list[tuple[Api, dict[str, Any], bool]] = [
    (Api.ANTHROPIC_MESSAGES, {"type": "document", "source": SOURCE}, False),
    (Api.ANTHROPIC_MESSAGES, {"type": "image", "source": SOURCE}, False),
    (Api.OPENAI_RESPONSES, {"type": "input_file", "file_data": PDF}, False),
    (Api.OPENAI_RESPONSES, {"type": "input_audio", "input_audio": {"data": PDF}}, True),
    (Api.OPENAI_CHAT, {"type": "file", "file": {"file_data": PDF}}, False),
    (Api.OPENAI_CHAT, {"type": "input_audio", "input_audio": {"data": PDF}}, True),
    (Api.OPENAI_CHAT, {"type": "video_url", "video_url": {"url": "data:v;base64," + PDF}}, True),
    (Api.GEMINI, {"inlineData": {"mimeType": "application/pdf", "data": PDF}}, False),
    (Api.GEMINI, {"inline_data": {"mime_type": "AUDIO/wav", "data": PDF}}, True),
    (Api.GEMINI, {"inline_data": {"mime_type": "video/mp4", "data": PDF}}, True),
]


def test_images_that_a_server_takes_by_their_name_count_too() -> None:
    """Some servers find images and films in members that others do not know."""
    encoded = base64.b64encode(png(4000, 4000)).decode()
    for message in (
        {"images": [encoded]},
        {"content": [{"type": "image", "image": encoded}]},
        {"content": [{"type": "video", "video": [encoded, encoded]}]},
    ):
        asked = ask(Api.OPENAI_CHAT, {"messages": [{"role": "user", **message}]})
        assert asked.request_tokens > 25_000


@pytest.mark.parametrize(("api", "part", "is_sound"), FILES)
def test_a_file_counts_for_a_context_window(
    api: Api, part: dict[str, Any], *, is_sound: bool
) -> None:
    """Pages and seconds are not in a header, so a file counts as a whole context window."""
    name = {Api.OPENAI_RESPONSES: "input", Api.GEMINI: "contents"}.get(api, "messages")
    content = {"parts" if api is Api.GEMINI else "content": [part]}
    asked = ask(api, {name: [{"role": "user", **content}]})
    assert asked.request_tokens > WINDOW
    assert asked.has_file
    assert asked.other_prices == is_sound


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (Api.OPENAI_RESPONSES, {"previous_response_id": "r"}),
        (Api.OPENAI_RESPONSES, {"input": [{"content": [{"file_id": "f"}]}]}),
        (Api.OPENAI_CHAT, {"messages": [{"content": [{"image_url": "https://x/y.png"}]}]}),
        (Api.ANTHROPIC_MESSAGES, {"tools": [{"type": "web_search_20250305"}]}),
        (Api.ANTHROPIC_MESSAGES, {"tools": [{"type": "tool_search_tool_bm25_20251119"}]}),
        (Api.OPENAI_RESPONSES, {"tools": [{"type": "tool_search"}]}),
        (Api.GEMINI, {"cachedContent": "c"}),
    ],
)
def test_what_is_not_in_the_request_counts_for_a_context_window(
    api: Api, body: dict[str, Any]
) -> None:
    """An address, a stored file or a provider's tool brings tokens outside of the body."""
    assert ask(api, body).request_tokens > WINDOW


STORED: list[dict[str, Any]] = [
    {"type": "reasoning", "id": "rs_1", "summary": []},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "short"}]},
    {"type": "reasoning", "id": "rs_1", "encrypted_content": None, "content": []},
    {"type": "reasoning", "ID": "rs_1", "encryptedContent": ""},
    {"type": "reasoning", "id": "rs_1", "encrypted_content": " "},
    {"type": "reasoning", "id": "rs_1", "encrypted_content": {"a": 1}},
    {"type": "compaction", "id": "cmp_1"},
    {"id": "msg_1", "role": "assistant"},
    {"type": "message", "id": "msg_1", "role": "assistant"},
    {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f"},
    {"type": "custom_tool_call", "id": "ct_1", "call_id": "c", "name": "f", "input": None},
]


@pytest.mark.parametrize("item", STORED)
def test_an_item_that_only_names_what_is_stored_counts_for_an_answer(item: dict[str, Any]) -> None:
    """Stored content that the provider adds may be as long as an answer."""
    one = ask(Api.OPENAI_RESPONSES, {"input": [item]})
    assert len(one.stored) == 1
    assert STORED_ITEM_TOKENS < one.request_tokens < STORED_ITEM_TOKENS + 5_000
    many = ask(Api.OPENAI_RESPONSES, {"input": [item] * 20})
    assert WINDOW < many.request_tokens < WINDOW + 10_000


def test_an_item_with_its_content_counts_by_its_bytes() -> None:
    """Reasoning that is sent with its encrypted content reserves only its bytes."""
    items = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x" * 900},
        {"type": "message", "id": "msg_1", "role": "assistant", "content": []},
        {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": ""},
        {"type": "reasoning", "summary": []},
        {"role": "user", "content": "Hello"},
    ]
    asked = ask(Api.OPENAI_RESPONSES, {"input": items})
    assert asked.stored == ()
    assert asked.request_tokens < 5_000


def test_references_to_a_tool_count_for_its_description() -> None:
    """A short reference to a tool may stand for its long description, each time again."""
    tool = {"name": "long", "input_schema": {}, "description": "x" * 20_000, "defer_loading": True}
    references = [{"type": "tool_reference", "tool_name": "long"}] * 30
    body = {"tools": [tool], "messages": [{"role": "user", "content": references}]}
    assert ask(Api.ANTHROPIC_MESSAGES, body).request_tokens > 30 * 20_000


@pytest.mark.parametrize("api", Api)
@pytest.mark.parametrize(
    "body",
    [
        {"extra_body": {"n": 100}},
        {"extra_headers": {}},
        {"api_base": "https://x"},
        {"fallbacks": "default"},
        {"Models": ["other"]},
        {"max_tokens": 5, "MaxTokens": 900},
        {"max_tokens": 5, "max_to\u212aens": 900},  # With the sign for Kelvin.
        {"stream": True, "stream\0": False},
    ],
)
def test_a_second_request_in_the_first_is_refused(api: Api, body: dict[str, Any]) -> None:
    """No member means something else to a proxy or to a reader that ignores case."""
    with pytest.raises(CallRefused) as refused:
        ask(api, body)
    assert refused.value.status == 400


@pytest.mark.parametrize("named", ["m-2", "models/m-2", "models/M-1", ["m-1"], {"m-1": 1}, ""])
def test_a_model_in_the_body_that_is_not_the_model_of_the_path_is_refused(named: Any) -> None:
    """A server that reads the body's `model` would use another model than the granted one."""
    for body in ({"model": named}, {"Model": named}):
        with pytest.raises(CallRefused) as refused:
            ask(Api.GEMINI, body)
        assert refused.value.reason == "model_not_granted"
    counting = FAMILIES[Api.GEMINI].endpoint("/v1beta/models/m-1:countTokens")
    assert counting is not None
    inner = {"generateContentRequest": {"model": named, "contents": []}}
    with pytest.raises(CallRefused):
        FAMILIES[Api.GEMINI].read_request(counting, inner, 100)


@pytest.mark.parametrize("named", ["m-1", "models/m-1", None])
def test_a_body_may_repeat_the_model_of_its_path(named: Any) -> None:
    """Google's own clients send the model with its folder."""
    assert ask(Api.GEMINI, {"model": named}).model == "m-1"


@pytest.mark.parametrize(
    ("api", "body", "spelled"),
    [
        (Api.OPENAI_CHAT, {"max_completion_tokens": "9"}, "`max_completion_tokens`"),
        (Api.OPENAI_CHAT, {"bestOf": 2.5}, "`bestOf`"),
        (Api.OPENAI_CHAT, {"extra_body": {}}, "`extra_body`"),
        (Api.OPENAI_CHAT, {"thinking": {"budget_tokens": "x"}}, "`budget_tokens`"),
        (Api.GEMINI, {"generationConfig": {"max_output_tokens": "9"}}, "`max_output_tokens`"),
    ],
)
def test_a_refusal_spells_members_as_the_request_does(
    api: Api, body: dict[str, Any], spelled: str
) -> None:
    """A user can search for the name that a message quotes."""
    with pytest.raises(CallRefused) as refused:
        ask(api, body)
    assert spelled in refused.value.message


def test_unknown_members_are_named_as_the_request_spells_them() -> None:
    """Unknown members, tools and parts are quoted in their own spelling."""
    assert ask(Api.OPENAI_RESPONSES, {"multi_agent": {}}).unknown == ("the member `multi_agent`",)
    assert ask(Api.OPENAI_CHAT, {"Next_Year": "x"}).unknown == ("the member `Next_Year`",)
    content = {"new_member": 1, "parts": [{"new_part": 1}]}
    gemini = ask(Api.GEMINI, {"contents": [content], "tools": [{"exa_search": {}}]})
    assert gemini.unknown == (
        "the member `new_member` of a content",
        "the part `new_part`",
        "the tool `exa_search`",
    )


F = Feature
SPELLED: list[tuple[Api, dict[str, Any], Feature]] = [
    (Api.ANTHROPIC_MESSAGES, {"TOOLS": [{"TYPE": "web_search_20250305"}]}, F.WEB_SEARCH),
    (Api.ANTHROPIC_MESSAGES, {"tools": {"type": "web_search_20250305"}}, F.WEB_SEARCH),
    (Api.ANTHROPIC_MESSAGES, {"mcpServers": [{"url": "https://x"}]}, F.MCP),
    (Api.OPENAI_RESPONSES, {"Tools": [{"Type": "web_search"}]}, F.WEB_SEARCH),
    (Api.OPENAI_RESPONSES, {"previousResponseId": "r"}, F.STORED),
    (Api.OPENAI_CHAT, {"toolſ": [{"type": "web_search"}]}, F.WEB_SEARCH),
    (Api.OPENAI_CHAT, {"webSearchOptions": {}}, F.WEB_SEARCH),
]


@pytest.mark.parametrize(("api", "body", "feature"), SPELLED)
def test_a_feature_is_seen_in_any_spelling(
    api: Api, body: dict[str, Any], feature: Feature
) -> None:
    """A server that ignores case finds no tool that the gateway misses."""
    assert feature in ask(api, body).features
