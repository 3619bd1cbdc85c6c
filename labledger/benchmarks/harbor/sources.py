"""Find the task folders of a location, and fetch them from Git repositories.

A location is a task folder, a folder of them, a `dataset.toml` beside its task folders, or a
`registry.json` with tasks in Git repositories. Each commit has a folder in the cache, which
may not change. Git asks for no passwords and runs no hooks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from labledger.benchmarks.harbor.accepted_tables import accept_tables
from labledger.benchmarks.harbor.other_benchmarks import other_benchmark
from labledger.benchmarks.harbor.task_files import HarborTaskFiles
from labledger.errors import InvalidInput, Problem
from labledger.files import lab_folder
from labledger.files.durable_files import filled_folder
from labledger.files.project_files import ProjectFiles, require_location
from labledger.host_programs import SAFE_FOLDER, environment, find_program
from labledger.records import JsonObject
from labledger.records.json_schemas import located_problems, read_toml_document, refuse_problems

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_CLONE_TIMEOUT_S = 3600
_GIT_SETTINGS = (
    *("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false"),
    *("-c", "advice.detachedHead=false", "-c", "protocol.file.allow=always"),
)
"""Git runs no program of a repository, and may read local ones, which the user has allowed."""
_GIT_VARIABLES = {"GIT_TERMINAL_PROMPT": "0", "GIT_PROTOCOL_FROM_USER": "0", "LC_ALL": "C"}
"""The address is not trusted: Git starts only remote helpers that the settings always allow."""

_GIT_ADVICE = ("hint:", "Please make sure you have the correct access", "and the repository exists")
_MAX_LINES = 4
_MAX_LINE = 300
"""The most lines of Git's errors in a message, and the most characters of each."""


class Clones:
    """Repositories at commits. Each is cloned and checked at most once."""

    def __init__(self) -> None:
        self._folders: dict[tuple[str, str], Path | InvalidInput] = {}

    def checked_out(self, url: str, commit: str) -> Path:
        """Return the folder with the files of a repository. Repeats an earlier `InvalidInput`."""
        key = (url, commit)
        if key not in self._folders:
            try:
                self._folders[key] = _checked_out(url, commit)
            except InvalidInput as error:
                self._folders[key] = error
        folder = self._folders[key]
        if isinstance(folder, InvalidInput):
            raise folder
        return folder


def _checked_out(url: str, commit: str) -> Path:
    """Return the folder with the files of a repository at a commit. Clone it if it is missing.

    Raises `InvalidInput` if the commit is not complete or cannot be fetched.
    """
    where = f"{url}@{commit}"
    if not _COMMIT.fullmatch(commit):
        message = f"found commit {commit!r}; expected all its 40 hexadecimal digits"
        raise _git_problem(where, message, "a branch or tag may name other content tomorrow")
    local = _local_repository(url)
    is_relative = local is not None and not local.is_absolute()
    if url.startswith("-") or "::" in url or not url.isprintable() or is_relative:
        raise _git_problem(where, "is not the address of a Git repository")
    cache = lab_folder.cache_folder()
    if cache is None:
        raise _git_problem(where, "there is no cache folder to clone to", "set XDG_CACHE_HOME")
    name = f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{commit}"
    target = cache / "git" / name
    try:
        if not target.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            with filled_folder(target) as folder:
                _clone(url, commit, folder)
    except OSError as error:
        raise _git_problem(where, f"cannot be stored in {target}: {error.strerror}") from error
    _require_unchanged(where, target, commit)
    return target


def _local_repository(url: str) -> Path | None:
    """Return the local folder that an address names; None if it names another machine."""
    if url.startswith("file:"):
        return Path("/", unquote(url.removeprefix("file:")).lstrip("/"))
    # As in Git, a colon before the first slash ends the name of a machine.
    is_remote = "://" in url or ":" in url.partition("/")[0]
    return None if is_remote else Path(url)


def _clone(url: str, commit: str, folder: Path) -> None:
    """Fetch one commit, or the whole repository if its server does not serve single commits."""
    where = f"{url}@{commit}"
    _git(where, "init", "--quiet", str(folder))
    _git(where, "-C", str(folder), "remote", "add", "--", "origin", url)
    try:
        _git(where, "-C", str(folder), "fetch", "--quiet", "--depth=1", "origin", commit)
    except InvalidInput:
        _git(where, "-C", str(folder), "fetch", "--quiet", "--tags", "origin")
    _git(where, "-C", str(folder), "checkout", "--quiet", "--detach", commit)


def _require_unchanged(where: str, folder: Path, commit: str) -> None:
    head = _git(where, "-C", str(folder), "rev-parse", "HEAD").strip()
    status = _git(where, "-C", str(folder), "status", "--porcelain", "--ignored")
    if head != commit or status:
        changed = status.splitlines()[0][3:] if status else "HEAD"
        hint = f"remove {folder} to have it cloned anew"
        raise _git_problem(where, f"{changed} was changed in {folder}", hint)


