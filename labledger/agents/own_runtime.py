"""Programs that run in any image: with a loader and libraries of their own, beside them.

A dynamic program names its loader by an absolute path, which an image may not have, and gets the
image's libraries, which may be of another C library or too old. Here the loader and the libraries
of this machine are put into the agent's folder, whose path in a container is fixed, and the program
names them: `PT_INTERP` for the loader, `DT_RPATH` for the libraries. No environment variable is
needed, so that programs of the image that the agent starts are not affected.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from labledger.agents.registry_clients import ClientFailed, run
from labledger.host_programs import SAFE_FOLDER, find_program, interpreter, isolated

LIBRARIES = "lib"
"""The folder of the loader and the libraries, in an agent's folder."""
PYTHON, PACKAGES = "python", "app"
"""The folders of the Python and of the virtual environment with the packages."""

_OF_LOADER = ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2")
"""What glibc loads by name when a program asks for users and hosts."""
_LISTED = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)
_LEFT_OUT = shutil.ignore_patterns(
    *("__pycache__", "site-packages", "dist-packages", "sitecustomize.py", "config-*"),
    *("test", "tests", "idlelib", "turtledemo", "tkinter", "ensurepip", "lib2to3"),
    *("_tkinter*.so", "_test*.so", "_ctypes_test*.so", "nis*.so"),
)
"""What a Python has that a program needs for nothing, or that is this machine's alone."""
_PROBE = """
import json, os, sys, sysconfig
executable = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps({
    "version": "%d.%d.%d" % sys.version_info[:3],
    "executable": os.path.realpath(executable),
    "stdlib": sysconfig.get_path("stdlib", vars={"installed_base": sys.base_prefix}),
    "platstdlib": sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix}),
    "modules": sysconfig.get_config_var("DESTSHARED"),
}))
"""


@dataclass(frozen=True, slots=True)
class PythonFacts:
    """A Python of this machine."""

    python: Path
    """By which it was found; it may be that of a virtual environment."""
    version: str
    executable: Path
    stdlib: Path
    modules: Path
    """The folder of the modules written in C."""

    @property
    def minor(self) -> tuple[int, int]:
        major, minor, _ = self.version.split(".")
        return int(major), int(minor)

    @property
    def folder_name(self) -> str:
        """The name of the folder of its modules, below `lib`."""
        return "python{}.{}".format(*self.minor)


@cache
def python_facts(python: Path) -> PythonFacts:
    """Return the facts of a Python. Raises `ClientFailed`."""
    facts = json.loads(run(f"{python}", [*isolated(python), "-c", _PROBE], timeout_s=60))
    stdlib = Path(facts["stdlib"])
    modules = Path(facts["modules"] or stdlib / "lib-dynload")
    if not modules.is_dir():
        modules = Path(facts["platstdlib"]) / "lib-dynload"
    return PythonFacts(python, facts["version"], Path(facts["executable"]), stdlib, modules)


def find_python(oldest: tuple[int, int], newest: tuple[int, int]) -> PythonFacts | None:
    """Return the Python that runs labledger if its version fits, else the newest on the path."""
    if oldest <= sys.version_info[:2] <= newest:
        return python_facts(Path(interpreter()))
    for minor in range(newest[1], oldest[1] - 1, -1):
        if found := find_program(f"python3.{minor}"):
            return python_facts(Path(found))
    return None


@cache
def own_loader() -> Path | None:
    """Return the dynamic loader of this machine's C library; None if it has none that is known."""
    for path in map(Path, ("/proc/self/exe", "/bin/sh", "/bin/ls")):
        interpreter = interpreter_of(path)
        if interpreter is not None and interpreter.exists():
            return interpreter
    return None


def own_libc() -> str | None:
    """Return the C library of this machine, `glibc` or `musl`; None for another."""
    loader = own_loader()
    if loader is None:
        return None
    return "musl" if "musl" in loader.name else "glibc"


def interpreter_of(path: Path) -> Path | None:
    """Return the loader that an ELF program of this machine names; None for any other file."""
    try:
        with path.open("rb") as file:
            header = file.read(64)
            if not _is_elf(header):
                return None
            [table] = struct.unpack_from("<Q", header, 32)
            size, count = struct.unpack_from("<HH", header, 54)
            file.seek(table)
            entries = file.read(size * count)
            for start in range(0, len(entries), size):
                if struct.unpack_from("<I", entries, start)[0] == 3:  # PT_INTERP
                    offset, _, _, length = struct.unpack_from("<QQQQ", entries, start + 8)
                    file.seek(offset)
                    return Path(os.fsdecode(file.read(length).rstrip(b"\0")))
    except (OSError, struct.error):
        pass
    return None


def _is_elf(header: bytes) -> bool:
    """Return whether first bytes are those of a 64-bit ELF file for this machine."""
    machines = {"x86_64": 62, "aarch64": 183}
    is_known = header[:6] == b"\x7fELF\x02\x01" and len(header) >= 20
    return is_known and struct.unpack_from("<H", header, 18)[0] == machines.get(os.uname().machine)


