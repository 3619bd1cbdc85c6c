"""`labledger gateway check`: whether keys, models and prices of an experiment are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from commands import run_forked
from experiment_files import Folder
from gateways import KEY
from scripted_providers import scripted_provider

from labledger.checks.model_checks import check_models
from labledger.experiment.experiment_file import load_experiment
from labledger.experiment.resolve import Overrides, resolve

SCRIPT = {"keys": [KEY], "tasks": [{"match": "Hi", "plain": True, "turns": [{"text": "Well."}]}]}


def experiment(folder: Path, upstream: str, **models: Any) -> None:
    apis = {
        "one": "anthropic-messages",
        "two": "openai-responses",
        "three": "openai-chat",
        "four": "gemini",
    }
    described = {
        name: {"api": api, "upstream": upstream, "key": {"env": "THE_KEY"}}
        for name, api in apis.items()
    }
    granted = {"providers": described, "allow": {name: ["m"] for name in apis}, **models}
    made = Folder(folder)
    made.data["runtime"]["models"] = granted
    made.experiment()


def test_each_model_is_asked_once_where_that_is_wanted(tmp_path: Path) -> None:
    """Without `--send` nothing is sent; with it, each API gets one request that it accepts."""
    with scripted_provider(SCRIPT) as provider:
        experiment(tmp_path, provider.url)
        words = ("gateway", "check", "experiment.yaml")
        quiet = run_forked(*words, folder=tmp_path, THE_KEY=KEY)
        assert quiet.returncode == 0, quiet.stderr
        assert "no known price" in quiet.stdout
        assert provider.requests == []
        sent = run_forked(*words, "--send", "--json", folder=tmp_path, THE_KEY=KEY)
        assert sent.returncode == 0, sent.stderr
        details = [check["detail"] for check in json.loads(sent.stdout)]
        assert details[-4:] == [f"{name}/m answered" for name in ("one", "two", "three", "four")]
        assert [request["outcome"] for request in provider.requests] == ["answered"] * 4


def test_a_replay_needs_no_key_and_no_price(tmp_path: Path) -> None:
    """Nobody is asked, so that nothing is missing; but it runs on this machine alone."""
    experiment(tmp_path, "http://127.0.0.1:9")
    plan = resolve(load_experiment(tmp_path / "experiment.yaml"), Overrides(replay="r")).plan
    [check] = check_models(plan, {}, runs_here=True, has_keys=True)
    assert (check.ok, check.detail) == (
        True,
        "the recorded calls of r answer; no provider is asked",
    )
    refused = [
        check.detail
        for check in check_models(plan, {}, runs_here=False, has_keys=True)
        if not check.ok
    ]
    assert refused == ["a run is replayed only on this machine, not on a cluster"]


def test_a_cap_that_admits_no_request_of_unknown_length_is_a_warning(tmp_path: Path) -> None:
    """It names the cap and what such a request counts with, but not APIs whose requests say it."""
    prices = {name: {"m": {"input": 1, "output": 10}} for name in ("one", "two", "three", "four")}
    caps = {"limits": {"usd": 1}, "run_limits": {"tokens": 1000, "usd": 2}, "prices": prices}
    experiment(tmp_path, "http://127.0.0.1:9", **caps)
    words = ("gateway", "check", "experiment.yaml")
    checked = run_forked(*words, folder=tmp_path, THE_KEY=KEY)
    assert checked.returncode == 0, checked.stderr
    for name in ("two", "three", "four"):
        assert f"limits: with 1 USD, each request to {name}/m that" in checked.stdout
        assert f"run_limits: with 1,000 tokens, each request to {name}/m that" in checked.stdout
    assert "128,000 tokens, 1.28 USD" in checked.stdout
    assert "with 2 USD" not in checked.stdout
    assert "one/m" not in checked.stdout
    caps = {"limits": {"usd": 1}, "unstated_output": 10_000, "prices": prices}
    experiment(tmp_path, "http://127.0.0.1:9", **caps)
    assert "will be refused" not in run_forked(*words, folder=tmp_path, THE_KEY=KEY).stdout


def test_a_key_that_is_refused_is_named_and_not_shown(tmp_path: Path) -> None:
    """The provider's own words are shown with the key masked; the exit code says invalid."""
    wrong = "wrong-key-0123456789"
    with scripted_provider(SCRIPT) as provider:
        experiment(tmp_path, provider.url)
        words = ("gateway", "check", "experiment.yaml", "--send")
        ended = run_forked(*words, folder=tmp_path, THE_KEY=wrong)
        assert ended.returncode == 2
        assert "one/m: status 401: unknown key ****" in ended.stdout
        assert wrong not in ended.stdout + ended.stderr
        missing = run_forked(*words, folder=tmp_path)
        assert missing.returncode == 2
        assert "the environment variable THE_KEY is not set" in missing.stdout
    away = run_forked(*words, folder=tmp_path, THE_KEY=KEY)
    assert "no answer: the connection failed: " in away.stdout
