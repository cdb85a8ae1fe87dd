"""How the API pages read our docstrings: examples become code, pages become links, `__cinit__` is the constructor."""

from __future__ import annotations

import re

import griffe

PAGE = re.compile(r"docs/((?:[a-z-]+/)?[a-z-]+)\.md(#[a-z-]+)?")
EXAMPLE = re.compile(r"^([ ]*)>>> .*\n?(?:^[ ]*\S.*\n?)*", re.M)


def with_fences(text: str) -> str:
    """A docstring whose examples are fenced code.

    >>> with_fences("Add one.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['Add one.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    return EXAMPLE.sub(lambda match: f"{match[1]}```pycon\n{match[0].rstrip()}\n{match[1]}```\n", text)


def with_links(text: str) -> str:
    """A docstring whose pages of docs/ are links, as seen from reference/api/.

    >>> with_links("See docs/cache/sweep.md.")
    'See [cache/sweep](../../cache/sweep.md).'
    """
    return PAGE.sub(r"[\1](../../\1.md\2)", text)


class Docstrings(griffe.Extension):
    """The griffe extension that mkdocs.yml names."""

    def on_object(self, *, obj: griffe.Object, **_) -> None:
        """Fence the examples of each docstring, and link the pages that it names."""
        if obj.docstring:
            obj.docstring.value = with_links(with_fences(obj.docstring.value))

    def on_class(self, *, cls: griffe.Class, **_) -> None:
        """Show the C constructor of a compiled class as its constructor."""
        if "__cinit__" in cls.members and "__init__" not in cls.members:
            constructor = cls.members.pop("__cinit__")
            constructor.name = "__init__"
            cls.members["__init__"] = constructor
