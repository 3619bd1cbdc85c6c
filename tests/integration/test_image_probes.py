"""What an image answered is remembered for as long as nothing that it depends on has changed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_trials import BUSYBOX, ENGINE

from labledger.checks.image_checks import ImageProbes

pytestmark = pytest.mark.docker

ALL_WELL = "command -v cat >/dev/null || echo cat"
LACKS = "command -v no-such-command >/dev/null || echo no-such-command"


@pytest.fixture
def probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ImageProbes:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return ImageProbes(ENGINE, ENGINE.info())


def remembering(probes: ImageProbes, **changes: Any) -> ImageProbes:
    """The same without an engine: what is asked of an image is an error."""
    return replace(probes, **{"engine": None, **changes})


def test_an_image_that_has_everything_is_asked_once(
    probes: ImageProbes, image_ids: dict[str, str]
) -> None:
    """No container runs for a question that was answered well, and one does for any other."""
    image = image_ids[BUSYBOX]
    assert probes.run_probe(image, ALL_WELL) == (0, "")
    knows = remembering(probes)
    assert knows.run_probe(image, ALL_WELL) == (0, "")
    others = {
        "another image": lambda: knows.run_probe("sha256:" + "0" * 64, ALL_WELL),
        "another script": lambda: knows.run_probe(image, LACKS),
        "another user": lambda: knows.run_probe(image, ALL_WELL, "1000"),
        "another runtime": lambda: remembering(probes, oci_runtime="runc").run_probe(
            image, ALL_WELL
        ),
        "without cache": lambda: remembering(probes, use_cache=False).run_probe(image, ALL_WELL),
        **{
            f"another {name}": lambda name=name: remembering(
                probes, engine_info=probes.engine_info | {name: "another"}
            ).run_probe(image, ALL_WELL)
            for name in ("ID", "ServerVersion", "DefaultRuntime", "SecurityOptions")
        },
    }
    for ask in others.values():
        with pytest.raises(AttributeError, match="run_probe"):
            ask()


def test_an_image_that_lacks_something_is_asked_again(
    probes: ImageProbes, image_ids: dict[str, str], tmp_path: Path
) -> None:
    """Only what was well is remembered, and only from a file that is whole and one's own."""
    image = image_ids[BUSYBOX]
    for _ in range(2):
        assert probes.run_probe(image, LACKS) == (0, "no-such-command\n")
    assert not (tmp_path / "cache").exists()
    probes.run_probe(image, ALL_WELL)
    [kept] = (tmp_path / "cache" / "labledger").iterdir()
    content = kept.read_bytes()
    kept.write_bytes(content[:-2])
    with pytest.raises(AttributeError, match="run_probe"):
        remembering(probes).run_probe(image, ALL_WELL)
    if os.geteuid() == 0:
        kept.write_bytes(content)
        os.chown(kept, 12345, -1)
        with pytest.raises(AttributeError, match="run_probe"):
            remembering(probes).run_probe(image, ALL_WELL)