def copy_python(facts: PythonFacts, tree: Path, mount: str) -> Path:
    """Put a Python and an empty virtual environment of it into a folder that becomes `mount`.

    Returns the folder for packages. The Python finds its library by where it lies, and the virtual
    environment finds the Python by `mount`. Raises `OSError`.
    """
    library = tree / PYTHON / "lib" / facts.folder_name
    shutil.copytree(facts.stdlib, library, ignore=_LEFT_OUT)
    if not (library / "lib-dynload").is_dir():
        shutil.copytree(facts.modules, library / "lib-dynload")
    program = tree / PYTHON / "bin" / facts.folder_name
    program.parent.mkdir()
    shutil.copy2(facts.executable, program)
    packages = tree / PACKAGES / "lib" / facts.folder_name / "site-packages"
    packages.mkdir(parents=True)
    (tree / PACKAGES / "bin").mkdir()
    (tree / PACKAGES / "bin/python").symlink_to(f"../../{PYTHON}/bin/{facts.folder_name}")
    (tree / PACKAGES / "pyvenv.cfg").write_text(
        f"home = {mount}/{PYTHON}/bin\ninclude-system-site-packages = false\n"
        f"version = {facts.version}\n"
    )
    return packages


def compile_modules(facts: PythonFacts, tree: Path, mount: str) -> None:
    """Compile all modules, as a container cannot: the same files give the same bytes."""
    flags = ["-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", mount]
    folders = [str(tree / PYTHON / "lib"), str(tree / PACKAGES / "lib")]
    command = [*isolated(facts.python), "-m", "compileall", *flags, *folders]
    # A package may hold templates that are no Python.
    run("compileall", ["sh", "-c", '"$@" >/dev/null 2>&1 || true', "sh", *command])


def make_independent(patchelf: Path, tree: Path, mount: str) -> None:
    """Make the dynamic programs in a folder run in any image once it is mounted at `mount`.

    Programs for another loader than this machine's are left as they are. Raises `ClientFailed`.
    """
    loader = own_loader()
    if loader is None:
        raise ClientFailed("this machine has no dynamic loader that is known")
    programs, objects = [], []
    for path in sorted(tree.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        interpreter = interpreter_of(path)
        if interpreter is not None and interpreter.name == loader.name:
            programs.append(path)
        elif interpreter is None and _is_elf(_first_bytes(path)):
            if {".so", ".node"}.isdisjoint(path.suffixes):
                path.chmod(0o755)  # A static program; npm loses some permissions.
            else:
                objects.append(path)
    if not programs:
        return
    libraries = tree / LIBRARIES
    libraries.mkdir(exist_ok=True)
    copied = _copy_libraries(loader, [*programs, *objects], libraries)
    rpath = f"{mount}/{LIBRARIES}"
    for path in programs:
        path.chmod(0o755)
        flags = ["--set-interpreter", f"{rpath}/{loader.name}"]
        _set_run_path(patchelf, path, _run_path(patchelf, path), rpath, flags)
    for path in [*objects, *copied]:
        # A DT_RUNPATH, which most have, switches off the program's DT_RPATH for what they need.
        if run_path := _run_path(patchelf, path):
            _set_run_path(patchelf, path, run_path, rpath)


def _copy_libraries(loader: Path, files: Iterable[Path], libraries: Path) -> list[Path]:
    """Copy the loader, and the libraries of this machine that files need, and return the latter."""
    tree = libraries.parent
    found = {loader.name: loader}
    for path in files:
        command = [str(loader), "--list", str(path)]
        done = subprocess.run(command, capture_output=True, check=False, cwd=SAFE_FOLDER)
        for name, library in _LISTED.findall(os.fsdecode(done.stdout)):
            if not Path(library).is_relative_to(tree):
                found.setdefault(name, Path(library))
    if (libc := found.get("libc.so.6")) is not None:
        beside = {name: libc.parent / name for name in _OF_LOADER}
        found |= {name: path for name, path in beside.items() if path.exists()}
    for name, library in found.items():
        shutil.copy2(library, libraries / name)
    return [libraries / name for name in sorted(found) if name != loader.name]


def _run_path(patchelf: Path, path: Path) -> str:
    """Return where a file looks for libraries, separated by colons; nothing if it does not say."""
    return run("patchelf", [str(patchelf), "--print-rpath", str(path)]).strip()


def _set_run_path(
    patchelf: Path, path: Path, run_path: str, added: str, flags: Iterable[str] = ()
) -> None:
    """Keep the library paths of a file that are relative to it, and append `added`."""
    relative = [item for item in run_path.split(":") if item.startswith("$ORIGIN")]
    path.chmod(path.stat().st_mode | 0o200)
    joined = ":".join([*relative, added])
    run("patchelf", [str(patchelf), *flags, "--force-rpath", "--set-rpath", joined, str(path)])


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)
