"""Reads the experiment that the user names: a file, a folder, or a benchmark `FORMAT:LOCATION`.

A benchmark is first translated into an ordinary experiment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from labledger.errors import InvalidInput, Parameter, Problem

if TYPE_CHECKING:
    from labledger.benchmarks.formats import TranslatedBenchmark
    from labledger.benchmarks.translate import TranslatedExperiment
    from labledger.files.lab_folder import LabFolder
    from labledger.runner.run_options import RunOptions


def read_source(
    given: str | Path, options: RunOptions
) -> tuple[Path | TranslatedExperiment, RunOptions]:
    """Return the path of an experiment file, or the translation of a benchmark, and its options.

    Raises `InvalidInput` if the benchmark cannot be read, or if a selected task cannot be run and
    `skip_refused` is not set. Also raises it for benchmark options with an experiment file.
    """
    benchmark = given_benchmark(given, options)
    if benchmark is not None:
        require_some_runnable(benchmark, options)
        return translate_for_run(benchmark, options), options
    choices = {
        "agents": options.source.agents,
        "image": options.images.image,
        "skip_refused": options.source.skip_refused,
    }
    problems = [
        Problem(Parameter(name), "is for FORMAT:LOCATION alone; an experiment file names its own")
        for name, value in choices.items()
        if value
    ]
    if problems:
        raise InvalidInput("the options are not valid", problems)
    path = Path(given)
    return (path / "experiment.yaml" if path.is_dir() else path), options


def given_benchmark(given: str | Path, options: RunOptions) -> TranslatedBenchmark | None:
    """Return the benchmark that is named as `FORMAT:LOCATION`; None if a path is given.

    The benchmark gets the agents that the options name with arguments or with a profile. If its
    format allows it, only the tasks that the options select are read. A warning names the keys that
    are ignored in these tasks. With `strict`, such tasks are refused instead.
    """
    from labledger.benchmarks.formats import parse_reference, read_benchmark, with_profiled_agents
    from labledger.benchmarks.task_selection import refuse_ignored, warnings_of
    from labledger.execution.run_events import run_event

    reference = parse_reference(str(given))
    if reference is None:
        return None
    benchmark = read_benchmark(reference, options.source.agents, options.selection.tasks)
    if options.source.strict:
        benchmark = refuse_ignored(benchmark)
    for message in warnings_of(benchmark, options.selection.tasks):
        options.on_event(run_event("warning", message=message))
    agents = options.source.agents
    return with_profiled_agents(benchmark, agents) if agents else benchmark


def read_runnable(
    given: str | Path, options: RunOptions
) -> tuple[Path | TranslatedExperiment, RunOptions]:
    """Return the same as `read_source`, for a run that starts now.

    With `skip_refused`, this already pulls and builds images, and leaves out with a warning
    each task without a usable image.
    """
    benchmark = given_benchmark(given, options)
    if benchmark is None:
        return read_source(given, options)
    return translate_runnable(benchmark, options)


def translate_runnable(
    benchmark: TranslatedBenchmark, options: RunOptions
) -> tuple[TranslatedExperiment, RunOptions]:
    """Return the experiment of the tasks of a benchmark that can be run; see `read_runnable`."""
    from labledger.benchmarks.task_selection import refuse
    from labledger.execution.run_events import run_event
    from labledger.runner.run_start import check_experiment

    require_some_runnable(benchmark, options)
    source = translate_for_run(benchmark, options)
    while options.source.skip_refused:
        with experiment_path(source) as path:
            refused = check_experiment(path, options, pull=True, use_cache=True).refused
        if not refused:
            break
        for task_id, reason in refused.items():
            message = f"{task_id} is left out: {reason}"
            options.on_event(run_event("warning", message=message))
        benchmark = refuse(benchmark, refused)
        require_some_runnable(benchmark, options)
        source = translate_for_run(benchmark, options)
    return source, options


def require_some_runnable(benchmark: TranslatedBenchmark, options: RunOptions) -> None:
    """Raise `InvalidInput` if refused tasks are skipped and no other task is selected."""
    from labledger.benchmarks.task_selection import require_some_selected

    if options.source.skip_refused:
        require_some_selected(benchmark, options.selection.tasks)


def translate_for_run(benchmark: TranslatedBenchmark, options: RunOptions) -> TranslatedExperiment:
    """Return the experiment of a benchmark with the options of a run. Raises `InvalidInput`."""
    from labledger.benchmarks.benchmark_variations import without_concurrency
    from labledger.benchmarks.task_selection import require_known_tasks, require_no_refused
    from labledger.benchmarks.translate import translate
    from labledger.experiment.templates import DEFAULT_IMAGE
    from labledger.runner.env_files import gather
    from labledger.runner.run_hosts import given_cluster

    require_known_tasks(benchmark, options.selection.tasks)
    if not options.source.skip_refused:
        require_no_refused(benchmark, options.selection.tasks)
    if given_cluster(options) is not None:
        # The format's limit is meant for one machine, and the user has not chosen it.
        benchmark = without_concurrency(benchmark)
    return translate(
        benchmark,
        default_image=DEFAULT_IMAGE,
        agents=options.source.agents,
        image=options.images.image,
        outside=gather(options.env, options.env_files),
        task_globs=options.selection.tasks,
    )


def translate_to_edit(
    given: str, options: RunOptions, *, experiment_id: str
) -> TranslatedExperiment:
    """Return the experiment of a `FORMAT:LOCATION`, without the tasks that cannot be run.

    `experiment.yaml` records the left-out tasks, and a warning names them. Raises `InvalidInput`.
    """
    from labledger.benchmarks.task_selection import skipped_warning
    from labledger.benchmarks.translate import translate
    from labledger.execution.run_events import run_event
    from labledger.experiment.templates import DEFAULT_IMAGE

    benchmark = given_benchmark(given, options)
    if benchmark is None:
        problem = Problem(Parameter("benchmark"), f"found {given!r}; expected FORMAT:LOCATION")
        raise InvalidInput("the benchmark", [problem])
    if warning := skipped_warning(benchmark):
        options.on_event(run_event("warning", message=warning))
    return translate(
        benchmark,
        default_image=DEFAULT_IMAGE,
        agents=options.source.agents,
        image=options.images.image,
        experiment_id=experiment_id,
        outside=os.environ,
    )


@contextmanager
def experiment_path(source: Path | TranslatedExperiment) -> Iterator[Path]:
    """Yield the path of an experiment file. A benchmark's temporary file is removed afterwards."""
    if isinstance(source, Path):
        yield source
        return
    from labledger.benchmarks.translate import temporary_copy

    with temporary_copy(source) as path:
        yield path


def storing(source: Path | TranslatedExperiment) -> Callable[[LabFolder], Path] | None:
    """Return a function that stores a benchmark's experiment in a lab; None for a file."""
    if isinstance(source, Path):
        return None
    from labledger.benchmarks.translate import store_experiment

    return lambda lab: store_experiment(source, lab.benchmarks)
