"""Make programs run in any image, with their own loader and libraries beside them.

A dynamic program names its loader by an absolute path, and otherwise gets the image's libraries,
which may not fit. So this machine's loader and libraries are copied into the agent's folder, and
the program names them (`PT_INTERP`, `DT_RPATH`). The image's own programs are not affected.
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
"""Libraries that glibc loads by name when a program looks up users and hosts."""
_LISTED = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)
_LEFT_OUT = shutil.ignore_patterns(
    "__pycache__",
    "site-packages",
    "dist-packages",
    "sitecustomize.py",
    "config-*",
    "test",
    "tests",
    "idlelib",
    "turtledemo",
    "tkinter",
    "ensurepip",
    "lib2to3",
    "_tkinter*.so",
    "_test*.so",
    "_ctypes_test*.so",
    "nis*.so",
)
"""Parts of a Python that programs do not need, or that fit only this machine."""
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
    """The path by which it was found, which may be in a virtual environment."""
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
        """The name of the modules' folder below `lib`, such as `python3.12`."""
        return "python{}.{}".format(*self.minor)


@cache
def python_facts(python: Path) -> PythonFacts:
    """Ask a Python for its version and its paths. Raises `ClientFailed`."""
    facts = json.loads(run(f"{python}", [*isolated(python), "-c", _PROBE], timeout_s=60))
    stdlib = Path(facts["stdlib"])
    modules = Path(facts["modules"] or stdlib / "lib-dynload")
    if not modules.is_dir():
        modules = Path(facts["platstdlib"]) / "lib-dynload"
    return PythonFacts(python, facts["version"], Path(facts["executable"]), stdlib, modules)


def find_python(oldest: tuple[int, int], newest: tuple[int, int]) -> PythonFacts | None:
    """Return the Python that runs labledger if its version fits, else the newest on the `PATH`."""
    if oldest <= sys.version_info[:2] <= newest:
        return python_facts(Path(interpreter()))
    for minor in range(newest[1], oldest[1] - 1, -1):
        if program := find_program(f"python3.{minor}"):
            return python_facts(Path(program))
    return None


@cache
def own_loader() -> Path | None:
    """Return the dynamic loader of this machine's C library; None if it is not found."""
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
    """Return whether a file with these first bytes is a 64-bit ELF file for this machine."""
    machines = {"x86_64": 62, "aarch64": 183}
    is_known = header[:6] == b"\x7fELF\x02\x01" and len(header) >= 20
    return is_known and struct.unpack_from("<H", header, 18)[0] == machines.get(os.uname().machine)


def copy_python(facts: PythonFacts, tree: Path, mount: str) -> Path:
    """Put a Python and an empty virtual environment into `tree`, which is mounted at `mount`.

    Returns the folder for packages. The Python finds its library by its own location, and the
    virtual environment finds the Python by `mount`. Raises `OSError`.
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
    """Compile all modules, which containers cannot do. The same files give the same bytes."""
    flags = ["-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", str(tree), "-p", mount]
    folders = [str(tree / PYTHON / "lib"), str(tree / PACKAGES / "lib")]
    command = [*isolated(facts.python), "-m", "compileall", *flags, *folders]
    # A package may contain templates that are not Python.
    run("compileall", ["sh", "-c", '"$@" >/dev/null 2>&1 || true', "sh", *command])


def make_independent(patchelf: Path, tree: Path, mount: str) -> None:
    """Make the dynamic programs in `tree` run in any image that has it mounted at `mount`.

    Skips programs for another loader than this machine's. Raises `ClientFailed`.
    """
    loader = own_loader()
    if loader is None:
        raise ClientFailed("this machine has no known dynamic loader")
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
        # A DT_RUNPATH, which most have, disables the program's DT_RPATH for their own libraries.
        if run_path := _run_path(patchelf, path):
            _set_run_path(patchelf, path, run_path, rpath)


def _copy_libraries(loader: Path, files: Iterable[Path], libraries: Path) -> list[Path]:
    """Copy the loader and the libraries that files need. Return the copied libraries."""
    tree = libraries.parent
    copied = {loader.name: loader}
    for path in files:
        command = [str(loader), "--list", str(path)]
        done = subprocess.run(command, capture_output=True, check=False, cwd=SAFE_FOLDER)
        for name, library in _LISTED.findall(os.fsdecode(done.stdout)):
            if not Path(library).is_relative_to(tree):
                copied.setdefault(name, Path(library))
    if (libc := copied.get("libc.so.6")) is not None:
        beside = {name: libc.parent / name for name in _OF_LOADER}
        copied |= {name: path for name, path in beside.items() if path.exists()}
    for name, library in copied.items():
        shutil.copy2(library, libraries / name)
    return [libraries / name for name in sorted(copied) if name != loader.name]


def _run_path(patchelf: Path, path: Path) -> str:
    """Return the library paths of a file, separated by colons; empty if it has none."""
    return run("patchelf", [str(patchelf), "--print-rpath", str(path)]).strip()


def _set_run_path(
    patchelf: Path, path: Path, run_path: str, added: str, flags: Iterable[str] = ()
) -> None:
    """Keep the relative library paths of a file, and append `added`."""
    relative = [item for item in run_path.split(":") if item.startswith("$ORIGIN")]
    path.chmod(path.stat().st_mode | 0o200)
    joined = ":".join([*relative, added])
    run("patchelf", [str(patchelf), *flags, "--force-rpath", "--set-rpath", joined, str(path)])


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64)
