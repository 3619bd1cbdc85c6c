"""Instructions of a Dockerfile that only BuildKit can build."""

from __future__ import annotations

import pytest

from labledger.engine.build_context import buildkit_needs
from labledger.engine.image_builds import knows_recent_dockerfiles


@pytest.mark.parametrize(
    ("text", "instructions"),
    [
        ("RUN <<EOF\napt-get update\nEOF\n", "line 2: RUN <<EOF"),
        ("RUN python3 - <<-'END' >/x\n  print(1)\nEND\nRUN true\n", "line 2: RUN <<-'END'"),
        ('COPY <<"a.txt" /a\nRUN --mount=x\na.txt\n', 'line 2: COPY <<"a.txt"'),
        ("RUN --mount=type=cache,target=/x true\n", "line 2: RUN --mount"),
        ("# a comment\nrun \\\n  --network=none true\n", "line 3: RUN --network"),
        ("COPY --from=0 --link a b\n", "line 2: COPY --link"),
        ("ADD --chmod=755 a b\n", "line 2: ADD --chmod"),
        ("ARG X TARGETARCH\nARG BUILDOS\n", "line 2: ARG TARGETARCH, line 3: ARG BUILDOS"),
        ("ONBUILD RUN --mount=x true\n", "line 2: RUN --mount"),
    ],
)
def test_what_needs_buildkit(text: str, instructions: str) -> None:
    """Each line that the engine's classic builder cannot build, or builds differently, is named."""
    assert str(buildkit_needs(f"FROM x\n{text}")).startswith(instructions)


@pytest.mark.parametrize(
    "text",
    [
        "RUN echo $((1<<2)) && cat <<<EOF\n",
        "RUN printf 'cat <<EOF\\nx\\nEOF\\n' >x\n",
        "# RUN <<EOF\nCOPY --from=0 --chown=a a b\n",
        "RUN program --mount=x\nARG TARGETS\nARG TARGETOS=linux\nLABEL x=--link\n",
        "HEALTHCHECK CMD cat <<EOF\n",
    ],
)
def test_what_the_engine_builds_itself(text: str) -> None:
    """Comments, quotations and other instructions that look similar need no BuildKit."""
    assert buildkit_needs(f"FROM x\n{text}").needs == ()


def test_the_version_of_the_language() -> None:
    """A standard `# syntax=` needs no BuildKit, and provides features that old engines lack."""
    heredoc = "FROM x\nRUN <<EOF\ntrue\nEOF\n"
    assert buildkit_needs(heredoc).is_recent
    assert not buildkit_needs(f"# syntax=docker/dockerfile:1\n{heredoc}").is_recent
    assert not buildkit_needs("FROM x\nRUN --mount=x true\n").is_recent
    assert buildkit_needs("# syntax=docker/dockerfile:1.4\nFROM x\n").needs == ()
    assert str(buildkit_needs("# escape=`\n# syntax=own/frontend\nFROM x\n")).endswith(
        "own/frontend"
    )
    assert buildkit_needs("FROM x\n# syntax=own/frontend\n").needs == ()


@pytest.mark.parametrize(
    ("version", "knows"), [("20.10.24+dfsg1", False), ("23.0.1", True), ("28.2.2", True)]
)
def test_engines(version: str, knows: bool) -> None:
    """Engines from version 23 on have Dockerfile 1.4 built in."""
    assert knows_recent_dockerfiles(version) is knows
