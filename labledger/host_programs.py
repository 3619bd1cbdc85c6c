"""Starts programs without running any file of the working directory, which may be untrusted.

Interpreters start with `-I` and get this process's search path. Other programs are searched only in
absolute folders of PATH. Every start of an interpreter and every search for a program must use this
module. Its top-level imports are modules that every interpreter has loaded.
"""

# `-P` instead of `-I` would keep PYTHONPATH, whose empty and relative entries mean the working
# directory.

import os
import sys

SAFE_FOLDER = "/"
"""The working directory for programs such as npm and git, which read settings from it."""

_ISOLATED = ("-I", "-X", "utf8")
_SAFE_PATH = "PYTHONSAFEPATH"


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module, as `python -m` does, in an isolated interpreter."""
    run = f"import runpy; runpy.run_module({module!a}, run_name='__main__', alter_sys=True)"
    return code_command(run, *arguments)


def file_command(path: str | os.PathLike[str], *arguments: str) -> list[str]:
    """Return the command that runs a Python file in an isolated interpreter."""
    run = f"import runpy; runpy.run_path({os.path.abspath(path)!a}, run_name='__main__')"  # noqa: PTH100
    return code_command(run, *arguments)


def code_command(code: str, *arguments: str) -> list[str]:
    """Return the command that runs statements in an isolated interpreter."""
    prepare = f"import sys; sys.path[:] = {search_path()!a}"
    return [*isolated(sys.executable), "-c", f"{prepare}\n{code}", *arguments]


def isolated(python: str | os.PathLike[str]) -> list[str]:
    """Return the first words of a command that starts a Python in isolation: see the module."""
    return [os.fspath(python), *_ISOLATED]


def interpreter() -> str:
    """Return the path of the Python that runs labledger, for commands of this module."""
    return sys.executable


def search_path() -> list[str]:
    """Return the search path of this process, without the working directory.

    The working directory stays if labledger itself is there, as in a checkout.
    """
    package_folder, here = _own_folder(), _working_dir()
    absolute = (entry for entry in sys.path if os.path.isabs(entry))  # noqa: PTH117
    return [entry for entry in absolute if entry == package_folder or _real(entry) != here]


def environment() -> dict[str, str]:
    """Return the environment for programs that start others: no `PYTHON*`, only absolute PATH."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return variables | {"PATH": _absolute_path()}


def find_program(name: str) -> str | None:
    """Return the path of a program in the absolute folders of PATH, or None."""
    # Imported late: it takes longer than a small query.
    import shutil

    return shutil.which(name, path=_absolute_path())


def programs_named(name: str) -> list[str]:
    """Return every program of this name in the absolute folders of PATH, in their order."""
    folders = _absolute_path().split(os.pathsep)
    paths = dict.fromkeys(f"{folder.rstrip('/')}/{name}" for folder in folders)
    return [path for path in paths if os.access(path, os.X_OK) and os.path.isfile(path)]  # noqa: PTH113


class IsolatedChildren:
    """A context in which interpreters that a library starts ignore the working directory.

    The library cannot pass `-I` to them. The variable is removed afterwards, because programs that
    the user names must not inherit it.
    """

    def __enter__(self) -> None:
        self._before = os.environ.get(_SAFE_PATH)
        os.environ[_SAFE_PATH] = "1"

    def __exit__(self, *_: object) -> None:
        os.environ.pop(_SAFE_PATH)
        if self._before is not None:
            os.environ[_SAFE_PATH] = self._before


def use_safe_path() -> None:
    """Remove relative and empty entries from PATH, for libraries that search it."""
    if "PATH" in os.environ:
        os.environ["PATH"] = _absolute_path()


def leave_out_working_dir() -> None:
    """Remove the working directory, which `python -m` puts first, from the search path.

    The directory stays if labledger itself is there. This does not stop a folder `labledger`, or
    files with the names of modules that Python imports before labledger. `python -P -m labledger`
    does.
    """
    first = "" if sys.flags.safe_path else next(iter(sys.path), "")
    if first and first != _own_folder() and _real(first) == _working_dir():
        del sys.path[0]


def restart_in_utf8_mode() -> None:
    """Replace this process by the same command in Python's UTF-8 mode."""
    words = [sys.executable, "-X", "utf8", *sys.orig_argv[1:]]
    os.execv(words[0], words)  # noqa: S606


def _absolute_path() -> str:
    folders = filter(os.path.isabs, os.get_exec_path())
    return os.pathsep.join(folders) or os.defpath


def _own_folder() -> str:
    """Return the folder from which the package `labledger` is imported."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120


def _working_dir() -> str | None:
    try:
        return os.path.realpath(os.getcwd())  # noqa: PTH109
    except FileNotFoundError:
        return None  # The folder was removed, so nothing can be imported from it.


def _real(path: str) -> str:
    return os.path.realpath(path)
