"""What may be named where an experiment is expected: a file, a folder, or `FORMAT:LOCATION`.

A benchmark is translated into an experiment first; from then on it is one like any other. Used by
the functions of `experiments` and `runs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from labledger.errors import InvalidInput, Problem

if TYPE_CHECKING:
    from labledger.benchmarks.translate import TranslatedExperiment
    from labledger.runner.options import RunOptions


def read_source(given: str | Path, options: RunOptions) -> Path | TranslatedExperiment:
    """Return the path of an experiment file, or the translation of a benchmark.

    Raises `InvalidInput` for a benchmark that cannot be read, a selected task of it that cannot be
    run, and for `agents` or `image` beside an experiment file.
    """
    from labledger.benchmarks.formats import parse_reference

    if parse_reference(str(given)) is not None:
        return translate_benchmark(
            str(given), agents=options.agents, image=options.image, task_globs=options.tasks
        )
    choices = {"--agent": options.agents, "--image": options.image}
    problems = [
        Problem(name, "is for FORMAT:LOCATION alone; an experiment file names its own")
        for name, value in choices.items()
        if value
    ]
    if problems:
        raise InvalidInput("the options are not valid", problems)
    path = Path(given)
    return path / "experiment.yaml" if path.is_dir() else path


def translate_benchmark(
    given: str,
    *,
    agents: Sequence[str] = (),
    image: str | None = None,
    experiment_id: str | None = None,
    task_globs: Sequence[str] = (),
) -> TranslatedExperiment:
    """Return the experiment of a `FORMAT:LOCATION`. Raises `InvalidInput` as `read_source` does."""
    from labledger.benchmarks.formats import parse_reference, read_benchmark
    from labledger.benchmarks.translate import require_no_refused, translate
    from labledger.experiment.templates import DEFAULT_IMAGE

    reference = parse_reference(given)
    if reference is None:
        problem = Problem("--from", f"found {given!r}; expected FORMAT:LOCATION")
        raise InvalidInput("the benchmark", [problem])
    benchmark = read_benchmark(reference)
    require_no_refused(benchmark, task_globs)
    return translate(
        benchmark,
        default_image=DEFAULT_IMAGE,
        agents=agents,
        image=image,
        experiment_id=experiment_id,
    )


@contextmanager
def experiment_to_check(given: str | Path, options: RunOptions) -> Iterator[Path]:
    """Yield the path of an experiment file to read. That of a benchmark is removed afterwards."""
    source = read_source(given, options)
    if isinstance(source, Path):
        yield source
        return
    from labledger.benchmarks.stored_experiments import temporary_copy

    with temporary_copy(source) as path:
        yield path
