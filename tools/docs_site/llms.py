"""llms.txt, for programs that read instead of people: what kvtrace is, its commands, and how each page begins.

`make docs` writes the project's, with links to the files of docs/; the site has one with links to its own pages.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from . import commands

ROOT = Path(__file__).resolve().parents[2]
PATH = "llms.txt"
ABOUT = """\
Install: `pip install kvtrace` (Python 3.11 or newer). `kvtrace start LOG` turns a raw log into a trace without text,
and answers how much memory and how many GPUs it needs. `kvtrace COMMAND --help` has all options with examples, and
`--json` gives results to programs. In Python, `kvtrace.COMMAND` has the same options as keywords, such as
`kvtrace.curve("trace.jsonl", sample="10%")`. Errors and results contain no text of a log."""
SHORT = 60  # characters: a shorter sentence says too little of a page alone
ENTRY = re.compile(r"^( +)- (?:(.+):|(?:.+: )?(\S+\.md))$", re.M)  # of the navigation: a section, or a page
DESCRIPTION = re.compile(r"^site_description: (.+)$", re.M)


def text(link: Callable[[str], str]) -> str:
    """The file; `link` gives the target of a page."""
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    description = DESCRIPTION.search(settings)
    assert description
    lines = ["# kvtrace", "", f"> {description[1]}", "", ABOUT, "", "## Commands", ""]
    for name, call, task in commands.rows():
        function = "" if call == "-" else f", `kvtrace.{call.strip('`')}`"
        lines.append(f"- `kvtrace {name}`{function}: {task}")
    for section, pages in _sections(settings).items():
        lines += ["", f"## {section}", ""]
        lines += [f"- {_entry(page, link(page))}" for page in pages]
    return "\n".join(lines) + "\n"


def of_files(path: str) -> str:
    """The link of the project's llms.txt to a page: its file."""
    return f"docs/{path}"


def of_site(path: str) -> str:
    """The link of the site's llms.txt to a page."""
    return f"{path.removesuffix('.md')}.html"


def write() -> None:
    """Write the project's llms.txt."""
    (ROOT / PATH).write_text(text(of_files), encoding="utf-8")


def _sections(settings: str) -> dict[str, list[str]]:
    """The written pages of the navigation, by the section that they are in."""
    sections: dict[str, list[str]] = {}
    above = [(0, "Start")]  # (indentation, section) of the sections around a line
    for spaces, section, page in ENTRY.findall(settings[settings.index("\nnav:") : settings.index("\ntheme:")]):
        above = [one for one in above if one[0] < len(spaces)]
        if section:
            above.append((len(spaces), section))
        else:
            sections.setdefault(above[-1][1], []).append(page)
    return sections


def _entry(path: str, target: str) -> str:
    """A link to a page, and its first sentence; the next one too, where that is short."""
    page = (ROOT / "docs" / path).read_text(encoding="utf-8")
    title, _, body = page.partition("\n")
    paragraph = next(part for part in re.split(r"\n\s*\n", body.strip()) if re.match(r"(?!```)[A-Za-z`*\[]", part))
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    first, *others = re.split(r"(?<=[.?])\s", plain)
    sentence = " ".join([first, *others[:1]]) if len(first) < SHORT else first
    return f"[{title.lstrip('# ')}]({target}): {sentence.rstrip(':')}"
