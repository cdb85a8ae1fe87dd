"""The pages of the Python API: each public name of `kvtrace/__init__.pyi`, grouped by the room where it lives."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "src/kvtrace/__init__.pyi"
ROOMS = {  # room, or file outside of all rooms -> title of its page, in reading order
    "from_log": "From a log to an answer",
    "trace": "Traces",
    "formats": "Files",
    "ingest": "Logs",
    "text": "Tokens and prompts",
    "privacy": "Releases and audits",
    "analysis": "Statistics",
    "cache": "Caches",
    "serving": "Serving",
    "synthesis": "Synthesis",
    "report": "Reports",
    "_base": "Errors",
}


class PublicName(NamedTuple):
    """A public name, and the module that defines it."""

    name: str
    module: str

    @property
    def room(self) -> str:
        """The room of its module."""
        return self.module.split(".")[1]


def public_names() -> list[PublicName]:
    """All public names in the order of the stub.

    >>> [name.module for name in public_names() if name.name == "read"]
    ['kvtrace.formats.reading']
    """
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    return [PublicName(alias.name, f"kvtrace.{node.module}") for node in imports for alias in node.names]


def path_of(room: str) -> str:
    """The path of a room's page in the site.

    >>> path_of("_base")
    'reference/api/errors.md'
    """
    return f"reference/api/{ROOMS[room].lower().replace(' ', '-')}.md"


def page(room: str) -> str:
    """The Markdown of a room's page: its sentence, then one directive for each public name, functions first."""
    names = sorted(
        (one for one in public_names() if one.room == room), key=lambda one: (one.name[0].isupper(), one.name)
    )
    listing = ", ".join(f"[`{one.name}`][{one.module}.{one.name}]" for one in names)
    sections = [f"# {ROOMS[room]}", f"{_sentence(room)}", f"In `import kvtrace`: {listing}."]
    return "\n\n".join([*sections, *map(_directive, names)]) + "\n"


def _sentence(room: str) -> str:
    """The first paragraph of the room's docstring."""
    package = ROOT / "src/kvtrace"
    file = package / room / "__init__.py" if (package / room).is_dir() else package / f"{room}.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())


def _directive(one: PublicName) -> str:
    return f"::: {one.module}.{one.name}\n    options:\n      heading: kvtrace.{one.name}\n      toc_label: {one.name}"
