"""How Sphinx builds this documentation. `scripts/docs` calls it; nothing here needs a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from generate import write_all
from sphinx.application import Sphinx

import labledger

project = "labledger"
author = "the labledger authors"
version = release = labledger.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
napoleon_use_ivar = True
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
smartquotes = False  # It would turn the dashes of options such as --on into one of another kind.
exclude_patterns = ["reference/generated"]
nitpicky = False  # Type annotations name classes that have no page of their own.
autodoc_typehints = "signature"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = "labledger"
html_copy_source = False
html_show_copyright = False

write_all(Path(__file__).parent)


def setup(app: Sphinx) -> None:
    """Keep napoleon from taking the words before a colon for the type of an attribute."""

    def begin_with_empty_line(*event: Any) -> None:
        _, kind, *_, lines = event
        if kind == "attribute":
            lines.insert(0, "")

    app.connect("autodoc-process-docstring", begin_with_empty_line, priority=400)
