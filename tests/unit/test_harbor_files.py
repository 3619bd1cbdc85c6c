"""The files of Harbor task folders: links, ignore files, digests."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from harbor_tasks import write, write_task

from labledger.benchmarks.harbor.task_files import TaskFiles
from labledger.errors import InvalidInput


def names(files: TaskFiles, folder: str) -> list[str]:
    return list(files.selected_in(folder))


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_ignore_files(tmp_path: Path) -> None:
    """.harborignore leaves out tests and solutions, a deeper file overrides, and itself is out."""
    task = write_task(
        tmp_path / "t",
        files={
            "tests/.harborignore": "*.log\ncache/\n",
            "tests/a.log": "",
            "tests/cache/deep/b.txt": "",
            "tests/kept/.harborignore": "!keep.log\n",
            "tests/kept/keep.log": "",
            "tests/kept/other.log": "",
            "environment/.harborignore": "*\n",
            "environment/data.log": "",
        },
    )
    files = TaskFiles(task)
    assert names(files, "tests") == ["kept/keep.log", "test.sh"]
    everything = list(files.all_in("tests"))
    assert everything[:3] == [".harborignore", "a.log", "cache/deep/b.txt"]
    # Only tests and solutions have ignore files; an image is built of everything.
    assert list(files.all_in("environment")) == [".harborignore", "data.log"]


def test_a_needed_file_that_is_ignored(tmp_path: Path) -> None:
    """A test script that its own ignore file leaves out is a problem."""
    files = TaskFiles(write_task(tmp_path / "t", files={"tests/.harborignore": "*.sh\n"}))
    with pytest.raises(InvalidInput, match=r"is left out by \.harborignore, and is needed"):
        files.require_selected("tests/test.sh")


def test_links(tmp_path: Path) -> None:
    """Links within a task are followed; those out of it, in cycles or to nothing are refused."""
    secret = tmp_path / "secret"
    secret.write_text("x")
    task = write_task(tmp_path / "t", files={"shared/data.txt": "shared"})
    (task / "tests/data.txt").symlink_to("../shared/data.txt")
    (task / "tests/folder").symlink_to("../shared")
    assert names(TaskFiles(task), "tests") == ["data.txt", "folder/data.txt", "test.sh"]
    for target, message in (
        (secret, "leads out of the task's folder"),
        (tmp_path, "leads out of the task's folder"),
        ("../tests", "is a link to a folder that contains it"),
        ("bad", "is a broken link"),
        ("absent", "is a broken link"),
    ):
        link = task / "tests/bad"
        link.symlink_to(target)
        with pytest.raises(InvalidInput, match=message):
            TaskFiles(task).selected_in("tests")
        link.unlink()


def test_instructions_outside(tmp_path: Path) -> None:
    """A task's own texts are not read through a link that leads out of it."""
    outside = tmp_path / "outside"
    outside.write_text("x")
    task = write_task(tmp_path / "t")
    (task / "instruction.md").unlink()
    (task / "instruction.md").symlink_to(outside)
    with pytest.raises(InvalidInput, match="leads out"):
        TaskFiles(task).text("instruction.md")


def test_pointers_of_git_lfs(tmp_path: Path) -> None:
    """A file that Git LFS has not fetched is refused and not used as content."""
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
    task = write_task(tmp_path / "t", files={"tests/data.bin": pointer})
    with pytest.raises(InvalidInput, match=r"data\.bin: is a pointer of Git LFS"):
        TaskFiles(task).selected_in("tests")


def test_the_digest(tmp_path: Path) -> None:
    """The digest is over path and SHA-256 of each published file, in the order of their paths."""
    task = tmp_path / "t"
    published = {
        "README.md": "read me",
        "environment/Dockerfile": "FROM x\n",
        "environment/sub/file": "1",
        "instruction.md": "do it",
        "solution/solve.sh": "s",
        "task.toml": "",
        "tests/test.sh": "t",
        "tests/test_x.py": "p",
    }
    unpublished = {
        "notes.txt": "not part of a task",
        "other/file": "nor this",
        "tests/__pycache__/x.pyc": "",
        "environment/a.swp": "",
        "tests/.harborignore": "left-out\n",
        "tests/left-out": "",
    }
    for name, text in {**published, **unpublished}.items():
        write(task / name, text)
    expected = "".join(f"{name}\0{sha256(text)}\n" for name, text in sorted(published.items()))
    assert TaskFiles(task).digest() == sha256(expected)


def test_the_digest_with_a_gitignore(tmp_path: Path) -> None:
    """A task's .gitignore replaces the files that are never published."""
    task = tmp_path / "t"
    for name, text in {"task.toml": "", "tests/a.pyc": "1", "tests/b.tmp": "2"}.items():
        write(task / name, text)
    write(task / ".gitignore", "*.tmp\n")
    expected = f"task.toml\0{sha256('')}\ntests/a.pyc\0{sha256('1')}\n"
    assert TaskFiles(task).digest() == sha256(expected)
