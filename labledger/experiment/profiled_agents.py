"""Agents with a profile: what an experiment says of them becomes a command and a grant of models.

A profile, a pinned version, a model and options stand in place of `runtime.agent.command`; each may
differ by variant. Which programs there are is known to `labledger.agents` alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from labledger.agents.installation import check_version
from labledger.agents.launch import AgentLaunch, resolve
from labledger.agents.profiles import AgentProfile, load_profile
from labledger.errors import InvalidInput, Problem
from labledger.experiment import name_references
from labledger.experiment.authored_fields import FieldPath, lookup, text
from labledger.experiment.consistency_checks import authored_agent, authored_variants
from labledger.experiment.experiment_file import AuthoredExperiment
from labledger.experiment.model_settings import ModelSettings
from labledger.experiment.plan_sections import ProfiledAgent
from labledger.records import JsonObject
from labledger.records.model_grants import ProviderConfig


@dataclass(frozen=True, slots=True)
class ResolvedAgent:
    """An agent with a profile, what starts it, and the models that its variant is granted."""

    agent: ProfiledAgent
    launch: AgentLaunch
    models: ModelSettings

    @property
    def command(self) -> tuple[str, ...]:
        """The command as authored text."""
        return tuple(map(name_references.escape, self.launch.command))

    @property
    def env(self) -> dict[str, str]:
        """The environment as authored text."""
        return {name: name_references.escape(value) for name, value in self.launch.env.items()}


def resolve_agents(
    authored: AuthoredExperiment, chosen: Collection[str]
) -> dict[str, ResolvedAgent]:
    """Return the agents with profiles of the chosen variants, by variant.

    Raises `InvalidInput` with all problems: of profiles, versions, options and models.
    """
    agents: dict[str, ResolvedAgent] = {}
    problems: dict[tuple[FieldPath, str], Problem] = {}
    for path, variant in authored_variants(authored.data):
        given = authored_agent(authored.data, variant)
        if variant["variant_id"] not in chosen or "profile" not in given:
            continue
        own = (*path, "runtime", "agent")
        place = own if lookup(authored.data, own) is not None else ("runtime", "agent")
        try:
            agents[variant["variant_id"]] = _resolved(authored.data, variant, given)
        except InvalidInput as error:
            for each in error.problems:
                message = each.message if each.field is None else f"{each.field}: {each.message}"
                problem = authored.problem(place, message, each.hint)
                problems.setdefault((place, message), problem)
    if problems:
        raise InvalidInput(f"the agents of {authored.path}", list(problems.values()))
    return agents


def _resolved(data: JsonObject, variant: JsonObject, given: JsonObject) -> ResolvedAgent:
    bindings = {name: text(value) for name, value in variant.get("bindings", {}).items()}
    profile = load_profile(_bound(given["profile"], bindings))
    version = _bound(given.get("version", profile.version), bindings)
    check_version(profile, version)
    if "model" not in given:
        raise InvalidInput("the agent", [Problem("model", f"{profile.name} needs a model")])
    models = _models_of(data, variant)
    provider, model = _chosen_model(_bound(given["model"], bindings), profile, models)
    api = next(each for each in profile.apis if each in provider.apis)
    options = {
        name: _bound(value, bindings) if isinstance(value, str) else value
        for name, value in given.get("options", {}).items()
    }
    launch = resolve(profile, model, options, api=api)
    agent = ProfiledAgent(
        profile.name,
        version,
        provider.name,
        model,
        api,
        dict(launch.options),
        given.get("instructions"),
        launch.logs,
        profile.needs,
    )
    allowed = dict(models.allow or {})
    allowed[provider.name] = tuple(dict.fromkeys((model, *allowed.get(provider.name, ()))))
    return ResolvedAgent(agent, launch, replace(models, allow=allowed))


def _models_of(data: JsonObject, variant: JsonObject) -> ModelSettings:
    base = ModelSettings.of_authored(lookup(data, ("runtime", "models")) or {})
    own = lookup(variant, ("runtime", "models"))
    return base if own is None else base.merged(ModelSettings.of_authored(own))


def _bound(authored: str, bindings: Mapping[str, str]) -> str:
    """Return a text with the values of bindings put in. Raises `InvalidInput`."""
    try:
        return name_references.expand(authored, bindings)
    except KeyError as error:
        message = f"${error.args[0]} is no binding of this variant"
        raise InvalidInput("the agent", [Problem("agent", f"{authored!r}: {message}")]) from None


def _chosen_model(
    authored: str, profile: AgentProfile, models: ModelSettings
) -> tuple[ProviderConfig, str]:
    """Return provider and name of a model, which may begin with that of its provider and a slash.

    Else it is of the first provider that speaks an API of the profile: of those that the experiment
    describes, and then of the defaults. Raises `InvalidInput`.
    """
    known = models.known_providers
    prefix, slash, rest = authored.partition("/")
    described = [each.name for each in models.providers or ()]
    names = [prefix] if slash and prefix in known else [*described, *known]
    model = rest if slash and prefix in known else authored
    for api in profile.apis:
        for name in names:
            if api in known[name].apis:
                return known[name], model
    spoken = ", ".join(profile.apis)
    message = f"no provider of {authored} speaks an API of {profile.name}, which are {spoken}"
    raise InvalidInput("the agent", [Problem("model", message)])
