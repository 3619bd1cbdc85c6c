"""Prices of models: costs in picodollars, exact, and never 0 where they are not known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labledger.records.attempt_result import Metric
from labledger.records.model_calls import CallState, ModelCall, Usage
from labledger.records.model_costs import (
    PICODOLLARS,
    SOURCE,
    ModelPrice,
    PriceTable,
    beside_counted,
    known_cost,
    model_metrics,
)
from labledger.records.model_grants import (
    DEFAULT_PROVIDERS,
    KeySource,
    ProviderConfig,
    upstream_problem,
)

SMALL = ModelPrice("p", "m", 0, 3_000_000, 15_000_000, 300_000, 3_750_000, 6_000_000)
LARGE = ModelPrice("p", "m", 200_000, 6_000_000, 22_500_000)
TABLE = PriceTable((LARGE, SMALL, ModelPrice("p", "free", input=0, output=0)), "a test")


def test_a_cost_is_exact() -> None:
    """Every kind of tokens has its own price, and reasoning is part of the output."""
    usage = Usage(1, cache_read=1, cache_write=1, cache_write_1h=1, output=1, reasoning=1)
    assert TABLE.cost_of("p", "m", usage) == 28_050_000
    assert TABLE.cost_of("p", "m", Usage(100_000, output=10_000)) == 45 * PICODOLLARS // 100


def test_a_large_request_has_the_price_of_its_size() -> None:
    """The tokens of the request decide, cached ones included, and the whole call has that price."""
    below, at = Usage(199_999, output=1), Usage(200_000, output=1)
    assert TABLE.cost_of("p", "m", below) == 199_999 * 3_000_000 + 15_000_000
    assert TABLE.cost_of("p", "m", at) == 200_000 * 6_000_000 + 22_500_000
    assert TABLE.cost_of("p", "m", Usage(1, cache_read=200_000)) is None


@pytest.mark.parametrize("name", [("p", "n"), ("q", "m")])
def test_a_model_without_a_price_has_no_cost(name: tuple[str, str]) -> None:
    """What is not known is None; what is free costs 0."""
    assert TABLE.cost_of(*name, Usage(1)) is None
    assert TABLE.cost_of("p", "free", Usage(1)) == 0
    assert TABLE.cost_of("p", "free", Usage(cache_read=1)) is None


def test_no_tokens_cost_nothing() -> None:
    """Whatever the model; a price without a size holds from no tokens on, others from theirs."""
    assert TABLE.cost_of("p", "n", Usage()) == 0
    assert TABLE.price_of("p", "free") == ModelPrice("p", "free", 0, input=0, output=0)
    assert PriceTable((ModelPrice("p", "m", 1),)).price_of("p", "m") is None


def test_the_metrics_of_an_attempt_are_those_of_all_its_calls() -> None:
    """Costs add up; of what is known in part there is no metric; what an agent says is a claim."""
    usage = Usage(1000, output=100)
    call = ModelCall(1, "", "p", "anthropic-messages", "m", CallState.ANSWERED, 200, usage=usage)
    calls = (call, replace(call, call=2))
    cost = 2 * (1000 * 3_000_000 + 100 * 15_000_000)
    assert known_cost(calls, TABLE) == (cost, True)
    counted = model_metrics(calls, TABLE)
    assert counted == (
        Metric("tokens_in", SOURCE, 2000),
        Metric("tokens_out", SOURCE, 200),
        Metric("cost_usd", SOURCE, cost / PICODOLLARS),
    )
    unknown = replace(call, usage=None)
    assert known_cost((*calls, unknown), TABLE) == (cost, False)
    assert model_metrics((*calls, unknown), TABLE) == ()
    claim, steps = Metric("cost_usd", "result", 5), Metric("steps", "result", 7)
    claimed = replace(claim, metric_id="claimed_cost_usd")
    assert beside_counted((claim, steps), counted) == (claimed, steps, *counted)


def test_tables_of_the_same_prices_are_equal() -> None:
    """A digest does not depend on the order, and changes with a price."""
    assert TABLE.digest == PriceTable(TABLE.prices[::-1], "elsewhere").digest
    assert TABLE.digest != PriceTable((SMALL,)).digest
    assert TABLE.of_models([("p", "m")]).prices == (SMALL, LARGE)
    assert ModelPrice.from_json(LARGE.as_json()) == LARGE


def test_only_a_call_that_may_be_charged_has_an_unknown_charge() -> None:
    """Errors of the provider, refusals and free calls cost nothing; a cut stream is unknown."""

    def charged(**fields: object) -> Usage | None:
        call = ModelCall(1, "", "p", "anthropic-messages", "m", reserved=Usage(9, output=9))
        return ModelCall.from_json({**call.as_json(), **fields}).charged

    none = Usage()
    assert charged(state="cut", usage={"input": 1, "cache_read": 0, "cache_write": 0, "output": 2})
    assert charged(state="cut") is charged(state="unknown") is charged(state="failed") is None
    assert charged(state="answered", status=200) is None
    assert charged(state="answered", status=529) == charged(state="refused") == none
    assert charged(state="failed", reason="unreachable") == none
    assert charged(state="unknown", reserved=none.as_json()) == none


def test_a_provider_is_stored_without_its_key() -> None:
    """What is stored says where a key is read, and reads back as it was."""
    for source in (KeySource(env="A"), KeySource(file="f"), KeySource(command=("a", "b"))):
        provider = ProviderConfig("p", DEFAULT_PROVIDERS["openai"].apis, "https://x", source, "X")
        assert ProviderConfig.from_json(provider.as_json()) == provider
        assert len(source.as_json()) == 1


@pytest.mark.parametrize(
    ("address", "valid"),
    [
        ("https://api.example.com", True),
        ("http://127.0.0.1:8080/base", True),
        ("https://[::1]:1/a", True),
        ("https://host/", False),
        ("https://user:secret@host", False),
        ("https://host?key=1", False),
        ("https://host:0", False),
        ("https://host:x", False),
        ("ftp://host", False),
        ("host", False),
        ("https://ho st", False),
        ("https://host/\r\nX: y", False),
    ],
)
def test_addresses_of_providers(address: str, valid: bool) -> None:
    """An address has no secret, no query and no end that would change what is appended."""
    assert (upstream_problem(address) is None) is valid
