"""The pages of the Python API: each public name of a room's `__init__.pyi`; commands have pages of their own."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src/kvtrace"
MADE_WITH_LITELLM = {"LiteLLMCallback"}  # docs/capture/record.md has it
ROOMS = {  # room -> title of its page, in reading order
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
    "capture": "Live sources",
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
    """All public names of the rooms, and the errors, in the order of the stubs.

    >>> [name.module for name in public_names() if name.name == "read"]
    ['kvtrace.formats.reading']
    """
    rooms = [_names_of("kvtrace", PACKAGE, only="_base")]
    rooms += [_names_of(f"kvtrace.{room}", PACKAGE / room) for room in ROOMS if room != "_base"]
    return [one for names in rooms for one in names if one.name not in MADE_WITH_LITELLM]


def _names_of(package: str, folder: Path, only: str = "") -> list[PublicName]:
    tree = ast.parse((folder / "__init__.pyi").read_text(encoding="utf-8"))
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(only))
    return [PublicName(alias.name, f"{package}.{node.module}") for node in imports for alias in node.names]


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
    sections = [f"# {ROOMS[room]}", f"{_sentence(room)}", f"In `{_package(room)}`: {listing}."]
    return "\n\n".join([*sections, *map(_directive, names)]) + "\n"


def _package(room: str) -> str:
    return "kvtrace" if room == "_base" else f"kvtrace.{room}"


def _sentence(room: str) -> str:
    """The first paragraph of the room's docstring."""
    tree = ast.parse((ROOT / "src/kvtrace" / room / "__init__.py").read_text(encoding="utf-8"))
    return " ".join((ast.get_docstring(tree) or "").split("\n\n")[0].split())


def _directive(one: PublicName) -> str:
    heading = f"{_package(one.room)}.{one.name}"
    return f"::: {one.module}.{one.name}\n    options:\n      heading: {heading}\n      toc_label: {one.name}"
