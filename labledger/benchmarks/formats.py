"""Find the format that `FORMAT:LOCATION` names, and read a benchmark with it.

Entry points are looked up only when such a reference is given, so that other commands start as fast
as before. Everything that can be wrong with a format of another package is reported as
`InvalidInput` with the package's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from labledger.benchmarks.protocol import (
    ENTRY_POINT_GROUP,
    AgentKinds,
    Benchmark,
    BenchmarkFormat,
)
from labledger.errors import InvalidInput, LabLedgerError, Problem
from labledger.text.phrases import near_names

BUILT_IN = {
    "harbor": "labledger.benchmarks.harbor.translation:HARBOR",
    "humaneval": "labledger.benchmarks.python_tasks.humaneval:HUMANEVAL",
    "mbpp": "labledger.benchmarks.python_tasks.mbpp:MBPP",
    "swebench": "labledger.benchmarks.swebench.swebench_format:SWEBENCH",
}
"""The formats of this package, as pyproject.toml registers them. A checkout that is not installed,
or was installed before, has no such metadata."""

_OWN_PACKAGE = "labledger"
_REFERENCE = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class BenchmarkReference:
    """A parsed `FORMAT:LOCATION`."""

    format_name: str
    location: str

    def __str__(self) -> str:
        return f"{self.format_name}:{self.location}"


def parse_reference(text: str) -> BenchmarkReference | None:
    """Return the reference that `text` is, or None if it is a path.

    A path that exists is a path, whatever colons it contains.
    """
    match = _REFERENCE.fullmatch(text)
    if match is None or Path(text).exists():
        return None
    return BenchmarkReference(match[1], match[2])


def read_benchmark(reference: BenchmarkReference, agents: Sequence[str] = ()) -> Benchmark:
    """Return the benchmark that a reference names, with its agents of `agents` that have arguments.

    An agent is given by its name, or as `KIND:ARGUMENT` where the format has agents of this kind;
    it is then added to the benchmark. Raises `InvalidInput` if there is no such format, if it
    cannot be loaded, if it fails, and with every problem that it finds in the location or in an
    argument.
    """
    benchmark_format, package = _load_format(reference)
    benchmark = _checked(
        reference, package, "read", partial(benchmark_format.read, reference.location)
    )
    if not isinstance(benchmark_format, AgentKinds):
        return benchmark
    for given in agents:
        kind, colon, argument = given.partition(":")
        if colon and kind in benchmark_format.agent_kinds:
            add_agent = partial(benchmark_format.add_agent, benchmark, kind, argument)
            benchmark = _checked(reference, package, "add_agent", add_agent)
            *others, added = benchmark.agents
            benchmark = replace(benchmark, agents=(*others, replace(added, given_as=given)))
    return benchmark


def _checked(
    reference: BenchmarkReference, package: str, function: str, call: Callable[[], Benchmark]
) -> Benchmark:
    """Return the benchmark that a `function` of a format returns. Raises `InvalidInput`."""
    try:
        benchmark = call()
    except LabLedgerError:
        raise
    except OSError as error:
        problem = Problem(error.filename or reference.location, error.strerror or str(error))
        raise InvalidInput(f"cannot read {reference}", [problem]) from error
    except Exception as error:
        raise _format_failed(reference, package, error) from error
    if not isinstance(benchmark, Benchmark):
        returned = TypeError(f"{function}() returned {type(benchmark).__name__}, not a Benchmark")
        raise _format_failed(reference, package, returned)
    return benchmark


def _load_format(reference: BenchmarkReference) -> tuple[BenchmarkFormat, str]:
    """Return the format of a reference and the name of the package that it is from."""
    name = reference.format_name
    registered = _registered_formats()
    if name not in registered:
        close = near_names(name, registered)
        hint = f"did you mean {close[0]}:{reference.location}?" if close else None
        formats = ", ".join(sorted(registered))
        message = f"there is no file of this name, and no format {name!r}; formats: {formats}"
        raise InvalidInput(
            f"cannot read {reference}", [Problem(str(reference), message, hint=hint)]
        )
    by_package = registered[name]
    if len(by_package) > 1:
        message = f"the packages {' and '.join(sorted(by_package))} both have a format {name!r}"
        problem = Problem(str(reference), message, hint="uninstall all but one of them")
        raise InvalidInput(f"cannot read {reference}", [problem])
    [(package, entry_point)] = by_package.items()
    try:
        loaded = entry_point.load()
    except Exception as error:
        raise _format_failed(reference, package, error) from error
    if not isinstance(loaded, BenchmarkFormat):
        wrong = TypeError(f"{entry_point.value} has not the attributes name, agents and read")
        raise _format_failed(reference, package, wrong)
    return loaded, package


def _registered_formats() -> dict[str, dict[str, EntryPoint]]:
    """Return the entry points by the format's name and the package's name."""
    registered: dict[str, dict[str, EntryPoint]] = {
        name: {_OWN_PACKAGE: EntryPoint(name, value, ENTRY_POINT_GROUP)}
        for name, value in BUILT_IN.items()
    }
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        package = entry_point.dist.name if entry_point.dist else entry_point.module
        registered.setdefault(entry_point.name, {}).setdefault(package, entry_point)
    return registered


def _format_failed(reference: BenchmarkReference, package: str, error: Exception) -> InvalidInput:
    message = (
        f"the format {reference.format_name!r} of the package {package} failed: "
        f"{type(error).__name__}: {error}"
    )
    hint = f"report it to the authors of {package}"
    return InvalidInput(f"cannot read {reference}", [Problem(str(reference), message, hint=hint)])
