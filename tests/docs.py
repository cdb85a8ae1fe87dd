"""The code blocks of README and docs."""

import re
import shlex
from pathlib import Path

from tests.shell import lines_of

ROOT = Path(__file__).resolve().parent.parent
PAGES = [page for pages in ("*.md", "docs/**/*.md", "experiments/*.md") for page in sorted(ROOT.glob(pages))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def blocks(page, *languages):
    """The code of a page's blocks in one of the languages, with the line each begins on."""
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        if match[1] in languages:
            yield text.count("\n", 0, match.start()) + 2, match[2]


def has_code(page):
    """Whether the page has commands of ours or Python to run."""
    return any(blocks(page, "python")) or any(map(is_ours, commands(page)))


def commands(page):
    """The shell commands of a page, one a line, continuation lines joined; comments left out."""
    for _, code in blocks(page, "sh"):
        yield from lines_of(code)


def is_ours(command):
    """Whether the command is one that a test can run: a pipeline that has kvtrace in it."""
    return any(word in ("kvtrace", "datagen") for word in shlex.split(command, comments=True))
