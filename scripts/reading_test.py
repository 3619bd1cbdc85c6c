"""Draw a reading test: sentences to understand, and subjects to find by the names of files.

    python scripts/reading_test.py sentences [SEED]   50 sentences, 30 subjects and 60 commits
    python scripts/reading_test.py key [SEED]         the files that they come from

A reader without prior knowledge says what each sentence and each commit means, and finds the file
of each subject in the list of files. The same seed draws the same test.
"""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from language import texts

PROJECT = Path(__file__).parents[1]
SENTENCES, SUBJECTS, COMMITS = 50, 30, 60
MIN_WORDS = 6
"""Shorter sentences are labels and headings."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"“])|\n\s*\n")


def pages() -> list[Path]:
    """Return the pages that are not generated."""
    every_page = [*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md")]
    copies = {f"docs/contributing/{page.name.lower()}" for page in PROJECT.glob("*.md")}
    return sorted(
        page
        for page in every_page
        if "generated" not in page.parts and str(page.relative_to(PROJECT)) not in copies
    )


def modules() -> list[Path]:
    """Return the modules of the package."""
    return sorted(PROJECT.glob("labledger/**/*.py"))


def sentences_of(path: Path) -> Iterator[str]:
    """Yield the sentences of a page or a module, at least `MIN_WORDS` words long."""
    for text in texts(path):
        if text.is_cell:
            continue
        for part in _SENTENCE_END.split(text.content):
            sentence = " ".join(part.split())
            if len(sentence.split()) >= MIN_WORDS and sentence.endswith((".", "?", ":")):
                yield sentence


def draw_sentences(chance: random.Random) -> list[tuple[str, Path]]:
    """Draw half of the sentences from pages, and half from docstrings, comments and messages."""
    drawn: list[tuple[str, Path]] = []
    for files in (pages(), modules()):
        every = [(sentence, path) for path in files for sentence in sentences_of(path)]
        drawn += chance.sample(every, SENTENCES // 2)
    return drawn


def draw_subjects(chance: random.Random) -> list[tuple[str, Path]]:
    """Draw modules, each with the first sentence of its docstring as the subject."""
    every = [path for path in modules() if not path.name.startswith("__")]
    return [(_first_sentence(path), path) for path in chance.sample(every, SUBJECTS)]


def _first_sentence(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(_SENTENCE_END.split(docstring)[0].split())


def commit_subjects() -> list[str]:
    """Return the subjects of the last commits, the newest first."""
    command = ["git", "log", "--no-merges", f"-{COMMITS}", "--format=%s"]
    done = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def main(words: list[str]) -> int:
    """Print the test or its key."""
    match words:
        case ["sentences" | "key" as part, *seed] if len(seed) <= 1:
            pass
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    chance = random.Random(int(seed[0]) if seed else 0)
    drawn = {"Sentences": draw_sentences(chance), "Subjects": draw_subjects(chance)}
    for title, items in drawn.items():
        print(f"\n## {title}\n")
        for number, (text, path) in enumerate(items, 1):
            print(f"{number}. {path.relative_to(PROJECT) if part == 'key' else text}")
    if part == "sentences":
        print("\n## Commits\n", *(f"- {subject}" for subject in commit_subjects()), sep="\n")
        print("\n## Files\n", *(path.relative_to(PROJECT) for path in modules()), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
