"""Recognize folders of other benchmarks, so that an error can name them and a remedy."""

from __future__ import annotations

from pathlib import Path

_MAX_FOLDERS = 50
"""The most subfolders that are inspected."""

_TERMINAL_BENCH_1 = (
    "has tasks of Terminal-Bench 1 (task.yaml), which is another format",
    "`harbor task migrate -i THIS -o FOLDER` makes Harbor tasks of them, for harbor:FOLDER",
)
_POLYGLOT = (
    "has exercises of the polyglot benchmark (LANGUAGE/exercises/practice)",
    "an adapter in Harbor's repository makes task folders of them",
)
_TAU_BENCH = (
    "is tau-bench, whose tasks are Python code with a simulated user",
    "labledger cannot run such tasks; look for a version of them as Harbor tasks",
)


def other_benchmark(folder: Path) -> tuple[str, str] | None:
    """Return a description of another benchmark's folder, and a remedy; None if unknown."""
    try:
        inner = [path for path in sorted(folder.iterdir()) if path.is_dir()][:_MAX_FOLDERS]
    except OSError:
        return None
    if any((path / "task.yaml").is_file() for path in (folder, *inner)):
        return _TERMINAL_BENCH_1
    if any((path / "exercises/practice").is_dir() for path in (folder, *inner)):
        return _POLYGLOT
    if any((folder / name).is_dir() for name in ("tau_bench", "src/tau2", "data/tau2")):
        return _TAU_BENCH
    return None
