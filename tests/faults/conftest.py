"""What tests of hostile output share."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest
from hostile_trials import Host
from sample_trials import Trials


@pytest.fixture
def host(trials: Trials, tmp_path: Path) -> Host:
    """Runs hostile trials beside a file of the host whose content looks like a good score."""
    secret = tmp_path / "host" / "secret"
    secret.parent.mkdir()
    secret.write_text(json.dumps({"verdict": "pass", "token": secrets.token_hex(16)}))
    return Host(trials, secret)
