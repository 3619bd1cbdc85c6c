"""A ledger on a file system that SQLite cannot use safely is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from labledger.errors import LedgerError
from labledger.files import lab_folder
from labledger.ledger.database import migrations

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw - nfs4 server:/home rw,vers=4.2
31 30 8:2 / /home/me/local\040disk rw shared:5 - xfs /dev/sdb1 rw
32 22 0:41 / /mnt/share rw - ext4 /dev/sdc1 rw
33 22 0:42 / /mnt/share rw - cifs //server/share rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/lab", "ext4"),
        ("/home/me/lab", "nfs4"),
        ("/home/me/local disk/lab", "xfs"),
        ("/homes/lab", "ext4"),
        ("/mnt/share/lab", "cifs"),
    ],
)
def test_the_nearest_mount_counts(path: str, kind: str) -> None:
    """The innermost and latest mount above a path decides its file system."""
    assert lab_folder.file_system_type(Path(path), MOUNTS) == kind


@pytest.mark.parametrize("kind", ["nfs4", "9p", "drvfs"])
def test_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A ledger is not created on a network file system; the message names the reason and what
    to do."""
    mount_table = tmp_path / "mountinfo"
    mount_table.write_text(f"{MOUNTS}40 22 0:50 / {tmp_path} rw - {kind} server:/lab rw\n", "utf-8")
    monkeypatch.setattr(lab_folder, "MOUNTS", mount_table)
    with pytest.raises(LedgerError, match=rf"network file system \({kind}\)") as refused:
        migrations.upgrade(tmp_path / "lab" / "ledger.sqlite")
    assert "`lab_dir=`" in (refused.value.hint or "")
    assert not (tmp_path / "lab").exists()


def test_this_machines_own_mounts_are_understood(tmp_path: Path) -> None:
    """The mounts of this machine are parsed, and the tests' folder is local."""
    if lab_folder.MOUNTS.exists():
        assert (
            lab_folder.file_system_type(tmp_path, lab_folder.MOUNTS.read_text("utf-8")) is not None
        )
    lab_folder.refuse_network(tmp_path)