def _git(where: str, *words: str) -> str:
    """Return the output of a git command. Raises `InvalidInput` with git's errors."""
    git = find_program("git")
    if git is None:
        raise _git_problem(where, "git is not installed", "install git")
    inherited = {n: value for n, value in environment().items() if not n.startswith("GIT_")}
    try:
        ended = subprocess.run(
            [git, *_GIT_SETTINGS, *words],
            env={**inherited, **_GIT_VARIABLES},
            # git reads the settings of the repository that it starts in.
            cwd=SAFE_FOLDER,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CLONE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise _git_problem(where, f"git took longer than {_CLONE_TIMEOUT_S} seconds") from error
    if ended.returncode:
        command = words[2] if words[0] == "-C" else words[0]
        reason = _git_message(ended.stderr) or f"exit status {ended.returncode}"
        raise _git_problem(where, f"git {command}: {reason}")
    return ended.stdout


def _git_message(errors: str) -> str:
    """Return the errors of git and its helpers, without blank lines and general advice."""
    lines = [line.strip() for line in errors.splitlines()]
    useful = [line for line in lines if line and not line.startswith(_GIT_ADVICE)]
    return "; ".join(line[:_MAX_LINE] for line in dict.fromkeys(useful[:_MAX_LINES]))


def _git_problem(where: str, message: str, hint: str | None = None) -> InvalidInput:
    return InvalidInput("the repository cannot be used", [Problem(where, message, hint=hint)])


TASK_FILE = "task.toml"
DATASET_FILE = "dataset.toml"

_MAX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class ListedTask:
    """A task of a location. Its folder may still have to be cloned or checked."""

    folder: Path
    """The task's folder. In a Git repository, it is relative to the repository."""
    name: str | None = None
    """Its name in the listing; None if the task or its folder has the name."""
    listing: Path | None = None
    """The `dataset.toml` or `registry.json` that lists it."""
    digest: str | None = None
    """The digest of its content in a `dataset.toml`."""
    url: str | None = None
    """Its Git repository; None for a folder of this machine."""
    commit: str = ""

    def checked_folder(self, clones: Clones) -> Path:
        """Return the task's folder. Clone it if necessary. Raises `InvalidInput`."""
        if self.url is not None:
            top = clones.checked_out(self.url, self.commit)
            folder = top / self.folder
            is_inside = Path(os.path.realpath(folder)).is_relative_to(os.path.realpath(top))
            if not is_inside or not _is_task(folder):
                raise _problem(self.folder, f"is no task folder of {self.url}")
            return folder
        if self.listing is not None and not _is_task(self.folder):
            message = f"{self.listing} lists it, and it is no task folder"
            raise _problem(self.folder, message, "download it there")
        if self.digest is not None:
            actual = f"sha256:{HarborTaskFiles(self.folder).digest()}"
            if actual != self.digest:
                message = f"its content has the digest {actual}, and {self.listing} says "
                raise _problem(self.folder, message + self.digest)
        return self.folder


@dataclass(frozen=True, slots=True)
class TaskSource:
    """The tasks of a location."""

    name: str
    """The benchmark's name."""
    version: str | None
    """The version in a registry or dataset; None without one."""
    tasks: tuple[ListedTask, ...]
    notes: tuple[str, ...] = ()
    """Sentences about unused parts."""
    ignored: tuple[Problem, ...] = ()
    """Keys of the listing that Harbor and labledger ignore."""


def find_tasks(location: str) -> TaskSource:
    """Return the tasks of a location.

    Raises `InvalidInput`. Raises one `PermissionNeeded` for all folders and local repositories
    outside the location's project, and one for a location that is a link out of its project.
    """
    text, _, wanted = location.partition("#")
    path = Path(location)
    if not path.exists() and wanted:
        path = Path(text)
    else:
        wanted = ""
    require_location(path, f"harbor:{location}")
    if path.is_file():
        if path.name == TASK_FILE:
            return find_tasks(str(path.parent))
        project = ProjectFiles.of(path.parent, f"harbor:{location}")
        if path.suffix == ".json":
            return _read_registry(path, wanted, project)
        return _read_dataset(path, project)
    if not path.is_dir():
        raise _problem(path, "there is no such file or folder", _hub_hint(location))
    if _is_task(path):
        return TaskSource(_folder_name(path), None, (ListedTask(path),))
    project = ProjectFiles.of(path, f"harbor:{location}")
    if (path / DATASET_FILE).is_file():
        return _read_dataset(path / DATASET_FILE, project)
    return _read_folder(path, project)


def _read_folder(path: Path, project: ProjectFiles) -> TaskSource:
    folders = _task_folders(path)
    if not folders:
        if (other := other_benchmark(path)) is not None:
            raise _problem(path, *other)
        expected = f"holds no {TASK_FILE}, no {DATASET_FILE} and no folder with a {TASK_FILE}"
        inner = next((p for p in sorted(path.iterdir()) if p.is_dir() and _task_folders(p)), None)
        hint = None if inner is None else f"did you mean {inner}?"
        raise _problem(path, expected, hint)
    for folder in folders:
        project.may_read(folder)
    project.require()
    return TaskSource(_folder_name(path), None, tuple(map(ListedTask, folders)))


def _task_folders(path: Path) -> list[Path]:
    try:
        return [p for p in sorted(path.iterdir()) if _is_task(p)]
    except OSError:
        return []


def _is_task(folder: Path) -> bool:
    """Return whether a folder has a task file, even one that cannot be read."""
    path = folder / TASK_FILE
    return os.path.lexists(path) and not path.is_dir()


_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?(@[^/]*)?")


def _hub_hint(location: str) -> str | None:
    """Return a hint for a name that Harbor would look up in its hub or registry."""
    if "://" in location:
        return "clone the repository or download the file, and name it here"
    if not _HUB_NAME.fullmatch(location):
        return None
    return (
        f"if {location} is a name of Harbor's hub: `harbor download {location} -o FOLDER` fetches "
        "its folders, and `labledger run harbor:FOLDER` runs them"
    )


# -- dataset.toml


def _read_dataset(path: Path, project: ProjectFiles) -> TaskSource:
    """Return the tasks of a `dataset.toml`, which are in folders beside it."""
    project.may_read(path)
    project.require()
    tables = accept_tables(read_toml_document(path), "harbor_dataset_v1")
    refuse_problems(path, tables.problems)
    values = tables.values
    _require_tasks(path, values)
    about = values["dataset"]
    for row in values["tasks"]:
        project.may_read(_listed_folder(path, row["name"]))
    project.require()
    digests = {row["name"]: row["digest"] for row in values["tasks"]}
    tasks = tuple(
        ListedTask(_listed_folder(path, name), name, path, digest)
        for name, digest in digests.items()
    )
    notes = tuple(f"{row['path']} of the dataset is not used." for row in values.get("files", ()))
    name = _as_name(about["name"].rpartition("/")[2])
    ignored = located_problems(path, tables.ignored)
    return TaskSource(name, about.get("version"), tasks, notes, ignored)


def _require_tasks(path: Path, listing: JsonObject) -> None:
    if not listing.get("tasks"):
        refuse_problems(path, [(("tasks",), "lists no task")])


def _listed_folder(dataset: Path, name: str) -> Path:
    return dataset.parent / name.rpartition("/")[2]


# -- registry.json


def _read_registry(path: Path, wanted: str, project: ProjectFiles) -> TaskSource:
    """Return the tasks of one of a registry's datasets."""
    with project.open(path) as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise _problem(path, f"is larger than {_MAX_BYTES >> 20} MiB")
    try:
        datasets = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _problem(path, f"is not JSON: {error}") from error
    if not isinstance(datasets, list) or not all(isinstance(row, dict) for row in datasets):
        raise _problem(path, "expected a list of datasets")
    chosen = _chosen_dataset(path, datasets, wanted)
    tables = accept_tables(chosen, "harbor_registry_v1")
    refuse_problems(path, tables.problems)
    chosen = tables.values
    _require_tasks(path, chosen)
    for place in dict.fromkeys(_place_of(path, row) for row in chosen["tasks"]):
        if place is not None:
            project.may_read(place)
    project.require()
    notes = ("The metrics of the dataset are not used.",) if chosen.get("metrics") else ()
    tasks = tuple(_registered(path, row) for row in chosen["tasks"])
    ignored = located_problems(path, tables.ignored)
    return TaskSource(_as_name(chosen["name"]), chosen["version"], tasks, notes, ignored)


def _chosen_dataset(path: Path, datasets: list[dict[str, Any]], wanted: str) -> dict[str, Any]:
    names = [f"{row.get('name')}@{row.get('version')}" for row in datasets]
    matching = [
        row
        for row, name in zip(datasets, names, strict=True)
        if not wanted or wanted in (name, row.get("name"))
    ]
    if len(matching) == 1:
        return matching[0]
    problem = f"found {len(matching)} datasets {wanted}".rstrip() + "; it has " + ", ".join(names)
    raise _problem(
        path, problem, f"name one, such as harbor:{path}#{names[0] if names else 'NAME'}"
    )


def _place_of(registry: Path, row: JsonObject) -> Path | None:
    """Return the local folder of a registry's task; None if Git fetches it."""
    url = row.get("git_url")
    if url is None:
        return registry.parent / str(row["path"])
    local = _local_repository(url)
    # A relative address is refused later.
    return local if local is not None and local.is_absolute() else None


def _registered(registry: Path, row: JsonObject) -> ListedTask:
    url = row.get("git_url")
    folder = Path(row["path"]) if url is not None else registry.parent / row["path"]
    commit = row.get("git_commit_id") or "HEAD"
    return ListedTask(folder, row["name"], registry, url=url, commit=commit)


def _folder_name(path: Path) -> str:
    return _as_name(Path(os.path.realpath(path)).name)


def _as_name(text: str) -> str:
    """Return text as the name of a benchmark: letters, digits and `_ . -`."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-_.")[:64]
    return name or "harbor"


def _problem(path: Path, message: str, hint: str | None = None) -> InvalidInput:
    return InvalidInput("cannot read the tasks", [Problem(str(path), message, hint=hint)])
