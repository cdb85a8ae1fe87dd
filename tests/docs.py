"""What README and docs hold: their code blocks, and the --help texts that are generated into docs/cli/cli.md."""

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
HELP = re.compile(r"(<!-- help: (.*?) -->\n).*?(<!-- end -->)", re.S)


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
        for line in code.replace("\\\n", " ").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                yield line


def is_ours(command):
    """Whether the command is one that a test can run: a pipeline that has kvtrace in it."""
    return any(word in ("kvtrace", "datagen") for word in shlex.split(command, comments=True))


def with_help(text):
    """A page with its --help texts as the commands print them now."""
    from kvtrace import cli
    from kvtrace.cli import datagen

    groups = {"kvtrace": cli.commands, "datagen": datagen.commands}

    def help_of(match):
        name = match[2].split()
        group = groups[name[0]]
        shown = CliRunner().invoke(group, [*name[1:], "--help"], prog_name=name[0], terminal_width=118).output
        return f"{match[1]}```text\n{shown}```\n{match[3]}"

    return HELP.sub(help_of, text)
