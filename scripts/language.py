"""Find sentences and names that readers had to read twice, in pages and in modules.

    python scripts/language.py            every page, and every module of the package and the tests
    python scripts/language.py PATH...    these files and folders

New readers stumbled over these constructions. Rewrite the whole paragraph of a finding. Programs
in strings (shell, JavaScript, SVG) are skipped.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOMS = ("labledger", "scripts", "tests", "docs", "examples")
GENERATED = re.compile(
    r"docs/(reference/generated/|contributing/(architecture|changelog|contributing|security)\.md)"
)
MAX_SENTENCE_WORDS = 35
MAX_CELL_WORDS = 30
MAX_MODULE_WORDS, MAX_PACKAGE_WORDS = 60, 90

CONSTRUCTIONS = {
    "pronoun before of": r"\b(?:that|those) of\b",
    "relative after of": r"\bof (?:which|whom)\b",
    "passive of tell and say": r"\b(?:is|are|was|were|be|been) (?:told|said)\b",
    "unnamed actor": r"\b(?:nobody|somebody|whoever)\b",
    "turn, more, want": r"\b(?:its|their) turn\b|\bany more\b|\bfor want of\b",
    "inverted sentence": r"^Of (?:a|an|the|those|these|each|all|it|two|them)\b",
    "sentence about what": r"^What\b(?!.*\?$)",
}
_PATTERNS = {
    name: re.compile(text, re.IGNORECASE if text.startswith(r"\b") else 0)
    for name, text in CONSTRUCTIONS.items()
}
VAGUE_NAMES = {"each", "own", "told", "made", "stand", "stands", "found", "said"}
STORED = {"notification: what is to be told is never removed"}
"""Sentences in the schema of ledgers, which only a migration can change."""
STORED_FILES = {"python_grader_program.py"}
"""Files that runs stage, and whose digests they store."""
EXAMPLES = {"test_language.py"}
"""Modules whose strings break the rules on purpose."""
_SQL = ("SELECT", "CREATE", "INSERT", "WITH ", "UPDATE", "DELETE", "CASE ")
_SQL_WORDS = re.compile(r"\b(?:FROM|JOIN|WHERE|WHEN|AND|THEN)\b")
_PROGRAM_SIGNS = re.compile(r"[{}$=;<>|&\\]")
MAX_PROGRAM_SIGNS = 0.03
"""A long text, or one of several lines, with a larger share of these signs is a program."""
_PROGRAM_START = re.compile(
    r"(?:#!|import |from \S+ import |def |\[ |\| |set -|cat /|mkdir |echo |\w+ = )"
)
_CODE_LINES = re.compile(
    r"^ *\|.*$|^ *(?:>>>|\.\.\.) .*$|^ {4,}(?:python|scripts/|PYTHONPATH=)\S* .*$"
    r"|^ *(?:- )?[a-z_]+:(?: \S+)?$|^ *- \S+$",
    re.MULTILINE,
)
"""Rows of a table, lines of an example, lines that show how a script is called, and YAML."""
_SENTENCE_END = re.compile(r"[.!?:](?:[\s\"')*_]|$)")
_LITTLE_WORDS = {
    *("return", "returns", "yield", "a", "an", "the", "of", "its", "this", "whether", "is", "in"),
    *("to", "for", "and", "or", "it", "with", "as", "test"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A text or name that breaks a rule."""

    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph, list item, table cell, docstring, comment or message."""

    line: int
    content: str
    is_cell: bool = False


def findings(paths: list[Path]) -> Iterator[Finding]:
    """Yield every finding in files, and in the pages and modules of folders."""
    for path in paths:
        files = [path] if path.is_file() else sorted((*path.rglob("*.md"), *path.rglob("*.py")))
        for file in files:
            if not GENERATED.search(file.as_posix()) and file.name not in STORED_FILES | EXAMPLES:
                yield from findings_in(file)


def findings_in(path: Path) -> Iterator[Finding]:
    """Yield the findings in a page or a module."""
    content = path.read_text("utf-8")
    is_module = path.suffix == ".py"
    for text in texts(path):
        for sentence in _sentences(text.content):
            if sentence in STORED:
                continue
            for rule in _rules_broken(sentence):
                yield Finding(path, text.line, rule, sentence)
        if text.is_cell and _word_count(text.content) > MAX_CELL_WORDS:
            yield Finding(path, text.line, "long table cell", text.content)
    if is_module:
        tree = ast.parse(content)
        yield from _restated_names(path, tree)
        yield from _vague_names(path, tree)
        most = MAX_PACKAGE_WORDS if path.name == "__init__.py" else MAX_MODULE_WORDS
        if _word_count(_CODE_LINES.sub("", ast.get_docstring(tree) or "")) > most:
            yield Finding(path, 1, "long module docstring", f"more than {most} words")


def texts(path: Path) -> Iterator[Text]:
    """Yield the texts for people in a page or a module."""
    content = path.read_text("utf-8")
    return _python_texts(content) if path.suffix == ".py" else _page_texts(content)


def _rules_broken(sentence: str) -> Iterator[str]:
    for name, pattern in _PATTERNS.items():
        if pattern.search(sentence):
            yield name
    if _word_count(sentence) > MAX_SENTENCE_WORDS:
        yield "long sentence"


def _word_count(text: str) -> int:
    return len(re.findall(r"[\w'’-]+", text))


def _sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, with code as one word and links as their texts."""
    text = re.sub(r"``[^`]+``|`[^`]+`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    sentence_end = r"(?<=[.!?:;])[)*_\"”]*\s+(?=[A-Z(*_\"“])|\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )"
    for part in re.split(sentence_end, text):
        if stripped := " ".join(part.split()).strip(' *_()"“”'):
            yield stripped


# -- pages


def _page_texts(content: str) -> Iterator[Text]:
    lines: list[str] = []
    first, is_code = 0, False
    for number, line in enumerate(content.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith(("```", "~~~")):
            is_code = not is_code
            stripped = ""
        begins = ("|", "#", "- ", "* ")
        starts_anew = not stripped or stripped.startswith(begins) or re.match(r"\d+\. ", stripped)
        if starts_anew and lines:
            yield Text(first, " ".join(lines))
            lines = []
        if is_code or not stripped or set(stripped) <= set("|-: "):
            continue
        if stripped.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", stripped.strip("|")):
                yield Text(number, cell.strip(), is_cell=True)
            continue
        if not lines:
            first = number
        lines.append(re.sub(r"^(?:#+|[-*]|\d+\.) ", "", stripped))
    if lines:
        yield Text(first, " ".join(lines))


# -- modules


def _python_texts(content: str) -> Iterator[Text]:
    tree = ast.parse(content)
    quoted = {id(part) for node in ast.walk(tree) for part in _compared(node)}
    within_f_strings: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            within_f_strings.update(map(id, node.values))
            parts = (p.value if isinstance(p, ast.Constant) else "CODE" for p in node.values)
            message = "".join(map(str, parts))
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in within_f_strings
        ):
            message = node.value
        else:
            continue
        if id(node) in quoted:
            continue
        message = _CODE_LINES.sub("", message)
        if _is_prose(message):
            yield Text(node.lineno, message)
    yield from _comments(content)


def _compared(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the strings with which an assertion compares the output of a program."""
    if isinstance(node, ast.Assert):
        for part in ast.walk(node.test):
            if isinstance(part, ast.Compare):
                yield from ast.walk(part)


def _comments(content: str) -> Iterator[Text]:
    """Yield the comments of a module. Lines that follow each other are one comment."""
    lines: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(content).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != last + 1 and lines:
            yield Text(first, " ".join(lines))
            lines = []
        if not lines:
            first = token.start[0]
        last = token.start[0]
        lines.append(token.string.lstrip("# "))
    if lines:
        yield Text(first, " ".join(lines))


def _is_prose(text: str) -> bool:
    if len(text.split()) < 4 or text.lstrip().startswith(_SQL):
        return False
    if _PROGRAM_START.match(text.lstrip()) or len(_SQL_WORDS.findall(text)) > 1:
        return False
    if "\n" in text.strip() and not _SENTENCE_END.search(text):
        return False
    plain = re.sub(r"``[^`]+``|`[^`]+`", "", text)
    signs = len(_PROGRAM_SIGNS.findall(plain))
    is_short = "\n" not in text.strip() and _word_count(text) <= MAX_SENTENCE_WORDS
    return is_short or signs <= MAX_PROGRAM_SIGNS * len(plain)


def _restated_names(path: Path, tree: ast.Module) -> Iterator[Finding]:
    """Yield the docstrings of one line whose words are all in the name of what they describe."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        text = ast.get_docstring(node)
        if text is None or "\n" in text:
            continue
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", node.name)
        if _stems(text) - _LITTLE_WORDS <= _stems(name):
            yield Finding(path, node.lineno, "docstring that repeats the name", text)


def _stems(text: str) -> set[str]:
    words = re.findall(r"[a-z]+", text.lower())
    return {
        word if word in _LITTLE_WORDS else re.sub(r"(?:ies|es|s|ed|ing)$", "", word)
        for word in words
    }


def _vague_names(path: Path, tree: ast.Module) -> Iterator[Finding]:
    """Yield the variables and parameters whose names do not say what they hold."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg):
            name = node.arg
        else:
            continue
        if name in VAGUE_NAMES:
            yield Finding(path, node.lineno, "name that does not say what it holds", name)


def main(words: list[str]) -> int:
    """Print the findings in these paths, and return 1 if there is one."""
    paths = [Path(word) for word in words] or [*sorted(Path().glob("*.md")), *map(Path, ROOMS)]
    count = 0
    for finding in findings(paths):
        print(finding)
        count += 1
    print(f"{count} findings", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
