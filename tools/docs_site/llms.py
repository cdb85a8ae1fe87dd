"""llms.txt of the site: each page with its title and first sentence, for programs that read instead of people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
PATH = "llms.txt"


def text(nav: list[Any], description: str) -> str:
    """The file for a navigation as mkdocs.yml has it: written pages only, section by section."""
    lines = ["# kvtrace", "", f"> {description}", ""]
    section = ""
    for above, path in _pages(nav):
        if above != section:
            lines += ["", f"## {above}", ""]
            section = above
        lines.append(f"- {_entry(path)}")
    return "\n".join(lines) + "\n"


def _pages(part: Any, above: str = "Start") -> Iterator[tuple[str, str]]:
    """(section, path) of each written page."""
    if isinstance(part, str):
        if (DOCS / part).is_file():
            yield above, part
    elif isinstance(part, dict):
        for title, inner in part.items():
            yield from _pages(inner, title if isinstance(inner, list) else above)
    else:
        for inner in part:
            yield from _pages(inner, above)


def _entry(path: str) -> str:
    """A link to a page, and the first sentence of its text."""
    page = (DOCS / path).read_text(encoding="utf-8")
    title, _, body = page.partition("\n")
    paragraph = next(part for part in re.split(r"\n\s*\n", body.strip()) if re.match(r"(?!```)[A-Za-z`*\[]", part))
    sentence = re.split(r"(?<=[.:?])\s", " ".join(paragraph.split()))[0]
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence)
    return f"[{title.lstrip('# ')}]({path.removesuffix('.md')}.html): {plain}"
