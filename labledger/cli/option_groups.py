"""Groups of options that several commands share.

A group is a dataclass that declares each option once. A command takes it as a parameter, and
`with_option_groups` puts its fields into the signature that typer reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from labledger.cli import arguments
from labledger.cli.console import say
from labledger.cli.error_messages import option_name
from labledger.cli.help_pages import WITH_OPTIONS
from labledger.cli.pass_rate_gates import missed_gates, parse_gates, require_known_variants
from labledger.errors import Exit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from labledger import RunOptions
    from labledger.cli.run_display import JsonWatcher, LiveWatcher
    from labledger.results import RunOutcome


Command = Callable[..., None]


def run_options(**values: Any) -> RunOptions:
    """Return the `RunOptions` with these values for its fields and the fields of its groups."""
    import labledger

    kinds = {
        "selection": labledger.TrialSelection,
        "source": labledger.SourceOptions,
        "images": labledger.ImageOptions,
        "limits": labledger.RunLimits,
        "placement": labledger.Placement,
    }
    groups = {
        group: kind(
            **{item.name: values.pop(item.name) for item in fields(kind) if item.name in values}
        )
        for group, kind in kinds.items()
    }
    return labledger.RunOptions(**groups, **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The options that select a part of an experiment, by their names in `RunOptions`."""

    limit: arguments.Limit = None
    tasks: arguments.Tasks = None
    variants: arguments.Variants = None
    shard: arguments.Shard = None
    agents: arguments.Agents = None
    image: arguments.Image = None
    skip_refused: arguments.SkipRefused = False
    strict: arguments.Strict = False
    build: arguments.Build = False

    def as_options(self) -> dict[str, Any]:
        """Return the typed options as arguments of `run_options`."""
        options = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in options.items()
            if value is not None and value is not False
        }

    def words(self) -> list[str]:
        """Return these options as words of a command line."""
        words = []
        for name, value in self.as_options().items():
            option = option_name(name)
            if value is True:
                words.append(option)
            else:
                values = value if isinstance(value, tuple) else [value]
                words += [word for item in values for word in (option, str(item))]
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The options of every command that runs trials, as they were typed.

    `with_option_groups` turns its fields into options of a command.
    """

    max_concurrency: arguments.MaxConcurrency = None
    env: arguments.Env = None
    env_file: arguments.EnvFile = None
    lab_dir: arguments.LabDir = None
    json: Annotated[
        bool, typer.Option("--json", help="Print events on stdout, each a line of JSON.")
    ] = False
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print only warnings, errors and the result.")
    ] = False
    fail_under: arguments.FailUnder = None
    patience: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="How many seconds the run waits while the Docker engine is gone or refuses "
            "containers, or a disk is full, before it stops.",
        ),
    ] = 600.0
    min_free: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Start no trial while less disk space than this is free, such as 2g; by default "
            "512m.",
        ),
    ] = None
    max_error_rate: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="SHARE",
            help="Stop if a larger share of the trials saved since the start ended as setup, grade "
            "or infra error (in a regrading: as grade error). Checked from ten trials on.",
        ),
    ] = None
    continue_unanswered: Annotated[
        bool,
        typer.Option(
            "--continue-unanswered",
            help="Do not stop if no model answers the agents of a variant.",
        ),
    ] = False
    budget_usd: arguments.BudgetUsd = None
    budget_tokens: arguments.BudgetTokens = None
    egress_image: arguments.EgressImage = None
    on: arguments.On = None
    insecure: arguments.Insecure = False
    window: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="TRIALS",
            help="How many trials may start ahead of the first one that is not saved, which limits "
            "the results that wait to be saved. By default 1000, or four times the trials at once "
            "if that is more. Stored with the run.",
        ),
    ] = None
    notify: arguments.Notify = None
    keep: Annotated[
        Literal["none", "failed", "all"],
        typer.Option(
            help="Which trial folders to keep, in the run folder's `kept`; they may hold secrets.",
        ),
    ] = "none"
    lease_ttl: Annotated[
        float,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="How many seconds this process keeps the run without a heartbeat.",
        ),
    ] = 30.0

    def options(self, chosen: Chosen | None = None, **command_options: Any) -> RunOptions:
        """Return the `RunOptions` for these options and the command's own options.

        Raises `InvalidInput`.
        """
        if chosen is not None:
            command_options |= chosen.as_options()
        if self.min_free is not None:
            command_options["min_free_bytes"] = arguments.parse_size_option(
                "--min-free", self.min_free
            )
        return run_options(
            lab_dir=self.lab_dir,
            max_concurrency=self.max_concurrency,
            env=arguments.parse_environment(self.env),
            env_files=tuple(self.env_file or ()),
            patience_s=self.patience,
            max_error_rate=self.max_error_rate,
            continue_unanswered=self.continue_unanswered,
            **arguments.parse_budgets(self.budget_usd, self.budget_tokens),
            egress_image=self.egress_image,
            on=self.on,
            insecure=self.insecure,
            window=self.window,
            keep=self.keep,
            lease_ttl_s=self.lease_ttl,
            notify=tuple(self.notify or ()),
            **command_options,
        )

    def watch(
        self,
        options: RunOptions,
        execute: Callable[[RunOptions], RunOutcome],
        variants: Callable[[], Sequence[str]],
        conclude: Callable[[RunOutcome], Exit] | None = None,
    ) -> None:
        """Call `execute`, display its events, print the outcome, and exit with its exit code.

        `variants` returns the ids of the run's variants. It is called only to check --fail-under.
        For a complete run, `conclude` prints conclusions, and returns the exit code to use instead
        of the outcome's.
        """
        from labledger.cli.outcome_text import print_next, print_outcome
        from labledger.cli.run_display import watcher

        gates = parse_gates(self.fail_under or [])
        if any(gate.variant_id is not None for gate in gates):
            require_known_variants(gates, variants())
        display: JsonWatcher | LiveWatcher = watcher(as_json=self.json, quiet=self.quiet)
        with display:
            outcome = execute(options.with_listener(display))
        chosen = bool(gates) and _has_chosen_results(outcome.run_id, self.lab_dir)
        misses = missed_gates(gates, outcome.pass_counts, has_chosen_results=chosen)
        if not self.json:
            print_outcome(outcome)
        exit_code = outcome.exit_code
        if conclude is not None and outcome.complete:
            exit_code = conclude(outcome)
        if not (self.json or self.quiet):
            print_next(outcome, self.lab_dir)
        for miss in misses:
            say(f"gate missed: {miss}")
        code = int(exit_code)
        raise typer.Exit(code or (Exit.GATE_MISSED if misses else Exit.COMPLETE))


def _has_chosen_results(run_id: str, lab_dir: Path | None) -> bool:
    """Return whether slots with results were run again, perhaps because of these results."""
    from labledger import open_ledger

    with open_ledger(lab_dir=lab_dir) as ledger:
        return any(rerun.is_of_results for rerun in ledger.reruns(run_id))


def variants_of(run_id: str, lab_dir: Path | None) -> list[str]:
    """Return the ids of a stored run's variants."""
    from labledger import open_ledger

    with open_ledger(lab_dir=lab_dir) as ledger:
        return [variant.variant_id for variant in ledger.run(run_id).variants]


def with_option_groups(*left_out: str) -> Callable[[Command], Command]:
    """Mark a command that takes groups of options.

    When the command is made, each parameter whose type is a dataclass is replaced by an option for
    each field of the dataclass. Fields named in `left_out` get no option, and keep their defaults.
    """

    def mark(command: Command) -> Command:
        setattr(command, WITH_OPTIONS, partial(_with_options, command, left_out))
        return command

    return mark


def _with_options(command: Command, left_out: Collection[str]) -> Command:
    """Return a function with the options as parameters, which calls `command` with the groups."""
    declared = inspect.signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation
        for parameter in declared
        if is_dataclass(parameter.annotation)
    }
    options = {
        name: [option for option in _parameters(group) if option.name not in left_out]
        for name, group in groups.items()
    }

    def with_options(**values: Any) -> None:
        filled = {
            name: group(**{option.name: values.pop(option.name) for option in options[name]})
            for name, group in groups.items()
        }
        command(**values, **filled)

    parameters = []
    for parameter in declared:
        keyword_only = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += options.get(parameter.name, [keyword_only])
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    return with_options


def _parameters(group: Any) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each field of a group of options."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
