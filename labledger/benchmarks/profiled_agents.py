"""Agents with a profile on the command line: `--agent NAME[@VERSION]:model=MODEL[,OPTION=VALUE…]`.

Each becomes an agent of the benchmark, and so a variant of its experiment, which has the profile in
place of the benchmark's own command. What the words mean is checked with the experiment.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from labledger.agents.profiles import find_profiles
from labledger.benchmarks.formats import Benchmark, BenchmarkAgent
from labledger.errors import InvalidInput, Parameter, Problem
from labledger.records import JsonObject

_GIVEN = re.compile(r"(?P<name>[a-z0-9][a-z0-9_.-]*)(?:@(?P<version>[^:]*))?(?::(?P<settings>.*))?")
_IN_NO_ID = re.compile(r"[^A-Za-z0-9_.-]+")
_MAX_ID = 64


def with_profiled_agents(benchmark: Benchmark, given: Sequence[str]) -> Benchmark:
    """Return a benchmark with an agent for each word in `given` that names a profile.

    Agents of the benchmark itself go before profiles of the same name. Raises `InvalidInput` for
    words that name a profile and are not of the form above.
    """
    own = {agent.given_as or agent.name for agent in benchmark.agents}
    parsed = {words: _GIVEN.fullmatch(words) for words in given if words not in own}
    profiles = find_profiles() if any(parsed.values()) else {}
    agents: dict[str, JsonObject] = {}
    problems: list[Problem] = []
    for words, match in parsed.items():
        if match is None or match["name"] not in profiles:
            continue
        try:
            agents[words] = _authored_agent(match)
        except ValueError as error:
            hint = f"such as {match['name']}:model=MODEL"
            problems.append(Problem(Parameter("agents"), f"{words}: {error}", hint=hint))
    if problems:
        raise InvalidInput("the agents given", problems)
    ids = _variant_ids(list(agents.values()))
    added = (
        BenchmarkAgent(name, runtime={"agent": agent}, given_as=words)
        for name, (words, agent) in zip(ids, agents.items(), strict=True)
    )
    return replace(benchmark, agents=(*benchmark.agents, *added))


def _authored_agent(match: re.Match[str]) -> JsonObject:
    """Return the `runtime.agent` that words mean. Raises `ValueError`."""
    agent: JsonObject = {"profile": match["name"]}
    if match["version"] is not None:
        agent["version"] = match["version"]
    options: JsonObject = {}
    for setting in (match["settings"] or "").split(","):
        key, equals, value = setting.partition("=")
        if not setting:
            continue
        if not equals or not key:
            raise ValueError(f"found {setting!r}; expected NAME=VALUE")
        if key in options or (key == "model" and "model" in agent):
            raise ValueError(f"{key} is given twice")
        if key == "model":
            agent["model"] = value
        else:
            options[key] = value
    if "model" not in agent:
        raise ValueError("the model is missing")
    return agent | ({"options": options} if options else {})


def _variant_ids(agents: Sequence[JsonObject]) -> list[str]:
    """Return an id for the variant of each agent: its profile, with what tells it from others."""
    profiles = Counter(agent["profile"] for agent in agents)
    ids: list[str] = []
    for agent in agents:
        words = [agent["profile"]]
        if profiles[agent["profile"]] > 1:
            values = [*agent.get("options", {}).values()]
            words += [agent["model"], *([agent["version"]] if "version" in agent else []), *values]
        name = _IN_NO_ID.sub("-", "-".join(words))[:_MAX_ID]
        number = 2
        while name in ids:
            name = f"{name[: _MAX_ID - 4]}-{number}"
            number += 1
        ids.append(name)
    return ids
